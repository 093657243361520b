"""Compiles launches of Triton kernels for Hopper, and reads what came of it. Needs no GPU.

A kernel that may start before its predecessor has ended (PDL) must not touch what the predecessor
touches before it waits. Compilers move loads, so this is looked for in their output.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from core.triton_launch import Launcher

TARGET = GPUTarget("cuda", 90, 32)
SHARED = 232_448  # bytes of shared memory that a block of an H100 or H200 can have
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
}


def meta(*size: int, dtype: torch.dtype | None = torch.bfloat16) -> Tensor:
    """A tensor without memory."""
    return torch.empty(*size, dtype=dtype, device="meta")


class Compiled(NamedTuple):
    """What became of one launch."""

    tensors: Sequence[str]  # the first of the kernel's parameters
    ptx: str
    shared: int  # bytes

    @property
    def starts_its_successor(self) -> bool:
        """Whether it lets the next kernel start before its own end, and says so before it waits."""
        return "griddepcontrol.launch_dependents" in self.ptx.partition("griddepcontrol.wait")[0]

    def early(self) -> tuple[set[str], set[str]]:
        """The tensors that it reads, and those that it writes, on some way before it waits."""
        return before_the_wait(self.tensors, self.ptx)


class Compiling:
    """Stands in for the launches: compiles what would be launched, into `made`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Compiled] = []

        def launch(
            given: Launcher,
            grid: tuple[int, int, int],
            tensors: Sequence[Tensor],
            numbers: tuple[float, ...],
            constants: tuple[Hashable, ...] | Mapping[str, Hashable],
            *,
            descriptors: tuple[Any, ...] = (),
            warps: int = 4,
            pdl: bool = False,
            registers: int | None = None,
        ) -> None:
            kernel = given.kernel
            given._check(tensors, constants, pdl)
            values = list(constants.values() if isinstance(constants, Mapping) else constants)
            values += [pdl] if given.takes_pdl else []
            types = [TYPES[x.dtype] for x in tensors]
            types += [f"tensordesc<{TYPES[d.base.dtype][1:]}{d.block_shape}>" for d in descriptors]
            types += ["i32" if isinstance(n, int) else "fp32" for n in numbers]
            types += ["constexpr"] * len(values)
            names = kernel.arg_names
            source = ASTSource(
                kernel,
                dict(zip(names, types, strict=True)),
                dict(zip(names[len(names) - len(values) :], values, strict=True)),
                {(place,): [["tt.divisibility", 16]] for place in given.aligned},
            )
            options = {"num_warps": warps, "launch_pdl": pdl, "maxnreg": registers}
            made = compile(source, target=TARGET, options=options)
            self.made.append(Compiled(names[: len(tensors)], made.asm["ptx"], made.metadata.shared))

        monkeypatch.setattr(Launcher, "__call__", launch)

    def last(self) -> Compiled:
        return self.made[-1]


def before_the_wait(tensors: Sequence[str], ptx: str) -> tuple[set[str], set[str]]:
    """Of the tensors, those that are read and those that are written before the kernel waits."""
    blocks, jumps = _blocks(ptx)
    origins = _origins(tensors, [line for lines in blocks.values() for line in lines])
    read: set[str] = set()
    written: set[str] = set()
    ways, seen, waits = [next(iter(blocks))], set(), 0
    while ways:
        name = ways.pop()
        if name in seen:
            continue
        seen.add(name)
        for line in blocks[name]:
            if "griddepcontrol.wait" in line:
                waits += 1
                break
            if (use := re.search(r"\b(ld\.global|st\.global|red\.|atom\.|cp\.async\.[cb]|prefetch)",
                                 line)) is not None:  # fmt: skip
                copies = use[1].startswith("cp")  # to shared memory: the second address is global
                addresses = re.findall(r"\[\s*(%\w+)", line)
                assert addresses, line
                of = origins.get(addresses[1 if copies else 0], {"?"})
                (written if use[1].startswith(("st", "red", "atom")) else read).update(of)
        else:
            ways += jumps[name]
    assert waits, "never waits"
    return read, written


def _origins(tensors: Sequence[str], lines: Sequence[str]) -> dict[str, set[str]]:
    """Of each register, the tensors from whose addresses it was computed."""
    origins: dict[str, set[str]] = {}
    for line in lines:
        registers = re.findall(r"%\w+", line)
        if (found := re.match(r"ld\.param\.\w+\s+(%\w+), \[\w+_param_(\d+)", line)) is not None:
            if int(found[2]) < len(tensors):
                origins[found[1]] = {tensors[int(found[2])]}
        elif registers and not line.startswith(("st.", "@st.")):
            target = re.match(r"(?:@!?%\w+\s+)?\S+\s+\{?\s*(%\w+)", line)
            from_ = set().union(*(origins.get(r, set()) for r in registers[1:]))
            if target is not None and from_ and not re.search(r"\bld\.global", line):
                origins.setdefault(target[1], set()).update(from_)
    return origins


def _blocks(ptx: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The lines of each basic block, and where each may go on."""
    blocks: dict[str, list[str]] = {"entry": []}
    jumps: dict[str, list[str]] = {"entry": []}
    name, open_end = "entry", True
    body = ptx[ptx.index("{") :]
    for raw in body.splitlines():
        line = raw.split("//")[0].strip().removeprefix("{").strip()
        if (label := re.match(r"(\$\w+):", line)) is not None:
            if open_end:
                jumps[name].append(label[1])
            name, open_end = label[1], True
            blocks[name], jumps[name] = [], []
        elif (jump := re.match(r"(@!?%\w+\s+)?bra(?:\.uni)?\s+(\$\w+)", line)) is not None:
            jumps[name].append(jump[2])
            if jump[1] is None:
                open_end = False
            else:  # what follows the jump is a block of its own
                after = f"{name}+"
                jumps[name].append(after)
                name, open_end = after, True
                blocks[name], jumps[name] = [], []
        elif line:
            blocks[name].append(line)
            if re.match(r"(ret|exit);", line):
                open_end = False
    return blocks, jumps
