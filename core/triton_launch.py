"""Launches Triton kernels with little work for the host, and says how they follow each other.

Programmatic dependent launch (PDL, Hopper and later) lets a kernel start while the one before it
still runs. Every kernel that takes `launch_pdl` keeps to three rules:

1. It says at once that its successor may start (`gdc_launch_dependents`), unless it makes a step's
   tensors. That is no promise about data: the successor waits for this kernel's end anyhow.
2. It calls `gdc_wait` before its first read or write of anything that an earlier kernel touches,
   always, and outside of loops. The wait ends when the kernel before has ended, which has itself
   waited for the one before that: so kernels end in the order in which they were launched.
3. Before the wait it reads weights, and nothing else; attention also reads a step's tensors.
   docs/decisions/0011-what-may-start-early.md says why it may.

This module does not import Triton: kernels come from those who have.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

ALIGNED = 16  # bytes; Triton reads 16 at once where it knows that a pointer is a multiple

_dtype = attrgetter("dtype")


def interpreted() -> bool:
    """Whether Triton runs kernels as Python on the CPU (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def pdl(device: torch.device) -> bool:
    """Whether kernels on this device may start before their predecessor ends."""
    return (
        device.type == "cuda"
        and not interpreted()
        and torch.cuda.get_device_capability(device) >= (9, 0)
    )


def power_of_two(x: int) -> int:
    """The least power of two that is at least x: the sizes of blocks must be such."""
    return 1 << max(x - 1, 0).bit_length()


@dataclass
class Ahead:
    """Variants that are compiled before their first launch."""

    seen: set[Hashable] = field(default_factory=set)
    cold: bool = False  # some were not in Triton's cache


_ahead: ContextVar[Ahead | None] = ContextVar("compiled ahead", default=None)


@contextmanager
def compiling_ahead(threads: int) -> Iterator[Ahead]:
    """Inside, no `Launcher` of this thread launches: its kernel is compiled, side by side with
    others. All are when this ends, but for those that cannot be: their first launch says why.

    So what is computed inside is nonsense, and must not be used as an index. Does nothing at all
    where Triton cannot do it (before 3.6, or interpreted).
    """
    triton: Any = import_module("triton")

    ahead, knobs = Ahead(), triton.knobs.compilation
    mode = getattr(triton, "AsyncCompileMode", None)
    # Triton 3.5 has one that raises the first kernel's error, and stays on behind it
    if interpreted() or mode is None or "ignore_errors" not in signature(mode).parameters:
        yield ahead
        return

    def count(*, cache_hit: bool, **more: Any) -> None:
        ahead.cold = ahead.cold or not cache_hit
        if listener is not None:
            listener(cache_hit=cache_hit, **more)

    listener, knobs.listener = knobs.listener, count
    token = _ahead.set(ahead)
    try:
        with (
            ThreadPoolExecutor(threads, thread_name_prefix="plait compiles") as pool,
            mode(pool, ignore_errors=True),
        ):
            yield ahead
    finally:
        _ahead.reset(token)
        knobs.listener = listener


class Launcher:
    """A Triton kernel whose variants are found by a key that is cheap to make.

    Triton's own call inspects every argument, which costs the host 7 to 16 us; a step without a
    graph has over a hundred launches. Here the first launch of a variant goes that way, and the
    others call what it compiled. The kernel's parameters are, in this order, tensors, numbers and
    compile-time constants. Numbers must not be specialized (`do_not_specialize`). If a tensor whose
    alignment Triton looks at (`do_not_specialize_on_alignment` says otherwise) is not aligned, the
    launch goes Triton's way each time.

    Between tensors and numbers there may be so many `descriptors`: tensors as Hopper's copy engine
    takes them, in tiles that the constants tell and of types that the tensors have.
    """

    def __init__(self, kernel: Any, descriptors: int = 0) -> None:
        self.kernel, self.descriptors = kernel, descriptors
        self.takes_pdl = kernel.arg_names[-1] == "launch_pdl"
        self.aligned = tuple(  # places of the parameters whose alignment makes a variant
            place
            for place, parameter in enumerate(getattr(kernel, "params", ()))  # none: interpreted
            if not (
                parameter.is_constexpr
                or parameter.do_not_specialize
                or parameter.do_not_specialize_on_alignment
            )
        )
        self.aligned = self.aligned[: len(self.aligned) - descriptors]
        self._variants: dict[Hashable, Any] = {}

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: Sequence[Tensor],
        numbers: tuple[float, ...],
        constants: tuple[Hashable, ...] | Mapping[str, Hashable],
        *,
        descriptors: tuple[Any, ...] = (),
        warps: int = 4,
        pdl: bool = False,
        registers: int | None = None,
    ) -> None:
        """Launch on the current stream.

        `constants` are in the order of the kernel's parameters; with names, this is checked. The
        last constant, if it is `launch_pdl`, gets `pdl`. `descriptors`: Triton's
        `TensorDescriptor`s. `registers`: the most that a thread may have, the same in all launches
        of a kernel.
        """
        values = constants if isinstance(constants, tuple) else tuple(constants.values())
        key = (tensors[0].get_device(), warps, pdl, values, *map(_dtype, tensors))
        ahead = _ahead.get()
        variant = self._variants.get(key) if ahead is None else None
        if variant is None:
            self._check(tensors, constants, pdl)
            assert len(descriptors) == self.descriptors
        usual = not self._misaligned(tensors)
        if variant is not None and usual:
            last = (pdl,) if self.takes_pdl else ()
            variant[grid](*tensors, *descriptors, *numbers, *values, *last)
            return
        given = (*tensors, *descriptors, *numbers, *values)
        options: dict[str, int] = {}
        if self.takes_pdl:
            options["launch_pdl"] = pdl  # it is an option of the launch as well
        if registers is not None:
            options["maxnreg"] = registers
        if ahead is not None:
            if (self.kernel, key, usual) not in ahead.seen:
                ahead.seen.add((self.kernel, key, usual))
                self.kernel.warmup(*given, grid=grid, **options, num_warps=warps)
            return
        made = self.kernel[grid](*given, **options, num_warps=warps)
        if made is not None and usual:  # the interpreter makes nothing
            self._variants[key] = made

    def _misaligned(self, tensors: Sequence[Tensor]) -> bool:
        address = 0
        for place in self.aligned:
            address |= tensors[place].data_ptr()
        return address % ALIGNED != 0

    def _check(
        self,
        tensors: Sequence[Tensor],
        constants: tuple[Hashable, ...] | Mapping[str, Hashable],
        pdl: bool,
    ) -> None:
        assert self.takes_pdl or not pdl, "the kernel does not wait for the one before it"
        assert max(self.aligned, default=-1) < len(tensors), "a number is specialized"
        if isinstance(constants, Mapping):
            names = self.kernel.arg_names[: -1 if self.takes_pdl else None]
            assert names[-len(constants) :] == list(constants), "constants out of order"
