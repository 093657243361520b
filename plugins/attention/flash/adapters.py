"""How each generation of FlashAttention is called, and what it cannot do.

All of them compute causal attention of grouped queries in half precision, aligned so that the last
query sees the last key. Windows count tokens to the left of a query, itself not included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from core.importing import load_path
from core.types import AttentionShape, KVLayer

Capability = tuple[int, int]


class Flash(ABC):
    """One generation, for one shape."""

    number: ClassVar[int]
    package: ClassVar[str]  # that a user installs
    marker: ClassVar[str]  # an import name that only this generation has
    functions: ClassVar[tuple[str, str]]  # varlen, and over the cache
    unlimited: ClassVar[Any] = (-1, -1)

    @classmethod
    @abstractmethod
    def rejects(cls, shape: AttentionShape, capability: Capability) -> list[str]:
        """Reasons not to use it for a shape on a device."""

    @classmethod
    def rejects_pages(cls, shape: AttentionShape, capability: Capability) -> list[str]:
        """Reasons not to let it decode from the cache."""
        return []

    @classmethod
    def load(cls) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Import its functions. Raises whatever the import raises."""
        first, second = cls.functions
        return load_path(first), load_path(second)

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape
        self._varlen, self._cached = self.load()
        window = self.unlimited if shape.window is None else (shape.window - 1, 0)
        self.how = {"softmax_scale": shape.scale, "causal": True, "window_size": window}

    def prompts(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        starts: tuple[Tensor, Tensor],
        longest: tuple[int, int],
        out: Tensor | None = None,
    ) -> Tensor:
        """q [T, H, D], k and v [K, KV, D]: request b's are those from starts[..][b] to [b + 1].

        starts [B + 1] int32, and the longest request, first of queries, then of keys. What is
        found lies in `out` [T, H, D], if that is given.
        """
        found = self._varlen(
            q,
            k,
            v,
            cu_seqlens_q=starts[0],
            cu_seqlens_k=starts[1],
            max_seqlen_q=longest[0],
            max_seqlen_k=longest[1],
            **self.how,
        )
        return _first(found) if out is None else out.copy_(_first(found))

    @abstractmethod
    def decode(self, q: Tensor, cache: KVLayer, pages: Tensor, lengths: Tensor) -> Tensor:
        """q [B, 1, H, D], one token of each request; pages [B, P], lengths [B] -> as q."""


class Flash2(Flash):
    """FlashAttention 2 (Dao 2023): Ampere and later."""

    number = 2
    package = "flash-attn"
    marker = "flash_attn_2_cuda"
    functions = ("flash_attn:flash_attn_varlen_func", "flash_attn:flash_attn_with_kvcache")

    @classmethod
    def rejects(cls, shape: AttentionShape, capability: Capability) -> list[str]:
        return [] if capability >= (8, 0) else ["it needs compute capability 8.0 or above"]

    @classmethod
    def rejects_pages(cls, shape: AttentionShape, capability: Capability) -> list[str]:
        if shape.page_size % 256 == 0:
            return []
        return [
            f"pages of {shape.page_size} tokens are no multiple of 256; set cache.page_size=256"
        ]

    @property
    def fits_pages(self) -> bool:
        """Whether `paged_prompts` can read the cache."""
        return self.shape.page_size % 256 == 0

    def paged_prompts(
        self,
        q: Tensor,
        cache: KVLayer,
        pages: Tensor,
        starts: tuple[Tensor, Tensor],
        longest: tuple[int, int],
    ) -> Tensor:
        """As `prompts`, with the keys and values of pages [B, P]."""
        return self._varlen(q, *cache, *starts, *longest, block_table=pages, **self.how)  # type: ignore[no-any-return]

    def decode(self, q: Tensor, cache: KVLayer, pages: Tensor, lengths: Tensor) -> Tensor:
        return self._cached(q, *cache, cache_seqlens=lengths, block_table=pages, **self.how)  # type: ignore[no-any-return]


class Flash3(Flash):
    """FlashAttention 3 (Shah et al. 2024): Hopper.

    Prompts are not read from pages: it loads whole tiles of a page, and a NaN in a slot that nobody
    wrote spoils the result. With one query a request it loads token by token.
    """

    number = 3
    package = "flash_attn_3, from FlashAttention's folder hopper"
    marker = "flash_attn_interface"
    functions = (
        "flash_attn_interface:flash_attn_varlen_func",
        "flash_attn_interface:flash_attn_with_kvcache",
    )

    @classmethod
    def rejects(cls, shape: AttentionShape, capability: Capability) -> list[str]:
        return [] if capability[0] == 9 else ["it is for Hopper GPUs, of compute capability 9"]

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        # below its functions, of which none takes the place of the result
        self._operator = getattr(torch.ops.flash_attn_3, "fwd", None)

    def prompts(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        starts: tuple[Tensor, Tensor],
        longest: tuple[int, int],
        out: Tensor | None = None,
    ) -> Tensor:
        if out is None or self._operator is None:
            return super().prompts(q, k, v, starts, longest, out)
        left, right = self.how["window_size"]
        found = self._operator(
            q,
            k,
            v,
            out=out,
            cu_seqlens_q=starts[0],
            cu_seqlens_k=starts[1],
            max_seqlen_q=longest[0],
            max_seqlen_k=longest[1],
            softmax_scale=self.shape.scale,
            is_causal=True,
            window_size_left=left,
            window_size_right=right,
            num_splits=1,
        )
        return _first(found)

    def decode(self, q: Tensor, cache: KVLayer, pages: Tensor, lengths: Tensor) -> Tensor:
        found = self._cached(q, *cache, cache_seqlens=lengths, page_table=pages, **self.how)
        return _first(found)


class Flash4(Flash):
    """FlashAttention 4, in CuTe DSL: Hopper, without split-KV, and Blackwell.

    It loads whole tiles of pages that hold them, unwritten slots included; smaller pages token by
    token. So pages must be small.
    """

    number = 4
    package = "flash-attn-4"
    marker = "flash_attn.cute"
    functions = ("flash_attn.cute:flash_attn_varlen_func", "flash_attn.cute:flash_attn_varlen_func")
    unlimited = (None, None)

    @classmethod
    def rejects(cls, shape: AttentionShape, capability: Capability) -> list[str]:
        reasons = []
        if capability < (8, 0):
            reasons.append("it needs compute capability 8.0 or above")
        if capability[0] >= 10 and shape.head_dim > 128 and shape.head_dim != 256:
            reasons.append(f"head_dim {shape.head_dim} is neither up to 128 nor 256")
        return reasons

    @classmethod
    def rejects_pages(cls, shape: AttentionShape, capability: Capability) -> list[str]:
        reasons = []
        if capability[0] not in (9, 10, 11):
            reasons.append("it reads pages only on compute capability 9, 10 and 11")
        if shape.page_size > 32:
            reasons.append(
                f"pages of {shape.page_size} tokens: it would read slots that nobody wrote; set "
                "cache.page_size=32"
            )
        return reasons

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        hopper = torch.cuda.get_device_capability()[0] == 9
        self.splits = 1 if hopper else 0  # 0: it decides

    def decode(self, q: Tensor, cache: KVLayer, pages: Tensor, lengths: Tensor) -> Tensor:
        found = self._cached(
            q,
            *cache,
            seqused_k=lengths,
            page_table=pages,
            max_seqlen_k=pages.shape[1] * self.shape.page_size,
            num_splits=self.splits,
            **self.how,
        )
        return _first(found)


def _first(found: Any) -> Tensor:
    """The output; some versions return the logarithms of the sums beside it."""
    out: Tensor = found[0] if isinstance(found, tuple) else found
    return out
