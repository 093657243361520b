"""What a caller gets back. Names and meanings are those of vLLM's offline API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.types import FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of one token at one position, of the model's own logits."""

    logprob: float
    rank: int | None = None  # 1 = the most likely
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One of the `n` answers to a prompt."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None  # one dict a token
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop string or stop token id; None for an end id
    delta: str = ""  # the text that is new since the previous output of this request
    error: str | None = None  # the sentence behind finish_reason "error"
    extras: dict[str, Any] = field(default_factory=dict)  # what plugins saw; once it is finished

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request, in seconds of time.monotonic()."""

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    preemptions: int = 0

    @property
    def first_token_latency(self) -> float:
        """Seconds from the arrival to the first token; 0 before there is one."""
        return (self.first_token_time or self.arrival_time) - self.arrival_time

    @property
    def first_token_ts(self) -> float:
        """`first_token_time` by the name that vLLM has for it since its version 1 engine."""
        return self.first_token_time or 0.0

    @property
    def last_token_ts(self) -> float:
        """`last_token_time` by that name."""
        return self.last_token_time or 0.0


@dataclass(slots=True)
class RequestOutput:
    """The state of one prompt's answers: final from `generate`, a snapshot from `stream`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # the first entry is None
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache held
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(0.0))


def logprob_dict(
    position: TokenLogprobs, token_text: Callable[[int], str] | None
) -> dict[int, Logprob]:
    """The chosen token and the best few at one position, by token id."""

    def entry(token: int, logprob: float, rank: int) -> Logprob:
        return Logprob(logprob, rank, token_text(token) if token_text else None)

    # the chosen token first, as in vLLM
    found = {position.token: entry(position.token, position.logprob, position.rank)}
    tops: Sequence[tuple[int, float]] = list(
        zip(position.top_ids, position.top_logprobs, strict=True)
    )
    found.update((token, entry(token, value, rank)) for rank, (token, value) in enumerate(tops, 1))
    return found
