"""The torch kernels against transformers' modules; core.testing holds them against float64."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from core.testing.kernels import EPS, HeadsCase
from core.testing.kernels import rms_norm as exact_norm
from core.testing.numbers import rms
from plugins.kernels import torch as module
from plugins.kernels.torch import TorchKernels

ROOT = Path(__file__).parents[2]

kernels = TorchKernels(TorchKernels.Options())


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def their_norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    norm = Qwen3RMSNorm(len(weight), eps).to(x.device)
    norm.weight.data = weight
    return norm(x).detach()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rms_norm_is_that_of_transformers(scale, device):
    x, weight = scale * torch.randn(7, 48, device=device), torch.rand(48, device=device)
    torch.testing.assert_close(kernels.rms_norm(x, weight, EPS), their_norm(x, weight))


def test_rms_norm_in_bfloat16_rounds_no_more_than_transformers(device):
    x = torch.randn(50, 256, device=device).bfloat16()
    weight = torch.rand(256, device=device).bfloat16()
    found, exact = kernels.rms_norm(x, weight, EPS), exact_norm(x, weight, EPS)
    assert found.dtype == torch.bfloat16
    assert rms(found - exact) <= rms(their_norm(x, weight) - exact)


def theirs(case: HeadsCase, dtype: torch.dtype | None = None) -> list[Tensor]:
    """transformers' q and k, in its own precision, or with everything in `dtype`."""
    q, k = (x.to(dtype or x.dtype) for x in (case.q, case.k))
    if case.norms:
        norm = their_norm if dtype is None else exact_norm
        q, k = (norm(x, w, EPS) for x, w in zip((q, k), case.weights, strict=True))
    angles = case.rope[case.positions].to(q.dtype)
    cos, sin = (torch.cat((x, x), -1) for x in (angles[:, 0], angles[:, 1]))
    return list(apply_rotary_pos_emb(q, k, cos, sin))


def ours(case: HeadsCase) -> list[Tensor]:
    norms = (case.weights[0], case.weights[1], EPS) if case.norms else None
    found = kernels.rope_store(
        case.q, case.k, case.v, norms, case.rope, case.positions, case.cache, case.slots
    )
    return list(found)


@pytest.mark.parametrize("tokens", [1, 2, 16])
@pytest.mark.parametrize("norms", [True, False])
def test_rope_store_norms_and_turns_as_transformers(tokens, norms, device):
    case = HeadsCase(tokens, norms=norms, device=device)
    torch.testing.assert_close(ours(case), theirs(case), rtol=0, atol=1e-5)


def test_rope_store_in_bfloat16_rounds_no_more_than_transformers(device):
    case = HeadsCase(16, dtype=torch.bfloat16, device=device)
    exact = theirs(case, torch.float64)
    for found, rough, true in zip(ours(case), theirs(case), exact, strict=True):
        assert found.dtype == torch.bfloat16
        assert rms(found - true) <= rms(rough - true)


NEGATIVE = [[-1, 5, 9, -1, 3], [7, -1, -1, -1, -1], [-1] * 5, [5, 9, 3, 0, -1], [0, -1, -2, 1, -9]]


@pytest.mark.parametrize("slots", NEGATIVE)
def test_negative_slots_are_not_stored_where_the_host_does_not_wait(slots):
    case = HeadsCase(tokens=5, page_size=4)
    case.cache.k[0, 0], case.cache.v[0, 0] = 1.5, 2.5  # what slot 0 holds must stay
    wanted = [x.clone() for x in case.cache]
    for token, slot in enumerate(slots):
        if slot >= 0:
            wanted[0][slot // 4, slot % 4] = case.k[token]
            wanted[1][slot // 4, slot % 4] = case.v[token]
    k, v, kept = module._repeated(case.k, case.v, case.cache, torch.tensor(slots))
    assert k.shape == case.k.shape
    assert int(kept.min()) >= 0
    module._store(k, case.cache.k, kept)
    module._store(v, case.cache.v, kept)
    for found, expected in zip(case.cache, wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


packs = TorchKernels(TorchKernels.Options(pack_from=0))


@given(
    rows=st.integers(0, 40),
    inner=st.integers(1, 70),
    outer=st.integers(1, 70),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@settings(max_examples=40)
def test_a_packed_product_is_the_product(rows, inner, outer, bias, dtype):
    weight = torch.randn(outer, inner).to(dtype)
    packed = packs.pack(weight)
    if packed is None:
        pytest.skip("this machine's torch packs no such weights")
    x, b = torch.randn(rows, inner).to(dtype), torch.randn(outer).to(dtype) if bias else None
    found = packs.linear(x, packed, b)
    exact = x.double() @ weight.double().T + (0 if b is None else b.double())
    assert found.shape == exact.shape
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.01}[dtype]
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=5 * tolerance)
    assert torch.equal(packed.to_dense(), weight)


@pytest.mark.parametrize(
    "weight",
    [torch.zeros(10, 10), torch.zeros(1024, 1024).to(torch.int8), torch.zeros(600, 600).double()],
    ids=["small", "int8", "float64"],
)
def test_weights_that_gain_nothing_stay(weight):
    assert kernels.pack(weight) is None


MANY_ROWS = """
import torch
from pathlib import Path
from plugins.kernels.torch import TorchKernels

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

torch.set_num_threads(1)
kernels = TorchKernels(TorchKernels.Options(pack_from=0))
packed, x = kernels.pack(torch.randn(512, 512)), torch.randn(400, 512)
if packed is not None:
    for rows in range(1, 100):
        kernels.linear(x[:rows], packed, None)
    before = resident()
    for rows in range(100, 400):
        kernels.linear(x[:rows], packed, None)
    print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_every_new_number_of_rows():
    command = [sys.executable, "-c", MANY_ROWS]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if not told:
        pytest.skip("this machine's torch packs no such weights")
    assert int(told) < 110 * 2**20  # 20 to 65 MB; it is 200 where nothing bounds it


def test_packing_can_be_switched_off():
    off = TorchKernels(TorchKernels.Options(pack_from=None))
    assert off.pack(torch.zeros(1024, 1024)) is None
