"""What the device does at best: bytes moved and operations computed in a second, measured here."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from plugins.apps.bench.roofline import Machine


def measure(device: torch.device, dtype: torch.dtype) -> Machine:
    """Measure `device` in about a second, with the threads that torch uses now.

    The bandwidth is the better of copying (bytes read and written) and of summing up (bytes read);
    on a CPU a copy costs more than its two transfers. The peak is a square matrix product.
    """
    return Machine(bandwidth=_bandwidth(device), peak=_peak(device, dtype))


def _bandwidth(device: torch.device) -> float:
    elements = 1 << (28 if device.type == "cuda" else 26)
    source = torch.ones(elements, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    read = source.numel() * source.element_size()
    copying = 2 * read / _seconds(lambda: target.copy_(source), device)
    return max(copying, read / _seconds(source.sum, device))


def _peak(device: torch.device, dtype: torch.dtype) -> float:
    side = 8192 if device.type == "cuda" else 1024
    # random values: a product of constants toggles fewer bits and runs faster than a real one
    a = torch.randn(side, side, device=device).to(dtype)
    b = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / _seconds(lambda: a @ b, device)


def _seconds(call: Callable[[], object], device: torch.device, spent: float = 0.3) -> float:
    """The shortest of the calls made in about `spent` seconds, at least three."""
    call()
    best, calls, start = float("inf"), 0, time.perf_counter()
    while calls < 3 or time.perf_counter() - start < spent:
        _wait(device)
        begin = time.perf_counter()
        call()
        _wait(device)
        best = min(best, time.perf_counter() - begin)
        calls += 1
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
