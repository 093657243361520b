"""Both ends of a captured step by brute force, in torch and as kernels.

The kernels need `--on cuda`, or TRITON_INTERPRET=1 and triton.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import pytest
import torch

from core.types import Decodes
from plugins.runners.cuda_graph.buffers import Buffers, StaticBatch
from tests.one_token import LENGTH, PAGE, ROWS, VOCAB, OneToken, limits


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
    static.mail.post(step, static.size)
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
    static.mail.post(step, static.size)
    ends.begin(static)
    history = static.tables.history.clone()
    drawn = random.integers(0, VOCAB, 8)
    logits = torch.from_numpy(random.normal(size=(8, VOCAB))).to(dtype)
    bad = {2: torch.nan, 3: -torch.inf, 5: torch.inf}
    for s, value in bad.items():
        logits[s, drawn[s]] = value
    ends.finish(static, torch.from_numpy(drawn).to(device), logits.to(device))
    count = len(step.rows)
    wanted = [-1 if s in bad else int(drawn[s]) for s in range(count)]
    assert static.ids[:count].tolist() == wanted
    for s in range(count):
        history[int(step.rows[s]), int(step.context_lens[s])] = max(wanted[s], 0)
    assert torch.equal(static.tables.history[:ROWS], history[:ROWS])


def test_a_part_of_the_vocabulary_says_nothing_about_a_row(ends, device) -> None:
    static, step, _ = made_up(1, device)
    static.mail.post(step, static.size)
    ends.begin(static)
    drawn = torch.full((8,), VOCAB - 1, device=device)
    ends.finish(static, drawn, torch.full((8, 5), torch.nan, device=device))
    assert static.ids.tolist() == [VOCAB - 1] * 8
