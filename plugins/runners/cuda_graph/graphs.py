"""The graphs of all sizes of decode steps: captures them, and replays the one that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from core.interfaces import Sampled
from core.sampling import columns
from plugins.runners.cuda_graph.buffers import Buffers, StaticBatch
from plugins.runners.cuda_graph.by_size import BySize
from plugins.runners.cuda_graph.sizes import chosen, measured, thinned

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import Step
    from core.types import Decodes, Limits
    from plugins.runners.cuda_graph.buffers import CapturedRows
    from plugins.runners.cuda_graph.capture import Captured, Capturing


class Graph:
    """A step of one size. In two parts if a backend must be refreshed when its tensors are made."""

    def __init__(
        self, static: StaticBatch, parts: Sequence[Captured], samples: bool, again: Captured | None
    ) -> None:
        """`samples`: the last part ends with ids. `again`: samples rows that truncate instead."""
        self.static, self._parts, self._samples, self._again = static, parts, samples, again

    def replay(self, decodes: Decodes) -> Sampled | None:
        """Start a step. -> its ids [B]; None if they must be sampled from the logits."""
        mail, count = self.static.mail, len(decodes.rows)
        mail.post(decodes, self.static.size)
        self._parts[0].replay()
        if len(self._parts) > 1:
            self.static.refresh(decodes)
            self._parts[1].replay()
        needs = decodes.sampled.needs & ~columns.RANDOM
        if not self._samples or needs & ~(columns.TRUNCATION if self._again else 0):
            mail.sent(count)
            return None
        if needs and self._again is not None:
            self._again.replay()
        return Sampled(self.static.ids[:count], landed=mail.sent(count))

    @property
    def logits(self) -> Tensor:
        """[size, V] of the last replay of any graph."""
        logits = self._parts[-1].result
        assert logits is not None
        return logits


class Graphs(BySize[Graph]):
    """Those of decode steps, by the number of requests."""

    def __init__(
        self, step: Step, limits: Limits, sizes: Sequence[int], capturing: Capturing
    ) -> None:
        super().__init__(step, sizes, capturing)
        self._samples = step.sampler.graphable  # else the graphs end at the logits
        self._truncates = (
            step.sampler.graphable_truncation
            and self._samples
            and step.sampling.kernels is not None
        )
        self._buffers = Buffers(step, limits, self.sizes[-1])

    def fitting(self, requests: int) -> Graph:
        """The smallest graph that has room for so many requests."""
        return self.of(chosen(self.sizes, requests))

    def _captured(self, size: int) -> Graph:
        step, static = self.step, StaticBatch(self._buffers, size)
        static.mail.rest(size)

        def begin() -> None:
            self._ends.begin(static)

        def rest() -> Tensor:
            static.plan(step.backends)
            logits = step.logits(step.forward(static.batch), static.batch)
            if self._samples:
                self._sample(static, static.rows, logits)
            else:
                self._ends.pass_on(static)
            return logits

        def whole() -> Tensor:
            begin()
            return rest()

        capture = self.capturing.capture
        parts = [capture(begin), capture(rest)] if static.private else [capture(whole)]
        again = None
        if self._truncates:
            rows = static.rows.with_truncation()
            again = capture(lambda: self._sample(static, rows, parts[-1].result))
        parts[-1].let_go()
        return Graph(static, parts, self._samples, again)

    def rehearse(self, size: int) -> None:
        static = StaticBatch(self._buffers, size)  # its tensors hold zeros as yet
        static.meta.slots.fill_(-1)
        static.plan(self.step.backends)
        logits = self.step.logits(self.step.forward(static.batch), static.batch).zero_()
        if self._samples:
            self.step.sample(logits, static.batch)
        if self._truncates:
            rows = static.rows.with_truncation()
            self.step.sample(logits, replace(static.batch, rows=rows))

    def _sample(self, static: StaticBatch, rows: CapturedRows, logits: Tensor | None) -> None:
        assert logits is not None
        self.step.sample(logits, replace(static.batch, rows=rows))
        self._ends.finish(static, rows.drawn, logits)

    def measure(self) -> tuple[int, int]:
        """Capture some. -> bytes of the first, and of each one after it."""
        return measured(self.sizes, self.capture, self.capturing.used)

    def thin_out(self, count: int) -> None:
        """Do with so many sizes."""
        self.sizes = thinned(self.sizes, count)
        self._graphs = {size: self._graphs[size] for size in self.sizes if size in self._graphs}
