"""What the compiler makes of the small kernels for Hopper. Needs Triton, and no GPU."""

from __future__ import annotations

import os

import pytest
import torch

from core.sampling.columns import COLUMN
from core.types import KVLayer

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from plugins.kernels.triton import activation, draw, floors, inputs, norms, rotary
from tests.hopper import Compiling, before_the_wait, meta

VOCAB = 151_936


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Compiling:
    return Compiling(monkeypatch)


def waiting(compiling: Compiling) -> list[set[str]]:
    """What each of the kernels reads before it waits; none of them writes. All of them say that
    their successor may start."""
    for made in compiling.made:
        assert made.starts_its_successor
        assert "st.local" not in made.ptx
        assert made.early()[1] == set()
    return [made.early()[0] for made in compiling.made]


@pytest.mark.parametrize("rows", [1, 2048])
@pytest.mark.parametrize("size", [1024, 5120])
def test_norms_read_their_weight_before_they_wait(
    compiling: Compiling, size: int, rows: int
) -> None:
    x = meta(rows, size)
    norms.add_rms_norm(x, meta(rows, size), meta(size), 1e-6, True)
    norms.rms_norm(x, meta(size), 1e-6, True)
    assert waiting(compiling) == [{"weight"}] * 2
    assert all("ld.global.v4" in made.ptx for made in compiling.made)


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
    (made,) = compiling.made
    assert "ld.shared" not in made.ptx
    assert "bar.sync" not in made.ptx


@pytest.mark.parametrize("rows", [1, 64])
def test_sampling_reads_nothing_before_it_waits(compiling: Compiling, rows: int) -> None:
    logits = meta(rows, VOCAB)
    columns = meta(9, len(COLUMN), dtype=torch.int32)
    index = meta(rows, dtype=torch.int64)
    floor = floors.floors(logits, columns, index, True)
    draw.best(logits, columns, index, index, floor, True)
    assert waiting(compiling) == [set()] * 4
    for at in (0, 2):
        assert "ld.global.v4" in compiling.made[at].ptx


def test_input_preparation_reads_nothing_before_it_waits(compiling: Compiling) -> None:
    column = meta(5, dtype=torch.int32)
    table = meta(9, 700, dtype=torch.int32)
    inputs.derive(column, column, column, table, table, 64, 20, 9, 3, True)
    (made,) = compiling.made
    assert made.early() == (set(), set())
    assert "launch_dependents" not in made.ptx  # attention reads early what it makes


def test_a_read_before_the_wait_is_noticed(compiling: Compiling) -> None:
    activation.silu_mul(meta(4, 6144), True)
    (made,) = compiling.made
    late = made.ptx.replace("griddepcontrol.wait", "nop")
    late = late.replace("ret;", "griddepcontrol.wait;\nret;")
    assert before_the_wait(made.tensors, late) == ({"gate_up"}, {"out"})
