"""How logits become tokens: a sampler, and the processors inside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from core.config import Config
    from core.landed import Landed
    from core.sampling.params import SamplingParams
    from core.sampling.rows import SampleRows
    from core.setup import Setup
    from core.types import Limits, TokenLogprobs


@dataclass(slots=True)
class Sampled:
    """What a sampler returns: ids, and log probabilities for the rows that asked."""

    ids: Tensor  # [S] whole numbers; below 0 where a row has no possible token, or NaN
    logprobs: dict[int, list[TokenLogprobs]] | None = None  # by s; host values
    errors: Mapping[int, str] | None = None  # by s: a row without a possible token, or with NaN
    landed: Landed | None = None  # from a runner that brings the ids to the host by itself


class Prepared:
    """What samplers and logits processors have in common: they may need time and the model."""

    def prepare(self, config: Config, setup: Setup) -> None:
        """Once, in the engine and in each rank, before the first request; tests may leave it out.

        In `Setup.shared` the parts of an engine that live in one process keep what is the same.
        """
        return None

    def slow(self, params: SamplingParams) -> bool:
        """Whether `accepts` may now take long for these parameters, say to compile a grammar. A
        server then asks it in another thread first, and others go on meanwhile."""
        return False

    def close(self) -> None:
        """The engine is closed. May be called again."""
        return None


class LogitsProcessor(Prepared, ABC):
    """Changes the logits of the rows that asked for it; runs inside the sampler, in named order.

    Errors: what it cannot do for a request it says in `accepts`, before the request is queued. What
    a call raises ends the request that it is raised for, and no other.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for

    @dataclass
    class Options: ...

    only_asked: ClassVar[bool] = False
    """It wants no request without `extra_args` or `structured_outputs`: others are not asked."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def accepts(self, params: SamplingParams) -> list[str]:
        """Reasons to refuse a request (say, a bad value in `extra_args`); empty when fine."""
        return []

    @abstractmethod
    def wants(self, params: SamplingParams) -> bool:
        """Whether a request with these parameters is changed by this processor."""

    @abstractmethod
    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """[N, V] float32 of just the rows that want it -> the same shape; may work in place."""


class Sampler(Prepared, ABC):
    """Chooses one token a row. Every rank samples the same logits, so it must be deterministic:
    draw only through `rows`, whose noise depends on a request's seed and position alone.

    Errors: what it cannot do for a request it says in `accepts`, before the request is queued. A
    row without a possible token goes into `Sampled.errors`, and ends that request. What a call
    raises ends the requests that it is raised for, and with several ranks the engine.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for

    @dataclass
    class Options: ...

    # whether a call may be captured in a CUDA graph: for rows that ask for a temperature alone, and
    # also for rows with top_k, top_p and min_p where the kernel set finds what they let through
    graphable: ClassVar[bool] = False
    graphable_truncation: ClassVar[bool] = False
    # whether it takes, for rows that ask for a temperature alone, logits of this rank's part of the
    # vocabulary, of which only `rows.draw` and `rows.drawn` can make something
    shards: ClassVar[bool] = False
    structured: ClassVar[bool] = False  # False: a request with `structured_outputs` is refused

    def __init__(self, options: Options, limits: Limits) -> None:
        self.options, self.limits = options, limits

    def accepts(self, params: SamplingParams) -> list[str]:
        """Reasons to refuse a request; empty when it is fine."""
        return []

    @abstractmethod
    def __call__(self, logits: Tensor, rows: SampleRows) -> Sampled:
        """logits [S, V], any float dtype; rows: the parameters and history of those S requests.

        A row without a possible token, or with NaN, gets a sentence in `Sampled.errors`, which ends
        that request, and harms no other row: `core.sampling.outcome.outcome(ids, logits)` makes the
        answer that says so.
        """
