"""What the compiler makes of the small kernels for Hopper. Needs Triton, and no GPU.

A kernel that may start before its predecessor has ended (PDL) must not touch what the predecessor
touches before it waits. Compilers move loads, so this is looked for in their output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from core.sampling.columns import COLUMN
from core.types import KVLayer

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from plugins.kernels.triton import (  # noqa: E402
    activation,
    draw,
    floors,
    inputs,
    launching,
    norms,
    rotary,
)

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
VOCAB = 151_936


class Compiling:
    """Stands in for the launches: compiles what would be launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[Any, str]] = []  # kernels, and their PTX

        def compile(
            given: launching.Launcher,
            grid: tuple[int, int, int],
            tensors: Sequence[Tensor],
            numbers: tuple[float, ...],
            constants: tuple[Hashable, ...],
            *,
            warps: int = 4,
            pdl: bool = False,
        ) -> None:
            kernel = given.kernel
            types = [TYPES[x.dtype] for x in tensors]
            types += ["i32" if isinstance(n, int) else "fp32" for n in numbers]
            types += ["constexpr"] * (len(constants) + 1)
            values = dict(zip(kernel.arg_names[-len(constants) - 1 :], (*constants, pdl),
                              strict=True))  # fmt: skip
            aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(tensors))}
            signature = dict(zip(kernel.arg_names, types, strict=True))
            source = ASTSource(kernel, signature, values, aligned if given.aligned else {})
            options = {"num_warps": warps, "launch_pdl": pdl}
            made = triton.compile(source, target=HOPPER, options=options)
            self.made.append((kernel, made.asm["ptx"]))

        monkeypatch.setattr(launching.Launcher, "__call__", compile)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(monkeypatch)


def meta(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(*size, dtype=dtype, device="meta")


def before_the_wait(kernel: Any, ptx: str) -> set[str]:
    """The tensors that are touched on some way through the kernel before it waits."""
    names = kernel.arg_names
    origins: dict[str, set[str]] = {}  # register -> the arguments that it was computed from
    touched: set[str] = set()
    blocks, jumps = _blocks(ptx)
    for lines in blocks.values():
        for line in lines:
            registers = re.findall(r"%\w+", line)
            if (found := re.match(r"ld\.param\.\w+\s+(%\w+), \[\w+_param_(\d+)", line)) is not None:
                if int(found[2]) < len(names):
                    origins[found[1]] = {names[int(found[2])]}
            elif registers and not line.startswith(("st.", "@st.")):
                target = re.match(r"(?:@!?%\w+\s+)?\S+\s+\{?\s*(%\w+)", line)
                from_ = set().union(*(origins.get(r, set()) for r in registers[1:]))
                if target is not None and from_ and not re.search(r"\bld\.global", line):
                    origins.setdefault(target[1], set()).update(from_)
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
            if re.search(r"\b(ld\.global|st\.global|red\.|atom\.|cp\.async\.c)", line):
                address = re.search(r"\[\s*(%\w+)", line)
                assert address is not None, line
                touched |= origins.get(address[1], {"?"})
        else:
            ways += jumps[name]
    assert waits, "never waits"
    return touched


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


def waiting(compiling: Compiling) -> list[set[str]]:
    """What each of the kernels touches before it waits; all of them trigger their successor."""
    for _, ptx in compiling.made:
        assert "griddepcontrol.launch_dependents" in ptx.partition("griddepcontrol.wait")[0]
        assert "st.local" not in ptx
    return [before_the_wait(kernel, ptx) for kernel, ptx in compiling.made]


@pytest.mark.parametrize("rows", [1, 2048])
@pytest.mark.parametrize("size", [1024, 5120])
def test_norms_read_their_weight_before_they_wait(
    compiling: Compiling, size: int, rows: int
) -> None:
    x = meta(rows, size)
    norms.add_rms_norm(x, meta(rows, size), meta(size), 1e-6, True)
    norms.rms_norm(x, meta(size), 1e-6, True)
    assert waiting(compiling) == [{"weight"}] * 2
    assert all("ld.global.v4" in ptx for _, ptx in compiling.made)


def test_silu_reads_nothing_before_it_waits(compiling: Compiling) -> None:
    activation.silu_mul(meta(4, 6144), True)
    assert waiting(compiling) == [set()]


@pytest.mark.parametrize("normed", [True, False])
def test_rope_store_reads_weights_before_it_waits_and_needs_no_shared_memory(
    compiling: Compiling, normed: bool
) -> None:
    q, k, v = meta(3, 32, 128).split((16, 8, 8), 1)
    gain, places = meta(128), meta(3, dtype=torch.int64)
    cache = KVLayer(meta(4, 64, 8, 128), meta(4, 64, 8, 128))
    rope = meta(100, 2, 64, dtype=torch.float32)
    rotary.rope_store(q, k, v, (gain, gain, 1e-6) if normed else None, rope, places, cache, places,
                      True)  # fmt: skip
    assert waiting(compiling) == [{"q_weight", "k_weight"} if normed else set()]
    ((_, ptx),) = compiling.made
    assert "ld.shared" not in ptx
    assert "bar.sync" not in ptx


@pytest.mark.parametrize("rows", [1, 64])
def test_sampling_reads_nothing_before_it_waits(compiling: Compiling, rows: int) -> None:
    logits = meta(rows, VOCAB)
    columns = meta(9, len(COLUMN), dtype=torch.int32)
    index = meta(rows, dtype=torch.int64)
    floor = floors.floors(logits, columns, index, True)
    draw.best(logits, columns, index, index, floor, True)
    assert waiting(compiling) == [set()] * 4
    for at in (0, 2):
        assert "ld.global.v4" in compiling.made[at][1]


def test_input_preparation_reads_nothing_before_it_waits(compiling: Compiling) -> None:
    column = meta(5, dtype=torch.int32)
    table = meta(9, 700, dtype=torch.int32)
    inputs.derive(column, column, column, table, table, 64, 20, 9, 3, True)
    assert waiting(compiling) == [set()]


def test_a_read_before_the_wait_is_noticed(compiling: Compiling) -> None:
    activation.silu_mul(meta(4, 6144), True)
    ((kernel, ptx),) = compiling.made
    late = ptx.replace("griddepcontrol.wait", "nop").replace("ret;", "griddepcontrol.wait;\nret;")
    assert before_the_wait(kernel, late) == {"gate_up", "out"}
