"""Graphs of short steps with prompts in them: the layers are replayed, head and sampler are not.

The layers of a small model are some hundred launches, which take the host longer than the device
takes for a short prompt. What follows them is a dozen, and depends on what requests ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from core.fusing import value_of
from core.types import AttentionMetadata, Batch
from plugins.runners.cuda_graph.by_size import BySize
from plugins.runners.cuda_graph.sizes import measured

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import Step
    from core.types import Limits
    from plugins.runners.cuda_graph.capture import Captured, Capturing

SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
WIDEST = 4  # a step is not padded to more than so many times its tokens


def token_sizes(most: int) -> list[int]:
    """How many tokens steps are captured with, ascending: up to `most`, which is one of them."""
    sizes, last = list(SIZES), SIZES[-1]
    while last < most:
        last += last // 3
        sizes.append(last)
    return [size for size in sizes if size < most] + [most]


def most_requests(tokens: int, limits: Limits) -> int:
    """Room for requests in a step of so many tokens. Each place costs a little, used or not."""
    return min(limits.max_num_seqs, tokens, max(16, tokens // 4))


class PromptGraphs(BySize[tuple[Batch, "Captured"]]):
    """A graph for each of some numbers of tokens. A step that none fits is to be run eagerly."""

    def __init__(self, step: Step, limits: Limits, most: int, capturing: Capturing) -> None:
        super().__init__(step, token_sizes(most), capturing)
        self.limits = limits
        self._shared = _buffers(step, most_requests(most, limits), most)

    def hidden(self, batch: Batch) -> Tensor | None:
        """Hidden states [T, hidden] of a step, until the next replay; None if no graph fits."""
        size = self.fitting(len(batch.tokens), len(batch.attention.context_len))
        if size is None:
            return None
        static, graph = self.of(size)
        self._ends.place(static, batch)
        graph.replay()
        assert graph.result is not None
        return graph.result[: len(batch.tokens)]

    def fitting(self, tokens: int, requests: int) -> int | None:
        """The smallest size with room for a step, if there is one that is not much too large."""
        for size in self.sizes:
            if size >= tokens and most_requests(size, self.limits) >= requests:
                return size if size <= max(WIDEST * tokens, self.sizes[0]) else None
        return None

    def _static(self, size: int) -> Batch:
        """A step of a size, of nothing but padding."""
        room = most_requests(size, self.limits)
        self._shared.attention.slots.fill_(-1)
        self._shared.attention.context_len.zero_()
        self._shared.attention.query_start.zero_()
        return _part(self._shared, size, room, self.limits.max_length)

    def _layers(self, static: Batch) -> Tensor:
        static.attention.private = None
        self.step.plan(static)
        return value_of(self.step.forward(static))

    def rehearse(self, size: int) -> None:
        self._layers(self._static(size))

    def _captured(self, size: int) -> tuple[Batch, Captured]:
        static = self._static(size)
        self._ends.place(static, static)  # compiles it
        captured = self.capturing.capture(lambda: self._layers(static))
        captured.let_go()
        return static, captured

    def measure(self) -> int:
        """Capture some. -> bytes that all take."""
        first, each = measured(self.sizes, self.capture, self.capturing.used)
        return first + each * (len(self.sizes) - 1)


def _part(shared: Batch, size: int, requests: int, longest: int) -> Batch:
    """A step of up to `size` tokens at fixed addresses, the first of those of the largest size."""
    meta = shared.attention
    return Batch(
        tokens=shared.tokens[:size],
        positions=shared.positions[:size],
        attention=AttentionMetadata(
            query_start=meta.query_start[: requests + 1],
            context_len=meta.context_len[:requests],
            page_table=meta.page_table[:requests],
            slots=meta.slots[:size],
            max_query=size,
            max_context=longest,
            decodes=0,
        ),
        sample_index=shared.sample_index,
        rows=shared.rows,
        captured=True,
    )


def _buffers(step: Step, requests: int, tokens: int) -> Batch:
    device, pages = step.rows.history.device, step.rows.page_table.shape[1]

    nobody = np.zeros(0, np.int32)

    def zeros(shape: int | Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return Batch(
        tokens=zeros(tokens, torch.int64),
        positions=zeros(tokens, torch.int64),
        attention=AttentionMetadata(
            query_start=zeros(requests + 1, torch.int32),
            context_len=zeros(requests, torch.int32),
            page_table=zeros((requests, pages), torch.int32),
            slots=zeros(tokens, torch.int64),
            max_query=tokens,
            max_context=0,
            decodes=0,
        ),
        sample_index=zeros(0, torch.int64),
        rows=step.sampling.select(nobody, nobody),
    )
