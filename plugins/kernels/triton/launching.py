"""Launches Triton kernels with little work for the host, and says how they follow each other.

Programmatic dependent launch (PDL, Hopper and later) lets a kernel start while the one before it
still runs. Every kernel here that takes `launch_pdl` keeps to the same three rules:

1. It says at once that its successor may start (`gdc_launch_dependents`). That is no promise about
   data: the successor waits for this kernel's end anyhow.
2. It calls `gdc_wait` before its first read or write of anything that an earlier kernel touches,
   always, and outside of loops. The wait ends when the kernel before has ended, which has itself
   waited for the one before that: so kernels end in the order in which they were launched.
3. Before the wait it reads weights and nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

import torch
import triton
from torch import Tensor

ALIGNED = 16  # bytes; Triton reads 16 at once where it knows that a pointer is a multiple

_dtype = attrgetter("dtype")


def interpreted() -> bool:
    """Whether Triton runs kernels as Python on the CPU (TRITON_INTERPRET=1)."""
    return bool(triton.knobs.runtime.interpret)


def pdl(device: torch.device) -> bool:
    """Whether kernels on this device may start before their predecessor ends."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def power_of_two(x: int) -> int:
    """The least power of two that is at least x, for x > 0: the sizes of blocks must be such."""
    return 1 << (x - 1).bit_length()


class Launcher:
    """A Triton kernel whose variants are found by a key that is cheap to make.

    Triton's own call inspects every argument, which costs the host 7 to 16 us; a step without a
    graph has over a hundred launches. Here the first launch of a variant goes that way, and the
    others call what it compiled. The kernel's parameters are, in this order, tensors, numbers and
    compile-time constants. Numbers must not be specialized (`do_not_specialize`). Tensors that are
    not aligned go Triton's way each time, unless the kernel is not specialized on that either.
    """

    def __init__(self, kernel: Any, *, aligned: bool = True) -> None:
        """`aligned`: whether the kernel has variants for aligned tensors."""
        self.kernel, self.aligned = kernel, aligned
        self._variants: dict[Hashable, Any] = {}

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: Sequence[Tensor],
        numbers: tuple[float, ...],
        constants: tuple[Hashable, ...],
        *,
        warps: int = 4,
        pdl: bool = False,
    ) -> None:
        """Launch on the current stream. The kernel's last constant, `launch_pdl`, gets `pdl`."""
        key = (tensors[0].get_device(), warps, pdl, constants, *map(_dtype, tensors))
        variant = self._variants.get(key)
        usual = not (self.aligned and _misaligned(tensors))
        if variant is not None and usual:
            variant[grid](*tensors, *numbers, *constants, pdl)
            return
        made = self.kernel[grid](*tensors, *numbers, *constants, launch_pdl=pdl, num_warps=warps)
        if made is not None and usual:  # the interpreter makes nothing
            self._variants[key] = made


def _misaligned(tensors: Sequence[Tensor]) -> bool:
    address = 0
    for tensor in tensors:
        address |= tensor.data_ptr()
    return address % ALIGNED != 0
