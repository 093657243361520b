"""Sizes of graphs: which are captured, when, within which memory, and which one a step uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.sampling import columns
from core.types import Decodes, Limits
from plugins.runners.cuda_graph import runner as runner_module
from plugins.runners.cuda_graph.runner import CudaGraph
from plugins.runners.cuda_graph.sizes import chosen, standard, thinned
from tests.one_token import OneToken, limits
from tests.recorder import Recorder


@given(st.integers(1, 1500))
def test_sizes_reach_the_most_and_stay_close_together(most: int) -> None:
    sizes = standard(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for requests in range(1, most + 1):
        size = chosen(sizes, requests)
        assert requests <= size < max(2 * requests, requests + 16)


@given(st.integers(1, 600), st.integers(-3, 60))
def test_thinned_sizes_keep_the_largest_and_the_small(most: int, count: int) -> None:
    left = thinned(standard(most), count)
    assert len(left) == min(max(count, 1), len(standard(most)))
    assert left[-1] == most
    assert set(left) <= set(standard(most))
    if count >= 12:
        assert left[:3] == standard(most)[:3]


def test_options_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ValueError, match="sizes holds 0"):
        CudaGraph.Options(sizes=[4, 0])
    with pytest.raises(Exception, match="'much' is not a size"):
        CudaGraph.Options(memory="much")


def prepared(
    monkeypatch: pytest.MonkeyPatch, recorder: Recorder, room: Limits, **options: Any
) -> CudaGraph:
    monkeypatch.setattr(runner_module, "capturing_on", lambda _: recorder)
    runner = CudaGraph(CudaGraph.Options(**options))
    runner.prepare(OneToken(room), room)  # type: ignore[arg-type]
    return runner


def decodes(runner: CudaGraph, count: int) -> Decodes:
    rows = np.arange(count, dtype=np.int32)
    ends = np.full(count, 3, np.int32)
    sampled = runner.step.sampling.select(rows, ends)
    return Decodes(rows, ends, np.full(count, -1, np.int32), sampled)


def test_all_sizes_are_captured_at_the_start_the_largest_first(monkeypatch) -> None:
    recorder = Recorder()
    runner = prepared(monkeypatch, recorder, limits())
    assert list(runner._graphs._graphs) == [13, 8, 4, 2, 1]
    assert runner.most_decodes == 13
    runner.decode(decodes(runner, 3))
    assert [graph.replays for graph in recorder.graphs] == [0, 0, 1, 0, 0]


def test_lazily_a_size_is_captured_when_it_is_met(monkeypatch) -> None:
    recorder = Recorder()
    runner = prepared(monkeypatch, recorder, limits(), capture="lazy")
    assert list(runner._graphs._graphs) == [13]
    for count, known in ((3, [13, 4]), (4, [13, 4]), (1, [13, 4, 1])):
        assert runner.decode(decodes(runner, count)).ids.tolist() == [5] * count
        assert list(runner._graphs._graphs) == known
    assert recorder.tidied == 2


def test_sizes_that_are_asked_for_are_captured_and_the_largest_batch(monkeypatch) -> None:
    runner = prepared(monkeypatch, Recorder(), limits(), sizes=[6, 3, 99, 6])
    assert runner._graphs.sizes == [3, 6, 13]


def test_no_batch_has_more_requests_than_tokens(monkeypatch) -> None:
    runner = prepared(monkeypatch, Recorder(), limits(max_num_batched_tokens=5))
    assert (runner.most_decodes, runner._graphs.sizes) == (5, [1, 2, 4, 5])


def costs(number: int) -> int:
    return (100 if number == 0 else 10) << 20


def test_memory_is_reserved_for_all_sizes_by_measuring_four(monkeypatch) -> None:
    recorder, sizes = Recorder(costs), limits(max_num_seqs=64)
    monkeypatch.setattr(runner_module, "capturing_on", lambda _: recorder)
    runner = CudaGraph(CudaGraph.Options())
    needed = runner.reserve(OneToken(sizes), sizes)  # type: ignore[arg-type]
    assert needed == (100 + 10 * (len(standard(64)) - 1)) << 20
    assert len(recorder.graphs) == 4
    assert runner.most_decodes == 0


@pytest.mark.parametrize(("memory", "count"), [("99MiB", None), ("100MiB", 1), ("139MiB", 4)])
def test_sizes_are_left_out_to_keep_to_a_limit(monkeypatch, memory, count) -> None:
    if count is None:
        with pytest.raises(Exception, match=r"the largest graph takes 100 MiB\. Raise it"):
            prepared(monkeypatch, Recorder(costs), limits(max_num_seqs=64), memory=memory)
        return
    runner = prepared(monkeypatch, Recorder(costs), limits(max_num_seqs=64), memory=memory)
    assert len(runner._graphs) == len(runner._graphs.sizes) == count
    assert runner._graphs.sizes[-1] == 64
    assert runner.reserve(runner.step, limits(max_num_seqs=64)) <= 139 << 20


@pytest.mark.parametrize(
    ("needs", "kernels", "token"),
    [
        (columns.RANDOM, True, 5),
        (columns.TOP_K, True, 6),
        (columns.TOP_P | columns.RANDOM, True, 6),
        (columns.TOP_P, False, 16),
        (columns.PENALTY, True, 15),
        (columns.LOGPROBS | columns.TOP_P, True, 16),
    ],
)
def test_what_a_graph_cannot_sample_is_sampled_again(monkeypatch, needs, kernels, token) -> None:
    monkeypatch.setattr(runner_module, "capturing_on", lambda _: Recorder())
    step, room = OneToken(limits()), limits()
    step.sampler.graphable_truncation = True
    step.sampling.kernels = object() if kernels else None
    runner = CudaGraph(CudaGraph.Options())
    runner.prepare(step, room)  # type: ignore[arg-type]
    step.sampling.needs[1] = needs
    assert runner.decode(decodes(runner, 3)).ids.tolist() == [token] * 3
    assert step.rows.history[:3, 3].tolist() == [token] * 3


def test_addresses_stay(monkeypatch) -> None:
    runner = prepared(monkeypatch, Recorder(), limits())
    graph = runner._graphs.fitting(4)
    tensors = [graph.static.ids, graph.static.mail.turn, graph.static.batch.tokens]
    tensors += [graph.static.meta.page_table, graph.static.rows.index, graph.static.rows.positions]
    before = [tensor.data_ptr() for tensor in tensors]
    for count in (1, 4, 2):
        graph.replay(decodes(runner, count))
    assert before == [tensor.data_ptr() for tensor in tensors]
