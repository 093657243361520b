"""What runs on the device: attention, the small kernels, a step, and its runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces.sampling import Sampled
    from core.types import AttentionMetadata, AttentionShape, Batch, KVLayer, Limits


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
    """Runs a step on the device: eagerly, or by replaying what it captured.

    Errors: what `prepare` raises ends the start. What `run` raises ends the requests of the step,
    and with several ranks the engine.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for

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
