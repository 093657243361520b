"""What a component must do to be chosen by name. Each class here is the contract of one registry.

A component is built from its `Options`, a dataclass filled and checked from its section of the
YAML file. Capability is asked before anything is built: `rejects(...)` and `accepts(...)` return
reasons in words, and an empty list means yes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from core.config import Config
    from core.params import SamplingParams
    from core.sample_rows import SampleRows
    from core.setup import Setup
    from core.types import (
        AttentionMetadata,
        AttentionShape,
        Batch,
        KVLayer,
        Limits,
        Request,
        StepOutput,
        StepPlan,
        TokenLogprobs,
    )

INTERFACE_VERSION = 1


class AttentionBackend(ABC):
    """Attention over a paged cache. One instance serves one layer shape on one device."""

    @dataclass
    class Options: ...

    page_sizes: ClassVar[tuple[int, ...]] = ()  # what it can read, best first; empty: any
    layout: ClassVar[str] = "tokens"  # memory order of a page: "tokens" [page, KV, D] or "heads"
    graphable: ClassVar[bool] = False  # plan and forward may be captured in a CUDA graph

    @classmethod
    def rejects(cls, shape: AttentionShape) -> list[str]:
        """Reasons not to use this backend for `shape`; empty when it fits."""
        return []

    def __init__(self, shape: AttentionShape, options: Options) -> None:
        self.shape, self.options = shape, options

    def plan(self, meta: AttentionMetadata) -> None:
        """Once a step for each instance, before the first layer; may set `meta.private`."""
        return None

    @abstractmethod
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        """q [T, H, D]; k, v [T, KV, D], already stored in `cache` at `meta.slots` -> [T, H, D]."""


class Kernels(ABC):
    """The small operations between matrix products. `plugins/kernels/torch` is every one's twin."""

    @dataclass
    class Options: ...

    @classmethod
    def rejects(cls, dtype: Any, device: str) -> list[str]:
        """Reasons not to run at this torch dtype on "cpu" or "cuda"."""
        return []

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [..., N], weight [N] -> x / rms(x) * weight, computed in float32, in x's dtype."""

    @abstractmethod
    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual), both [T, N]. May overwrite its inputs."""

    @abstractmethod
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 N] -> silu(first half) * second half, [T, N]."""

    @abstractmethod
    def rope_store(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norms: tuple[Tensor, Tensor, float] | None,
        rope: Tensor,
        positions: Tensor,
        cache: KVLayer,
        slots: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Norm each head of q and k (when `norms`), rotate both, store k and v in the cache.

        q [T, H, D], k and v [T, KV, D], views into one projection; norms = (q weight [D],
        k weight [D], eps); rope [positions, 2, D'] float32, cosines then sines, D' = half of the
        rotated width (the first 2 D' entries of a head rotate, halves paired); positions [T];
        slots [T], a negative slot is not stored. -> rotated q [T, H, D], k [T, KV, D].
        """


@dataclass(slots=True)
class Sampled:
    """What a sampler returns: ids, and log probabilities for the rows that asked."""

    ids: Tensor  # [S] int64
    logprobs: dict[int, list[TokenLogprobs]] | None = None  # by s; host values
    errors: dict[int, str] | None = None  # by s: a row without any possible token, or with NaN


class LogitsProcessor(ABC):
    """Changes the logits of the rows that asked for it; runs inside the sampler, in named order."""

    @dataclass
    class Options: ...

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


class Sampler(ABC):
    """Chooses one token a row. Every rank samples the same logits, so it must be deterministic:
    draw only through `rows`, whose noise depends on a request's seed and position alone."""

    @dataclass
    class Options: ...

    graphable: ClassVar[bool] = False

    def __init__(self, options: Options, limits: Limits) -> None:
        self.options, self.limits = options, limits

    def accepts(self, params: SamplingParams) -> list[str]:
        """Reasons to refuse a request; empty when it is fine."""
        return []

    @abstractmethod
    def __call__(self, logits: Tensor, rows: SampleRows) -> Sampled:
        """logits [S, V], any float dtype; rows: the parameters and history of those S requests."""


class Scheduler(ABC):
    """Decides what each step computes. Lives on rank 0's host and touches no tensor.

    Plans are executed in the order in which they were made, and `update` is called in that order
    too, but step N + 1 may be planned before step N is updated.
    """

    @dataclass
    class Options:
        max_num_seqs: int = field(
            default=256, metadata={"help": "most requests that run at the same time"}
        )
        max_num_batched_tokens: int = field(
            default=8192, metadata={"help": "most tokens that one step computes"}
        )

    def __init__(self, options: Options, limits: Limits) -> None:
        self.options, self.limits = options, limits

    @abstractmethod
    def add(self, request: Request) -> None:
        """Queue a request. Its size was checked against the limits before."""

    @abstractmethod
    def finish(self, request: Request, reason: str) -> None:
        """End a request wherever it is (waiting, running, in flight); its pages become free."""

    @abstractmethod
    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can be planned before an update, or at all."""

    @abstractmethod
    def update(self, plan: StepPlan, output: StepOutput) -> list[Request]:
        """Append the sampled ids; end requests at stop ids and limits. -> requests with news."""

    @abstractmethod
    def has_work(self) -> bool:
        """Whether any request waits or runs."""

    @abstractmethod
    def statistics(self) -> dict[str, int]:
        """Counters: running, waiting, pages_free, pages_cached, prefix_queries, prefix_hits
        (tokens), preemptions, ..."""


class Step:
    """The three stages of a step, handed to a runner, which may capture them."""

    def forward(self, batch: Batch) -> Tensor:
        """-> hidden states [T, hidden]."""
        raise NotImplementedError

    def logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        """-> [S, V], the sampled rows only."""
        raise NotImplementedError

    def sample(self, logits: Tensor, batch: Batch) -> Sampled:
        """-> ids, also written into the rows' history on the device."""
        raise NotImplementedError


class Runner(ABC):
    """Runs a step on the device: eagerly, or by replaying what it captured."""

    @dataclass
    class Options: ...

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def prepare(self, step: Step, limits: Limits) -> None:
        """After weights and cache are there: warm up, capture."""

    @abstractmethod
    def run(self, batch: Batch) -> tuple[Tensor, Sampled]:
        """-> hidden states [T, hidden] (for prompt log probabilities) and the sampled ids."""


class Pending(ABC):
    """A step on its way."""

    @abstractmethod
    def done(self) -> bool:
        """Whether `result` would return at once."""

    @abstractmethod
    def result(self) -> StepOutput:
        """Wait for the step. Raises EngineDead when a worker is gone."""


class Executor(ABC):
    """Owns the workers: starts them, ships plans, collects results, notices a dead one."""

    @dataclass
    class Options: ...

    def __init__(self, options: Options, config: Config) -> None:
        self.options, self.config = options, config

    @abstractmethod
    def start(self, setup: Setup) -> Limits:
        """Start every worker, load weights, size the cache (the least over ranks), prepare."""

    @abstractmethod
    def submit(self, plan: StepPlan) -> Pending:
        """Ship a plan to every rank. Steps run in the order of submission."""

    @abstractmethod
    def shutdown(self) -> None:
        """End every worker; leaves no process, port or shared memory behind. May be repeated."""


class App(ABC):
    """What `run:` names: the program that uses the engine."""

    @dataclass
    class Options: ...

    needs_engine: ClassVar[bool] = True

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def run(self, config: Config) -> int:
        """-> exit status."""


class Architecture(ABC):
    """A model family, registered under the name in config.json's `architectures`."""

    axes: ClassVar[Mapping[str, Any]]
    plan: ClassVar[Mapping[str, Any]]
    ignore: ClassVar[tuple[str, ...]] = ()
    rename: ClassVar[Mapping[str, str]] = {}

    @classmethod
    @abstractmethod
    def config(
        cls, raw: Mapping[str, Any], *, max_length: int | None = None, ignore: Sequence[str] = ()
    ) -> Any:
        """config.json as a frozen dataclass; UserError names every key that cannot be honoured.

        `max_length` fixes the rotation of rope types that depend on the length; `ignore` names
        keys that the user accepts to be ignored. The result has at least vocab_size, hidden_size,
        num_hidden_layers, tie_word_embeddings, dtype (a name, or None) and longest, the most
        positions that the model was made for.
        """

    @classmethod
    @abstractmethod
    def model(cls, config: Any) -> nn.Module:
        """The plain modules: `model(batch) -> [T, hidden]`, `model.logits(hidden) -> [S, V]`."""
