"""What decides and carries: a scheduler on the host, and an executor of workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from core.errors import Mistakes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.config import Config
    from core.setup import Setup
    from core.types import Limits, Request, StepOutput, StepPlan


class Scheduler(ABC):
    """Decides what each step computes. Lives on rank 0's host and touches no tensor.

    Plans are executed in the order in which they were made, and `update` is called in that order
    too, but step N + 1 may be planned before step N is updated.

    Of a request it writes what `core.types.Request` calls its own, and how it ended. Others read of
    that: `started`, the time of the first admission; `cached`, how many tokens of the prompt were
    not computed, because pages of other requests held them; `preemptions`; and of a request that
    `StepOutput.errors` ends, the sentence, as its `error`. Only requests of equal `salt` share
    pages, and one with `reads_cache` off, or with `prompt_logprobs`, gets none that were computed
    before it came. `core.scheduling.QueueScheduler` sees to all of this.

    Errors: it has none to tell of a request, whose size was checked before. What it raises flies to
    whoever steps the engine, and ends a run.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for

    @dataclass
    class Options:
        max_num_seqs: int = field(
            default=256, metadata={"help": "most requests that run at the same time"}
        )
        max_num_batched_tokens: int = field(
            default=8192, metadata={"help": "most tokens that one step computes"}
        )

        def __post_init__(self) -> None:
            mistakes = Mistakes()
            for name, most in (("max_num_seqs", 2**16), ("max_num_batched_tokens", 2**31 - 1)):
                if not 1 <= (value := getattr(self, name)) <= most:
                    mistakes.add(f"{name} must lie in 1 to {most:,}, and is {value}.")
            mistakes.tell()

    reads_priority: ClassVar[bool] = True  # False: a request that sets one is refused

    def __init__(self, options: Options, limits: Limits) -> None:
        self.options, self.limits = options, limits

    @abstractmethod
    def add(self, request: Request) -> None:
        """Queue a request. Its size was checked against the limits before."""

    @abstractmethod
    def finish(self, request: Request, reason: str) -> None:
        """End a request wherever it is (waiting, running, in flight); its pages become free.

        `reason` becomes its `finish_reason`.
        """

    @abstractmethod
    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be planned before an update, or at all."""

    @abstractmethod
    def update(self, plan: StepPlan, output: StepOutput) -> list[Request]:
        """Append the sampled ids; end requests at stop ids and limits. -> requests with news."""

    def drop(self, requests: Sequence[Request]) -> None:
        """A step failed, and what it should have stored was not: no cached page of it may be used.

        `requests` are those of the step. They may go back to the queue; the engine ends those that
        it does not want again with `finish`.
        """
        return None

    def reset_prefix_cache(self) -> None:
        """Forget all cached pages that no running request uses."""
        return None

    @abstractmethod
    def has_work(self) -> bool:
        """Whether any request waits or runs."""

    @abstractmethod
    def statistics(self) -> dict[str, int]:
        """Counters, these at least, which a server's `/metrics` shows:

        - of requests: running, waiting, and preemptions so far;
        - of the cache: pages_total, each of which is one of pages_owned (by a request),
          pages_cached (by nobody, and kept for what they hold) and pages_free;
        - of tokens so far: prefix_queries, looked for in the prefix cache, and prefix_hits.
        """


class Pending(ABC):
    """A step on its way."""

    @abstractmethod
    def done(self) -> bool:
        """Whether `result` would return at once."""

    @abstractmethod
    def result(self) -> StepOutput:
        """Wait for the step. Raises EngineDead when a worker is gone."""


class Executor(ABC):
    """Owns the workers: starts them, ships plans, collects results, notices a dead one.

    Errors: `start` raises UserError for a wish that cannot be met. EngineDead, with the worker's
    traceback or exit code, says that a worker is gone, and ends the engine. What else a result
    raises ends the requests of its step.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for

    @dataclass
    class Options: ...

    def __init__(self, options: Options, config: Config) -> None:
        self.options, self.config = options, config

    @abstractmethod
    def start(self, setup: Setup) -> Limits:
        """Start every worker, load weights, size the cache (the least over ranks), prepare.

        -> the sizes that the engine is built for.
        """

    @abstractmethod
    def submit(self, plan: StepPlan) -> Pending:
        """Ship a plan to every rank. Steps run in the order of submission. -> its result, later."""

    @abstractmethod
    def shutdown(self) -> None:
        """End every worker; leaves no process, port or shared memory behind. May be repeated."""
