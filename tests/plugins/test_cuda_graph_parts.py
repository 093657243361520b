"""The parts of the graph runner: sizes, limits of memory, and both ends of a captured step.

The ends are checked by brute force, in torch and as kernels. The kernels need `--on cuda`, or
TRITON_INTERPRET=1 and triton.
"""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.parallel import Solo
from core.sampling.rows import SamplingTable
from core.types import Decodes, Limits
from core.worker.rows import RequestRows
from core.worker.staging import Staging
from plugins.runners.cuda_graph import runner as runner_module
from plugins.runners.cuda_graph.buffers import Buffers, StaticBatch
from plugins.runners.cuda_graph.runner import CudaGraph
from plugins.runners.cuda_graph.sizes import chosen, standard, thinned
from tests.recorder import Recorder

ROWS, PAGE, LENGTH, VOCAB = 13, 4, 50, 37


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
    if count >= 8:
        assert left[:3] == standard(most)[:3]


def test_options_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ValueError, match="sizes holds 0"):
        CudaGraph.Options(sizes=[4, 0])
    with pytest.raises(Exception, match="'much' is not a size"):
        CudaGraph.Options(memory="much")


# captures, by a recorder


class OneToken:
    """A step whose model always wants token 5."""

    sampler = SimpleNamespace(graphable=True)
    comm = Solo()

    def __init__(self, limits: Limits, device: str = "cpu") -> None:
        self.backends: list[Any] = []
        self.rows = RequestRows(limits, Staging(torch.device(device)))
        self.sampling = SamplingTable(
            limits.max_num_seqs + 1, VOCAB, LENGTH, device, history=self.rows.history
        )

    def forward(self, batch: Any) -> torch.Tensor:
        return torch.zeros(len(batch.tokens), 3)

    def logits(self, hidden: torch.Tensor, batch: Any) -> torch.Tensor:
        return torch.eye(VOCAB)[torch.full((len(hidden),), 5)]

    def sample(self, logits: torch.Tensor, batch: Any) -> None:
        batch.rows.record(logits.argmax(-1))


def limits(**changes: int) -> Limits:
    sizes = {"max_num_seqs": ROWS, "max_num_batched_tokens": 64, "max_length": LENGTH}
    return Limits(**(sizes | changes), page_size=PAGE, pages=40, vocab_size=VOCAB)


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


def test_memory_is_reserved_for_all_sizes_by_measuring_two(monkeypatch) -> None:
    recorder, sizes = Recorder(costs), limits(max_num_seqs=64)
    monkeypatch.setattr(runner_module, "capturing_on", lambda _: recorder)
    runner = CudaGraph(CudaGraph.Options())
    needed = runner.reserve(OneToken(sizes), sizes)  # type: ignore[arg-type]
    assert needed == (100 + 10 * (len(standard(64)) - 1)) << 20
    assert len(recorder.graphs) == 2
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


def test_addresses_stay(monkeypatch) -> None:
    runner = prepared(monkeypatch, Recorder(), limits())
    graph = runner._graphs.capture(4)
    tensors = [graph.static.ids, graph.static.news, graph.static.batch.tokens]
    tensors += [graph.static.meta.page_table, graph.static.rows.index, graph.static.rows.positions]
    before = [tensor.data_ptr() for tensor in tensors]
    for count in (1, 4, 2):
        runner._graphs.capture(4).replay(decodes(runner, count))
    assert before == [tensor.data_ptr() for tensor in tensors]


# both ends of a step


@pytest.fixture(params=["ends", "kernels"])
def ends(request: pytest.FixtureRequest, device: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "kernels":
        pytest.importorskip("triton")
        if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("needs --on cuda or TRITON_INTERPRET=1")
    module = importlib.import_module(f"plugins.runners.cuda_graph.{request.param}")
    monkeypatch.setattr(module, "BLOCK", 4, raising=False)  # fewer than a table has columns
    return module


def made_up(seed: int, device: str) -> tuple[StaticBatch, Decodes, np.random.Generator]:
    """A step of up to 8 requests, in tables of random content."""
    random = np.random.default_rng(seed)
    sizes = limits()
    step = OneToken(sizes, device)
    tables = step.rows
    tables.history.copy_(torch.from_numpy(random.integers(0, VOCAB, tables.history.shape)))
    tables.page_table.copy_(torch.from_numpy(random.integers(0, 40, tables.page_table.shape)))
    count = int(random.integers(0, 9))
    rows = random.permutation(ROWS)[:count].astype(np.int32)
    lengths = random.integers(1, LENGTH + 1, count).astype(np.int32)
    begun = (lengths - 1) % PAGE == 0
    pages = np.where(begun, random.integers(0, 40, count), -1).astype(np.int32)
    static = StaticBatch(Buffers(step, sizes, ROWS), 8)  # type: ignore[arg-type]
    return static, Decodes(rows, lengths, pages, None), random  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(8))
def test_a_step_begins_with_the_tensors_that_its_columns_mean(ends, seed, device) -> None:
    static, step, _ = made_up(seed, device)
    table, history = static.tables.page_table.clone(), static.tables.history.clone()
    static.load(step)
    ends.begin(static)
    batch, meta = static.batch, static.meta
    for s, (row, length, page) in enumerate(
        zip(step.rows.tolist(), step.context_lens.tolist(), step.pages.tolist(), strict=True)
    ):
        position = length - 1
        if page >= 0:
            table[row, position // PAGE] = page
        assert batch.tokens[s] == history[row, position]
        assert batch.positions[s] == position
        assert meta.context_len[s] == length
        assert meta.slots[s] == int(table[row, position // PAGE]) * PAGE + position % PAGE
        used = position // PAGE + 1
        assert torch.equal(meta.page_table[s, :used], table[row, :used])
        assert (int(static.rows.index[s]), int(static.rows.positions[s])) == (row, length)
    assert torch.equal(static.tables.page_table, table)
    assert torch.equal(static.tables.history, history)
    padding = slice(len(step.rows), 8)
    assert not meta.context_len[padding].any()
    assert not batch.positions[padding].any()
    assert (meta.slots[padding] == -1).all()
    assert (static.rows.index[padding] == static.tables.nobody).all()
    assert ((batch.tokens >= 0) & (batch.tokens < VOCAB)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_ends_with_its_ids_in_the_history_and_bad_rows_marked(
    ends, seed, dtype, device
) -> None:
    static, step, random = made_up(seed, device)
    static.load(step)
    ends.begin(static)
    history = static.tables.history.clone()
    drawn = random.integers(0, VOCAB, 8)
    logits = torch.from_numpy(random.normal(size=(8, VOCAB))).to(dtype)
    bad = {2: torch.nan, 3: -torch.inf, 5: torch.inf}
    for s, value in bad.items():
        logits[s, drawn[s]] = value
    static.rows.record(torch.from_numpy(drawn).to(device))
    ends.finish(static, logits.to(device))
    count = len(step.rows)
    wanted = [-1 if s in bad else int(drawn[s]) for s in range(count)]
    assert static.ids[:count].tolist() == wanted
    for s in range(count):
        history[int(step.rows[s]), int(step.context_lens[s])] = max(wanted[s], 0)
    assert torch.equal(static.tables.history[:ROWS], history[:ROWS])


def test_a_part_of_the_vocabulary_says_nothing_about_a_row(ends, device) -> None:
    static, step, _ = made_up(1, device)
    static.load(step)
    ends.begin(static)
    static.rows.record(torch.full((8,), VOCAB - 1, device=device))
    ends.finish(static, torch.full((8, 5), torch.nan, device=device))
    assert static.ids.tolist() == [VOCAB - 1] * 8
