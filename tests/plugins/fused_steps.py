"""A step of single tokens as a projection leaves it, and what torch makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from core.testing.attention import AttentionCase
from core.testing.numbers import assert_close, bits
from core.types import AttentionMetadata
from plugins.attention.triton.backend import TritonAttention
from plugins.kernels.torch import TorchKernels

EPS = 1e-6


@dataclass
class Fused:
    """A step of single tokens as rows of a projection [B, (H + 2 KV) D], and some padding."""

    case: AttentionCase
    turns: int | None = None  # pairs of entries that turn; None: all
    normed: bool = True
    padding: int = 0

    def __post_init__(self) -> None:
        case = self.case
        made = torch.Generator().manual_seed(case.seed)
        size, requests = case.head_dim, len(case.lengths)
        self.rows = requests + self.padding
        heads = case.heads + 2 * case.kv_heads
        self.qkv = torch.randn(self.rows, heads * size, generator=made).to(case.dtype)
        self.qkv[requests:] = torch.nan
        gains = torch.rand(2, size, generator=made) + 0.5
        self.norms = (*gains.to(case.dtype), EPS) if self.normed else None
        turns = size // 2 if self.turns is None else self.turns
        angles = torch.rand(max(case.lengths), turns, generator=made) * 6
        self.rope = torch.stack((angles.cos(), angles.sin()), 1)
        self.positions = torch.tensor([n - 1 for n in case.lengths] + [0] * self.padding)
        self._forget_new_tokens()

    def _forget_new_tokens(self) -> None:
        """The cache is as before the step; what the step makes of it is worked out by torch."""
        case = self.case
        self.before = [x.clone() for x in case.cache]
        slots = torch.tensor([case.slot(b, n - 1) for b, n in enumerate(case.lengths)])
        at = (slots // case.page_size).to(case.device), (slots % case.page_size).to(case.device)
        for x in self.before:
            x[at] = torch.nan
        wide = self.qkv.view(self.rows, -1, case.head_dim)[: len(case.lengths)]
        q, k, v = wide.split((case.heads, case.kv_heads, case.kv_heads), 1)
        scratch = type(case.cache)(*(x.cpu().clone() for x in self.before))
        twin = TorchKernels(TorchKernels.Options())
        case.q, k = twin.rope_store(
            q, k, v, self.norms, self.rope, self.positions[: len(wide)], scratch, slots
        )
        self.after = scratch
        for b in range(len(wide)):
            case.keys[b][-1], case.values[b][-1] = k[b], v[b]

    def meta(self) -> AttentionMetadata:
        meta, more = self.case.meta(), self.padding

        def padded(x: Tensor, value: int) -> Tensor:
            return torch.cat((x, x.new_full((more, *x.shape[1:]), value)))

        meta.context_len, meta.slots = padded(meta.context_len, 0), padded(meta.slots, -1)
        meta.page_table = padded(meta.page_table, 1 << 30)
        meta.query_start = torch.arange(self.rows + 1, dtype=torch.int32, device=self.case.device)
        meta.decodes = self.rows
        return meta

    def run(self, backend: TritonAttention, meta: AttentionMetadata | None = None) -> Tensor:
        """-> [B, H, D]; the cache is what the step left."""
        case = self.case
        for x, old in zip(case.cache, self.before, strict=True):
            x.copy_(old)
        if meta is None:
            meta = self.meta()
            backend.plan(meta)
        assert backend.fuses(meta)
        on = case.device
        norms = self.norms
        if norms is not None:
            norms = (norms[0].to(on), norms[1].to(on), norms[2])
        with torch.inference_mode():
            out = backend.forward_fused(
                self.qkv.to(on), norms, self.rope.to(on), self.positions.to(on), case.cache, meta
            )
        return out.view(self.rows, case.heads, case.head_dim)

    def check(self, backend: TritonAttention | None = None) -> None:
        case = self.case
        found = self.run(backend or TritonAttention(case.shape, TritonAttention.Options()))
        requests = len(case.lengths)
        assert_close(found[:requests], case.expected(), case.dtype)
        assert (found[requests:] == 0).all()
        for name, x, old, new in zip("kv", case.cache, self.before, self.after, strict=True):
            untouched = ~old.cpu().isnan() | new.isnan()
            assert torch.equal(bits(x.cpu())[untouched], bits(old.cpu())[untouched]), name
            # sums in another order: some roundings in float32, one of the result otherwise
            step = torch.finfo(x.dtype).eps * (8 if x.dtype == torch.float32 else 1)
            stored, twin = x.cpu()[~untouched], new[~untouched]
            torch.testing.assert_close(stored, twin, rtol=step, atol=step)
