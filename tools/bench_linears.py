"""Times the products of a decode step, and chooses among their kernels by the time of the step.

    python -m tools.bench_linears                     every way of every product, 0.6B and 8B
    python -m tools.bench_linears --step              whole steps, with and without these kernels
    python -m tools.bench_linears --tune              choose anew; prints lines for recipes.py
    python -m tools.bench_linears --model 8B --tokens 1 8 ...
    python -m tools.bench_linears --ranks 2           the share of one of two ranks, no sums
    python -m tools.bench_linears --tune --record F   note for tools.compile_ahead what is launched

A step is a graph of all layers and the head over random weights, without the sampler, its kernels
overlapping. Figures are medians over replays. Of a kind of product alone they are a graph of this
product in all layers, so its weights come from memory: they rank ways, but a kernel that is fast
alone may fill the multiprocessors and keep its successors' weights out. `--tune` looks at the step.
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plugins.kernels.triton.products.carried import Carried
from plugins.kernels.triton.products.launch import Work
from plugins.kernels.triton.products.recipes import Recipe, Recipes, Rows, Shape, by_rule
from tools.decode_step import DecodeStep
from tools.output_file import output_file
from tools.product_ways import bulk, candidates

BANDWIDTH = 4.3e12  # bytes a second that a copy moves on an H200
SIZES = {"0.6B": (1, 2, 4, 8, 16, 32, 64), "8B": (1, 2, 8, 16, 32, 64)}
KINDS = {"qkv": "norm", "o": "add", "gate_up": "gated", "down": "add", "head": "norm"}
CONTEXT = 300


def median_ms(run: Callable[[], Any], replays: int) -> float:
    """Of replays of a graph of `run`, the better of two turns."""
    side = torch.cuda.Stream()
    turns = []
    with torch.cuda.stream(side):
        run()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        kept = run()
        graph.capture_end()
        for _ in range(2):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
            graph.replay()
            marks[0].record()
            for mark in marks[1:]:
                graph.replay()
                mark.record()
            side.synchronize()
            turns.append(statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)))
        del kept
    return min(turns)


def shape_of(kind: str, weight: Tensor) -> Shape:
    gated = KINDS[kind] == "gated"
    return Shape(len(weight) // 2 if gated else len(weight), weight.shape[1], gated)


class Bench:
    """One model at a time; `device` meta records launches."""

    def __init__(self, name: str, device: str, ranks: int) -> None:
        self.step = DecodeStep(name, device, ranks=ranks)
        self.name, self.device = name if ranks == 1 else f"{name}/{ranks}", device
        self.weights = self.step.weights()
        self.shapes = {kind: shape_of(kind, ws[0]) for kind, ws in self.weights.items()}
        self._ready: tuple[tuple[int, int], Callable[[], Tensor]] | None = None
        self.bytes = sum(w.nbytes for ws in self.weights.values() for w in ws)

    def time(self, run: Callable[[], Any], replays: int = 12) -> float:
        """Milliseconds."""
        if self.device == "meta":
            run()
            return 1.0
        with torch.inference_mode():
            return median_ms(run, replays)

    def step_ms(self, tokens: int, context: int, recipes: Recipes | None) -> float:
        """Of a whole step; None: torch multiplies."""
        kernels = self.step.kernels
        kernels.options.products = recipes is not None
        kernels.fused.recipes = recipes or Recipes()
        if self._ready is None or self._ready[0] != (tokens, context):
            self._ready = (tokens, context), self.step.at(tokens, context)
        return self.time(self._ready[1])

    def alone_us(self, kind: str, tokens: int, how: Recipe) -> float:
        """Of one product, by a graph of it in all layers."""
        weights, shape = self.weights[kind], self.shapes[kind]
        if kind == "head":
            weights = weights * 4
        dtype, device = weights[0].dtype, weights[0].device

        def random(*size: int, dtype: torch.dtype = dtype) -> Tensor:
            x = torch.empty(size, dtype=dtype, device=device)
            return x if device.type == "meta" else x.normal_(0, 0.02)

        x, gain = random(tokens, shape.inputs), random(shape.outputs)
        squares = random(tokens, self.parts(kind, tokens), dtype=torch.float32).abs()
        carried = Carried(x, squares, 1e-6, lambda c: c.x)
        residual = random(tokens, shape.outputs)
        launches = self.step.kernels.fused._launches(x)

        def run() -> None:
            for weight in weights:
                if how is None:
                    F.linear(x, weight)
                elif KINDS[kind] == "add":
                    launches.carry(Work(x, weight, residual=residual, gain=gain), how)
                else:
                    launches(Work(x, weight, None, carried, shape.gated), how)

        return self.time(run) * 1e3 / len(weights)

    def parts(self, kind: str, tokens: int) -> int:
        """Sums of squares that the product before leaves a row."""
        shape = self.shapes["o" if kind == "gate_up" else "down"]
        how = Recipes().of(shape, tokens)
        if how is None:
            return 1
        return -(-shape.outputs // (how.each * how.warps if isinstance(how, Rows) else how.outputs))

    def table(self, tokens: int) -> None:
        for kind, shape in self.shapes.items():
            size = self.weights[kind][0].nbytes
            chosen = Recipes().of(shape, tokens)
            ways = dict.fromkeys((*candidates(shape, tokens), chosen))
            alone = partial(self.alone_us, kind, tokens)
            found = {how: self.tried(alone, how) for how in ways}
            for how, us in sorted(found.items(), key=lambda item: item[1]):
                mark = "*" if how == chosen else " "
                share = size / (us * 1e-6) / BANDWIDTH
                print(
                    f"{self.name:7}T {tokens:<3}{kind:8}{us:8.2f} us {share:6.1%} "
                    f"{found[None] / us:5.2f} x torch {mark} {how}",
                    flush=True,
                )

    def tried(self, time: Callable[[Recipe], float], how: Recipe) -> float:
        try:
            return time(how)
        except Exception as error:  # no room in shared memory: the way is out
            print(f"      {how} failed: {str(error)[:80]}")
            return float("inf")

    def steps(self, tokens: int, context: int) -> None:
        plain = self.step_ms(tokens, context, None)
        ours = self.step_ms(tokens, context, Recipes())
        share = self.bytes / (ours * 1e-3) / BANDWIDTH
        print(
            f"{self.name:7}T {tokens:<3}context {context}: torch {plain:.3f} ms, recipes "
            f"{ours:.3f} ms = {plain / ours:.2f} x; weights alone at {share:.1%} of the bandwidth",
            flush=True,
        )

    def tune(self, tokens: int) -> dict[Shape, Recipe]:
        """The best way of each product in turn, by the time of the step."""
        usual = Recipes()
        chosen = {s: usual.of(s, tokens) for s in self.shapes.values()}

        def time(shape: Shape, how: Recipe) -> float:
            table = {s: {tokens: h} for s, h in {**chosen, shape: how}.items()}
            return self.step_ms(tokens, CONTEXT, Recipes(table))

        starts = [chosen, {s: by_rule(s, tokens) for s in chosen}, dict.fromkeys(chosen)]
        if tokens > 16:
            starts.append({s: next(bulk(s, tokens), None) for s in chosen})
        first = self.shapes["head"]
        found: list[tuple[float, dict[Shape, Recipe]]] = []
        for start in starts:
            chosen = start
            found.append((self.tried(partial(time, first), start[first]), start))
        least, chosen = min(found, key=lambda pair: pair[0])
        chosen = dict(chosen)
        print(f"{self.name} T {tokens}: starts {[round(ms, 4) for ms, _ in found]} ms")
        for kind, shape in self.shapes.items():
            times = {}
            for how in dict.fromkeys(candidates(shape, tokens)):
                times[how] = self.tried(partial(time, shape), how)
            best = min(times, key=lambda how: times[how])
            if times[best] < least * 0.998:
                least, chosen[shape] = times[best], best
            ranked = sorted(times.items(), key=lambda item: item[1])[:4]
            print(f"  {kind:8}{least:.4f} ms {chosen[shape]}")
            for how, ms in ranked:
                print(f"          {ms:.4f} {how}", flush=True)
        return chosen

    def tune_all(self, sizes: tuple[int, ...]) -> None:
        """Print a table as recipes.py has it."""
        table: dict[Shape, dict[int, Recipe]] = {}
        for tokens in sizes:
            for shape, how in self.tune(tokens).items():
                table.setdefault(shape, {})[tokens] = how
        print(f"# {self.name}")
        for shape, ways in table.items():
            lines = ", ".join(f"{tokens}: {how}" for tokens, how in ways.items())
            print(f"{shape}: {{{lines}}},")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", help="such as 0.6B; may be repeated")
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--step", action="store_true", help="whole steps only")
    parser.add_argument("--tune", action="store_true", help="choose anew")
    parser.add_argument(
        "--record", type=output_file, metavar="FILE", help="run nothing, write what is launched"
    )
    asked = parser.parse_args()

    def work(device: str) -> None:
        for name in asked.model or SIZES:
            bench = Bench(name, device, asked.ranks)
            sizes = tuple(asked.tokens or SIZES.get(name, SIZES["8B"]))
            if asked.tune:
                bench.tune_all(sizes)
            for tokens in sizes if not asked.tune else ():
                bench.steps(tokens, asked.context)
                if not asked.step:
                    bench.table(tokens)

    if asked.record:
        from tools.compile_ahead import pretend_hopper, record

        pretend_hopper()
        with asked.record.open("wb") as file:
            jobs = record(lambda: work("meta"))
            pickle.dump(jobs, file)
        print(len(jobs), "variants")
        return
    print(torch.cuda.get_device_name(), "; percent of", BANDWIDTH / 1e12, "TB/s")
    work("cuda")


if __name__ == "__main__":
    main()
