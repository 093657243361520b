"""A kernel set for tests, as a one-file plugin: plain torch, whose products and norms wait."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from core.fusing import Waiting, value_of
from core.registry import kernels
from plugins.kernels.torch import TorchKernels


class Later(Waiting):
    """What a function will give."""

    def __init__(self, like: Tensor, size: int, compute: Any) -> None:
        super().__init__(like, size)
        self._compute = compute

    def compute(self) -> Tensor:
        return self._compute()


@kernels.register("waiting", summary="torch, with products and norms that wait")
class WaitingKernels(TorchKernels):
    taken: ClassVar[list[str]] = []  # which operations were given what waits

    def __init__(self, options: Any) -> None:
        options.pack_from = None
        super().__init__(options)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, wait: bool) -> Tensor:
        self._note("product", x)

        def multiply() -> Tensor:
            return F.linear(value_of(x), weight, bias)

        return Later(x, len(weight), multiply) if wait else multiply()

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        self._note("add_rms_norm", x)
        normed, total = super().add_rms_norm(value_of(x), value_of(residual), weight, eps)
        if not isinstance(x, Waiting):
            return normed, total
        return Later(total, total.shape[1], lambda: normed), total

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        self._note("silu_mul", gate_up)
        return super().silu_mul(value_of(gate_up))

    def _note(self, operation: str, x: Tensor) -> None:
        if isinstance(x, Waiting):
            self.taken.append(operation)
