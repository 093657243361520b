"""How many pages there are, and what is said when memory does not suffice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams, UserError
from core.interfaces import Runner
from core.types import Limits
from core.worker import Worker, footprint
from core.worker.memory import SPARE, Footprint, affordable_pages, out_of_memory
from tests.tiny import save_tiny

GIB = 1 << 30
CUDA = torch.device("cuda", 0)


def config(**cache: Any) -> Any:
    usual = {"pages": None, "memory": None, "memory_fraction": 0.9}
    return SimpleNamespace(
        cache=SimpleNamespace(**(usual | cache)), parallel=SimpleNamespace(tensor=1)
    )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU of 100 GiB, of which `free` are free."""
    state = SimpleNamespace(free=80 * GIB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (state.free, 100 * GIB))
    return state


TAKEN = Footprint(weights=20 * GIB, step=3 * GIB, graphs=GIB)


def pages(cache: Any = None, useful: int = 10**9, taken: Footprint = TAKEN) -> int:
    return affordable_pages(cache or config(), CUDA, GIB, useful, taken)


def test_the_cache_gets_the_engines_share_less_what_else_it_takes(gpu) -> None:
    assert pages() == 90 - 24
    assert pages(config(memory_fraction=0.5)) == 50 - 24


def test_what_other_processes_hold_is_neither_counted_nor_taken(gpu) -> None:
    gpu.free = 40 * GIB  # they hold 40
    assert pages(config(memory_fraction=0.5)) == 50 - 24
    assert pages() == (40 * GIB - 4 * GIB - SPARE) // GIB


def test_settings_and_use_bound_the_pages(gpu) -> None:
    assert pages(config(pages=7)) == 7
    assert pages(config(memory="3.5GiB")) == 3
    assert pages(useful=12) == 12


@pytest.mark.parametrize(
    ("cache", "free", "words"),
    [
        (
            config(memory_fraction=0.2),
            80,
            r"memory_fraction is 20.0 GiB; less 20.0 GiB for weights",
        ),
        (config(), 4, r"cuda:0 has 4.0 GiB free beside the weights; less 20.0"),
        (config(memory="1KiB"), 80, r"cache.memory leaves 0 MiB"),
    ],
)
def test_a_cache_without_room_is_refused_with_the_sum(gpu, cache, free, words) -> None:
    gpu.free = free * GIB
    with pytest.raises(UserError, match=words) as caught:
        pages(cache)
    assert "scheduler.max_num_batched_tokens" in str(caught.value)


def test_want_of_memory_is_a_users_mistake_that_says_what_to_do() -> None:
    with (
        pytest.raises(UserError, match=r"cpu has no memory for the cache, 3\. Lower something\."),
        out_of_memory(torch.device("cpu"), "the cache, 3", "Lower something."),
    ):
        raise torch.OutOfMemoryError("tried to allocate")


# the largest steps


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("budget", [64, 1000, 3])
def test_the_largest_steps_reach_every_limit_with_one_page(checkpoint, device, budget) -> None:
    scheduler = {"use": "fcfs", "max_num_seqs": 5, "max_num_batched_tokens": budget}
    with LLM(checkpoint, device=device, scheduler=scheduler, cache={"pages": 40}) as llm:
        worker: Worker = llm.engine.executor._worker
        limits: Limits = worker._limits_of_one_page()
        worker.assemble(limits)
        tokens, rows, longest, attended = 0, 0, 0, 0
        for plan in footprint.largest_steps(limits, worker.sampler):
            assert int(plan.counts.sum()) <= budget
            output = worker.launch(plan, eager=True).result()
            assert len(output.ids) == len(plan.rows)
            tokens = max(tokens, int(plan.counts.sum()))
            rows = max(rows, len(output.ids))
            longest = max(longest, int((plan.starts + plan.counts).max()))
            if plan.counts.max() > 1 and plan.starts.max() > 0:  # prompts of which much is cached
                attended = max(attended, int((plan.starts + plan.counts).sum()))
        assert attended == 255 * min(5, budget // 2)
        assert tokens == min(budget, 5 * 255)
        assert rows == min(5, budget)
        assert longest == 255
        worker.disassemble()


def test_a_demanding_sampler_is_not_asked_for_what_it_refuses() -> None:
    limits = Limits(2, 8, 16, 4, 1, 301)
    for reasons in ([], ["no top_p here"]):
        sampler = SimpleNamespace(accepts=lambda params, reasons=reasons: reasons)
        steps = footprint.largest_steps(limits, sampler)  # type: ignore[arg-type]
        assert (next(steps).admitted[0].params.top_p < 1) == (not reasons)


def test_the_footprint_is_what_torch_sees_during_the_largest_steps(checkpoint, device) -> None:
    if device == "cpu":
        pytest.skip("host memory is not measured")
    params = SamplingParams(max_tokens=4)
    with LLM(checkpoint, device=device, max_num_seqs=64, runner="eager") as llm:
        worker: Worker = llm.engine.executor._worker
        assert llm.generate([[1, 2, 3]], params, use_tqdm=False)[0].outputs[0].token_ids
        before = torch.cuda.memory_allocated()  # with the libraries' own, which stays
        assert worker.limits.pages == 64 * -(-256 // worker.page_size)
        torch.cuda.reset_peak_memory_stats()
        llm.generate([[1] * 200] * 64, params, use_tqdm=False)
        peak = torch.cuda.max_memory_allocated() - before
    comm = worker.comm
    del worker  # and what would fit into the holes of its memory needs none of its own
    torch.cuda.empty_cache()
    fresh = Worker(llm.config, llm.engine.setup, 0, comm)
    fresh.load()
    taken = footprint.measure(fresh, fresh._limits_of_one_page(), fresh._reserved_before)
    assert taken.step >= peak > 0
    weights = sum(p.numel() * p.element_size() for p in fresh.model.parameters())
    assert weights <= taken.weights < weights + (64 << 20)


def test_memory_that_ends_while_it_starts_is_explained(checkpoint, monkeypatch, device) -> None:
    def exhausted(self: Runner, step: Any, limits: Limits) -> None:
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr("plugins.runners.eager.Eager.prepare", exhausted)
    cache = {"pages": 40, "page_size": 256}
    with pytest.raises(UserError, match=r"has no memory for the cache, 15 MiB.*Lower cache\."):
        LLM(checkpoint, device=device, runner="eager", cache=cache)
