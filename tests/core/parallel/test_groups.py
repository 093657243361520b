"""Ranks as threads and as gloo processes: the same bits everywhere, uneven shards, both dtypes."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor
from toys import Config, checkpoint, reference, toy_plan

from core.parallel import Communicator, RankLost, Solo, ThreadGroup, connect
from core.parallel.collectives import finish
from core.parallel.groups import ordered_sum, rows_of
from core.parallel.verify import build_rank


def exercise(comm: Communicator, device: str = "cpu") -> dict[str, Any]:
    """What every kind of group must be able to do, on one rank."""
    generator = torch.Generator().manual_seed(comm.rank)
    x = torch.randn(40, 6, generator=generator).to(device)
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    sums = {t: comm.all_reduce(x.to(t, copy=True)) for t in dtypes}
    return {
        "shards": comm.gather_all(x),
        "sums": sums,
        "one row": comm.all_reduce(x[3:4].clone()),
        "uneven": comm.all_gather(x[:2, : comm.rank + 1], [r + 1 for r in range(comm.size)]),
        "rows": comm.all_gather(x[: comm.rank], list(range(comm.size)), dim=0),
        "to one": comm.gather(x, root=1),
        "scattered": comm.reduce_scatter(x[:7].clone()),
        "told": comm.broadcast_object({"from": comm.rank}, root=1),
    }


def check(found: list[dict[str, Any]], ordered: bool = True) -> None:
    """`ordered`: sums are taken in rank order, and not as the hardware likes."""
    size = len(found)
    shards = found[0]["shards"]
    for rank, mine in enumerate(found):
        assert torch.equal(torch.stack(mine["shards"]), torch.stack(shards))
        for dtype, total in mine["sums"].items():
            assert total.dtype == dtype
            assert torch.equal(total, found[0]["sums"][dtype])  # the same bits on every rank
            expected = ordered_sum([s.to(dtype) for s in shards])
            torch.testing.assert_close(total, expected)
            assert not ordered or torch.equal(total, expected)
        # a row's sum does not depend on how many rows there are
        assert not ordered or torch.equal(mine["one row"], mine["sums"][torch.float32][3:4])
        assert torch.equal(
            mine["uneven"], torch.cat([shards[r][:2, : r + 1] for r in range(size)], -1)
        )
        assert torch.equal(mine["rows"], torch.cat([shards[r][:r] for r in range(size)]))
        whole = torch.cat(shards, -1)
        assert mine["to one"] is None if rank != 1 else torch.equal(mine["to one"], whole)
        start, stop = rows_of(7, size, rank)
        torch.testing.assert_close(mine["scattered"], mine["sums"][torch.float32][start:stop])
        assert mine["told"] == {"from": 1}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_threads(size: int) -> None:
    check(ThreadGroup(size).run(exercise))


def test_half_precision_is_summed_in_float32() -> None:
    shards = [torch.tensor([x], dtype=torch.bfloat16) for x in (256.0, 1.0, 1.0)]
    assert ordered_sum(shards).item() == 258.0  # in bfloat16 256 + 1 is 256


def test_an_error_in_one_thread_ends_all_and_is_raised() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            raise KeyError("mine")
        comm.barrier()

    with pytest.raises(KeyError, match="mine"):
        ThreadGroup(3).run(work)


def test_a_group_of_one() -> None:
    comm = connect(None, 0, 1, "cpu")  # type: ignore[arg-type]
    x = torch.ones(2, 3)
    assert isinstance(comm, Solo)
    assert torch.equal(comm.all_reduce(x), x)
    assert torch.equal(comm.all_gather(x, [3]), x)
    assert comm.broadcast_object("a") == "a"


def one_process(rank: int, size: int, store: str, out: str) -> None:
    """One rank: groups of all ranks and of the first two, alive at once, and a model's logits."""
    import torch.distributed as dist

    import plugins.sharding
    from core.registry import registries

    plugins.sharding.register(registries)
    torch.set_num_threads(1)
    try:
        shared = dist.FileStore(store, size)
        groups = {size: connect(dist.PrefixStore("all", shared), rank, size, "cpu", 60)}
        if rank < 2:
            groups[2] = connect(dist.PrefixStore("two", shared), rank, 2, "cpu", 60)
        result: dict[Any, Any] = {"default group": dist.is_initialized()}
        config = Config()
        for members, comm in groups.items():
            with torch.inference_mode():
                model = build_rank(toy_plan(members, config), rank, checkpoint(config), comm)
                logits = model(torch.arange(11))
            result[members] = {"exercise": exercise(comm), "logits": logits}
        groups[size].barrier()
        for comm in groups.values():
            comm.close()
    except Exception:
        result = {"error": traceback.format_exc()}
    torch.save(result, f"{out}/{rank}.pt")


def test_two_and_three_gloo_processes(tmp_path: Path) -> None:
    mp.spawn(one_process, (3, str(tmp_path / "store"), str(tmp_path)), nprocs=3)
    ranks = [torch.load(tmp_path / f"{r}.pt", weights_only=False) for r in range(3)]
    assert [found.get("error") for found in ranks] == [None] * 3
    assert not any(found["default group"] for found in ranks)
    config = Config()
    expected: Tensor = reference(config, checkpoint(config), torch.arange(11))
    for size in (2, 3):
        check([found[size]["exercise"] for found in ranks[:size]])
        for found in ranks[:size]:
            torch.testing.assert_close(found[size]["logits"], expected, rtol=1e-9, atol=1e-9)


def one_gpu(rank: int, size: int, store: str, out: str) -> None:
    """One rank of the NCCL test: the group's calls, eagerly and replayed from a graph."""
    import torch.distributed as dist

    device = f"cuda:{rank}"
    torch.cuda.set_device(device)
    comm = connect(dist.FileStore(store, size), rank, size, device, 120)
    result = exercise(comm, device)
    x = torch.full((3, 4), float(rank + 1), device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        total = comm.all_reduce(x * 1)
        both = comm.all_gather(x)
    x.fill_(float(rank + 2))
    graph.replay()
    torch.cuda.synchronize()
    result["replayed"] = total[0, 0].item(), both[0].tolist()
    del graph
    pytest.importorskip("triton")
    from plugins.kernels.triton.kernels import TritonKernels

    comm.use(TritonKernels(TritonKernels.Options()))
    result["by kernels"] = comm.sums is not None, exercise(comm, device)
    comm.close()
    torch.save(_on_host(result), f"{out}/{rank}.pt")


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_host(inner) for key, inner in value.items()}
    return [_on_host(inner) for inner in value] if isinstance(value, list | tuple) else value


def test_two_gpus(device: str, tmp_path: Path) -> None:
    if not device.startswith("cuda") or torch.cuda.device_count() < 2:
        pytest.skip("needs --on cuda and two GPUs")
    mp.spawn(one_gpu, (2, str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    found = [torch.load(tmp_path / f"{r}.pt", weights_only=False) for r in range(2)]
    check(found, ordered=False)
    for result in found:
        assert result["replayed"] == [5.0, [2.0] * 4 + [3.0] * 4]
        assert result["by kernels"][0], (
            "GPUs do not write into each other's memory: see the warning"
        )
    check([result["by kernels"][1] for result in found], ordered=False)


def test_a_collective_may_be_over_when_its_call_returns_or_fail_in_it() -> None:
    finish(lambda *given: None, 1, 2)  # as NCCL's on the current stream
    with pytest.raises(RankLost, match="a collective failed: no answer"):
        finish(lambda: (_ for _ in ()).throw(RuntimeError("[rank 1] no answer\nat")))
