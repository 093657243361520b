"""Loading: executes a recipe into parameters, and runs all recipes backwards."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from core.parallel.recipe import Box, Call, Copy, Fill, Op, Recipe, chunks, length, slices, volume
from core.parallel.sources import Source

if TYPE_CHECKING:
    from core.parallel.plan import ParallelPlan

STAGED = 1 << 24  # elements that are read at a time, so that the host holds little beside the shard

Progress = Callable[[int, int], None]  # bytes written so far, bytes in all


@torch.no_grad()
def load(
    recipe: Recipe,
    params: Mapping[str, Tensor],
    source: Source,
    progress: Progress | None = None,
) -> None:
    """Fill parameters as the recipe says. Each region lands in place, cast to the parameter's type.

    `params` are by name, as `dict(model.named_parameters())` gives them. The host holds at most
    one staged region at a time; on the way to a GPU a few (`core.parallel.streaming`).
    """
    if any(param.is_cuda for param in params.values()):
        from core.parallel.streaming import Streaming

        device = next(param.device for param in params.values() if param.is_cuda)
        Streaming(source, device).load(recipe, params, progress)
        return
    total = sum(nbytes(op, params) for op in recipe)
    done = 0
    for op in recipe:
        region = params[op.dst].data[slices(op.dst_box)]
        if isinstance(op, Copy):
            for box, target in pieces(op, region, STAGED):
                piece = source.read(op.src, box)
                if not box:
                    piece = piece.reshape(target.shape)
                piece = piece.permute(op.perm) if op.perm else piece
                assert target.shape == piece.shape, (op, tuple(piece.shape), tuple(target.shape))
                target.copy_(piece)
        else:
            fill(op, region, source)
        done += nbytes(op, params)
        if progress is not None:
            progress(done, total)


def fill(op: Fill | Call, region: Tensor, source: Source) -> None:
    """Write a constant, or what a function makes of regions on the host."""
    if isinstance(op, Fill):
        region.fill_(op.value)
    else:
        inputs = [source.read(name, box) for name, box in op.inputs]
        region.copy_(_function(op)(*inputs))


def pieces(op: Copy, region: Tensor, limit: int) -> Iterator[tuple[Box, Tensor]]:
    """Boxes of the checkpoint tensor of at most `limit` elements (or one row), and where they go.

    A target's dim i is dim `op.perm[i]` of its box; without `perm` they have the same shape.
    """
    if not op.src_box:
        yield (), region
        return
    # the parameter's first dim that is also one of the checkpoint tensor; others have one element
    lead = region.dim() - len(op.src_box)
    if lead > 0:
        assert all(size == 1 for size in region.shape[:lead]), (op, region.shape)
        region = (
            region.reshape(region.shape[lead:]) if region.is_contiguous() else region[(0,) * lead]
        )
    along = op.perm[0] if op.perm else 0
    at = 0
    for box in chunks(op.src_box, limit, along):
        rows = length(box[along])
        yield box, region[at : at + rows]
        at += rows


def nbytes(op: Op, params: Mapping[str, Tensor]) -> int:
    """Bytes of the parameter that an operation fills."""
    return volume(op.dst_box) * params[op.dst].element_size()


def _function(op: Call) -> Callable[..., Tensor]:
    module, _, name = op.fn.partition(":")
    function: Callable[..., Tensor] = getattr(importlib.import_module(module), name)
    return function


@torch.no_grad()
def unshard(plan: ParallelPlan, states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The checkpoint that all ranks' state dicts came from, bit for bit, on the host.

    Where ranks hold copies the lowest rank's is taken; padding is dropped. Raises ValueError for
    a recipe with a `Call`, which cannot be run backwards.
    """
    assert len(states) == plan.tensor, (len(states), plan.tensor)
    tensors: dict[str, Tensor] = {}
    for rank in reversed(range(plan.tensor)):
        for op in plan.recipe(rank):
            if isinstance(op, Fill):
                continue
            name, box, perm = _backwards(op)
            piece = states[rank][op.dst][slices(op.dst_box)]
            if name not in tensors:
                shape = plan.demand.wanted[name].shape
                tensors[name] = torch.empty(shape, dtype=piece.dtype)
            target = tensors[name][slices(box)]
            if perm:
                target = target.permute(perm)
            target.copy_(piece.reshape(target.shape))
    return tensors


def _backwards(op: Op) -> tuple[str, Box, tuple[int, ...] | None]:
    if isinstance(op, Copy):
        return op.src, op.src_box, op.perm
    raise ValueError(f"{op.dst} is computed from checkpoint tensors, which cannot be undone.")
