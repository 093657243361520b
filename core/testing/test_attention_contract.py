"""What every attention backend must do; run for each `--backend`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.interfaces import AttentionBackend
from core.testing.attention import AttentionCase
from core.testing.numbers import assert_close, bits
from core.types import AttentionShape, KVLayer

Backend = type[AttentionBackend]

STEPS = {
    "prompt": [(0, 37)],
    "prompts of unequal lengths": [(0, 5), (0, 1), (0, 40), (0, 17), (0, 2)],
    "one token": [(0, 1)],
    "decode": [(20, 1)],
    "decodes": [(3, 1), (0, 1), (49, 1), (15, 1), (16, 1), (31, 1), (32, 1)],
    "chunk": [(21, 13)],
    "chunks": [(9, 6), (30, 2), (2, 45)],
    "mixed": [(0, 21), (47, 1), (13, 18), (5, 1), (0, 4), (0, 1), (70, 3)],
}
WINDOWS = (None, 1, 2, 7, 16, 1000)
HEADS = ((1, 1), (2, 2), (8, 8), (6, 3), (6, 2), (8, 2), (5, 1), (8, 1), (12, 2), (14, 2), (16, 2))
SIZES = (16, 32, 64, 80, 96, 112, 128, 160, 192, 256)
RANDOM_STEPS = 12


def served(backend: Backend, requests: list[tuple[int, int]], **changes: Any) -> AttentionCase:
    """A case that the backend accepts; skips the test, with its reasons, when there is none."""
    case = AttentionCase.of(backend, requests, **changes)
    if reasons := backend.rejects(case.shape):
        pytest.skip("; ".join(reasons))
    return case


def at_pages(size: int) -> list[tuple[int, int]]:
    """Requests whose tokens end and begin at, before and behind the edges of pages."""
    around = [n for edge in (size, 2 * size) for n in (edge - 1, edge, edge + 1) if n > 0]
    chunks = [(old, new) for old in around for new in (1, size)]
    return [(0, n) for n in around] + chunks


def test_it_serves_an_ordinary_model(
    attention: Backend, device: str, refused: Callable[[list[str]], None]
) -> None:
    case = AttentionCase.of(attention, STEPS["mixed"], heads=8, head_dim=128, device=device)
    if reasons := attention.rejects(case.shape):
        refused(reasons)
    case.check(attention)


@pytest.mark.parametrize("strange", [{"heads": 3, "kv_heads": 2}, {"head_dim": 6}, {"window": 1}])
def test_reasons_are_a_list_of_sentences(
    attention: Backend, device: str, strange: dict[str, int]
) -> None:
    usual: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 64, "page_size": 16}
    shape = AttentionShape(**(usual | {"scale": 1.0, "device": device} | strange))
    reasons = attention.rejects(replace(shape, dtype=torch.float64, cache_dtype=torch.int8))
    assert isinstance(reasons, list)
    assert all(isinstance(reason, str) and reason.strip() for reason in reasons)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_attention(
    attention: Backend, device: str, step: str, window: int | None
) -> None:
    served(attention, STEPS[step], window=window, device=device).check(attention)


@pytest.mark.parametrize("step", STEPS)
def test_its_result_may_be_asked_for_in_some_place(
    attention: Backend, device: str, step: str
) -> None:
    case = served(attention, STEPS[step], device=device, strided=True)
    found = case.into(attention(case.shape, attention.Options()))
    assert_close(found, case.expected(), case.dtype)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_query_heads_share_key_heads_in_order(
    attention: Backend, device: str, heads: int, kv_heads: int
) -> None:
    served(attention, STEPS["mixed"], heads=heads, kv_heads=kv_heads, device=device).check(
        attention
    )


@pytest.mark.parametrize("head_dim", SIZES)
def test_size_of_a_head(attention: Backend, device: str, head_dim: int) -> None:
    scale = 2.4 * head_dim**-0.5
    served(attention, STEPS["mixed"], head_dim=head_dim, scale=scale, device=device).check(
        attention
    )


@pytest.mark.parametrize("scale", [8.0, 1.0, 0.001])
def test_scale_is_the_one_that_is_given(attention: Backend, device: str, scale: float) -> None:
    served(attention, STEPS["mixed"], scale=scale, device=device).check(attention)


def test_edges_of_pages_of_every_size_that_it_reads(attention: Backend, device: str) -> None:
    best = attention.best_page_size
    assert best is None or not attention.page_sizes or best in attention.page_sizes
    for size in attention.page_sizes or sorted({1, 2, 3, 16, 64, 256, best or 16}):
        case = served(attention, at_pages(size), page_size=size, head_dim=32, device=device)
        for some in (case, replace(case, adjacent=True), replace(case, window=size)):
            if not attention.rejects(some.shape):
                some.check(attention)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("step", ["mixed", "decodes"])
def test_types(attention: Backend, device: str, dtype: torch.dtype, step: str) -> None:
    served(attention, STEPS[step], dtype=dtype, device=device).check(attention)


@pytest.mark.parametrize("cache_dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_cache_of_another_type(attention: Backend, device: str, cache_dtype: torch.dtype) -> None:
    case = served(
        attention, STEPS["mixed"], dtype=torch.float32, cache_dtype=cache_dtype, device=device
    )
    case.check(attention)


@pytest.mark.parametrize("step", ["mixed", "decodes", "prompt"])
@pytest.mark.parametrize("how", ["strided", "joint", "wide"])
def test_memory_may_lie_anywhere(attention: Backend, device: str, step: str, how: str) -> None:
    """Inputs with strides, a cache that is a slice, a page table wider than the step needs."""
    served(attention, STEPS[step], device=device, **{how: 3 if how == "wide" else True}).check(
        attention
    )


@pytest.mark.parametrize("window", [None, 100])
def test_long_contexts(attention: Backend, device: str, window: int | None) -> None:
    requests = [(5000, 1), (2048, 1), (2047, 1), (2200, 20), (777, 300), (511, 1), (512, 1)]
    served(attention, requests, head_dim=32, window=window, device=device).check(attention)


def test_many_requests(attention: Backend, device: str) -> None:
    requests = [(7 * i % 97, 1) for i in range(270)] + [(i, 2 + i % 3) for i in range(20)]
    served(attention, requests, head_dim=32, device=device).check(attention)


@pytest.mark.parametrize("seed", range(RANDOM_STEPS))
def test_random_steps(attention: Backend, device: str, seed: int) -> None:
    rng = random.Random(seed)
    requests = [
        (rng.choice((0, rng.randint(0, 150))), rng.choice((1, rng.randint(1, 60))))
        for _ in range(rng.randint(1, 9))
    ]
    kv_heads = rng.randint(1, 4)
    served(
        attention,
        requests,
        heads=kv_heads * rng.randint(1, 8),
        kv_heads=kv_heads,
        head_dim=rng.choice((16, 32, 64, 128)),
        page_size=rng.choice(attention.page_sizes or (1, 4, 5, 16, 32)),
        window=rng.choice((None, None, rng.randint(1, 80))),
        adjacent=rng.random() < 0.3,
        strided=rng.random() < 0.5,
        wide=rng.randint(0, 2),
        device=device,
        seed=seed,
    ).check(attention)


def test_the_same_step_gives_the_same_bits(attention: Backend, device: str) -> None:
    case = served(attention, STEPS["mixed"], device=device)
    backend = attention(case.shape, attention.Options())
    assert torch.equal(bits(case.run(backend)), bits(case.run(backend)))


def test_one_instance_serves_step_after_step(attention: Backend, device: str) -> None:
    """Nothing of an earlier plan may remain."""
    first = served(attention, STEPS["mixed"], device=device)
    backend = attention(first.shape, attention.Options())
    for seed, step in enumerate(("mixed", "decode", "prompt", "decodes", "mixed", "chunk")):
        case = served(attention, STEPS[step], device=device, seed=seed)
        assert_close(case.run(backend), case.expected(), case.dtype, step)


def test_one_plan_serves_every_layer(attention: Backend, device: str) -> None:
    case = served(attention, STEPS["mixed"], device=device)
    backend = attention(case.shape, attention.Options())
    meta = case.meta()
    backend.plan(meta)
    for seed in range(3):
        layer = replace(case, seed=seed)
        layer.tables = case.tables
        assert_close(layer.forward(backend, meta), layer.expected(), case.dtype, f"layer {seed}")


def test_layers_of_two_shapes_share_a_step(attention: Backend, device: str) -> None:
    full = served(attention, STEPS["mixed"], device=device)
    other = served(attention, STEPS["mixed"], device=device, window=3)
    backends = [attention(case.shape, attention.Options()) for case in (full, other)]
    meta = full.meta()
    for backend in backends:
        backend.plan(meta)
    for backend, case in zip(backends, (full, other), strict=True):
        found = case.forward(backend, meta)
        assert_close(found, case.expected(), case.dtype, f"window {case.window}")


def test_it_may_be_warmed_before_the_first_request(attention: Backend, device: str) -> None:
    case = served(attention, STEPS["mixed"], device=device)
    backend = attention(case.shape, attention.Options())
    empty = KVLayer(*(torch.full_like(x, torch.nan) for x in case.cache))
    with torch.inference_mode():
        backend.warm(empty, case.limits(len(case.requests)))
    assert_close(case.run(backend), case.expected(), case.dtype)


def test_what_a_captured_step_holds_follows_each_step(attention: Backend, device: str) -> None:
    """`static` in place of `plan`, brought up to date by `refresh`, with rows that are padding."""
    case = served(attention, STEPS["decodes"], device=device)
    backend = attention(case.shape, attention.Options())
    size = len(case.requests) + 2
    held = backend.static(case.limits(size), size)
    if held is None:
        pytest.skip("it has none")
    for seed in range(3):
        step = replace(case, requests=[(n + seed, 1) for n, _ in case.requests[seed:]], seed=seed)
        captured, exact = step.captured(size), step.meta()
        host = ("decodes", "max_context", "query_lens", "context_lens")
        with torch.inference_mode():
            backend.refresh(
                held, replace(captured, **{name: getattr(exact, name) for name in host})
            )
        captured.private = {backend: held}
        found = step.forward(backend, captured, padding=size - len(step.requests))
        assert_close(found, step.expected(), case.dtype, f"replay {seed}")


def test_a_captured_step_can_be_replayed(attention: Backend, device: str) -> None:
    """If it is `graphable`: another step of as many decodes, copied to where the first one was."""
    if not attention.graphable or not device.startswith("cuda"):
        pytest.skip("not graphable, or not on CUDA")
    long = served(attention, [(n + 40, 1) for n in range(6)], device=device)
    short = replace(long, requests=[(n, 1) for n in range(6)], seed=1)
    widths = [case.meta().page_table.shape[1] for case in (long, short)]
    short = replace(short, wide=widths[0] - widths[1])
    backend = attention(long.shape, attention.Options())
    meta, given, cache = long.meta(), long.inputs(), long.cache
    held = backend.static(long.limits(6), 6)
    meta.private = None if held is None else {backend: held}
    # what the host knows of a captured step are bounds
    meta.max_context, meta.query_lens, meta.context_lens = widths[0] * long.page_size, [], []

    def step() -> torch.Tensor:
        if held is None:
            backend.plan(meta)
        return backend.forward(*given, cache, meta)

    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        for name, case in (("long", long), ("short", short), ("long again", long)):
            fresh = case.meta()
            for field in ("query_start", "context_len", "page_table", "slots"):
                getattr(meta, field).copy_(getattr(fresh, field))
            for static, new in zip(given, case.inputs(), strict=True):
                static.copy_(new)
            for whole, part in zip(cache, replace(case).cache, strict=True):
                whole[: len(part)].copy_(part)
            if held is not None:
                backend.refresh(held, fresh)
            graph.replay()
            assert_close(out, case.expected(), case.dtype, name)
