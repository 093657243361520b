"""The FlashAttention backend: with stand-ins for the packages, and on CUDA with the real ones."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from core.errors import UserError
from core.testing.attention import AttentionCase
from core.testing.numbers import assert_close
from core.types import AttentionShape
from plugins.attention.flash import prompts
from plugins.attention.flash.backend import FlashAttention
from tests.plugins.flash_fakes import install, install_operator

STEPS = {
    "decodes": [(3, 1), (300, 1), (255, 1), (256, 1), (0, 1)],
    "prompts": [(0, 40), (0, 3), (0, 257)],
    "chunks": [(21, 13), (256, 5), (500, 30)],
    "prompts and chunks": [(0, 40), (256, 7)],
    "decodes and prompts": [(9, 1), (70, 1), (0, 33), (0, 2)],
    "all": [(9, 1), (0, 1), (0, 33), (270, 4)],
}
HOPPER = (9, 0)
SHAPE = AttentionShape(
    heads=4,
    kv_heads=2,
    head_dim=128,
    scale=0.1,
    page_size=256,
    dtype=torch.bfloat16,
    cache_dtype=torch.bfloat16,
    device="cuda",
)


def check(case: AttentionCase, **options: Any) -> None:
    shape = replace(case.shape, device="cuda")
    assert FlashAttention.rejects(shape) == []
    backend = FlashAttention(shape, FlashAttention.Options(**options))
    assert_close(case.run(backend), case.expected(), case.dtype)
    assert_close(case.into(backend), case.expected(), case.dtype)


@pytest.mark.parametrize("window", [None, 1, 50])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("number", "page_size"), [(2, 256), (3, 256), (3, 16), (4, 32)])
def test_every_generation_is_given_what_makes_attention(
    monkeypatch: pytest.MonkeyPatch, number: int, page_size: int, step: str, window: int | None
) -> None:
    install(monkeypatch, number, capability=HOPPER)
    for layout in ("tokens", "heads"):
        case = AttentionCase(
            STEPS[step],
            head_dim=32,
            page_size=page_size,
            window=window,
            dtype=torch.float16,
            layout=layout,
        )
        check(case)


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("step", STEPS)
def test_generation_3_writes_where_it_is_told_if_its_operator_is_there(
    monkeypatch: pytest.MonkeyPatch, step: str, window: int | None
) -> None:
    install(monkeypatch, 3, capability=HOPPER)
    calls = install_operator(monkeypatch)
    case = AttentionCase(STEPS[step], head_dim=32, window=window, dtype=torch.float16)
    check(case)
    assert bool(calls) == any(count > 1 for count in case.counts)


@pytest.mark.parametrize("most", [1, 300, 560])
def test_cached_prompts_are_gathered_in_turns(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """What all of a step attend to may be more than the cache: they may share most of it."""
    install(monkeypatch, 3, capability=HOPPER)
    monkeypatch.setattr(prompts, "GATHERED", most)
    seen = []
    gather = prompts._gather

    def noted(cache: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        seen.append(len(tokens))
        return gather(cache, tokens)

    monkeypatch.setattr(prompts, "_gather", noted)
    steps = [(9, 1), (70, 1), (21, 13), (256, 5), (0, 40), (500, 30), (3, 2)]
    check(AttentionCase(steps, head_dim=32, page_size=16, dtype=torch.float16))
    assert sum(seen) == 2 * 2 * (34 + 261 + 40 + 530 + 5)  # keys and values, by both functions
    assert max(seen) <= max(most, 530)
    assert len(seen) == 2 * 2 * {1: 5, 300: 4, 560: 2}[most]


@pytest.mark.parametrize(
    ("there", "capability", "best"),
    [
        ((2, 3, 4), (9, 0), 3),
        ((2, 4), (9, 0), 2),
        ((2, 3), (8, 6), 2),
        ((2, 3), (10, 0), 2),
        ((3,), (9, 0), 3),
    ],
    ids=str,
)
def test_the_best_generation_for_the_device_is_chosen_and_named(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    there: tuple[int, ...],
    capability: tuple[int, int],
    best: int,
) -> None:
    install(monkeypatch, *there, capability=capability)
    with caplog.at_level(logging.INFO, "plait"):
        FlashAttention(SHAPE, FlashAttention.Options())
    assert f"attention: flash: FlashAttention {best} (" in caplog.text


def test_small_pages_pass_over_the_generation_that_cannot_read_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, 2, 4, capability=HOPPER)
    with caplog.at_level(logging.INFO, "plait"):
        FlashAttention(replace(SHAPE, page_size=32), FlashAttention.Options())
    assert "FlashAttention 4 (flash-attn-4)" in caplog.text
    assert "FlashAttention 2: pages of 32 tokens are no multiple of 256" in caplog.text


@pytest.mark.parametrize(
    ("changes", "there", "reason"),
    [
        ({"dtype": torch.float32}, (2,), "torch.float32 is neither float16 nor bfloat16"),
        ({"cache_dtype": torch.float16}, (2,), "a cache of torch.float16 beside torch.bfloat16"),
        ({"head_dim": 260}, (3,), "head_dim 260 is no multiple of 8 up to 256"),
        ({"head_dim": 36}, (3,), "head_dim 36 is no multiple of 8"),
        ({"kv_heads": 3}, (3,), "4 query heads cannot share 3"),
        ({"window": 0}, (3,), "a window of 0 tokens"),
        ({"page_size": 64}, (2,), "FlashAttention 2: pages of 64 tokens"),
        ({"page_size": 64}, (4,), "FlashAttention 4: pages of 64 tokens"),
        ({"device": "cpu"}, (2,), "it runs on CUDA devices, not on 'cpu'"),
        ({}, (), "FlashAttention 2 (flash-attn) is not installed"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_said(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], there: tuple[int, ...], reason: str
) -> None:
    install(monkeypatch, *there, capability=HOPPER)
    assert any(reason in said for said in FlashAttention.rejects(replace(SHAPE, **changes)))


def test_a_package_that_cannot_be_imported_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.attention.flash import generations

    install(monkeypatch, capability=HOPPER)
    monkeypatch.setattr(generations, "installed", lambda name: name == "flash_attn_interface")
    said = FlashAttention.rejects(SHAPE)
    assert any("FlashAttention 3 cannot be imported: ModuleNotFoundError" in s for s in said)


def test_a_generation_may_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, 2, 3, capability=HOPPER)
    with caplog.at_level(logging.INFO, "plait"):
        FlashAttention(SHAPE, FlashAttention.Options(generation=2))
    assert "FlashAttention 2 (flash-attn)" in caplog.text
    with pytest.raises(UserError, match=r"FlashAttention 4 .* is not installed"):
        FlashAttention(SHAPE, FlashAttention.Options(generation=4))
    with pytest.raises(UserError, match="must be one of"):
        FlashAttention.Options(generation=1)


@pytest.fixture
def real(device: str) -> str:
    if not device.startswith("cuda"):
        pytest.skip("FlashAttention runs on CUDA")
    if reasons := FlashAttention.rejects(SHAPE):
        pytest.skip("; ".join(reasons))
    return device


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("step", STEPS)
def test_the_installed_generation_computes_attention(
    real: str, step: str, window: int | None
) -> None:
    for heads, kv_heads, head_dim in ((4, 2, 128), (8, 1, 64), (3, 3, 128)):
        case = AttentionCase(
            STEPS[step],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            page_size=256,
            window=window,
            dtype=torch.bfloat16,
            device=real,
            strided=True,
        )
        check(case)


def test_the_installed_generation_can_be_captured(real: str) -> None:
    """Decodes, at other lengths than those of the capture."""
    cases = [
        AttentionCase([(n, 1) for n in lengths], head_dim=128, page_size=256, wide=2 - i,
                      dtype=torch.bfloat16, device=real)
        for i, lengths in enumerate(((5, 300, 256), (700, 0, 20)))
    ]  # fmt: skip
    width = max(case.meta().page_table.shape[1] for case in cases)
    first, shape = cases[0], cases[0].shape
    backend = FlashAttention(shape, FlashAttention.Options())
    meta = first.meta()
    meta.page_table = torch.zeros(3, width, dtype=torch.int32, device=real)
    meta.max_context, meta.query_lens, meta.context_lens = 256 * width, [], []
    inputs = [x.clone() for x in first.inputs()]
    pages = max(case.pages for case in cases)
    cache = type(first.cache)(
        *(torch.zeros(pages, *x.shape[1:], dtype=x.dtype, device=real) for x in first.cache)
    )
    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            backend.plan(meta)
            backend.forward(*inputs, cache, meta)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            backend.plan(meta)
            out = backend.forward(*inputs, cache, meta)
        for case in cases:
            fresh = case.meta()
            for name in ("query_start", "context_len", "slots"):
                getattr(meta, name).copy_(getattr(fresh, name))
            meta.page_table[:, : fresh.page_table.shape[1]].copy_(fresh.page_table)
            for static, new in zip(inputs, case.inputs(), strict=True):
                static.copy_(new)
            for static, new in zip(cache, case.cache, strict=True):
                static[: len(new)].copy_(new)
            graph.replay()
            assert_close(out, case.expected(), torch.bfloat16)
