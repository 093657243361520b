"""Times attention backends on a GPU: microseconds a layer, and the share of the memory bandwidth.

    python -m tools.bench_attention                    the standard table, Qwen3-0.6B and 8B
    python -m tools.bench_attention --only triton      one backend
    python -m tools.bench_attention --sweep 64x1024    other sizes of launches: requests x context
    python -m tools.bench_attention --sweep prompts    the same for prompts

Each figure is a CUDA graph of many layers, each with a cache of its own, so that nothing is found
in the second-level cache; the median of its replays, divided by the layers.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from core.interfaces import AttentionBackend
from core.plugins import load
from core.registry import registries
from core.types import AttentionMetadata, AttentionShape, KVLayer
from plugins.attention.triton import recipes
from plugins.attention.triton.backend import TritonAttention

BANDWIDTH = 4.3e12  # bytes a second that a copy moves on an H200
COLD = 240 << 20  # bytes of caches that one replay walks through at least
PAGE = 256
MODELS = {"0.6B": (16, 8), "8B": (32, 8)}  # query heads, key/value heads
DECODES = ((1, 300), (1, 1024), (8, 300), (32, 300), (64, 1024), (256, 600))
PROMPTS = ((16, 2048, 0), (1, 2048, 8192))  # requests, tokens, tokens in the cache


@dataclass
class Bench:
    """One step of requests with these lengths, in as many layers as memory traffic asks for."""

    shape: AttentionShape
    lengths: list[int]
    tokens: int = 1  # of each request, in this step
    cold: int = COLD

    def __post_init__(self) -> None:
        shape, batch = self.shape, len(self.lengths)
        made = torch.Generator("cuda").manual_seed(0)
        pages = [-(-length // PAGE) for length in self.lengths]
        self.bytes = sum(self.lengths) * 2 * shape.kv_heads * shape.head_dim * 2
        self.layers = max(4, min(200, -(-self.cold // self.bytes)))
        size = (sum(pages), PAGE, shape.kv_heads, shape.head_dim)

        def random(*size: int) -> Tensor:
            return torch.randn(size, generator=made, device="cuda", dtype=shape.dtype)

        self.caches = [KVLayer(random(*size), random(*size)) for _ in range(self.layers)]
        numbers = iter(torch.randperm(sum(pages)).tolist())
        table = torch.zeros(batch, max(pages), dtype=torch.int32)
        for row, count in zip(table, pages, strict=True):
            row[:count] = torch.tensor(list(itertools.islice(numbers, count)))
        heads = shape.heads + 2 * shape.kv_heads
        self.qkv = random(batch * self.tokens, heads * shape.head_dim)
        gain = random(shape.head_dim)
        self.norms = (gain, gain, 1e-6)
        self.rope = torch.rand(max(self.lengths), 2, shape.head_dim // 2, device="cuda")
        last = torch.tensor(self.lengths)
        places = (last[:, None] - self.tokens + torch.arange(self.tokens)).flatten()
        rows = torch.arange(batch).repeat_interleave(self.tokens)
        slots = table[rows, places // PAGE].long() * PAGE + places % PAGE
        self.positions = places.cuda()
        self.meta = AttentionMetadata(
            query_start=(torch.arange(batch + 1, dtype=torch.int32) * self.tokens).cuda(),
            context_len=last.int().cuda(),
            page_table=table.cuda(),
            slots=slots.cuda(),
            max_query=self.tokens,
            max_context=max(self.lengths),
            decodes=batch if self.tokens == 1 else 0,
            query_lens=[self.tokens] * batch,
            context_lens=list(self.lengths),
        )

    @property
    def flops(self) -> float:
        """Of one layer: two products, over what the tokens see."""
        seen = sum(self.tokens * n - self.tokens * (self.tokens - 1) / 2 for n in self.lengths)
        return 4 * self.shape.heads * self.shape.head_dim * seen

    def plain(self, backend: AttentionBackend) -> Callable[[], None]:
        shape = self.shape
        heads = self.qkv.view(len(self.qkv), -1, shape.head_dim)
        q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        meta = replace(self.meta, private=None)

        def run() -> None:
            backend.plan(meta)
            for cache in self.caches:
                backend.forward(q, k, v, cache, meta)

        return run

    def fused(self, backend: Any) -> Callable[[], None]:
        meta = replace(self.meta, private=None)

        def run() -> None:
            backend.plan(meta)
            for cache in self.caches:
                backend.forward_fused(self.qkv, self.norms, self.rope, self.positions, cache, meta)

        return run

    @torch.inference_mode()
    def time(self, run: Callable[[], None], graph: bool = True) -> float:
        """Microseconds a layer: the median of 15 replays, or of 5 eager runs."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        again = run
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                run()
            again = captured.replay
            again()
        times = []
        for _ in range(15 if graph else 5):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            again()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times) * 1e3 / self.layers


def shape(model: str) -> AttentionShape:
    heads, kv_heads = MODELS[model]
    return AttentionShape(
        heads, kv_heads, 128, 128**-0.5, PAGE, None, torch.bfloat16, torch.bfloat16, "cuda"
    )


def variants(name: str, decodes: bool) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """(label, options, whether fused) of a backend."""
    if name == "triton" and decodes:
        yield "triton fused", {}, True
        yield "triton fused, no PDL", {"pdl": False}, True
    if name == "triton" and not decodes:
        yield "triton prompts=triton", {"prompts": "triton"}, False
    yield name, {}, False


def lengths(batch: int, context: int, uneven: bool = False) -> list[int]:
    if not uneven:
        return [context] * batch
    made = torch.Generator().manual_seed(1)
    return torch.randint(100, 2 * context - 100, (batch,), generator=made).tolist()


def show(label: str, bench: Bench, name: str, us: float) -> None:
    share = bench.bytes / us / 1e-6 / BANDWIDTH
    line = f"{label:28} {name:22} {us:9.2f} us  {bench.bytes / 1e6:8.1f} MB  {share:6.1%}"
    if bench.tokens > 1:
        line += f"  {bench.flops / us / 1e6:6.0f} TFLOP/s"
    print(line, flush=True)


def table(only: list[str]) -> None:
    for model in MODELS:
        steps = [(f"{model} b{b} c{c}", lengths(b, c), 1) for b, c in DECODES]
        steps.append((f"{model} b256 c100-1100", lengths(256, 600, True), 1))
        steps += [(f"{model} {n} x {t} after {c}", [t + c] * n, t) for n, t, c in PROMPTS]
        for label, context, tokens in steps:
            bench = Bench(shape(model), context, tokens)
            for name in only:
                backend = registries.attention.get(name)
                if reasons := backend.rejects(bench.shape):
                    print(f"{label:28} {name}: {'; '.join(reasons)}")
                    continue
                for said, options, fused in variants(name, tokens == 1):
                    made = backend(bench.shape, backend.Options(**options))
                    run = bench.fused(made) if fused else bench.plain(made)
                    show(label, bench, said, bench.time(run, graph=tokens == 1))


def sweep(batch: int, context: int, model: str) -> None:
    """Every size of a launch that decodes, for one batch and context."""
    bench = Bench(shape(model), lengths(batch, context))
    groups = batch * bench.shape.kv_heads
    shapes = ((32, 1, 3), (64, 2, 2), (64, 4, 1), (128, 4, 1))
    ways = [
        recipes.Decoding(splits, tile, max(tile, 64), warps, stages, groups <= recipes.MANY)
        for splits, (tile, warps, stages) in itertools.product((1, 2, 4, 8, 16, 32), shapes)
        if splits == 1 or splits * groups <= recipes.MOST_PROGRAMS
    ]
    print("chosen:", recipes.decoding(groups, 128, 2, context, 2))
    try_all("decoding", ways, f"{model} b{batch} c{context}", bench)


def sweep_prompts(model: str) -> None:
    """Sizes of launches for prompts."""
    requests, tokens, before = PROMPTS[0]
    bench = Bench(shape(model), [tokens + before] * requests, tokens)
    sizes = ((128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2))
    print("chosen:", recipes.prompting(128))
    ways = [recipes.Prompting(*size) for size in sizes]
    try_all("prompting", ways, f"{model} {requests} x {tokens}", bench)


def try_all(name: str, ways: Sequence[Any], label: str, bench: Bench) -> None:
    """Time a launch in every way, and show the best few."""
    usual, found = getattr(recipes, name), []
    for how in ways:
        setattr(recipes, name, lambda *_, how=how: how)
        backend = TritonAttention(bench.shape, TritonAttention.Options(prompts="triton"))
        decodes = name == "decoding"
        run = bench.fused(backend) if decodes else bench.plain(backend)
        found.append((bench.time(run, graph=decodes), how))
    setattr(recipes, name, usual)
    for us, how in sorted(found, key=lambda pair: pair[0])[:8]:
        show(label, bench, str(how), us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="a backend; may be repeated")
    parser.add_argument("--sweep", action="append", metavar="WHAT", default=[])
    parser.add_argument("--model", choices=MODELS, default="0.6B")
    given = parser.parse_args()
    load()
    print(torch.cuda.get_device_name(), "; percent of", BANDWIDTH / 1e12, "TB/s")
    for size in given.sweep:
        if size == "prompts":
            sweep_prompts(given.model)
        else:
            batch, context = map(int, size.split("x"))
            sweep(batch, context, given.model)
    if not given.sweep:
        ready = [e.name for e in registries.attention.entries() if not e.missing()]
        table(given.only or [name for name in ready if name != "sdpa"])


if __name__ == "__main__":
    main()
