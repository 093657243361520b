"""An attention backend for tests, as a one-file plugin: plain, slow, and it can be captured.

It looks at nothing but the device's tensors: every token sees all slots of its request's page
table, and a mask hides those that are not its context.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from core.interfaces import AttentionBackend
from core.registry import attention
from core.types import AttentionMetadata, KVLayer, Limits


@attention.register("dense", summary="every slot of a page table, masked")
class Dense(AttentionBackend):
    graphable = graphable_prompts = True

    def plan(self, meta: AttentionMetadata) -> None:
        meta.private = {**(meta.private or {}), self: meta.context_len.clone()}

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        tokens = torch.arange(len(q), dtype=torch.int32, device=q.device)
        owner = torch.bucketize(tokens, meta.query_start[1:], right=True)  # [T]
        owner = owner.clamp(max=len(meta.context_len) - 1)  # padding is anybody's
        seen = meta.private[self][owner] - (meta.query_start[1:][owner] - tokens - 1)  # [T]
        pages = meta.page_table.long().clamp(0, len(cache.k) - 1)[owner]  # [T, P]
        keys, values = (x[pages].flatten(1, 2).float() for x in cache)  # [T, P * page, KV, D]
        place = torch.arange(keys.shape[1], device=q.device)
        hidden = place >= seen[:, None]  # [T, K]
        keys, values = (x.masked_fill(hidden[:, :, None, None], 0) for x in (keys, values))
        grouped = q.float().unflatten(1, (keys.shape[2], -1))  # [T, KV, G, D]
        scores = torch.einsum("tkgd,tskd->tkgs", grouped, keys) * self.shape.scale
        scores = scores.masked_fill(hidden[:, None, None], -1e30)
        out = torch.einsum("tkgs,tskd->tkgd", scores.softmax(-1), values)
        return out.flatten(1, 2).to(q.dtype)


@attention.register("dense-static", summary="dense, with state of its own in captured steps")
class DenseStatic(Dense):
    """What `plan` would make, it holds itself; the runner refreshes it before each replay."""

    graphable_prompts = False
    refreshed: ClassVar[list[tuple[int, list[int]]]] = []

    def static(self, limits: Limits, batch: int) -> Any:
        device = "cuda" if self.shape.device == "cuda" else "cpu"
        return torch.zeros(batch, dtype=torch.int32, device=device)

    def refresh(self, static: Any, meta: AttentionMetadata) -> None:
        static.copy_(meta.context_len)
        self.refreshed.append((meta.decodes, meta.context_lens))
