"""A step's tensors, derived by the Triton kernel and by its twin.

Runs on CUDA (`--on cuda`), and without a GPU where TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from core.worker import batching

pytest.importorskip("triton")
ROWS, LENGTH = 40, 700


@pytest.fixture
def ours(device: str) -> Any:
    from plugins.kernels.triton.kernels import TritonKernels

    if reasons := TritonKernels.rejects(torch.float32, device.partition(":")[0]):
        pytest.skip("; ".join(reasons))
    return TritonKernels(TritonKernels.Options())


def columns_of(requests: list[tuple[int, int]], rng: random.Random, device: str) -> dict[str, Any]:
    """Rows, starts and query_start of requests (start, count), as slices of one copy."""
    rows = rng.sample(range(ROWS), len(requests))
    starts, counts = zip(*requests, strict=True)
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    sizes = (len(rows), len(starts), len(ends))
    sent = torch.tensor([*rows, *starts, *ends], dtype=torch.int32, device=device).split(sizes)
    return {
        "rows": sent[0],
        "starts": sent[1],
        "query_start": sent[2],
        "total": ends[-1],
        "longest": max(counts),
    }


STEPS = {
    "one token": [(0, 1)],
    "decodes": [(6, 1), (0, 1), (299, 1), (15, 1), (16, 1)],
    "a prompt": [(0, 300)],
    "mixed": [(256, 1), (31, 1), (0, 257), (100, 30), (0, 2)],
}


@pytest.mark.parametrize("page_size", [1, 16, 48])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_is_that_of_the_twin(ours: Any, device: str, step: str, page_size: int) -> None:
    _compare(ours, STEPS[step], page_size, random.Random(1), device)


@pytest.mark.parametrize("seed", range(20))
def test_random_steps_are_those_of_the_twin(ours: Any, device: str, seed: int) -> None:
    rng = random.Random(seed)
    requests = []
    for _ in range(rng.randint(1, ROWS)):
        count = 1 if rng.random() < 0.5 else rng.randint(1, 300)
        requests.append((rng.randint(0, LENGTH - count), count))
    _compare(ours, requests, rng.choice((1, 5, 16, 64, 256)), rng, device)


def test_columns_may_be_those_of_a_table(ours: Any, device: str) -> None:
    given = columns_of([(3, 2), (0, 1)], random.Random(1), device)
    table = torch.stack((given["rows"], given["starts"]), 1)
    given["rows"], given["starts"] = table.unbind(1)
    state = torch.arange(ROWS * LENGTH, dtype=torch.int32, device=device).view(ROWS, LENGTH)
    given |= {"history": state, "page_table": state.clone(), "page_size": 1, "width": 5}
    for x, y in zip(ours.derive(**given)[:3], batching.derive(**given)[:3], strict=True):
        assert torch.equal(x, y)


def _compare(
    ours: Any, requests: list[tuple[int, int]], page_size: int, rng: random.Random, device: str
) -> None:
    made = torch.Generator().manual_seed(rng.randrange(2**30))
    history = torch.randint(0, 150_000, (ROWS, LENGTH), generator=made, dtype=torch.int32)
    pages = -(-LENGTH // page_size)
    page_table = torch.randint(0, 10**6, (ROWS, pages), generator=made, dtype=torch.int32)
    given = columns_of(requests, rng, device) | {
        "history": history.to(device),
        "page_table": page_table.to(device),
        "page_size": page_size,
        "width": max(-(-(start + count) // page_size) for start, count in requests),
    }
    *found, table = ours.derive(**given)
    *wanted, wanted_table = batching.derive(**given)
    for name, x, y in zip(("tokens", "positions", "slots"), found, wanted, strict=True):
        assert x.dtype == y.dtype == torch.int64, name
        assert torch.equal(x, y), name
    assert table.shape == wanted_table.shape
    for b, (start, count) in enumerate(requests):  # past its last page anything may stand
        own = -(-(start + count) // page_size)
        assert torch.equal(table[b, :own], wanted_table[b, :own])
