"""Graphs of steps with prompts in them: the layers are replayed, head and sampler are not.

The layers of a small model are some hundred launches, which take the host longer than the device
takes for a prompt. What follows them is a dozen, and depends on what requests ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.fusing import value_of
from plugins.runners.cuda_graph.by_size import BySize
from plugins.runners.cuda_graph.pieces import Pieces, no_attention
from plugins.runners.cuda_graph.prompt_buffers import PromptBuffers
from plugins.runners.cuda_graph.sizes import measured

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import Step
    from core.types import Batch, Limits
    from plugins.runners.cuda_graph.capture import Captured, Capturing

SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
WIDEST = 4  # a step is not padded to more than so many times its tokens
WHOLE = 1024  # tokens of the longest step with attention in its graph: its kernels for prompts that
#               can be captured may not be its best ones


def token_sizes(most: int) -> list[int]:
    """How many tokens steps are captured with, ascending: up to `most`, which is one of them.

    Small steps wait for the host, padded or not. Long ones may wait for the device, and are padded
    by no more than an eighth.
    """
    sizes, last = list(SIZES), SIZES[-1]
    while last < most:
        last += max(256, last // 8 // 256 * 256)
        sizes.append(last)
    return [size for size in sizes if size < most] + [most]


def most_requests(tokens: int, limits: Limits) -> int:
    """Room for requests in a step of so many tokens. Each place costs a little, used or not."""
    return min(limits.max_num_seqs, tokens, max(16, tokens // 4))


class Whole:
    """The layers of a step in one graph, attention included."""

    whole = True

    def __init__(self, static: Batch, graph: Captured) -> None:
        self.static, self._graph = static, graph

    def replay(self, batch: Batch) -> Tensor:
        """Of `batch`, which lies at the fixed addresses already. -> hidden states [size, hidden]"""
        self._graph.replay()
        assert self._graph.result is not None
        return self._graph.result


class PromptGraphs(BySize["Whole | Pieces"]):
    """A graph for each of some numbers of tokens, or several. A step that none fits runs eagerly.

    Short steps are one graph, if attention can be captured for prompts. Otherwise what lies between
    attentions is: whichever backend it is, it then runs as in an eager step.
    """

    def __init__(
        self, step: Step, limits: Limits, most: int, whole: int, capturing: Capturing
    ) -> None:
        """Of up to `most` tokens, and up to `whole` with attention in them."""
        super().__init__(step, token_sizes(most), capturing)
        self.limits, self.longest_whole = limits, whole
        requests = most_requests(min(most, whole), limits)
        self._buffers = PromptBuffers(step, limits, most, requests)

    def hidden(self, batch: Batch) -> Tensor | None:
        """What `Step.forward` gives, until the next replay; None if no graph fits."""
        size = self.fitting(len(batch.tokens), len(batch.attention.context_len))
        if size is None:
            return None
        graph = self.of(size)
        told = batch.tokens if graph.whole else batch.wanted
        if told is None:  # more than this graph tells
            return None
        self._ends.place(graph.static, batch)
        return graph.replay(batch)[: len(told)]

    def fitting(self, tokens: int, requests: int) -> int | None:
        """The smallest size with room for a step, if there is one that is not much too large."""
        for size in self.sizes:
            crowded = self._whole(size) and most_requests(size, self.limits) < requests
            if size >= tokens and not crowded:
                return size if size <= max(WIDEST * tokens, self.sizes[0]) else None
        return None

    def shorter(self, capturing: Capturing) -> PromptGraphs | None:
        """Of half as many tokens; None if that is not worth a graph."""
        most = self.sizes[-1] // 2
        if most < SIZES[0]:
            return None
        return PromptGraphs(self.step, self.limits, most, self.longest_whole, capturing)

    def _whole(self, size: int) -> bool:
        return size <= self.longest_whole

    def _static(self, size: int) -> Batch:
        if self._whole(size):
            return self._buffers.padding(size, most_requests(size, self.limits))
        return self._buffers.padding(size, 0, whole=not self.step.partial)

    def _layers(self, static: Batch) -> Tensor:
        static.attention.private = None
        self.step.plan(static)
        return value_of(self.step.forward(static))

    def rehearse(self, size: int) -> None:
        static = self._static(size)
        if self._whole(size):
            self._layers(static)
        else:
            no_attention(self.step, static)

    def _captured(self, size: int) -> Whole | Pieces:
        static = self._static(size)
        self._ends.place(static, static)  # compiles it
        if not self._whole(size):
            return Pieces(self.step, static, self.capturing)
        captured = self.capturing.capture(lambda: self._layers(static))
        captured.let_go()
        return Whole(static, captured)

    def measure(self) -> int:
        """Capture some. -> bytes that all take."""
        first, each = measured(self.sizes, self.capture, self.capturing.used)
        return first + each * (len(self.sizes) - 1)
