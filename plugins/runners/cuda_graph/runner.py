"""The runner that replays graphs: of decode steps, and of the layers in short prompt steps."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch

from core.errors import UserError
from core.importing import installed
from core.interfaces import Runner, Sampled
from core.settings.ranges import parse_bytes
from plugins.runners.cuda_graph.ahead import compile_ahead
from plugins.runners.cuda_graph.capture import capturing_on
from plugins.runners.cuda_graph.graphs import Graphs
from plugins.runners.cuda_graph.pieces import tokens_worth_capturing
from plugins.runners.cuda_graph.prompts import WHOLE, PromptGraphs, token_sizes
from plugins.runners.cuda_graph.sizes import standard

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import Step
    from core.types import Batch, Decodes, Limits
    from plugins.runners.cuda_graph.capture import Capturing

log = logging.getLogger("plait")


class CudaGraph(Runner):
    """Captures embedding, layers, head, sampler, and the way of the ids back into the history.

    A step costs the host one copy and one replay. What is missing to a captured size is padding:
    context 0, slot -1, and a row of the tables that is nobody's. Rows with top_k, top_p or min_p
    are sampled again by a small graph of their own, where the kernel set can do that, and rows that
    ask for more by the sampler itself, from the logits that the graph leaves.

    Of a step with prompts the layers are replayed, unless it is so long that the host launches them
    in less time than the device takes to compute them. Attention to prompts stays outside of the
    graphs of long steps, or of all, if its backend needs it.
    """

    @dataclass
    class Options:
        sizes: list[int] = field(
            default_factory=list,
            metadata={
                "help": "batch sizes to capture; a smaller batch is padded. Empty: 1, 2, 4, steps "
                "of 8 to 256, of 16 to 512 and so on. The largest possible batch is always one"
            },
        )
        prompts: int | None = field(
            default=None,
            metadata={
                "help": "tokens of the longest step with prompts whose layers are captured; longer "
                "ones run eagerly. 0: none is captured. null: as long as launching them takes "
                "more than half the time of computing them, which is measured at the start"
            },
        )
        capture: Literal["start", "lazy"] = field(
            default="start",
            metadata={
                "help": "when: all at the start, or each when it is first met (the largest at "
                "the start in any case)"
            },
        )
        memory: str | None = field(
            default=None,
            metadata={
                "help": "most device memory for graphs, such as 1GiB: sizes are left out, more of "
                "the large ones, to keep within it; null: no limit"
            },
        )

        def __post_init__(self) -> None:
            if wrong := [size for size in self.sizes if size < 1]:
                raise ValueError(f"runner.sizes holds {wrong[0]}. Give sizes of 1 or more.")
            if self.prompts is not None and self.prompts < 0:
                raise ValueError(f"runner.prompts is {self.prompts}. Give 0 or more.")
            if self.memory is not None:
                parse_bytes(self.memory)

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._graphs: Graphs | None = None
        self._prompts: PromptGraphs | None = None
        self._worth: int | None = None  # tokens

    def prepare(self, step: Step, limits: Limits) -> None:
        graphs, prompts = self._begin(step, limits)
        self.step = step
        if graphs is None:
            log.info("runner cuda_graph: %s; every step runs eagerly", self._obstacle)
            return
        began = time.monotonic()
        self._compile(graphs, prompts)
        if self.options.memory is not None:
            prompts = self._keep_within(self.options.memory, graphs, prompts)
        at_start = self.options.capture == "start"
        if prompts is not None:  # the larger graphs: the others find memory in what they have freed
            prompts.capture_all() if at_start else prompts.capture(prompts.sizes[-1])
        graphs.capture_all() if at_start else graphs.capture(graphs.sizes[-1])
        self._graphs, self._prompts, self.most_decodes = graphs, prompts, graphs.sizes[-1]
        log.info(
            "captured steps of %d sizes, up to %d requests, and with prompts of %d, in %.1f s",
            len(graphs),
            self.most_decodes,
            len(prompts or ()),
            time.monotonic() - began,
        )

    def reserve(self, step: Step, limits: Limits) -> int:
        """Measured: the largest graph, and the next one for each of the others."""
        graphs, prompts = self._begin(step, limits)
        if graphs is None:
            return 0
        lasting = self._compile(graphs, prompts)
        with_prompts = prompts.measure() if prompts is not None else 0
        first, each = graphs.measure()
        needed = lasting + with_prompts + first + each * (len(graphs.sizes) - 1)
        return (
            needed if self.options.memory is None else min(needed, parse_bytes(self.options.memory))
        )

    def _begin(self, step: Step, limits: Limits) -> tuple[Graphs | None, PromptGraphs | None]:
        """No graphs where nothing can be captured, for reasons that are then in `_obstacle`."""
        self.close()
        capturing = capturing_on(step.rows.history.device)
        rigid = [f"attention by {type(b).__name__}" for b in step.backends if not b.graphable]
        if capturing is not None and capturing.device.type == "cuda" and not installed("triton"):
            rigid.append("a step without the package triton")
        if not step.comm.graphable:
            rigid.append(f"the way in which ranks talk, {type(step.comm).__name__},")
        if capturing is None or rigid:
            self._obstacle = f"there are no graphs on {step.rows.history.device}"
            if capturing is not None:
                self._obstacle = f"{' and '.join(dict.fromkeys(rigid))} cannot be captured"
            return None, None
        most = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        sizes = standard(most)
        if self.options.sizes:
            sizes = sorted({size for size in self.options.sizes if size < most} | {most})
        graphs = Graphs(step, limits, sizes, capturing)
        return graphs, self._prompt_graphs(step, limits, capturing)

    def _prompt_graphs(
        self, step: Step, limits: Limits, capturing: Capturing
    ) -> PromptGraphs | None:
        whole = WHOLE if all(backend.graphable_prompts for backend in step.backends) else 0
        most, wish = limits.max_num_batched_tokens, self.options.prompts
        if wish is not None:
            most = min(most, wish)
        if not step.backends or not most:
            return None
        if wish is None or most > whole:
            if self._worth is None:  # once: memory is measured, and then taken, for the same sizes
                worth = tokens_worth_capturing(step, limits, capturing)
                self._worth = step.comm.broadcast_object(worth)
            if self._worth == 0:
                most = min(most, whole)
            elif wish is None:
                fit = [size for size in token_sizes(most) if size <= self._worth]
                most = max(fit, default=self._worth)
        return PromptGraphs(step, limits, most, whole, capturing) if most else None

    def _compile(self, graphs: Graphs, prompts: PromptGraphs | None) -> int:
        """Compile for all sizes, if all are to be captured. -> bytes that it leaves in use."""
        if not installed("triton") or self.options.capture != "start":
            return 0
        before = graphs.capturing.used()
        compile_ahead(graphs.step, [graphs] if prompts is None else [graphs, prompts])
        return max(graphs.capturing.used() - before, 0)

    def _keep_within(
        self, memory: str, graphs: Graphs, prompts: PromptGraphs | None
    ) -> PromptGraphs | None:
        """Do with fewer sizes. Steps with prompts may take half of it: the longest are left out.

        A pool keeps its memory as long as it has graphs, so what is left out had one of its own.
        """
        limit, broadcast = parse_bytes(memory), graphs.step.comm.broadcast_object
        # all ranks must replay the same size, whatever each of them has measured
        while prompts is not None:
            taken = broadcast(prompts.measure())
            if 2 * taken <= limit:
                limit -= taken
                break
            prompts.close()
            fresh = capturing_on(graphs.capturing.device)
            assert fresh is not None
            graphs.capturing, prompts = fresh, prompts.shorter(fresh)
        first, each = graphs.measure()
        fit = broadcast(1 + (limit - first) // max(each, 1))
        if fit < 1:
            raise UserError(
                f"runner.memory is {memory}, and the largest graph takes {first / 2**20:.0f} MiB. "
                "Raise it, lower scheduler.max_num_seqs, or say runner=eager."
            )
        graphs.thin_out(fit)
        return prompts

    @torch.inference_mode()
    def run(self, batch: Batch) -> tuple[Tensor, Sampled]:
        hidden = self._prompts.hidden(batch) if self._prompts is not None else None
        return self.step.run(batch) if hidden is None else self.step.finish(hidden, batch)

    @torch.inference_mode()
    def decode(self, decodes: Decodes) -> Sampled:
        assert self._graphs is not None
        graph = self._graphs.fitting(len(decodes.rows))
        sampled = graph.replay(decodes)
        if sampled is not None:
            return sampled
        batch = replace(graph.static.batch, rows=decodes.sampled)
        return self.step.sample(graph.logits[: len(decodes.rows)], batch)

    def close(self) -> None:
        if self._graphs is not None:
            self._graphs.close()
        if self._prompts is not None:
            self._prompts.close()
        self._graphs, self._prompts, self.most_decodes = None, None, 0
