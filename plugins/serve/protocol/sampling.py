"""The fields that every request for text has, and the SamplingParams that they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from core.errors import UserError
from core.sampling.params import SamplingParams
from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.structured import Form, StructuredFields

MOST_ANSWERS = 128  # n, as OpenAI has it
MOST_LOGPROBS = 20  # the best tokens of a position
MOST_STOPS = 64
MOST_BAD_WORDS = 256
LONGEST_BAD_WORD = 128  # characters
MOST_CHARACTERS = 16_384  # of all stop strings together, and of all bad words
MOST_STOP_IDS = 1024
MOST_ALLOWED_IDS = 2**18  # vocabularies are no larger
MOST_BIASES = 16_384
MOST_FOR_PROMPTS = 2**20
"""Entries of lists, and characters of texts, times the prompts: the engine reads them for each."""
INT32 = 2**31 - 1
PENALTY, BIAS = (0.01, 100), (-100, 100)
"""Of repetition_penalty and logit_bias. Beyond, logits would be infinite, and nothing be drawn."""


def bounds(low: float, high: float, **more: Any) -> Meta:
    """What the published schema says; the core's checks decide, and say why."""
    return Meta(extra_json_schema={"minimum": low, "maximum": high, **more})


# a list with more entries is refused before they are looked at
StopIds = Annotated[list[int], Meta(max_length=MOST_STOP_IDS)]
AllowedIds = Annotated[list[int], Meta(max_length=MOST_ALLOWED_IDS)]
Biases = Annotated[dict[str, Annotated[float, bounds(*BIAS)]], Meta(max_length=MOST_BIASES)]
BadWords = Annotated[
    list[Annotated[str, Meta(max_length=LONGEST_BAD_WORD)]],
    Meta(extra_json_schema={"maxItems": MOST_BAD_WORDS}),
]
Stop = Annotated[
    str | list[str],
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "string", "minLength": 1},
                {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                    "maxItems": MOST_STOPS,
                },
            ]
        }
    ),
]


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream tells besides the answer."""

    include_usage: bool | None = None  # a last event with the numbers of tokens
    continuous_usage_stats: bool | None = None  # the numbers so far in every event
    include_obfuscation: bool | None = None  # of no effect


class GenerationRequest(StructuredFields, kw_only=True):
    """What completions and chat have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: Annotated[int, bounds(1, MOST_ANSWERS)] | None = None
    max_tokens: Annotated[int, bounds(1, INT32)] | None = None
    temperature: Annotated[float, bounds(0, 100)] | None = None
    top_p: Annotated[float, bounds(0, 1, exclusiveMinimum=0)] | None = None
    stop: Stop | None = None
    seed: Annotated[int, bounds(-(2**63), 2**63 - 1)] | None = None
    presence_penalty: Annotated[float, bounds(-2, 2)] | None = None
    frequency_penalty: Annotated[float, bounds(-2, 2)] | None = None
    logit_bias: Biases | None = None

    top_k: Annotated[int, bounds(-1, INT32)] | None = None
    min_p: Annotated[float, bounds(0, 1)] | None = None
    repetition_penalty: Annotated[float, bounds(*PENALTY)] | None = None
    min_tokens: Annotated[int, bounds(0, INT32)] | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    bad_words: BadWords | None = None
    allowed_token_ids: AllowedIds | None = None
    prompt_logprobs: Annotated[int, bounds(0, MOST_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None
    priority: Annotated[int, bounds(-INT32, INT32)] | None = None
    cache_salt: str | None = None  # requests with different ones share no cached pages
    return_token_ids: bool | None = None
    extra_args: dict[str, Any] | None = None  # for plugins

    # of no effect here
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


SAMPLING = (
    "n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens",
    "stop_token_ids", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens",
    "include_stop_str_in_output", "bad_words", "allowed_token_ids", "prompt_logprobs", "extra_args",
)  # fmt: skip
"""The fields that SamplingParams knows by the same name."""
FORM = "structured_outputs"
_OF_A_PROCESSOR = re.compile(rf"^\S+: (?={FORM}: |ignore_eos )")
"""Which logits processor holds answers to forms is nothing that a client chose."""


def sampling_params(
    request: GenerationRequest, defaults: Mapping[str, Any], form: Form | None, **decided: Any
) -> SamplingParams:
    """What the engine is asked for. `defaults` are the model's own, as `own_defaults` has them,
    `form` that of the answer, `decided` what the endpoint makes of its own fields. ApiError with
    every mistake.
    """
    given = dict(defaults)
    given |= {name: value for name in SAMPLING if (value := getattr(request, name)) is not None}
    given |= decided
    if form is not None:
        given["structured_outputs"] = form.values
    if lines := _too_large(given):
        raise refused(lines)  # before anything else looks at every entry
    lines = _too_many(given)
    told = set(map(_subject, lines))  # with the bounds that hold here
    try:
        params = SamplingParams(**given)
    except UserError as error:
        lines += [line for line in str(error).splitlines() if _subject(line) not in told]
    if lines:
        raise refused(lines, form)
    return params


def own_defaults(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a model's generation_config.json sets, by our names.

    max_tokens is None unless max_new_tokens is there: a chat's answer may be as long as fits.
    """
    params = SamplingParams.from_defaults(generation_config)
    found = {name: getattr(params, name) for name in params.given}
    return found | {"max_tokens": generation_config.get("max_new_tokens")}


def check_prompts(params: SamplingParams, prompts: int) -> None:
    """ApiError for long lists that so many prompts would all have."""
    each = len(params.allowed_token_ids or ()) + len(params.logit_bias or ())
    each += sum(map(len, (*(params.stop or ()), *(params.bad_words or ()))))
    if each * prompts > MOST_FOR_PROMPTS:
        raise ApiError(
            f"stop, bad_words, logit_bias and allowed_token_ids have {each} characters and entries "
            f"for each of {prompts} prompts: at most {MOST_FOR_PROMPTS} are allowed for all of "
            "them together. Split the request.",
            param="prompt",
            code="invalid_value",
        )


def check_stream(request: GenerationRequest) -> None:
    """ApiError for options of a stream where there is none."""
    if request.stream_options is not None and not request.stream:
        raise ApiError(
            "stream_options is only allowed where stream is true.",
            param="stream_options",
            code="invalid_value",
        )


def refused(sentences: list[str], form: Form | None = None, prompt: str | None = None) -> ApiError:
    """The core's reasons why a request cannot run, as an answer of status 400.

    `form` is the one that was asked for, and `prompt` the field that the prompt was made of.
    """
    lines, params = [], []
    for sentence in sentences:
        sentence = _OF_A_PROCESSOR.sub("", sentence)
        subject = _subject(sentence)
        if subject == FORM and form is not None:
            lines.append(form.name + sentence.removeprefix(FORM))
            params.append(form.field)
        elif subject in SAMPLING or subject in ("logprobs", FORM):
            lines.append(sentence)
            params.append(subject)
        else:
            lines.append(sentence[:1].upper() + sentence[1:])
            params.append(prompt if sentence.startswith("the prompt ") else None)
    long = any(s.startswith("the prompt has") for s in sentences)
    return ApiError(
        "\n".join(lines),
        param=params[0] if params else None,
        code="context_length_exceeded" if long else "invalid_value",
    )


def _subject(sentence: str) -> str:
    """The parameter that a sentence of the core begins with, if it does."""
    return sentence.split(" ", 1)[0].rstrip(":")


def _too_large(given: Mapping[str, Any]) -> list[str]:
    """Texts that take long to look for, once for each answer, and memory with every character."""
    lines = []
    for name, most in (("stop", MOST_STOPS), ("bad_words", MOST_BAD_WORDS)):
        found = given.get(name) or ()
        texts = (found,) if isinstance(found, str) else found
        if len(texts) > most:
            lines.append(f"{name} has {len(texts)} entries: at most {most} are allowed.")
        elif (characters := sum(map(len, texts))) > MOST_CHARACTERS:
            lines.append(
                f"{name} has {characters} characters: at most {MOST_CHARACTERS} are allowed."
            )
    return lines


def _too_many(given: Mapping[str, Any]) -> list[str]:
    """What the engine could do and a server does not: one request must not occupy it all."""
    lines = []
    if given.get("n", 1) > MOST_ANSWERS:
        lines.append(f"n is {given['n']}: it must be at most {MOST_ANSWERS}.")
    for name in ("logprobs", "prompt_logprobs"):
        if not 0 <= (given.get(name) or 0) <= MOST_LOGPROBS:
            lines.append(f"{name} is {given[name]}: it must be from 0 to {MOST_LOGPROBS}.")
    low, high = PENALTY
    if not low <= given.get("repetition_penalty", 1.0) <= high:
        lines.append(
            f"repetition_penalty is {given['repetition_penalty']}: it must be from {low} to {high}."
        )
    low, high = BIAS
    if any(not low <= bias <= high for bias in given.get("logit_bias", {}).values()):
        lines.append(f"logit_bias holds a number that is not from {low} to {high}.")
    try:
        msgspec.msgpack.encode(given.get("extra_args"))
    except (OverflowError, UnicodeEncodeError):
        lines.append("extra_args holds a number of more than 64 bits.")
    return lines
