"""The attention backend `flash`: FlashAttention over the paged cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.errors import UserError
from core.interfaces import AttentionBackend
from core.types import AttentionMetadata, AttentionShape, KVLayer
from plugins.attention.flash.generations import GENERATIONS, choose
from plugins.attention.flash.prompts import FlashPrompts, Prompts

log = logging.getLogger("plait")


class FlashAttention(AttentionBackend):
    """FlashAttention 3, 2 or 4: prompts, chunks of prompts, and decoding with split-KV."""

    @dataclass
    class Options:
        generation: int | None = field(
            default=None,
            metadata={"help": "2, 3 or 4; null: the best that is installed and fits the GPU"},
        )

        def __post_init__(self) -> None:
            known = [flash.number for flash in GENERATIONS]
            if self.generation is not None and self.generation not in known:
                raise UserError(
                    f"generation must be one of {known} or null, and is {self.generation}."
                )

    options: Options

    page_sizes = (256, 128, 64, 32, 16)
    graphable = True

    @classmethod
    def rejects(cls, shape: AttentionShape) -> list[str]:
        choice = choose(shape)
        return list(choice.against) if choice.best is None else []

    def __init__(self, shape: AttentionShape, options: Options) -> None:
        super().__init__(shape, options)
        choice = choose(shape, options.generation)
        if choice.best is None:
            raise UserError(f"attention: flash: {choice}.")
        log.info("attention: flash: %s", choice)
        self._flash = choice.best(shape)
        self._prompts = FlashPrompts(self._flash)

    def plan(self, meta: AttentionMetadata) -> None:
        prompts = self._prompts.plan(meta) if meta.decodes < len(meta.context_len) else None
        meta.private = {**(meta.private or {}), self: prompts}  # layers of other shapes plan too

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata
    ) -> Tensor:
        prompts: list[Prompts] | None = meta.private[self]
        if meta.decodes == 0 and prompts is not None:
            return self._prompts.forward(q, k, v, cache, prompts)
        if prompts is None:
            return self._decode(q, cache, meta)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.forward_into(q, k, v, cache, meta, out)
        return out

    def forward_into(
        self, q: Tensor, k: Tensor, v: Tensor, cache: KVLayer, meta: AttentionMetadata, out: Tensor
    ) -> None:
        prompts: list[Prompts] | None = meta.private[self]
        n = meta.decodes
        if n:
            out[:n] = self._decode(q, cache, meta)
        if prompts is not None:
            self._prompts.forward(q[n:], k[n:], v[n:], cache, prompts, out[n:])

    def _decode(self, q: Tensor, cache: KVLayer, meta: AttentionMetadata) -> Tensor:
        n = meta.decodes
        pages, lengths = meta.page_table[:n], meta.context_len[:n]
        return self._flash.decode(q[:n, None], cache, pages, lengths).squeeze(1)
