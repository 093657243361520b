"""Ids come to the host as they were sent, and nothing waits for them but who reads them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.landed import Landed, to_host


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_what_was_sent_may_be_written_again_at_once(dtype, device: str) -> None:
    ids = torch.tensor([5, -1, 7], dtype=dtype, device=device)
    landed = Landed.of(ids)
    ids.fill_(9)
    kept = landed.keep()
    assert kept.tolist() == [5, -1, 7]
    assert kept.dtype == np.int32
    assert landed.done()


def test_the_hosts_memory_may_be_written_again_after_it_was_kept(device: str) -> None:
    memory = torch.arange(3, dtype=torch.int32, pin_memory=device == "cuda")
    landed = Landed(memory)
    landed.keep()
    memory.fill_(9)
    assert landed.keep().tolist() == [0, 1, 2]


def test_sending_does_not_wait_and_reading_waits_for_what_came_before_alone(device: str) -> None:
    if device == "cpu":
        pytest.skip("on the host nothing is under way")
    ids = torch.arange(3, device=device)
    Landed.of(ids).keep()
    before, after = torch.cuda.Event(), torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(500_000_000)
        before.record()
        landed = Landed.of(ids)
        assert not landed.done()
        torch.cuda._sleep(500_000_000)
        after.record()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert landed.keep().tolist() == [0, 1, 2]
    assert before.query()
    assert not after.query()
    torch.cuda.synchronize()


def test_memory_is_used_again_once_it_was_read_or_forgotten(device: str) -> None:
    if device == "cpu":
        pytest.skip("pinned memory is for a GPU")
    ids, made = torch.arange(3, device=device), []
    for number in range(8):
        landed = Landed.of(ids[: number % 3 + 1])
        if number % 2:
            landed.keep()
        del landed
        torch.cuda.synchronize()
        made.append(torch.cuda.host_memory_stats()["num_host_alloc"])
    assert made[0] == made[-1]


def test_memory_under_way_is_not_given_out_again(device: str) -> None:
    if device == "cpu":
        pytest.skip("pinned memory is for a GPU")
    torch.cuda._sleep(500_000_000)
    under_way = {to_host(torch.arange(3, device=device)).data_ptr() for _ in range(4)}
    assert len(under_way) == 4
    torch.cuda.synchronize()


@pytest.mark.parametrize("size", [(4, 3), (0, 2), (), (3000,)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16])
def test_any_shape_and_dtype_comes_to_the_host(size, dtype, device: str) -> None:
    if device == "cpu":
        pytest.skip("it is there already")
    made = torch.randint(100, size, device=device).to(dtype)
    made = made.T if made.ndim == 2 else made
    host = to_host(made)
    torch.cuda.synchronize()
    assert host.is_pinned() or not host.numel()
    assert host.dtype == dtype
    assert torch.equal(host, made.cpu())
