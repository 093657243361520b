"""How the kernels of one set become one kernel although modules call them one by one: values wait.

A matrix product may wait for the operation behind it, which adds it to the residual or activates
it, and a norm may wait for the product behind it. Modules hand such values on like tensors. Whoever
can, takes what waits into its own kernel; for everybody else it is computed when it is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


class Waiting(ABC):
    """A tensor that nobody has computed yet. It can be used like one, which computes it.

    What it is computed from must stay as it is until then: the memory that a module was given is
    written by nobody but operations that are said to overwrite it, and those come later.
    """

    def __init__(self, like: Tensor, size: int) -> None:
        """`like`: a tensor that has its rows, dtype and device; `size`: of its last dimension."""
        self.shape = (*like.shape[:-1], size)
        self.dtype, self.device = like.dtype, like.device
        self._value: Tensor | None = None

    @abstractmethod
    def compute(self) -> Tensor:
        """The tensor, [..., size]."""

    def value(self) -> Tensor:
        """The tensor, computed at most once."""
        if self._value is None:
            self._value = self.compute()
        return self._value

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python looks for in any object
            raise AttributeError(name)
        return getattr(self.value(), name)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return function(*map(_seen, args), **{k: _seen(v) for k, v in (kwargs or {}).items()})


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Waiting, *others: Any) -> Any:
        return getattr(self.value(), name)(*map(_seen, others))

    return operate


OPERATORS = "add radd sub rsub mul rmul truediv rtruediv matmul rmatmul pow neg getitem"

for _name in OPERATORS.split():
    setattr(Waiting, f"__{_name}__", _operator(f"__{_name}__"))


def value_of(x: Any) -> Tensor:
    """The tensor itself, or what has waited until now."""
    tensor: Tensor = x.value() if isinstance(x, Waiting) else x
    return tensor


def _seen(x: Any) -> Any:
    """An argument of a torch function, with tensors in the place of what waits."""
    if isinstance(x, list | tuple):
        return type(x)(map(_seen, x))
    return x.value() if isinstance(x, Waiting) else x


@runtime_checkable
class FusedProducts(Protocol):
    """What a kernel set may offer for matrix products, beside `core.interfaces.Kernels`.

    Its `rms_norm`, `add_rms_norm` and `silu_mul` take what its `product` lets wait, and may give
    what waits for a `product`.
    """

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, wait: bool) -> Tensor:
        """x [T, in] weight [out, in]^T + bias -> [T, out].

        x may be `Waiting`; the result may if `wait`.
        """


@dataclass
class Fusing:
    """Whether the layers of a model may let values wait in the step that is going on.

    They may where nobody looks into the model, which is in steps that are captured: a hook that
    observes a module sees tensors.
    """

    on: bool = False

    @contextmanager
    def allowed(self, on: bool) -> Iterator[None]:
        self.on = on
        try:
            yield
        finally:
            self.on = False
