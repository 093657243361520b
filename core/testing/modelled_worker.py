"""A worker without a model: its cache holds, for each token, a number made from all tokens so far.

A wrong page, a stale page, a token at the wrong position or a row that was not released changes
those numbers, and with them every id that is sampled later. So a scheduler is right when each
request gets the ids that it would get alone.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from core.types import Request, StepOutput, StepPlan

if TYPE_CHECKING:
    from core.types import Ints

VOCAB = 7
START = 17


def follow(number: int | None, token: int | None) -> int | None:
    """What the cache holds for `token` after the tokens that gave `number`."""
    return None if number is None or token is None else hash((number, token)) & 0xFFFFFFFF


def start_of(salt: str | None) -> int:
    """Salts are part of the content, so that reading another salt's page shows."""
    return START if salt is None else START + 1 + len(salt)


def sampled(number: int | None) -> int:
    return 0 if number is None else (number >> 7) % VOCAB


def alone(request: Request) -> tuple[list[int], str]:
    """The output and the finish reason of a request that has the engine to itself."""
    number: int | None = start_of(request.salt)
    for token in request.prompt:
        number = follow(number, token)
    output: list[int] = []
    while True:
        output.append(sampled(number))
        number = follow(number, output[-1])
        if output[-1] in request.stop_ids and len(output) >= request.params.min_tokens:
            return output, "stop"
        if len(request.prompt) + len(output) >= request.limit:
            return output, "length"


class ModelledWorker:
    """Executes plans as a real worker does: rows, page tables and a paged cache."""

    def __init__(self, rows: int, pages: int, page_size: int, budget: int) -> None:
        self.page_size, self.budget = page_size, budget
        self.cache: list[list[int | None]] = [[None] * page_size for _ in range(pages)]
        self.tokens: list[list[int] | None] = [None] * rows
        self.salts: list[str | None] = [None] * rows
        self.right: list[list[int | None]] = [[] for _ in range(rows)]  # what the cache must hold
        self.tables: list[list[int]] = [[] for _ in range(rows)]
        self.broken_until = -1  # plans up to this number may read what was never written
        self.number = -1

    def apply(self, plan: StepPlan) -> None:
        """Take in the news: rows released, rows taken, pages appended."""
        assert plan.number > self.number
        self.number = plan.number
        for row in plan.released.tolist():
            assert self.tokens[row] is not None, "a row was released twice"
            self.tokens[row] = None
        for new in plan.admitted:
            assert 0 <= new.row < len(self.tokens), f"there is no row {new.row}"
            assert self.tokens[new.row] is None, "a row was given away before it was released"
            tokens: list[int] = new.tokens.tolist()
            self.tokens[new.row], self.tables[new.row], self.right[new.row] = tokens, [], []
            request = next(r for r in plan.requests if r.id == new.request_id)
            assert new.prompt_length == len(request.prompt)
            known = request.prompt + request.output
            assert len(tokens) >= new.prompt_length
            assert tokens == known[: len(tokens)], "admitted with other tokens"
            self.salts[new.row] = request.salt
        assert all(0 <= page < len(self.cache) for page in plan.pages.tolist()), "no such page"
        pages = iter(plan.pages.tolist())
        columns = zip(plan.rows, plan.page_starts, plan.page_counts, strict=True)
        for row, start, count in columns:
            if count:
                assert start == len(self.tables[row]), "pages appended at the wrong place"
                self.tables[row] += [next(pages) for _ in range(count)]
        assert next(pages, None) is None

    def fail(self, plan: StepPlan, last: int) -> None:
        """The step breaks down before it has written anything; `last` is the newest plan."""
        self.apply(plan)
        self.broken_until = last
        for row, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
            for position in range(start, start + count):
                self._page(row, position)[position % self.page_size] = None

    def execute(self, plan: StepPlan, ids_at_most: int = 1) -> StepOutput:
        """Compute the step; a request gets 1 to `ids_at_most` ids, as many as its content says."""
        self.apply(plan)
        broken = plan.number <= self.broken_until
        rows, starts, counts = plan.rows.tolist(), plan.starts.tolist(), plan.counts.tolist()
        self._check_shape(plan, rows, counts)
        size, work = self.page_size, []
        for row, start, count in zip(rows, starts, counts, strict=True):
            tokens, right = self.tokens[row], self.right[row]
            assert tokens is not None
            for position in range(start, start + count):
                assert broken or position < len(tokens), "a token is computed before it exists"
                work.append((position, row, tokens[position] if position < len(tokens) else None))
            for position in range(len(right), len(tokens)):
                last = right[-1] if position else start_of(self.salts[row])
                right.append(follow(last, tokens[position]))
        # in the order of positions, because all keys of a step are stored before any is read
        for position, row, token in sorted(work, key=itemgetter(0)):
            before: int | None = start_of(self.salts[row])
            if position:
                before = self._page(row, position - 1)[(position - 1) % size]
            self._page(row, position)[position % size] = follow(before, token)
        ids: list[int] = []
        got: list[int] = []
        for row, start, count, sample in zip(rows, starts, counts, plan.sample, strict=True):
            end, tokens = start + count, self.tokens[row]
            assert tokens is not None
            if not broken:
                self._check_reads(row, end)
                if ids_at_most == 1:
                    assert bool(sample) == (end == len(tokens)), "sampled at the wrong place"
            if sample:
                number = self._page(row, end - 1)[(end - 1) % size]
                new = [] if end < len(tokens) else self._new_ids(number, ids_at_most)
                new = new or ([0] if ids_at_most == 1 else [])
                tokens += new
                ids += new
                got.append(len(new))
        several = None if ids_at_most == 1 else np.array(got, np.int32)
        return StepOutput(plan.number, np.array(ids, np.int32), several)

    def _new_ids(self, number: int | None, at_most: int) -> list[int]:
        ids = [sampled(number)]
        while len(ids) < at_most and number is not None and number % 3:
            number = follow(number, ids[-1])
            ids.append(sampled(number))
        return ids

    def _page(self, row: int, position: int) -> list[int | None]:
        return self.cache[self.tables[row][position // self.page_size]]

    def _check_reads(self, row: int, end: int) -> None:
        size, right = self.page_size, self.right[row]
        for index, page in enumerate(self.tables[row]):
            if (start := index * size) < end:
                stop = min(start + size, end)
                assert self.cache[page][: stop - start] == right[start:stop], "wrong cache content"

    def _check_shape(self, plan: StepPlan, rows: list[int], counts: list[int]) -> None:
        assert rows, "an empty plan"
        assert len(set(rows)) == len(rows) == len(plan.requests)
        assert all(self.tokens[row] is not None for row in rows), "a row that nobody has"
        assert sum(counts) <= self.budget, f"{sum(counts)} tokens, the budget is {self.budget}"
        assert min(counts) >= 1
        ones = counts.count(1)
        assert counts[:ones] == [1] * ones, "rows with one token come first"
        assert all(type(c) is np.ndarray and c.dtype == np.int32 for c in columns_of(plan))


def columns_of(plan: StepPlan) -> tuple[Ints, ...]:
    """Every array of a plan."""
    return (
        plan.rows,
        plan.starts,
        plan.counts,
        plan.sample,
        plan.page_starts,
        plan.page_counts,
        plan.pages,
        plan.released,
    )
