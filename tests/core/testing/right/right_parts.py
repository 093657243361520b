"""Components that share no code with the built-in ones, and no fault is known of."""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import torch

from core.errors import UserError
from core.interfaces import AttentionBackend, Kernels, Runner, Sampled, Sampler, Scheduler
from core.parallel import Format, Guard, Quantization, Sharding
from core.parallel.formats import DENSE
from core.registry import (
    attention,
    kernels,
    quantization,
    runners,
    samplers,
    schedulers,
    sharding,
)
from core.sampling.params import SamplingParams
from core.testing.kernels import rms_norm, rotate, silu_mul
from core.types import Admission, StepPlan


@attention.register("token-by-token")
class TokenByToken(AttentionBackend):
    """Softmax as it is written, for each token, of pages of 8 or 16 tokens."""

    page_sizes = (16, 8)
    layout = "heads"

    @classmethod
    def rejects(cls, shape):
        return ["heads of 256 are too large"] if shape.head_dim > 200 else []

    def forward(self, q, k, v, cache, meta):
        shape, size, out = self.shape, self.shape.page_size, torch.empty_like(q)
        token = 0
        for b, (count, length) in enumerate(zip(meta.query_lens, meta.context_lens, strict=True)):
            at = torch.arange(length)
            pages = meta.page_table[b].cpu()[at // size].long()
            keys, values = (x[pages, at % size].double() for x in cache)  # [L, KV, D]
            for i in range(length - count, length):
                first = 0 if shape.window is None else max(0, i + 1 - shape.window)
                for head in range(shape.heads):
                    group = head * shape.kv_heads // shape.heads
                    seen = keys[first : i + 1, group]
                    scores = shape.scale * (seen @ q[token, head].double())
                    row = scores.softmax(0) @ values[first : i + 1, group]
                    out[token, head] = row.to(q.dtype)
                token += 1
        return out


@kernels.register("in-float64")
class InFloat64(Kernels):
    def rms_norm(self, x, weight, eps):
        return rms_norm(x, weight, eps).to(x.dtype)

    def add_rms_norm(self, x, residual, weight, eps):
        total = x.double() + residual.double()
        return rms_norm(total, weight, eps).to(x.dtype), residual.copy_(total)

    def silu_mul(self, gate_up):
        return silu_mul(gate_up).to(gate_up.dtype)

    def rope_store(self, q, k, v, norms, rope, positions, cache, slots):
        kind, angles = q.dtype, rope[positions]
        if norms:
            q, k = (rms_norm(x, w, norms[2]) for x, w in zip((q, k), norms[:2], strict=True))
        q, k = rotate(q, angles).to(kind), rotate(k, angles).to(kind)
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                page = divmod(slot, cache.k.shape[1])
                cache.k[page], cache.v[page] = k[token].to(cache.k.dtype), v[token]
        return q, k


@samplers.register("temperature-alone")
class TemperatureAlone(Sampler):
    """Knows temperatures and seeds, and refuses what it does not know."""

    def accepts(self, params):
        plain = SamplingParams(temperature=params.temperature, seed=params.seed)
        return [] if params == plain else ["only a temperature and a seed"]

    def __call__(self, logits, rows):
        good = ~logits.isnan().any(-1) & (logits > -torch.inf).any(-1)
        ids = rows.draw(torch.where(good[:, None], logits, 0.0))
        lost = (~good).nonzero()[:, 0].tolist()
        ids = ids.masked_fill(~good, -1).int()  # whole numbers of any kind
        return Sampled(ids, errors=dict.fromkeys(lost, "no token is possible"))


@schedulers.register("one-at-a-time")
class OneAtATime(Scheduler):
    """One request in the whole engine, in chunks of the budget, without overlap."""

    def __init__(self, options, limits):
        super().__init__(options, limits)
        self.queue, self.left, self.number = deque(), [], 0
        self.flying, self.held = None, None  # the request of the step in flight; of row 0

    def add(self, request):
        self.queue.append(request)

    def finish(self, request, reason):
        request.finish_reason = reason
        self.queue.remove(request)
        if self.held is request:
            self.held, self.left = None, [0]

    def plan(self):
        if not self.queue or self.flying:
            return None
        request, size = self.queue[0], self.limits.page_size
        count = min(len(request) - request.computed, self.limits.max_num_batched_tokens)
        need = -(-request.limit // size)
        new = self.held is not request
        values = (0, request.computed, count, request.computed + count == len(request), 0)
        columns = [np.array([value], np.int32) for value in values]
        tokens = np.array(request.prompt, np.int32)
        made = StepPlan(
            self.number,
            *columns,
            page_counts=np.array([need if new else 0], np.int32),
            pages=np.arange(need if new else 0, dtype=np.int32),
            released=np.array(self.left, np.int32),
            admitted=[
                Admission(
                    0, request.id, tokens, len(tokens), request.params, request.seed,
                    request.stop_ids,
                )
            ] if new else [],
            requests=[request],
        )  # fmt: skip
        self.held, self.flying, self.left = request, request, []
        self.number += 1
        request.computed += count
        request.started = request.started or time.monotonic()
        return made

    def update(self, plan, output):
        self.flying = None
        (request,) = plan.requests
        if request.finish_reason:
            return []
        if 0 in output.errors:
            request.error = output.errors[0]
            self.finish(request, "error")
            return [request]
        if not plan.sample[0]:
            return []
        request.output += output.ids.tolist()
        if request.output[-1] in request.stop_ids:
            request.stop_reason = request.output[-1]
            self.finish(request, "stop")
        elif len(request) == request.limit:
            self.finish(request, "length")
        return [request]

    def drop(self, requests):
        self.flying = None

    def has_work(self):
        return bool(self.queue)

    def statistics(self):
        total, held = self.limits.pages, self.held
        owned = -(-held.limit // self.limits.page_size) if held else 0
        return {
            "running": int(held is not None),
            "waiting": len(self.queue),
            "preemptions": 0,
            "pages_total": total,
            "pages_owned": owned,
            "pages_cached": 0,
            "pages_free": total - owned,
            "prefix_queries": 0,
            "prefix_hits": 0,
        }


class ScatterTokens(Guard):
    def forward(self, x):
        return self._comm.reduce_scatter(super().forward(x))


@sharding.register("rowwise-tokens")
class RowwiseTokens(Sharding):
    """Inputs cut by the axis; each rank keeps the sum of its own tokens."""

    @property
    def dims(self):
        return {"in": self.axis}

    @property
    def guard(self):
        return ScatterTokens

    def owner(self, role):
        return 0 if role == "bias" else None

    def accepts(self, module):
        return None if isinstance(module, torch.nn.Linear) else "It cuts nn.Linear only."

    def layout(self):
        return f"S:{self.axis}", "T"


@runners.register("warm")
class Warm(Runner):
    """Computes every step twice, as one that captures may."""

    def prepare(self, step, limits):
        self.step = step

    @torch.inference_mode()
    def run(self, batch):
        self.step.forward(batch)
        hidden = self.step.forward(batch)
        if not len(batch.sample_index):
            return hidden, Sampled(batch.sample_index)
        return hidden, self.step.sample(self.step.logits(hidden, batch), batch)


TILE = 16
TILES = Format(
    "float8-in-tiles",
    {**DENSE.roles, "weight_scale_inv": (("out", TILE), ("in", TILE))},
)


def spread(scale, size):
    """The scale of each element."""
    return scale.repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)[: size[0], : size[1]]


class TiledLinear(torch.nn.Linear):
    keep_dtype = ("weight_scale_inv",)

    def forward(self, x):
        weight = self.weight.double() * spread(self.weight_scale_inv, self.weight.shape).double()
        y = x.double() @ weight.T
        return (y if self.bias is None else y + self.bias.double()).to(x.dtype)


@quantization.register("float8-in-tiles")
class Float8InTiles(Quantization):
    def __init__(self, config):
        super().__init__(config)
        if unknown := set(config) - {"quant_method"}:
            raise UserError(f"{unknown} is not implemented")

    @classmethod
    def matches(cls, config):
        return config.get("quant_method") == "float8-in-tiles"

    def format(self, source, module):
        return TILES if isinstance(module, torch.nn.Linear) and "head" not in source else DENSE

    def prepare(self, module, format, parts):
        size = module.weight.shape
        numbers = torch.empty(size, dtype=torch.float8_e4m3fn, device="meta")
        tiles = torch.empty([-(-n // TILE) for n in size], device="meta")
        module.weight = torch.nn.Parameter(numbers, requires_grad=False)
        module.weight_scale_inv = torch.nn.Parameter(tiles)
        module.__class__ = TiledLinear

    def encode(self, weight, format):
        rows, columns = (-(-n // TILE) for n in weight.shape)
        whole = torch.zeros(rows * TILE, columns * TILE)
        whole[: weight.shape[0], : weight.shape[1]] = weight
        largest = whole.view(rows, TILE, columns, TILE).abs().amax((1, 3))
        scale = (largest / 448).clamp(min=1e-30)
        numbers = (weight.float() / spread(scale, weight.shape)).to(torch.float8_e4m3fn)
        return {"weight": numbers, "weight_scale_inv": scale}

    def error(self, weight, format):
        scale = spread(self.encode(weight, format)["weight_scale_inv"], weight.shape)
        return weight.double().abs() / 15.9 + scale.double() / 1000
