"""Launches of products on tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from core.triton_launch import ALIGNED, Launcher, power_of_two
from plugins.kernels.triton.products import recipes
from plugins.kernels.triton.products.bulk import bulk
from plugins.kernels.triton.products.carried import Carried
from plugins.kernels.triton.products.ends import scaled
from plugins.kernels.triton.products.loop import loop
from plugins.kernels.triton.products.once import once
from plugins.kernels.triton.products.rows import BLOCK, rows

_rows, _once, _loop, _scaled = map(Launcher, (rows, once, loop, scaled))
_bulk = Launcher(bulk, descriptors=2)

HELD = 20  # pieces of 16 bytes that a thread of `rows` holds before it waits
REGISTERS = 128  # of such a thread: with more, fewer programs fit onto a multiprocessor
ROOM = 1 << 22  # numbers in the parts of split products
TILES = 1 << 13  # of split products


@dataclass(frozen=True)
class Work:
    """A product of x [T, K] by a weight [N, K], or [2 N, K] where it is `gated`."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    norm: Carried | None = None  # whose x it is, and by which its rows are to be scaled
    gated: bool = False  # silu(first half) * second half
    residual: Tensor | None = None  # [T, N] is added to, in place
    gain: Tensor | None = None  # [N], with `residual`: of the norm to be carried

    @property
    def shape(self) -> recipes.Shape:
        outputs, inputs = self.weight.shape
        return recipes.Shape(outputs // 2 if self.gated else outputs, inputs, self.gated)

    @property
    def in_tiles(self) -> bool:
        """Whether the copy engine can take both: rows that begin at multiples of 16 bytes."""
        return all(
            t.stride(1) == 1
            and t.stride(0) >= t.shape[1]
            and (t.stride(0) * t.element_size() | t.data_ptr()) % ALIGNED == 0
            for t in (self.x, self.weight)
        )


@dataclass
class Products:
    """Launches for one kernel set.

    The parts of split products lie in memory that is taken once for each device: CUDA graphs hold
    its address. All launches on a device must be on one stream, one after the other.
    """

    pdl: bool = True
    _rooms: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, work: Work, how: recipes.Way) -> Tensor:
        """-> [T, N]: the product, or the residual."""
        return self.carry(work, how)[0]

    def carry(self, work: Work, how: recipes.Way) -> tuple[Tensor, Tensor, Tensor]:
        """-> the product, or the residual [T, N]; and of that, if there is one, what the next
        product is to be made of: x * gain [T, N] and partial sums of squares [T, parts]."""
        x = work.x if work.x.stride(1) == 1 else work.x.contiguous()
        assert work.weight.stride(1) == 1
        tokens, shape = len(x), work.shape
        if isinstance(how, recipes.Rows):
            tiles = -(-shape.outputs // (how.each * how.warps))
        else:
            assert tokens <= how.tokens or isinstance(how, recipes.Bulk)
            tiles = -(-shape.outputs // how.outputs)
        out, carried, squares = x, x, x
        if work.residual is not None:
            out = work.residual
            carried = torch.empty_like(out)
            squares = torch.empty((tokens, tiles), dtype=torch.float32, device=x.device)
        else:
            out = torch.empty((tokens, shape.outputs), dtype=x.dtype, device=x.device)
        norm = work.norm
        tensors = (
            x,
            work.weight,
            x if work.bias is None else work.bias,
            x if norm is None else norm.squares,
            x if work.gain is None else work.gain,
            out,
            carried,
            squares,
        )
        eps, parts = (0.0, 1) if norm is None else (norm.eps, norm.squares.shape[1])
        sizes = (shape.outputs, shape.inputs, x.stride(0), work.weight.stride(0))
        flags = (
            _room_for(parts),
            work.bias is not None,
            norm is not None,
            work.gated,
            work.residual is not None,
        )
        if isinstance(how, recipes.Rows):
            blocks = -(-shape.inputs // BLOCK.value)
            eager = max(1, min(blocks, HELD // (how.each * (2 if work.gated else 1))))
            _rows(
                (tiles, 1, 1),
                tensors,
                (eps, parts, 0),
                (tokens, power_of_two(tokens), *sizes, how.warps, how.each, eager, *flags),
                warps=how.warps,
                pdl=self.pdl,
                registers=REGISTERS,
            )
            return out, carried, squares
        rest = (*tensors[1:], *self._room(work, tiles, how))
        tile = (how.tokens, how.outputs, how.columns, how.splits)
        if isinstance(how, recipes.Bulk):
            blocks = -(-shape.inputs // (how.splits * how.columns))
            _bulk(
                (tiles, how.splits, -(-tokens // how.tokens)),
                rest,
                (eps, tokens, parts),
                (*sizes[:2], sizes[3], *tile, how.stages, min(how.early, blocks), how.swap, *flags),
                descriptors=(
                    _tiles(x, how.tokens, how.columns),
                    _tiles(work.weight, how.outputs, how.columns),
                ),
                warps=how.warps,
                pdl=self.pdl,
            )
            return out, carried, squares
        more: tuple[int, ...]
        if isinstance(how, recipes.Once):
            blocks = -(-shape.inputs // (how.splits * how.columns))
            more = (min(how.chains, blocks),)
        else:
            more = (how.stages, how.own)
        (_once if isinstance(how, recipes.Once) else _loop)(
            (tiles, how.splits, 1),
            (x, *rest),
            (eps, tokens, parts),
            (*sizes, *tile, *more, *flags),
            warps=how.warps,
            pdl=self.pdl,
        )
        return out, carried, squares

    def normed(self, norm: Carried) -> Tensor:
        """What was carried, as a norm apart would have left it, [T, N]."""
        tokens, size = norm.x.shape
        out = torch.empty_like(norm.x)
        parts, block = norm.squares.shape[1], power_of_two(size)
        _scaled(
            (tokens, 1, 1),
            (norm.x, norm.squares, out),
            (norm.eps, parts),
            (size, block, _room_for(parts)),
            warps=min(max(block // 256, 1), 16),
            pdl=self.pdl,
        )
        return out

    def _room(
        self, work: Work, tiles: int, how: recipes.Once | recipes.Loop | recipes.Bulk
    ) -> tuple[Tensor, Tensor]:
        """Parts of splits, and the counters of those that have arrived."""
        x = work.x
        if how.splits == 1:
            return x, x
        tiles *= -(-len(x) // how.tokens)
        assert tiles <= TILES
        assert tiles * how.splits * how.tokens * how.outputs * (1 + work.gated) <= ROOM
        if x.device not in self._rooms:
            self._rooms[x.device] = (
                torch.empty(ROOM, dtype=torch.float32, device=x.device),
                torch.zeros(TILES, dtype=torch.int32, device=x.device),
            )
        return self._rooms[x.device]


def _tiles(x: Tensor, rows: int, columns: int) -> Any:
    """A tensor as the copy engine takes it. A graph keeps what was made of it when captured."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # Triton 3.4 and later

    return TensorDescriptor.from_tensor(x, [rows, columns])


def _room_for(parts: int) -> int:
    """A power of two from `parts` up. Few of them: every one is a variant of the kernels."""
    size = 32
    while size < parts:
        size *= 4
    return size
