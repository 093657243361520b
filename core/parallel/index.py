"""The index of a checkpoint, and checks against it: nothing missing (P9) or unread (P10)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from core.parallel.checks import gaps
from core.parallel.matching import matches
from core.parallel.problems import Problem, nearest
from core.parallel.recipe import Box, Recipe, Shape, reads, text

TensorInfo = tuple[Shape, str]  # shape, and dtype as safetensors writes it: F32, BF16, ...
Index = Mapping[str, TensorInfo]

BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
KEEPS = {  # a floating type -> the types that hold each of its values
    "F64": ("F64",),
    "F32": ("F32", "F64"),
    "F16": ("F16", "F32", "F64"),
    "BF16": ("BF16", "F32", "F64"),
}


def nbytes(shape: Shape, dtype: str) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * BITS[dtype] // 8


@dataclass(frozen=True)
class Wanted:
    """A checkpoint tensor that the plan reads."""

    shape: Shape
    purpose: str  # "the k_proj part of ...qkv_proj.weight"
    dtype: str | None  # the type that it must have; None: any floating one


@dataclass(frozen=True)
class Twin:
    """A checkpoint tensor that must equal another, because one parameter holds both."""

    first: str
    required: bool  # False: the checkpoint may leave it out
    reason: str


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """A checkpoint's name as the plan knows it: the longest matching prefix is replaced."""
    old = max((old for old in rename if name.startswith(old)), key=len, default=None)
    return name if old is None else rename[old] + name[len(old) :]


def original(name: str, rename: Mapping[str, str]) -> str:
    """The checkpoint's name for what the plan calls `name`."""
    fits = [old for old, new in rename.items() if name.startswith(new)]
    old = max(fits, key=lambda old: len(rename[old]), default=None)
    return name if old is None else old + name[len(rename[old]) :]


def check_index(
    wanted: Mapping[str, Wanted], twins: Mapping[str, Twin], index: Index, auto_dtype: str | None
) -> list[Problem]:
    """P9: what the plan reads is there, has the planned shape, and survives the cast.

    `auto_dtype` is the type that the parameters get when the user named none.
    """
    problems: list[Problem] = []
    hints = 3  # looking for similar names is slow
    for name, want in wanted.items():
        if name not in index:
            hint = nearest(name, index) if hints > 0 else ""
            hints -= 1
            problems.append(
                Problem("P9", f"checkpoint tensor {name} is missing (for {want.purpose}).{hint}")
            )
            continue
        shape, dtype = index[name]
        if shape != want.shape and not (want.shape == () and shape == (1,)):
            problems.append(
                Problem(
                    "P9",
                    f"checkpoint tensor {name} is {shape}, but {want.purpose} needs {want.shape}.",
                )
            )
        elif want.dtype is not None:
            if dtype != want.dtype:
                problems.append(
                    Problem(
                        "P9",
                        f"checkpoint tensor {name} is of type {dtype}, but {want.purpose} "
                        f"needs {want.dtype}.",
                    )
                )
        elif dtype not in KEEPS:
            problems.append(
                Problem(
                    "P9",
                    f"checkpoint tensor {name} is of type {dtype}, but {want.purpose} needs "
                    "plain floating point numbers.",
                )
            )
        elif auto_dtype is not None and auto_dtype not in KEEPS[dtype]:
            problems.append(
                Problem(
                    "P9",
                    f"checkpoint tensor {name} is of type {dtype}, and {auto_dtype} would lose "
                    "precision. Name the dtype that you want in model.dtype.",
                )
            )
    for name, twin in twins.items():
        if name in index and twin.first in index and index[name][0] != index[twin.first][0]:
            problems.append(
                Problem("P11", f"{name} and {twin.first} differ in shape, but {twin.reason}.")
            )
    return problems


def check_unread(
    recipes: Iterable[Recipe],
    twins: Mapping[str, Twin],
    index: Index,
    ignore: Iterable[str],
    rename: Mapping[str, str],
) -> list[Problem]:
    """P10: over all ranks, every element of every checkpoint tensor is read or ignored."""
    boxes: dict[str, set[Box]] = {}
    for recipe in recipes:
        for op in recipe:
            for name, box in reads(op):
                boxes.setdefault(name, set()).add(box)
    problems = []
    ignored = tuple(ignore)
    for name, (shape, _) in index.items():
        if name in boxes:
            if any(box == () or len(box) != len(shape) for box in boxes[name]):
                continue  # one element, or a wrong shape that P9 tells
            gap = next(iter(gaps(shape, boxes[name])), None)
            if gap is not None:
                problems.append(
                    Problem("P10", f"checkpoint tensor {name}: {text(gap)} is read by no rank.")
                )
        elif name not in twins and not matches(ignored, renamed(name, rename)):
            problems.append(
                Problem(
                    "P10",
                    f"checkpoint tensor {name} is read by nobody. If that is right, add a pattern "
                    "for it to the plan's ignore.",
                )
            )
    return problems
