"""What the compiler makes of the attention kernels for Hopper. Needs Triton, and no GPU.

A kernel that may start before its predecessor has ended (PDL) must not read what the predecessor
writes before it waits. Compilers move loads, so this is looked for in their output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest
import torch

from core.types import AttentionMetadata, AttentionShape, KVLayer

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from plugins.attention.triton import launch, variants  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 232_448  # bytes of shared memory that a block of an H100 or H200 can have
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
}
OLD = {"k_ptr", "v_ptr", "table_ptr", "context_ptr", "position_ptr", "slot_ptr", "rope_ptr"}
CONSTANT = OLD | {"q_gain_ptr", "k_gain_ptr"}  # complete long before a kernel starts


class Compiling:
    """Stands in for the launches: compiles what would be launched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[Any, Any]] = []  # kernels, and what they became

        def compile(
            given: variants.Variants,
            grid: tuple[int, int, int],
            tensors: Sequence[torch.Tensor],
            indexes: Sequence[torch.Tensor],
            numbers: tuple[float, ...],
            constants: Mapping[str, Hashable],
            **options: Any,
        ) -> None:
            kernel = given._kernel
            types = [TYPES[x.dtype] for x in (*tensors, *indexes)]
            types += ["i32" if isinstance(n, int) else "fp32" for n in numbers]
            types += ["constexpr"] * len(constants)
            aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(tensors))}
            signature = dict(zip(kernel.arg_names, types, strict=True))
            source = ASTSource(kernel, signature, dict(constants), aligned)
            self.made.append((kernel, triton.compile(source, target=HOPPER, options=options)))

        monkeypatch.setattr(variants.Variants, "launch", compile)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(monkeypatch)


class Step:
    """Tensors without memory for a step of Qwen3-0.6B."""

    def __init__(self, batch: int, context: int, tokens: int = 0, **changes: Any) -> None:
        usual: dict[str, Any] = {"heads": 16, "kv_heads": 8, "head_dim": 128, "scale": 0.09}
        usual |= {"page_size": 256, "dtype": torch.bfloat16, "cache_dtype": torch.bfloat16}
        self.shape = shape = AttentionShape(**(usual | {"device": "cuda"} | changes))
        self.launcher = launch.Launcher(shape, pdl=True)
        tokens = tokens or batch
        self.meta = AttentionMetadata(
            query_start=_meta(batch + 1),
            context_len=_meta(batch),
            page_table=_meta(batch, 16),
            slots=_meta(tokens, dtype=torch.int64),
            max_query=1,
            max_context=context,
            decodes=batch if tokens == batch else 0,
        )
        self.work = self.launcher.plan(self.meta)
        size = (100, shape.page_size, shape.kv_heads, shape.head_dim)
        self.cache = KVLayer(*(_meta(*size, dtype=shape.cache_dtype) for _ in range(2)))
        self.q = _meta(tokens, shape.heads, shape.head_dim, dtype=shape.dtype)

    def decode(self) -> None:
        self.launcher.decode(self.q, self.cache, self.meta, self.work, self.q)

    def prompt(self) -> None:
        self.launcher.prompt(self.q, self.cache, self.meta, self.work, self.q)

    def fused(self) -> None:
        shape, batch = self.shape, len(self.q)
        qkv = _meta(batch, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, dtype=shape.dtype)
        gain = _meta(shape.head_dim, dtype=shape.dtype)
        rope = _meta(4096, 2, shape.head_dim // 2, dtype=torch.float32)
        positions = _meta(batch, dtype=torch.int64)
        self.launcher.fused(
            qkv, (gain, gain, 1e-6), rope, positions, self.cache, self.meta, self.work, self.q
        )


def _meta(*size: int, dtype: torch.dtype | None = torch.int32) -> torch.Tensor:
    return torch.empty(*size, dtype=dtype, device="meta")


def before_the_wait(kernel: Any, ptx: str) -> tuple[set[str], list[str]]:
    """The tensors that are read before `gdc_wait`, and the instructions there that write."""
    head, wait, tail = ptx.partition("griddepcontrol.wait")
    assert wait, "never waits"
    assert wait not in tail, "waits twice"
    assert "griddepcontrol.launch_dependents" in head
    names = [n for n in kernel.arg_names if n.endswith("_ptr")]
    origins: dict[str, set[str]] = {}  # register -> the pointers that it was computed from
    read: set[str] = set()
    writes = []
    for line in head.splitlines():
        code = line.split("//")[0].strip()
        if (found := re.match(r"ld\.param\.\w+\s+(%\w+), \[\w+_param_(\d+)", code)) is not None:
            if int(found[2]) < len(names):
                origins[found[1]] = {names[int(found[2])]}
            continue
        registers = re.findall(r"%\w+", code)
        from_ = set().union(*(origins.get(r, set()) for r in registers))
        if re.search(r"\b(ld\.global|cp\.async\.c|prefetch)", code):
            read |= from_
        elif re.search(r"\b(st\.global|red\.|atom\.)", code):
            writes.append(code)
        elif from_:
            register = re.match(r"(?:@!?%\w+\s+)?\S+\s+(%\w+)", code)
            if register is not None:
                origins.setdefault(register[1], set()).update(from_)
    return read, writes


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_fused_reads_only_what_is_old_before_it_waits(compiling: Compiling, batch: int) -> None:
    step = Step(batch, 300)
    assert step.work.how.ahead
    step.fused()
    ((kernel, made),) = compiling.made
    read, writes = before_the_wait(kernel, made.asm["ptx"])
    assert read == CONSTANT  # keys and values among them: the first tile is on its way
    assert writes == []
    assert made.metadata.shared <= SHARED


def test_in_order_of_length_fused_waits_before_it_reads(compiling: Compiling) -> None:
    step = Step(256, 600)
    step.fused()
    kernel, made = compiling.made[-1]
    assert before_the_wait(kernel, made.asm["ptx"]) == (set(), [])


@pytest.mark.parametrize("batch", [1, 64])
def test_decode_reads_lengths_before_it_waits(compiling: Compiling, batch: int) -> None:
    step = Step(batch, 1024)
    step.decode()
    ((kernel, made),) = compiling.made
    assert before_the_wait(kernel, made.asm["ptx"]) == ({"context_ptr"}, [])
    assert "cp.async" in made.asm["ptx"] or batch == 1, "the loop is not pipelined"


@pytest.mark.parametrize("head_dim", [128, 256])
def test_prompts_use_the_warpgroups_matrix_unit(compiling: Compiling, head_dim: int) -> None:
    step = Step(4, 1024, tokens=4096, head_dim=head_dim)
    step.prompt()
    ((_, made),) = compiling.made
    assert "wgmma" in made.asm["ptx"]
    assert "cp.async" in made.asm["ptx"]
    assert made.metadata.shared <= SHARED


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_dtype": torch.float8_e4m3fn},
        {"heads": 40, "kv_heads": 2, "head_dim": 256, "window": 512, "page_size": 24},
        {"heads": 14, "kv_heads": 2, "head_dim": 80, "dtype": torch.float32, "page_size": 16}
        | {"cache_dtype": torch.float32},
    ],
    ids=str,
)
def test_odd_shapes_compile(compiling: Compiling, changes: dict[str, Any]) -> None:
    step = Step(3, 4096, **changes)
    step.decode()
    step.fused()
    Step(3, 4096, tokens=99, **changes).prompt()
    assert all(made.metadata.shared <= SHARED for _, made in compiling.made)
