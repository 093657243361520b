"""What the compiler makes of the attention kernels for Hopper. Needs Triton, and no GPU."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from core.types import AttentionMetadata, AttentionShape, KVLayer

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from triton.backends.compiler import GPUTarget

from plugins.attention.triton import launch
from tests import hopper
from tests.hopper import SHARED, Compiling, meta

OLD = {"k_ptr", "v_ptr", "table_ptr", "context_ptr", "position_ptr", "slot_ptr", "rope_ptr"}
CONSTANT = OLD | {"q_gain_ptr", "k_gain_ptr"}  # complete long before a kernel starts


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(monkeypatch)


class Step:
    """Tensors without memory for a step of Qwen3-0.6B."""

    def __init__(self, batch: int, context: int, tokens: int = 0, **changes: Any) -> None:
        usual: dict[str, Any] = {"heads": 16, "kv_heads": 8, "head_dim": 128, "scale": 0.09}
        usual |= {"page_size": 256, "dtype": torch.bfloat16, "cache_dtype": torch.bfloat16}
        self.shape = shape = AttentionShape(**(usual | {"device": "cuda"} | changes))
        self.launches = launch.Launches(shape, pdl=True)
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
        self.work = self.launches.plan(self.meta)
        size = (100, shape.page_size, shape.kv_heads, shape.head_dim)
        self.cache = KVLayer(*(_meta(*size, dtype=shape.cache_dtype) for _ in range(2)))
        self.q = _meta(tokens, shape.heads, shape.head_dim, dtype=shape.dtype)

    def decode(self) -> None:
        self.launches.decode(self.q, self.cache, self.meta, self.work, self.q)

    def prompt(self) -> None:
        self.launches.prompt(self.q, self.cache, self.meta, self.work, self.q)

    def fused(self) -> None:
        shape, batch = self.shape, len(self.q)
        qkv = _meta(batch, (shape.heads + 2 * shape.kv_heads) * shape.head_dim, dtype=shape.dtype)
        gain = _meta(shape.head_dim, dtype=shape.dtype)
        rope = _meta(4096, 2, shape.head_dim // 2, dtype=torch.float32)
        positions = _meta(batch, dtype=torch.int64)
        self.launches.fused(
            qkv, (gain, gain, 1e-6), rope, positions, self.cache, self.meta, self.work, self.q
        )


def _meta(*size: int, dtype: torch.dtype | None = torch.int32) -> torch.Tensor:
    return meta(*size, dtype=dtype)


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_fused_reads_only_what_is_old_before_it_waits(compiling: Compiling, batch: int) -> None:
    step = Step(batch, 300)
    assert step.work.how.ahead
    step.fused()
    (made,) = compiling.made
    # keys and values among them: the first tile is on its way
    assert made.early() == (CONSTANT, set())
    assert made.starts_its_successor
    assert made.shared <= SHARED


def test_in_order_of_length_fused_waits_before_it_reads(compiling: Compiling) -> None:
    step = Step(256, 600)
    step.fused()
    assert compiling.last().early() == (set(), set())


@pytest.mark.parametrize("batch", [1, 64])
def test_decode_reads_lengths_before_it_waits(compiling: Compiling, batch: int) -> None:
    step = Step(batch, 1024)
    step.decode()
    (made,) = compiling.made
    assert made.early() == ({"context_ptr"}, set())
    assert made.starts_its_successor
    assert "cp.async" in made.ptx or batch == 1, "the loop is not pipelined"


@pytest.mark.parametrize("head_dim", [128, 256])
def test_prompts_use_the_warpgroups_matrix_unit(compiling: Compiling, head_dim: int) -> None:
    step = Step(4, 1024, tokens=4096, head_dim=head_dim)
    step.prompt()
    (made,) = compiling.made
    assert "wgmma" in made.ptx
    assert "cp.async" in made.ptx
    assert made.shared <= SHARED


@pytest.mark.parametrize("capability", [86, 89, 120])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_prompts_fit_into_the_shared_memory_of_smaller_gpus(
    monkeypatch: pytest.MonkeyPatch, capability: int, head_dim: int
) -> None:
    monkeypatch.setattr(hopper, "TARGET", GPUTarget("cuda", capability, 32))
    monkeypatch.setattr(launch, "roomy", lambda device: False)
    compiling = Compiling(monkeypatch)
    step = Step(4, 1024, tokens=4096, head_dim=head_dim)
    step.prompt()
    assert compiling.last().shared <= 101_376


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
    assert all(made.shared <= SHARED for made in compiling.made)
