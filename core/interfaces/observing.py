"""What sees inside a model while it runs: an observer, which a plugin's hook gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from torch import nn

    from core.parallel import Communicator
    from core.sampling.params import SamplingParams
    from core.types import Batch, Request, Watched

T = TypeVar("T")


class Observer(ABC):
    """Sees what a model computes for the requests that ask for it, and hands it to their callers.

    There is one in the engine, which answers for requests and collects, and one in each rank,
    which looks. A step is run without the runner, so as it is written, when a request of it is
    looked at; in all other steps nothing of an observer is called.
    """

    interface: ClassVar[int] = 1  # the version of this contract that an observer was written for
    name: ClassVar[str]  # of what it saw, among the extras of a step
    extra_args: ClassVar[tuple[str, ...]]  # by which of these keys a request asks for it

    def asked(self, params: SamplingParams) -> bool:
        """Whether a request asks for this observer."""
        return any((params.extra_args or {}).get(key) is not None for key in self.extra_args)

    # in the engine

    def accepts(self, params: SamplingParams) -> list[str]:
        """Reasons to refuse a request that asks; empty when it is fine."""
        return []

    def size(self, params: SamplingParams, prompt: int, limit: int) -> int:
        """The most bytes that `finish` gives for a prompt of `prompt` tokens which grows to
        `limit`. A request that is over `observe.memory` is refused."""
        return 0

    def needs_prompt(self, params: SamplingParams) -> bool:
        """Whether the whole prompt must be computed, so that nothing of it comes from the prefix
        cache."""
        return True

    @abstractmethod
    def take(self, request: Request, start: int, seen: Any) -> None:
        """What a rank saw of a request's tokens from position `start` on. Positions come again
        when the request is computed again; the later counts."""

    @abstractmethod
    def finish(self, request: Request) -> Mapping[str, Any]:
        """The request has ended, wherever it was. -> what its `CompletionOutput.extras` shall hold.
        Keep nothing of it."""

    # in each rank, the same calls in the same order

    def prepare(self, model: nn.Module, comm: Communicator) -> None:
        """Before the first step: the rank's loaded model."""
        return None

    def looks(self, watched: Watched) -> bool:
        """Whether it wants to see this step of a request that asks."""
        return True

    @abstractmethod
    def observe(
        self, step: Callable[[], T], batch: Batch, watched: Sequence[Watched]
    ) -> tuple[T, Mapping[int, Any]]:
        """Call `step` once, which runs the model, say with hooks on its modules that are taken off
        again. -> what it returned, and by `Watched.b` what was seen, which counts on rank 0 only.

        It must not wait for the device: see `core.sampling.deferred.Deferred`. What it raises ends
        the step.
        """
