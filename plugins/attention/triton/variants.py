"""Launches a Triton kernel again without asking Triton again which variant it is.

Triton looks at every argument of every launch, which takes the host about 10 us; a step without a
graph has dozens of launches. Here only the first launch of a variant goes that way.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

ALIGNED = 16  # bytes: Triton reads so many at once from pointers that are multiples


class Variants:
    """The compiled variants of one kernel, whose parameters are tensors, numbers and constants.

    Numbers and the tensors of `indexes` must not be specialized: one variant serves all of them.
    The other tensors, if one of them is not aligned, always go Triton's way.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._found: dict[Hashable, Any] = {}

    def launch(
        self,
        grid: tuple[int, int, int],
        tensors: Sequence[Tensor],
        indexes: Sequence[Tensor],
        numbers: tuple[float, ...],
        constants: Mapping[str, Hashable],
        **options: Any,
    ) -> None:
        """On the current stream. `constants` are in the order of the kernel's parameters."""
        values = tuple(constants.values())
        dtypes = [tensor.dtype for tensor in (*tensors, *indexes)]
        key = (tensors[0].get_device(), values, *dtypes, *options.values())
        known = self._found.get(key)
        if known is not None and _aligned(tensors):
            known[grid](*tensors, *indexes, *numbers, *values)
            return
        names = self._kernel.arg_names
        assert names[len(names) - len(values) :] == list(constants), "constants out of order"
        made = self._kernel[grid](*tensors, *indexes, *numbers, *values, **options)
        if made is not None and _aligned(tensors):  # the interpreter makes nothing
            self._found[key] = made


def _aligned(tensors: Sequence[Tensor]) -> bool:
    address = 0
    for tensor in tensors:
        address |= tensor.data_ptr()
    return address % ALIGNED == 0
