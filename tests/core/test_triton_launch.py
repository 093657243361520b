"""Launches of Triton kernels: when Triton is asked, and what the compiled variants get."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.triton_launch import Launcher, compiling_ahead, interpreted, pdl, power_of_two

GRID = (3, 2, 1)


class Kernel:
    """Stands in for a kernel with parameters x, index, number, SIZE and KIND."""

    def __init__(self, *last: str, specialized: str = "", compiles: bool = True) -> None:
        self.arg_names = ["x", "index", "number", "SIZE", "KIND", *last]
        self.params = [
            SimpleNamespace(
                is_constexpr=name.isupper() or name in last,
                do_not_specialize=name == "number" and name != specialized,
                do_not_specialize_on_alignment=name == "index",
            )
            for name in self.arg_names
        ]
        self.compiles = compiles
        self.asked: list[tuple[Any, ...]] = []  # launches that Triton looked at
        self.ran: list[tuple[Any, ...]] = []  # and those that went to what it compiled

    def __getitem__(self, grid: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            self.asked.append((grid, arguments, options))
            return Variant(self) if self.compiles else None

        return run


class Variant:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments: self.kernel.ran.append((grid, arguments))


def tensors(dtype: torch.dtype = torch.float32, shift: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.zeros(32, dtype=dtype)
    assert x.data_ptr() % 16 == 0
    return x[shift:], torch.zeros(9, dtype=torch.int32)[1:]


def test_only_the_first_launch_of_a_variant_asks_triton() -> None:
    kernel = Kernel()
    launch, (x, index) = Launcher(kernel), tensors()
    launch(GRID, (x, index), (0.5,), (8, "a"), warps=2)
    launch((9, 1, 1), (x, index), (0.25,), (8, "a"), warps=2)
    assert kernel.asked == [(GRID, (x, index, 0.5, 8, "a"), {"num_warps": 2})]
    assert kernel.ran == [((9, 1, 1), (x, index, 0.25, 8, "a"))]


@pytest.mark.parametrize(
    ("given", "constants", "options"),
    [
        (tensors(torch.float16), (8, "a"), {}),
        (tensors(), (16, "a"), {}),
        (tensors(), (8, "a"), {"warps": 8}),
        (tensors(), (8, "a"), {"pdl": True}),
    ],
    ids=["dtype", "constant", "warps", "pdl"],
)
def test_what_makes_another_variant(given: Any, constants: Any, options: dict[str, Any]) -> None:
    kernel = Kernel("launch_pdl")
    launch = Launcher(kernel)
    launch(GRID, tensors(), (1,), (8, "a"))
    launch(GRID, given, (1,), constants, **options)
    assert len(kernel.asked) == 2


def test_a_tensor_that_is_not_aligned_goes_tritons_way_each_time() -> None:
    kernel = Kernel()
    launch = Launcher(kernel)
    for shift in (1, 0, 1, 0):
        launch(GRID, tensors(shift=shift), (1,), (8, "a"))
    assert len(kernel.asked) == 3
    assert len(kernel.ran) == 1


def test_descriptors_are_between_tensors_and_numbers() -> None:
    """Their alignment is not looked at, and they make no variants."""
    kernel = Kernel()
    kernel.arg_names.insert(2, "tiles")
    kernel.params.insert(2, SimpleNamespace(**vars(kernel.params[0])))
    launch, (x, index) = Launcher(kernel, descriptors=1), tensors()
    assert launch.aligned == Launcher(Kernel()).aligned
    for tiles in ("one", "another"):
        launch(GRID, (x, index), (1,), (8, "a"), descriptors=(tiles,))
    assert kernel.asked[0][1] == (x, index, "one", 1, 8, "a")
    assert kernel.ran[0][1] == (x, index, "another", 1, 8, "a")
    with pytest.raises(AssertionError):
        launch(GRID, (x, index), (1,), (16, "a"))


def test_the_last_constant_says_whether_the_kernel_may_start_early() -> None:
    kernel = Kernel("launch_pdl")
    launch, (x, index) = Launcher(kernel), tensors()
    for _ in range(2):
        launch(GRID, (x, index), (1,), (8, "a"), pdl=True)
    assert kernel.asked[0][2] == {"num_warps": 4, "launch_pdl": True}  # for Triton and the kernel
    assert kernel.ran[0][1] == (x, index, 1, 8, "a", True)


def test_a_kernel_that_never_waits_must_not_start_early() -> None:
    with pytest.raises(AssertionError, match="does not wait"):
        Launcher(Kernel())(GRID, tensors(), (1,), (8, "a"), pdl=True)


@pytest.mark.parametrize("last", [(), ("launch_pdl",)])
def test_constants_with_names_must_be_in_the_kernels_order(last: tuple[str, ...]) -> None:
    launch = Launcher(Kernel(*last))
    launch(GRID, tensors(), (1,), {"SIZE": 8, "KIND": "a"})
    with pytest.raises(AssertionError, match="out of order"):
        launch(GRID, tensors(), (1,), {"KIND": "b", "SIZE": 8})


def test_numbers_must_not_make_variants() -> None:
    with pytest.raises(AssertionError, match="number is specialized"):
        Launcher(Kernel(specialized="number"))(GRID, tensors(), (1,), (8, "a"))


def test_the_interpreter_is_asked_each_time() -> None:
    kernel = Kernel(compiles=False)
    launch = Launcher(kernel)
    for _ in range(2):
        launch(GRID, tensors(), (1,), (8, "a"))
    assert len(kernel.asked) == 2


class Mode35:
    """Triton 3.5's: what cannot be compiled ends the whole program, and leaves the mode on."""

    def __init__(self, executor: Any) -> None:
        raise AssertionError("it was used")


@pytest.mark.parametrize("mode", [None, Mode35], ids=["3.4", "3.5"])
def test_an_older_triton_launches_instead_of_compiling_ahead(
    monkeypatch: pytest.MonkeyPatch, mode: type | None
) -> None:
    triton: Any = ModuleType("triton")
    triton.knobs = SimpleNamespace(compilation=SimpleNamespace(listener=None))
    if mode is not None:
        triton.AsyncCompileMode = mode
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    kernel = Kernel()
    with compiling_ahead(2) as ahead:
        Launcher(kernel)(GRID, tensors(), (1,), (8, "a"))
    assert len(kernel.asked) == 1
    assert not ahead.cold


def test_only_hopper_and_later_start_kernels_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert pdl(torch.device("cuda"))
    assert not pdl(torch.device("cpu"))
    capability = (8, 9)
    assert not pdl(torch.device("cuda"))
    capability = (9, 0)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert interpreted()
    assert not pdl(torch.device("cuda"))


def test_blocks_are_powers_of_two() -> None:
    assert [power_of_two(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
