"""Launches of collectives on tensors, and which one it is to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from core.triton_launch import Launcher, power_of_two
from plugins.kernels.triton.sums import kernels
from plugins.kernels.triton.sums.normed import sum_add_norm
from plugins.kernels.triton.sums.sizes import AREA, Limits, block_of, limits_for

if TYPE_CHECKING:
    from torch import Tensor

    from core.parallel.peers import PeerMemory

_one, _two, _gather, _normed = map(
    Launcher, (kernels.one_shot, kernels.two_shot, kernels.gather, sum_add_norm)
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 8192  # numbers that a program holds in its registers


def memory(ranks: int, limits: Limits | None = None) -> int:
    """Bytes that every rank needs."""
    limits = limits or limits_for(ranks)
    return 0 if limits is None else limits.blocks * 2 * ranks * AREA


class Sums:
    """The collectives of one rank (`core.parallel.peers.PeerSums`).

    All calls of a rank are on one stream, and all ranks make the same ones.
    """

    def __init__(self, peers: PeerMemory, pdl: bool, limits: Limits | None = None) -> None:
        chosen = limits or limits_for(peers.ranks)
        assert chosen is not None
        self.peers, self.limits, self._pdl = peers, chosen, pdl
        assert peers.size >= memory(peers.ranks, chosen)
        self._turns = torch.zeros(chosen.blocks, dtype=torch.int32, device=peers.device)

    def all_reduce(self, x: Tensor) -> Tensor | None:
        """The sum over ranks; None if there is too much of it."""
        size, ranks = x.numel() * x.element_size(), self.peers.ranks
        if x.dtype not in DTYPES or size == 0:
            return None
        if size <= self.limits.one_shot and self._blocks(x) <= self.limits.blocks:
            return self.one_shot(x)
        if (
            size <= self.limits.two_shot
            and power_of_two(ranks) == ranks
            and -(-x.numel() // (ranks * self._part(x))) <= self.limits.blocks
        ):
            return self.two_shot(x)
        return None

    def one_shot(self, x: Tensor, block: int | None = None) -> Tensor:
        """The sum over ranks: everybody sends everything to everybody. `block`: numbers of each."""
        x, block = x.contiguous(), block or block_of(x.numel())
        return self._run(_one, x, torch.empty_like(x), block, -(-x.numel() // block))

    def two_shot(self, x: Tensor) -> Tensor:
        """The sum over ranks, of which there are a power of two: everybody adds up a part."""
        x, part = x.contiguous(), self._part(x)
        blocks = -(-x.numel() // (self.peers.ranks * part))
        return self._run(_two, x, torch.empty_like(x), part, blocks)

    def _blocks(self, x: Tensor) -> int:
        return -(-x.numel() // block_of(x.numel()))

    def _part(self, x: Tensor) -> int:
        return min(block_of(x.numel()) // self.peers.ranks, AREA // 2 // x.element_size())

    def gather(self, x: Tensor) -> Tensor | None:
        """x int32 [...] of every rank -> [ranks, ...]; None if there is too much of it."""
        count, block = x.numel(), 1024
        if x.dtype != torch.int32 or not 0 < count <= block * self.limits.blocks:
            return None
        out = x.new_empty((self.peers.ranks, *x.shape))
        return self._run(_gather, x.contiguous(), out, block, -(-count // block))

    def added(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, carry: bool
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Sum x [T, N] over ranks, add it to the residual [T, N], in place, and norm that.

        -> the norm, the residual, and sums of squares [T, 1]; with `carry` the first is the new
        residual times the weight. None if this is better done in several kernels.
        """
        rows, size = x.shape
        if (
            x.dtype not in DTYPES
            or not 0 < rows <= self.limits.blocks
            or rows * size * x.element_size() > self.limits.one_shot
            or size > WIDEST
            or size * x.element_size() > AREA
            or not (x.is_contiguous() and residual.is_contiguous())
            or residual is x
        ):
            return None
        squares = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
        out = torch.empty_like(x)
        block = power_of_two(size)
        self._launch(
            _normed,
            (rows, 1, 1),
            (x, residual, weight, out, squares),
            (eps,),
            (size, *self._place(), block, carry),
            min(max(block // 256, 1), 16),
        )
        return out, residual, squares

    def _run(self, kernel: Launcher, x: Tensor, out: Tensor, each: int, blocks: int) -> Tensor:
        unit = 16 if x.numel() % 16 == 0 else 1
        constants = (*self._place(), each, unit)
        warps = min(max(each // 256, 1), 16)
        self._launch(kernel, (blocks, 1, 1), (x, out), (x.numel() // unit,), constants, warps)
        return out

    def _place(self) -> tuple[int, int, int]:
        return self.peers.rank, self.peers.ranks, AREA

    def _launch(
        self,
        kernel: Launcher,
        grid: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        numbers: tuple[Any, ...],
        constants: tuple[Any, ...],
        warps: int,
    ) -> None:
        assert grid[0] <= self.limits.blocks
        peers = self.peers
        kernel(
            grid,
            (*tensors, peers.addresses, self._turns, peers.stop),
            numbers,
            constants,
            warps=warps,
            pdl=self._pdl,
        )
