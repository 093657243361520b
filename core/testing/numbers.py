"""How far a result in some floating point type may be from the one in float64."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDINGS = 3.0  # root of the mean squared error, in units of the error of rounding the result once
FLOAT32 = 1e-5  # largest error in float32, relative to the largest value, and to 1


def rms(x: Tensor) -> float:
    """Root of the mean of the squares."""
    return float(x.double().square().mean().sqrt()) if x.numel() else 0.0


def assert_close(found: Tensor, exact: Tensor, dtype: torch.dtype, what: str = "result") -> None:
    """`found` is `exact` (float64), as well as `dtype` and a computation in float32 can say it.

    Half precision may round a few times on the way, which is told by the mean and by the worst.
    """
    assert found.shape == exact.shape, f"{what}: {list(found.shape)} instead of {list(exact.shape)}"
    assert found.dtype == dtype, f"{what} is {found.dtype} instead of {dtype}"
    found, exact = found.detach().cpu().double(), exact.cpu().double()
    assert found.isfinite().all(), f"{what}: {int((~found.isfinite()).sum())} values are not finite"
    if not found.numel():
        return
    error = (found - exact).abs()
    largest = max(float(exact.abs().max()), 1.0 if dtype == torch.float32 else 0.0)
    allowed = largest * (FLOAT32 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps)
    worst = float(error.max())
    assert worst <= allowed, f"{what} is off by {worst:.2e}, and {allowed:.1e} is allowed"
    if dtype != torch.float32:
        rounding = rms(exact.to(dtype).double() - exact)
        assert rms(error) <= ROUNDINGS * rounding + 1e-30, (
            f"{what}: mean error {rms(error):.2e}, rounding alone makes {rounding:.2e}"
        )


def bits(x: Tensor) -> Tensor:
    """The memory of a tensor as integers, so that NaN equals NaN when before and after compare."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.detach().contiguous().view(kinds[x.element_size()])
