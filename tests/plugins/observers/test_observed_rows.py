"""Pieces of rows that come in any order, twice or not at all."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.observers.collected import Rows, maps

PIECES = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=12)


@settings(max_examples=150)
@given(PIECES, st.integers(0, 10), st.integers(0, 14))
def test_of_two_rows_of_a_position_the_later_counts(pieces, start, length) -> None:
    rows, latest = Rows(), {}
    for number, (at, count) in enumerate(pieces):
        rows.add(at, torch.arange(count) + 100 * number)
        latest |= {at + i: 100 * number + i for i in range(count)}
    expected = []
    while start + len(expected) < start + length and start + len(expected) in latest:
        expected.append(latest[start + len(expected)])

    found = rows.between(start, start + length)

    assert [int(x) for _, piece in found for x in piece] == expected
    for at, piece in found:
        assert [latest[at + i] for i in range(len(piece))] == piece.tolist()


def test_keys_after_a_query_are_zeros() -> None:
    pieces = [(2, torch.ones(1, 2, 3)), (3, torch.ones(2, 2, 5))]

    found = maps(pieces, 2)

    assert found.shape == (2, 3, 5)
    assert found[0].tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1] * 5]
