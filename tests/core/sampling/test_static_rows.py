"""Rows at fixed addresses: the same tokens as the step's own rows give."""

from __future__ import annotations

import pytest
import torch

from core.sampling.params import SamplingParams
from core.sampling.static_rows import StaticRows
from core.testing.sampling import make_rows

PLAIN = [
    SamplingParams(temperature=0),
    SamplingParams(seed=1),
    SamplingParams(temperature=0.4, seed=2),
    SamplingParams(temperature=0, top_k=3),
]


def test_loaded_rows_draw_and_record_as_their_own(device: str) -> None:
    rows = make_rows(PLAIN, 50, device=device)
    static = StaticRows(rows.table, 6)
    addresses = static.index.data_ptr(), static.positions.data_ptr()
    for step in range(5):
        logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(step)).to(device)
        now = rows.table.select(rows.rows, rows.ends + step)
        static.load(now)
        drawn = static.draw(logits)
        assert drawn[:4].tolist() == now.draw(logits[:4]).tolist()
        static.record(drawn)
        later = rows.table.select(rows.rows, rows.ends + step + 1)
        assert [int(later.tokens(s)[-1]) for s in range(4)] == drawn[:4].tolist()
    assert addresses == (static.index.data_ptr(), static.positions.data_ptr())


def test_they_follow_new_requests_in_the_same_rows() -> None:
    rows = make_rows(PLAIN, 50)
    static = StaticRows(rows.table, 4)
    static.load(rows)
    assert static.temperature.tolist() == pytest.approx([0, 1, 0.4, 0])
    request = rows.admissions[1]
    request.params = SamplingParams(temperature=0.125)
    rows.table.admit([request])
    assert static.temperature.tolist() == pytest.approx([0, 0.125, 0.4, 0])


def test_rows_that_ask_for_more_are_refused() -> None:
    rows = make_rows([SamplingParams(top_k=3)], 50)
    with pytest.raises(AssertionError):
        StaticRows(rows.table, 1).load(rows)
