"""Folding: names and operations without the number of their layer, and layers shown as one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from core.parallel.problems import ranges
from core.parallel.recipe import Call, Copy, Op


def layer_of(name: str) -> int | None:
    """The first number in a name: the layer, in every model that has layers."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else None


def without_layer(name: str, layer: int | None) -> str:
    """`model.layers.*.mlp` for `model.layers.3.mlp` and its layer, 3."""
    return name if layer is None else name.replace(f".{layer}.", ".*.", 1)


def starred(name: str, layers: Sequence[int]) -> str:
    """`model.layers.0-2,5.mlp`: the name in the first of `layers`, for all of them."""
    label = ranges(sorted(layers)).replace(" to ", "-").replace(", ", ",")
    return without_layer(name, layers[0]).replace(".*.", f".{label}.", 1)


def folded(op: Op, layer: int | None) -> object:
    """An operation without its layer, for comparison with other layers'."""
    if isinstance(op, Copy):
        return without_layer(op.src, layer), op.src_box, op.dst_box, op.perm
    if isinstance(op, Call):
        return op.fn, tuple((without_layer(n, layer), box) for n, box in op.inputs), op.dst_box
    return op.dst_box, op.value
