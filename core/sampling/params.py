"""What one request asks for: vLLM's SamplingParams, with its names, defaults and meanings."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.sampling.param_checks import complaint, normalise, unknown_name, vocabulary_mistakes

if TYPE_CHECKING:
    from core.sampling.structured import StructuredOutputsParams
    from core.text import TokenizerLike

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM: dividing by them would only overflow."""

_FROM_GENERATION_CONFIG = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(kw_only=True, repr=False)
class SamplingParams:
    """How to choose the tokens of one request, and what to report about them.

    Every value is checked, and brought to plain Python types, when the object is made: UserError
    lists all mistakes, one a line. `check` looks again when the vocabulary is known.

    >>> SamplingParams(temperature=0.6, top_p=0.95, seed=3)
    SamplingParams(temperature=0.6, top_p=0.95, seed=3)
    """

    n: int = 1  # samples of the prompt
    temperature: float = 1.0  # 0: greedy, the most likely token; higher: more random
    top_p: float = 1.0  # sample from the likeliest tokens that together have this probability
    top_k: int = 0  # sample from so many of the likeliest tokens; 0 or -1: from all
    min_p: float = 0.0  # drop tokens less likely than min_p times the likeliest
    seed: int | None = None  # same seed, same tokens; None: another one for each request
    presence_penalty: float = 0.0  # taken from the logit of every token in the output so far
    frequency_penalty: float = 0.0  # the same, times how often it is there
    repetition_penalty: float = 1.0  # divides logits of tokens in prompt or output, above 1: fewer
    stop: Sequence[str] | None = None  # strings that end the text; kept as a list
    stop_token_ids: Sequence[int] | None = None  # tokens that end it, besides the model's own
    ignore_eos: bool = False  # the model's own end tokens do not end it
    max_tokens: int | None = 16  # the most tokens of output; None: up to the model's limit
    min_tokens: int = 0  # no token that would end the text is sampled before so many
    logprobs: int | None = None  # report the best so many a position, and the chosen; -1: all
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt
    logit_bias: Mapping[int, float] | None = None  # added to logits; +-100 forces or forbids
    bad_words: Sequence[str] | None = None  # texts whose last token is never sampled after the rest
    allowed_token_ids: Sequence[int] | None = None  # sample from these alone
    skip_special_tokens: bool = True  # leave special tokens out of the text
    spaces_between_special_tokens: bool = True  # put spaces between them where they stay
    include_stop_str_in_output: bool = False  # keep the stop string, or stop token, in the text
    detokenize: bool = True  # make text at all
    structured_outputs: StructuredOutputsParams | None = None  # the form of the answer
    extra_args: Mapping[str, Any] | None = field(default_factory=dict)  # for plugins

    bad_words_token_ids: list[list[int]] = field(default_factory=list, init=False, compare=False)
    """What `check` made of `bad_words` with the tokenizer."""

    def __new__(cls, /, *positional: Any, **given: Any) -> SamplingParams:
        """Refuse unknown names, with the rest of the mistakes, and remember which were given."""
        unknown = [name for name in given if name not in _names()]
        if unknown or positional:
            lines = [unknown_name(name, _names()) for name in unknown]
            if positional:
                lines.insert(0, "SamplingParams takes keywords only, as in temperature=0.6.")
            try:
                cls(**{name: value for name, value in given.items() if name not in unknown})
            except UserError as error:
                lines.append(str(error))
            raise UserError("\n".join(lines))
        params = super().__new__(cls)
        vars(params)["_given"] = frozenset(given)
        return params

    def __post_init__(self) -> None:
        if mistakes := normalise(self):
            raise UserError("\n".join(mistakes))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._changed())
        return f"SamplingParams({shown})"

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def given(self) -> frozenset[str]:
        """The parameters that were named when it was made, or differ from their defaults."""
        named: frozenset[str] = vars(self)["_given"]
        return named.union(self._changed())

    @classmethod
    def from_defaults(cls, generation_config: Mapping[str, Any], **given: Any) -> SamplingParams:
        """The parameters `given`, and the model's own defaults for the rest."""
        return cls(**given).with_defaults(generation_config)

    def with_defaults(self, generation_config: Mapping[str, Any]) -> SamplingParams:
        """A copy that takes what was not given from a model's generation_config.json.

        It supplies temperature, top_k, top_p, min_p, repetition_penalty, and max_new_tokens as
        max_tokens. `do_sample: false` means greedy. UserError if a value there is unusable.
        """
        found = {
            ours: generation_config[theirs]
            for theirs, ours in _FROM_GENERATION_CONFIG.items()
            if generation_config.get(theirs) is not None
        }
        if generation_config.get("do_sample") is False:
            found["temperature"] = 0.0
        result = self.clone()
        for name in found.keys() - self.given:
            setattr(result, name, found[name])
        if mistakes := normalise(result):
            raise UserError("\n".join(f"generation_config.json: {m}" for m in mistakes))
        return result

    def clone(self) -> SamplingParams:
        """An independent copy."""
        return copy.deepcopy(self)

    def check(self, vocab_size: int, tokenizer: TokenizerLike | None = None) -> None:
        """Whether a model with so many tokens can do this. UserError with every mistake.

        Looks again at values assigned since the object was made, and turns `bad_words` into
        `bad_words_token_ids`, which samplers read.
        """
        mistakes = normalise(self) or vocabulary_mistakes(self, vocab_size)
        if not mistakes and self.bad_words:
            if tokenizer is None:
                mistakes = [complaint("bad_words", self.bad_words, "it needs a tokenizer")]
            else:
                self.bad_words_token_ids = self.bad_words_ids(tokenizer)
        if mistakes:
            raise UserError("\n".join(mistakes))

    def bad_words_ids(self, tokenizer: TokenizerLike) -> list[list[int]]:
        """The token sequences that spell the bad words, at the start of a text and after a space.

        Source: vLLM's `update_from_tokenizer`, which leaves out the form after a space when it has
        another number of tokens; here both are always forbidden.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in self.bad_words or ():
            bare = word.lstrip()
            for text in (bare, " " + bare):
                ids = tuple(tokenizer.encode(text, add_special_tokens=False))
                if not ids:
                    raise UserError(
                        complaint("bad_words", word, "the tokenizer makes no token of it")
                    )
                found[ids] = None
        return [list(ids) for ids in found]

    def _changed(self) -> list[str]:
        """The names whose values differ from their defaults, in the order of the fields."""
        return [f.name for f in _parameters() if getattr(self, f.name) != _default(f)]


def _parameters() -> list[Field[Any]]:
    return [f for f in fields(SamplingParams) if f.init]


def _names() -> list[str]:
    return [f.name for f in _parameters()]


def _default(parameter: Field[Any]) -> Any:
    factory = parameter.default_factory
    return parameter.default if factory is MISSING else factory()
