"""Finds what is wrong with sampling parameters, and brings what is right to plain Python types."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from reprlib import Repr
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.sampling.structured import StructuredOutputsParams, structured_outputs

if TYPE_CHECKING:
    from core.sampling.params import SamplingParams

MOST_SAMPLES = 16384  # vLLM's limit of n
INT32 = 2**31 - 1
FLOAT32 = 3.4e38

_short = Repr()
_short.maxstring = _short.maxother = 60


class Wrong(Exception):
    """What a value must be; the message continues "NAME is VALUE: ..."."""


def complaint(name: str, value: object, wanted: str) -> str:
    """One line about one parameter."""
    return f"{name} is {_short.repr(value)}: {wanted}."


_INSTEAD = {
    "best_of": "All n samples are returned; rank them by cumulative_logprob.",
    "do_sample": "Temperature 0 is greedy, any other samples.",
    "early_stopping": "Beam search is not implemented.",
    "guided_decoding": "Say structured_outputs={'json': ...}, with a StructuredOutputsParams.",
    "length_penalty": "Beam search is not implemented.",
    "logits_processors": "Name logits processors when the engine is made, in its sampler.",
    "output_kind": "LLM.generate returns whole answers, LLM.stream pieces.",
    "truncate_prompt_tokens": "Cut the prompt's token ids before you give them.",
    "use_beam_search": "Beam search is not implemented.",
}
"""What to say about parameters that other engines have, or had."""


def unknown_name(name: str, known: Iterable[str]) -> str:
    """One line about a keyword that is no parameter."""
    if name in _INSTEAD:
        return f"SamplingParams has no parameter {name!r}. {_INSTEAD[name]}"
    near = get_close_matches(name, known := list(known), n=1)
    near = near or [k for k in known if k in name]
    hint = f"Did you mean {near[0]!r}?" if near else "Values for plugins belong into extra_args."
    return f"SamplingParams has no parameter {name!r}. {hint}"


def normalise(params: SamplingParams) -> list[str]:
    """Check each value alone, then together; store the plain form of each. -> a line a mistake."""
    mistakes = []
    for name, rule in RULES.items():
        value = getattr(params, name)
        try:
            setattr(params, name, rule(value))
        except Wrong as wrong:
            mistakes.append(complaint(name, value, str(wrong)))
    return mistakes or _contradictions(params)


def vocabulary_mistakes(params: SamplingParams, vocab_size: int) -> list[str]:
    """What a vocabulary of this size makes impossible."""
    mistakes = []
    ids: dict[str, Collection[int]] = {
        "stop_token_ids": params.stop_token_ids or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "logit_bias": params.logit_bias or (),
    }
    for name, listed in ids.items():
        if outside := [i for i in listed if i >= vocab_size]:
            wanted = f"this model's token ids end at {vocab_size - 1}"
            mistakes.append(complaint(name, outside, wanted))
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is not None and count > vocab_size:
            mistakes.append(
                complaint(name, count, f"this model has {vocab_size} tokens; -1 asks for all")
            )
    return mistakes


def _contradictions(params: SamplingParams) -> list[str]:
    mistakes = []
    if params.greedy and params.n > 1:
        wanted = "at temperature 0 all samples would be the same, so it must be 1"
        mistakes.append(complaint("n", params.n, wanted))
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        wanted = f"it must not exceed max_tokens, which is {params.max_tokens}"
        mistakes.append(complaint("min_tokens", params.min_tokens, wanted))
    if params.stop and not params.detokenize:
        wanted = "it is looked for in the text, so detokenize must be true"
        mistakes.append(complaint("stop", params.stop, wanted))
    return mistakes


def _integer(low: int, high: int, meaning: str = "") -> Callable[[Any], int]:
    """`meaning` ends the sentence: what a special value stands for."""

    def rule(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise Wrong(f"it must be a whole number{meaning}")
        number = int(value)
        if number < low:
            raise Wrong(f"it must be at least {low}{meaning}")
        if number > high:
            raise Wrong(f"it must be at most {high}")
        return number

    return rule


def _number(
    low: float, high: float, meaning: str, *, above: bool = False
) -> Callable[[Any], float]:
    """`above`: `low` itself is not allowed."""

    def rule(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise Wrong(f"it must be a number{meaning}")
        try:
            number = float(value)
        except (OverflowError, ValueError):
            number = math.inf
        if not math.isfinite(number):
            raise Wrong(f"it must be a finite number{meaning}")
        if number < low or (above and number == low):
            raise Wrong(f"it must be {'more than' if above else 'at least'} {low:g}{meaning}")
        if number > high:
            raise Wrong(f"it must be at most {high:g}{meaning}")
        return number

    return rule


def _optional(rule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else rule(value)


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Wrong("it must be True or False")


def _seed(value: Any) -> int | None:
    number = _integer(-(2**63), 2**64 - 1, " of 64 bits")(value)
    return None if number == -1 else number


def _top_k(value: Any) -> int:
    return max(0, _integer(-1, INT32, ", and 0 or -1 means all tokens")(value))


def _texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
        raise Wrong("it must be a string or a list of strings")
    for text in texts:
        if not text:
            raise Wrong("an empty string is found everywhere. Leave it out")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Wrong(f"{text!r} has half of a surrogate pair, which is no text") from error
    return list(texts)


def _words(value: Any) -> list[str]:
    words = _texts(value)
    if not all(word.strip() for word in words):
        raise Wrong("a word needs more than white space")
    return words


def are_ids(values: Sequence[Any], end: int) -> bool:
    """Whether they are whole numbers from 0 to below `end`, at least one: told in one pass in C."""
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < end


def _ids(value: Any) -> list[int]:
    wrong = Wrong("it must be a list of token ids")
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        raise wrong
    try:
        listed = list(value)
    except TypeError:  # an array without a dimension
        raise wrong from None
    return listed if are_ids(listed, INT32 + 1) else [_token(i) for i in listed]


def _some_ids(value: Any) -> list[int]:
    if ids := _ids(value):
        return ids
    raise Wrong("at least one token must be allowed. Leave it out to allow all")


def _token(value: Any) -> int:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not 0 <= int(value) <= INT32:
        raise Wrong(f"{_short.repr(value)} is no token id, which is a whole number from 0")
    return int(value)


def _biases(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise Wrong("it must map token ids to numbers")
    biases = {}
    for key, bias in value.items():
        # keys of a JSON object are strings
        digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 12
        number = _number(-FLOAT32, FLOAT32, ", and -100 forbids and 100 forces a token")
        biases[_token(int(key) if digits else key)] = number(bias)
    return biases


def _extra(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise Wrong("it must map names to values")
    return dict(value)


def _form(value: Any) -> StructuredOutputsParams:
    try:
        return structured_outputs(value)
    except UserError as error:
        raise Wrong(str(error).replace("\n", " ").removesuffix(".")) from error


_count = _optional(_integer(-1, INT32, ", and -1 means all tokens"))

RULES: Mapping[str, Callable[[Any], Any]] = {
    "n": _integer(1, MOST_SAMPLES),
    "temperature": _number(0.0, FLOAT32, ", and 0 means greedy"),
    "top_p": _number(0.0, 1.0, ", and 1 means all tokens", above=True),
    "top_k": _top_k,
    "min_p": _number(0.0, 1.0, ", and 0 means all tokens"),
    "seed": _optional(_seed),
    "presence_penalty": _number(-2.0, 2.0, ", and 0 means none"),
    "frequency_penalty": _number(-2.0, 2.0, ", and 0 means none"),
    "repetition_penalty": _number(0.0, FLOAT32, ", and 1 means none", above=True),
    "stop": _optional(_texts),
    "stop_token_ids": _optional(_ids),
    "ignore_eos": _flag,
    "max_tokens": _optional(_integer(1, INT32)),
    "min_tokens": _integer(0, INT32, ", and 0 means no minimum"),
    "logprobs": _count,
    "prompt_logprobs": _count,
    "logit_bias": _optional(_biases),
    "bad_words": _optional(_words),
    "allowed_token_ids": _optional(_some_ids),
    "skip_special_tokens": _flag,
    "spaces_between_special_tokens": _flag,
    "include_stop_str_in_output": _flag,
    "detokenize": _flag,
    "structured_outputs": _optional(_form),
    "extra_args": _extra,
}
