"""The Triton attention backend beyond the kit: fused steps, padding, splits, float8, graphs.

Runs on CUDA (`--on cuda`), and without a GPU where TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.errors import UserError
from core.testing.attention import AttentionCase
from core.testing.numbers import assert_close, bits
from core.triton_launch import power_of_two
from core.types import AttentionShape
from plugins.attention.triton import recipes
from plugins.attention.triton.backend import TritonAttention
from tests.plugins.flash_fakes import install
from tests.plugins.fused_steps import EPS, Fused

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HALF = torch.float16 if INTERPRETED else torch.bfloat16


@pytest.fixture(autouse=True)
def runs(device: str) -> None:
    if not device.startswith("cuda") and not INTERPRETED:
        pytest.skip("Triton kernels need --on cuda, or TRITON_INTERPRET=1")


def instance(shape: AttentionShape, **options: Any) -> TritonAttention:
    assert TritonAttention.rejects(shape) == []
    return TritonAttention(shape, TritonAttention.Options(**options))


CONTEXTS = [(n, 1) for n in (3, 0, 49, 15, 16, 31, 130)]


def fused(device: str, requests: Any = CONTEXTS, **changes: Any) -> Fused:
    more = {name: changes.pop(name) for name in ("turns", "normed", "padding") if name in changes}
    return Fused(AttentionCase(requests, device=device, **{"dtype": HALF, **changes}), **more)


@pytest.mark.parametrize("window", [None, 1, 20])
def test_fused_is_norm_rotation_store_and_attention(device: str, window: int | None) -> None:
    fused(device, window=window).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": torch.float32},
        {"normed": False},
        {"head_dim": 80, "turns": 12, "page_size": 24},
        {"heads": 14, "kv_heads": 2, "head_dim": 128, "layout": "heads"},
        {"heads": 24, "kv_heads": 1, "head_dim": 32},
        {"heads": 3, "kv_heads": 3, "page_size": 256, "joint": True},
    ],
    ids=str,
)
def test_fused_takes_any_shape(device: str, changes: dict[str, Any]) -> None:
    fused(device, **changes).check()


@pytest.mark.parametrize("requests", [CONTEXTS, [(700, 1)]], ids=["seven", "one"])
def test_padding_reads_and_writes_nothing(device: str, requests: list[tuple[int, int]]) -> None:
    fused(device, requests, padding=3, head_dim=32).check()


def test_a_step_of_padding_alone_is_zeros(device: str) -> None:
    step = fused(device, [(5, 1)], head_dim=32)
    meta = step.meta()
    meta.context_len, meta.slots = meta.context_len * 0, meta.slots * 0 - 1
    backend = instance(step.case.shape)
    backend.plan(meta)
    assert (step.run(backend, meta) == 0).all()
    for x, old in zip(step.case.cache, step.before, strict=True):
        assert torch.equal(bits(x), bits(old))
    q = torch.full_like(step.case.q, torch.nan).to(device)
    assert (backend.forward(q, q, q, step.case.cache, meta) == 0).all()


def test_a_negative_slot_is_computed_and_not_stored(device: str) -> None:
    step = fused(device, head_dim=32)
    meta = step.meta()
    meta.slots[2] = -1
    backend = instance(step.case.shape)
    backend.plan(meta)
    assert_close(step.run(backend, meta), step.case.expected(), HALF)
    hidden = step.case.slot(2, step.case.lengths[2] - 1)
    for x in step.case.cache:
        assert x[hidden // 16, hidden % 16].isnan().all()


def test_fusing_is_for_steps_that_only_decode(device: str) -> None:
    case = AttentionCase([(4, 1), (0, 2)], head_dim=32, dtype=HALF, device=device)
    assert not instance(case.shape).fuses(case.meta())
    case = AttentionCase([(4, 1), (3, 1)], head_dim=32, dtype=HALF, device=device)
    assert instance(case.shape).fuses(case.meta())
    assert not instance(case.shape, fused=False).fuses(case.meta())


@pytest.mark.parametrize("bound", [700, 4096])
@pytest.mark.parametrize("old", [0, 63, 64, 65, 640])
def test_splits_are_joined_whatever_the_bound_was(
    device: str, old: int, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A captured step has as many splits as its bound wants, and most of them find no tokens."""
    monkeypatch.setattr(recipes, "USUAL", 1)
    step = fused(device, [(old, 1)], heads=4, kv_heads=1, head_dim=32)
    backend = instance(step.case.shape)
    meta = step.meta()
    meta.max_context = bound
    backend.plan(meta)
    assert meta.private[backend][0].how.splits == power_of_two(-(-bound // 64))
    for _ in range(2):  # the counters of arrivals are back at zero
        assert_close(step.run(backend, meta), step.case.expected(), HALF)
    plain = step.case.forward(backend, meta)
    assert_close(plain, step.case.expected(), HALF)


def test_the_order_of_requests_changes_nothing(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(5)
    requests = [(rng.randint(0, 90), 1) for _ in range(41)]
    step = fused(device, requests, head_dim=32, padding=2)
    plain = step.run(instance(step.case.shape))
    monkeypatch.setattr(recipes, "MANY", 1)
    backend = instance(step.case.shape)
    meta = step.meta()
    backend.plan(meta)
    order = meta.private[backend][0].order.tolist()
    lengths = meta.context_len.tolist()
    assert order == sorted(range(43), key=lambda b: -lengths[b])
    assert torch.equal(bits(step.run(backend, meta)), bits(plain))
    step.check(backend)
    case = step.case
    assert_close(case.run(backend), case.expected(), HALF)


def test_a_cache_of_float8(device: str) -> None:
    for requests in (CONTEXTS, [(40, 1), (33, 1), (20, 30), (0, 50)]):
        case = AttentionCase(requests, dtype=HALF, device=device)
        k, v = (x.to(torch.float8_e4m3fn) for x in case.cache)
        case.keys, case.values = (
            [x.to(torch.float8_e4m3fn).to(HALF) for x in xs] for xs in (case.keys, case.values)
        )
        case.cache = type(case.cache)(k, v)  # type: ignore[misc]
        case.cache_dtype = torch.float8_e4m3fn
        found = case.run(instance(case.shape))
        assert_close(found, case.expected(), HALF)


def test_prompts_may_be_left_to_flash_attention(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small pages too, which FlashAttention 2 could not decode from."""
    if not INTERPRETED:
        pytest.skip("a stand-in computes on the CPU")
    install(monkeypatch, 2, 3, capability=(9, 0))
    requests = [(20, 1), (33, 1), (20, 30), (0, 50)]
    for case in (
        AttentionCase(requests, dtype=HALF),
        AttentionCase([(0, 5), (0, 9)], dtype=HALF, window=4),
    ):
        for wish, expected in (("auto", 3), ("flash", 3), ("triton", None)):
            backend = instance(replace(case.shape, device="cuda"), prompts=wish, pdl=False)
            assert (backend._flash is None) == (expected is None)
            assert_close(case.run(backend), case.expected(), HALF, wish)
    install(monkeypatch, 2, capability=(9, 0))
    assert instance(replace(case.shape, device="cuda"))._flash is None
    install(monkeypatch, 2, capability=(8, 0))
    assert instance(replace(case.shape, device="cuda"))._flash is not None
    assert instance(replace(case.shape, device="cuda"), prompts="flash")._flash is not None
    install(monkeypatch, capability=(9, 0))
    with pytest.raises(UserError, match=r"FlashAttention 3 .* is not installed"):
        instance(replace(case.shape, device="cuda"), prompts="flash")


@pytest.mark.parametrize("seed", range(4))
def test_random_steps_of_single_tokens(device: str, seed: int) -> None:
    """Few variants of the kernels, for each has to be compiled; many lengths."""
    rng = random.Random(seed)
    for _ in range(3 if INTERPRETED else 30):
        requests = [(rng.choice((0, 15, rng.randint(0, 300))), 1) for _ in range(rng.randint(1, 7))]
        step = fused(
            device,
            requests,
            heads=8,
            kv_heads=2,
            window=None if seed < 2 else rng.randint(1, 120),
            adjacent=rng.random() < 0.3,
            padding=rng.randint(0, 2),
            seed=rng.randint(0, 9999),
        )
        step.check()
        assert_close(step.case.run(instance(step.case.shape)), step.case.expected(), HALF)


@pytest.mark.parametrize("batch", [1, 6, 150])
def test_a_captured_fused_step_serves_other_lengths_and_fewer_requests(
    device: str, batch: int
) -> None:
    if INTERPRETED:
        pytest.skip("graphs are for CUDA")
    rng = random.Random(batch)
    steps = []
    for live in (batch, batch, max(1, batch // 2)):
        requests = [(rng.randint(0, 400), 1) for _ in range(live)]
        steps.append(fused(device, requests, heads=16, kv_heads=8, padding=batch - live))
    width = 1 << 6
    pages = max(step.case.pages for step in steps)
    first = steps[0]
    backend = instance(first.case.shape)
    meta = first.meta()
    meta.page_table = torch.zeros(batch, width, dtype=torch.int32, device=device)
    meta.max_context, meta.query_lens, meta.context_lens = 16 * width, [], []
    qkv, positions = first.qkv.to(device), first.positions.to(device)
    rope = torch.zeros(512, *first.rope.shape[1:], device=device)
    norms = (first.norms[0].to(device), first.norms[1].to(device), EPS)
    cache = type(first.case.cache)(
        *(torch.zeros(pages, *x.shape[1:], dtype=HALF, device=device) for x in first.case.cache)
    )

    def work() -> Tensor:
        backend.plan(meta)
        return backend.forward_fused(qkv, norms, rope, positions, cache, meta)

    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = work()
        for step in steps:
            fresh = step.meta()
            for name in ("query_start", "context_len", "slots"):
                getattr(meta, name).copy_(getattr(fresh, name))
            meta.page_table[:, : fresh.page_table.shape[1]].copy_(fresh.page_table)
            qkv.copy_(step.qkv)
            positions.copy_(step.positions)
            rope[: len(step.rope)].copy_(step.rope)
            for static, new in zip(norms[:2], step.norms[:2], strict=True):
                static.copy_(new)
            for static, new in zip(cache, step.before, strict=True):
                static[: len(new)].copy_(new)
            for _ in range(3):
                graph.replay()
            live = len(step.case.lengths)
            found = out.view(batch, 16, -1)
            assert_close(found[:live], step.case.expected(), HALF)
            assert (found[live:] == 0).all()
