"""The layers of a step as graphs of what lies between its attentions, which run eagerly."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from core.fusing import value_of
from core.types import AttentionMetadata
from plugins.runners.cuda_graph.prompt_buffers import PromptBuffers

if TYPE_CHECKING:
    from torch import Tensor

    from core.interfaces import Step
    from core.layers import Attention
    from core.types import Apart, Batch, Limits
    from plugins.runners.cuda_graph.capture import Capturing, Cut


log = logging.getLogger("plait")

PROBED = 8192  # most tokens of the step whose launches are timed
LEAST = 512  # tokens that are worth it on any device that is not shared while this is measured


class Call(NamedTuple):
    """An attention between two graphs: what the first leaves for it, and where the second looks."""

    layer: Attention
    q: Tensor  # [size, H, D]
    k: Tensor  # [size, KV, D]
    v: Tensor
    out: Tensor  # [size, H, D]


class Pieces:
    """Graphs of a step of one size, one more than it has attentions.

    An attention is launched with the tensors of the real step: so nothing of it is padding, and
    whatever its backend does with cached keys, or with what the host knows, it does here as well.
    """

    def __init__(self, step: Step, static: Batch, capturing: Capturing) -> None:
        self.static, self._step = static, step
        self._calls: list[Call] = []

        def layers(cut: Cut) -> Tensor:
            self._calls.clear()  # those of a first run that captures nothing

            def apart(layer: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                cut()
                out = q.new_empty(q.shape)
                self._calls.append(Call(layer, *map(capturing.address, (q, k, v, out))))
                return out

            return _forward(step, static, apart)

        self._graphs = capturing.capture_pieces(layers)
        result = self._graphs[-1].result
        assert result is not None
        self.whole = static.wanted is None or len(result) != len(static.wanted)
        self._graphs[-1].let_go()

    def replay(self, batch: Batch) -> Tensor:
        """Of `batch`, which lies at the fixed addresses already. -> hidden states: of all tokens if
        it is `whole`, else of those that are wanted; and of padding"""
        self._step.plan(batch)
        meta, n = batch.attention, len(batch.tokens)
        first, *others = self._graphs
        first.replay()
        for (layer, q, k, v, out), graph in zip(self._calls, others, strict=True):
            layer.backend.forward_into(q[:n], k[:n], v[:n], layer.cache, meta, out[:n])
            graph.replay()
        result = self._graphs[-1].result
        assert result is not None
        return result


def no_attention(step: Step, static: Batch) -> Tensor:
    """Everything of the layers but attention. -> hidden states, which are nonsense"""
    return _forward(step, static, lambda layer, q, k, v: torch.zeros_like(q))


@torch.inference_mode()
def tokens_worth_capturing(step: Step, limits: Limits, capturing: Capturing) -> int:
    """Tokens up to which launching the layers takes at least half as long as computing them.

    Attention is left out of both. 0, and a warning, if the model's layers cannot do without it, and
    never less than a few hundred otherwise.
    """
    tokens = min(limits.max_num_batched_tokens, PROBED)
    static = PromptBuffers(step, limits, tokens, 0).padding(tokens, 0)
    try:
        no_attention(step, static)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        log.warning(
            "runner cuda_graph: attention cannot be left out of the model's layers (%s: %s), so "
            "long steps with prompts run eagerly",
            type(error).__name__,
            error,
        )
        return 0
    computing, launching = min(_times(step, static, capturing) for _ in range(2))
    capturing.tidy()
    return max(int(2 * tokens * launching / computing), LEAST)


def _times(step: Step, static: Batch, capturing: Capturing) -> tuple[float, float]:
    """Seconds until the layers are computed, and until they are launched."""
    capturing.wait()
    began = time.perf_counter()
    no_attention(step, static)
    launched = time.perf_counter()
    capturing.wait()
    return time.perf_counter() - began, launched - began


def _forward(step: Step, static: Batch, apart: Apart) -> Tensor:
    """With nothing in the batch that a step's requests are told by: a model that looks is found."""
    nobody: Any = None
    meta = AttentionMetadata(
        query_start=nobody,
        context_len=nobody,
        page_table=nobody,
        slots=static.attention.slots,
        max_query=nobody,
        max_context=nobody,
        decodes=nobody,
        query_lens=nobody,
        context_lens=nobody,
    )
    seen = replace(static, attention=meta, sample_index=nobody, rows=nobody, apart=apart)
    return value_of(step.forward(seen))
