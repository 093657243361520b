"""What runs on the device: attention, the small kernels, a step, and its runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from core.interfaces.sampling import Sampled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from core.interfaces.sampling import Sampler
    from core.parallel import Communicator
    from core.sampling.table import SamplingTable
    from core.types import AttentionMetadata, AttentionShape, Batch, Decodes, KVLayer, Limits
    from core.worker.rows import RequestRows


class AttentionBackend(ABC):
    """Attention over a paged cache. One instance serves one layer shape on one device.

    Errors: what it cannot do it says in `rejects`, before anything is built. What `plan` or
    `forward` raises ends the requests of the step, and with several ranks the engine.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for

    @dataclass
    class Options: ...

    page_sizes: ClassVar[tuple[int, ...]] = ()  # what it can read, best first; empty: any
    best_page_size: ClassVar[int | None] = None  # for `auto`; None: the first of these, or 256
    layout: ClassVar[str] = "tokens"  # memory order of a page: "tokens" [page, KV, D] or "heads"
    graphable: ClassVar[bool] = False  # plan and forward may be captured in a CUDA graph
    graphable_prompts: ClassVar[bool] = False  # in steps with prompts as well

    @classmethod
    def rejects(cls, shape: AttentionShape) -> list[str]:
        """Reasons not to use this backend for `shape`; empty when it fits."""
        return []

    def __init__(self, shape: AttentionShape, options: Options) -> None:
        self.shape, self.options = shape, options

    def plan(self, meta: AttentionMetadata) -> None:
        """Once a step for each instance, before the first layer; may set `meta.private`.

        Of `meta` that alone may change: keys and values are stored by its slots afterwards, and
        backends of other shapes plan from it. What they left in `private` has to stay, too.

        A `graphable` backend's is captured with the step: it then reads the device's tensors, and
        takes from the host's fields, which are bounds, no more than sizes. In a captured step with
        prompts `decodes` is 0, the host's lists are empty, and the last requests may have neither
        tokens nor context.
        """
        return None

    def static(self, limits: Limits, batch: int) -> Any:
        """What a captured step of `batch` decoding requests holds at fixed addresses, or None.

        Asked once for each size, before the capture. When it is not None, `forward` finds it as
        `meta.private[self]` in captured steps, `plan` is not called for them, and `refresh` is
        called before each replay.
        """
        return None

    def refresh(self, static: Any, meta: AttentionMetadata) -> None:
        """Bring `static` up to date for one step, without waiting for the device.

        `meta`: tensors of the captured size, already this step's (padding has context 0 and slot
        -1), and the host's fields exact for the requests that are there.
        """
        return None

    def warm(self, cache: KVLayer, limits: Limits) -> None:
        """Once, before the first request: compile whatever steps within `limits` may launch.

        `cache`: that of one of the layers; nothing is in it yet.
        """
        return None

    @abstractmethod
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        """q [T, H, D]; k, v [T, KV, D], already stored in `cache` at `meta.slots` -> [T, H, D].

        In a captured step, rows that are padding have context 0: what comes of them is not used.
        """

    def forward_into(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata, out: Tensor
    ) -> None:
        """`forward` of q, k, v, cache and meta; the result goes to `out` [T, H, D], contiguous.

        For runners that capture what lies between attentions, so that what follows finds it at a
        fixed address. Copies by default: implement it where the kernels can write there.
        """
        out.copy_(self.forward(q, k, v, cache, meta))


class Kernels(ABC):
    """The small operations between matrix products. `plugins/kernels/torch.py` is every one's twin.

    Errors: what it cannot do it says in `rejects`, before anything is built. What an operation
    raises ends the requests of the step, and with several ranks the engine.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for

    @dataclass
    class Options: ...

    @classmethod
    def rejects(cls, dtype: Any, device: str) -> list[str]:
        """Reasons not to run at this torch `dtype` on the `device` "cpu" or "cuda"."""
        return []

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [..., N], weight [N] -> x / rms(x) * weight, computed in float32, in x's dtype.

        rms(x) = sqrt(mean(x ** 2) + eps).
        """

    @abstractmethod
    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """-> (rms_norm(x + residual, weight, eps), x + residual), both [T, N].

        May overwrite its inputs.
        """

    @abstractmethod
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """gate_up [T, 2 N] -> silu(first half) * second half, [T, N]."""

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


class Step:
    """The stages of a step, handed to a runner, which may capture them, and their state."""

    backends: Sequence[AttentionBackend]  # one for each shape of attention
    sampler: Sampler
    rows: RequestRows  # tokens and page tables of all running requests
    sampling: SamplingTable
    comm: Communicator  # what a runner finds out by itself, all ranks must find out alike
    partial: bool = False  # whether batches may say that only some tokens are `wanted`

    def plan(self, batch: Batch) -> None:
        """Let the backends prepare: before `forward` of a captured batch, which leaves that to the
        runner. Of any other batch `forward` does it."""
        for backend in self.backends:
            backend.plan(batch.attention)

    def forward(self, batch: Batch) -> Tensor:
        """-> hidden states [T, hidden], or [W, hidden] of `batch.wanted`, as the model likes. Of a
        captured step they may wait (`core.fusing`) for `logits`, and are for nobody else."""
        raise NotImplementedError

    def logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        """-> [S, V], the sampled rows only."""
        raise NotImplementedError

    def sample(self, logits: Tensor, batch: Batch) -> Sampled:
        """-> ids, also written into the rows' history on the device. Reads `batch.rows` alone."""
        raise NotImplementedError

    def run(self, batch: Batch) -> tuple[Tensor, Sampled]:
        """All stages, one after the other."""
        return self.finish(self.forward(batch), batch)

    def finish(self, hidden: Tensor, batch: Batch) -> tuple[Tensor, Sampled]:
        """What is left to do after `forward`; nothing in a step that samples nothing."""
        if len(batch.sample_index) == 0:  # chunks of prompts, none of which ends here
            return hidden, Sampled(ids=batch.sample_index)
        return hidden, self.sample(self.logits(hidden, batch), batch)


class Runner(ABC):
    """Runs a step on the device: eagerly, or by replaying what it captured.

    Errors: what `prepare` raises ends the start. What `run` raises ends the requests of the step,
    and with several ranks the engine.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for

    @dataclass
    class Options: ...

    most_decodes: int = 0  # steps of up to so many requests that only decode go to `decode`

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def prepare(self, step: Step, limits: Limits) -> None:
        """After weights and cache are there: warm up, capture."""

    @abstractmethod
    def run(self, batch: Batch) -> tuple[Tensor, Sampled]:
        """-> what `Step.forward` gives (for prompt log probabilities) and the sampled ids."""

    def decode(self, decodes: Decodes) -> Sampled:
        """A step that only decodes, before it is tensors; the runner adds its pages to the rows'
        tables. Called for at most `most_decodes` requests, in place of `run`."""
        raise NotImplementedError

    def reserve(self, step: Step, limits: Limits) -> int:
        """Bytes of device memory that `prepare` and what follows will take beside the largest
        eager step.

        `step` has a cache of one page; `limits` are final but for its size. Returns 0 by default.
        """
        return 0

    def close(self) -> None:
        """Drop what was captured. The last call; may be repeated."""
        return None
