"""A mapping whose values are still on their way from the device when it is handed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from core.landed import to_host

T = TypeVar("T")


class Deferred(Mapping[int, T]):
    """Made of tensors on first use. On CUDA they are copied meanwhile, and the first use waits.

    So a sampler can report what it found in a step without stopping the launch of the next one:
    look at it only when the step is over.
    """

    def __init__(
        self, tensors: Sequence[Tensor], make: Callable[[list[Tensor]], dict[int, T]]
    ) -> None:
        """`make` gets the tensors on the host and returns the mapping."""
        self._make = make
        self._made: dict[int, T] | None = None
        self._event: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            tensors = [to_host(tensor) for tensor in tensors]
            self._event = torch.cuda.Event()
            self._event.record()
        self._tensors = list(tensors)

    @property
    def made(self) -> dict[int, T]:
        """The mapping as a dict; waits for the step that makes it."""
        if self._made is None:
            if self._event is not None:
                self._event.synchronize()
            self._made = self._make(self._tensors)
            self._tensors = []
        return self._made

    def __getitem__(self, key: int) -> T:
        return self.made[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.made,)
