"""Kernels that are compiled before they are launched, side by side. Needs Triton, and no GPU."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

import triton
import triton.language as tl

if triton.__version__.startswith("3.5."):
    pytest.skip("it cannot leave out what it fails to compile", allow_module_level=True)

from core.parallel import Solo
from core.triton_launch import Launcher, compiling_ahead
from plugins.kernels.triton.products import launch as products
from plugins.kernels.triton.products.recipes import Bulk
from plugins.runners.cuda_graph.ahead import compile_ahead
from tools.compile_ahead import NoDevice, build, record


@triton.jit
def _double(x, out, SIZE: tl.constexpr):
    tl.static_assert(SIZE < 1000, "too large")
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at) * 2)


launch = Launcher(_double)


@pytest.fixture(autouse=True)
def cache(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and on a CPU no device to ask for."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    if device == "cpu":
        monkeypatch.setattr(triton.runtime.driver, "_active", NoDevice())
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """What is compiled in this process."""
    for launcher in (launch, products._bulk):
        launcher.kernel.device_caches.clear()
        launcher._variants.clear()


def pair(size: int, device: str) -> tuple[Tensor, Tensor]:
    x = torch.arange(size, dtype=torch.float32, device="meta" if device == "cpu" else device)
    return x, torch.zeros_like(x)


def start(size: int, device: str) -> Tensor:
    x, out = pair(size, device)
    launch((1, 1, 1), (x, out), (), {"SIZE": size})
    return out


def compiled(cache: Path) -> int:
    return len(list(cache.glob("*/*.cubin")))


def test_launches_are_left_out_and_each_variant_is_compiled_once(cache: Path, device: str) -> None:
    with compiling_ahead(2) as ahead:
        outs = [start(size, device) for size in (16, 32, 16, 64)]
    assert ahead.cold
    assert len(ahead.seen) == compiled(cache) == 3
    if device == "cuda":
        assert not any(out.any() for out in outs)
        before = compiled(cache)
        assert start(32, device).tolist() == list(range(0, 64, 2))
        assert compiled(cache) == before


def test_what_the_cache_has_is_not_cold(cache: Path, device: str) -> None:
    for cold in (True, False, False):
        with compiling_ahead(2) as ahead:
            start(16, device)
        assert ahead.cold == cold
        forget()
    assert compiled(cache) == 1


def test_what_cannot_be_compiled_is_left_to_its_launch(cache: Path, device: str) -> None:
    with compiling_ahead(2):
        start(1024, device)
        start(16, device)
    assert compiled(cache) == 1
    if device == "cuda":
        with pytest.raises(triton.CompilationError, match="too large"):
            start(1024, device)


class Sizes:
    """Stands in for graphs of two sizes, one kernel each."""

    def __init__(self, sizes: list[int], rehearse: Callable[[int], Any]) -> None:
        self.sizes, self.rehearse = sizes, rehearse


def test_all_sizes_are_compiled_if_the_first_had_to_be(cache: Path, device: str) -> None:
    step: Any = SimpleNamespace(comm=Solo())
    rehearsed: list[int] = []

    def rehearse(size: int) -> None:
        rehearsed.append(size)
        start(size, device)

    graphs: Any = [Sizes([16, 32], rehearse), Sizes([64], rehearse)]
    compile_ahead(step, graphs)
    assert rehearsed == [16, 32, 64]
    assert compiled(cache) == 3
    forget()
    compile_ahead(step, graphs)
    assert rehearsed == [16, 32, 64, 16]


def test_tensors_in_tiles_are_compiled_ahead_and_recorded(cache: Path, device: str) -> None:
    if device.startswith("cuda") and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("bulk copies are Hopper's")
    where = "meta" if device == "cpu" else device
    x, weight = (torch.zeros(n, 128, dtype=torch.bfloat16, device=where) for n in (40, 64))

    def multiply() -> None:
        products.Products(pdl=False)(products.Work(x, weight), Bulk(64, 64, 64, 1, 3, 4))

    with compiling_ahead(2):
        multiply()
    assert compiled(cache) == 1
    if device != "cpu":
        multiply()
        assert compiled(cache) == 1
        return
    (job,) = record(multiply)
    name, shared, failed = build(pickle.loads(pickle.dumps(job)))
    assert (name, failed) == ("bulk", "")
    assert shared >= 3 * (64 + 64) * 64 * 2
    assert compiled(cache) == 1, "another variant was recorded"
