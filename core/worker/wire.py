"""Step plans as bytes, for the ranks in other processes: columns end to end, no objects."""

from __future__ import annotations

import pickle

import numpy as np

from core.types import StepPlan

COLUMNS = ("rows", "starts", "counts", "sample", "page_starts", "page_counts")


def encode(plan: StepPlan) -> bytes:
    """Every column as int32 behind a header of sizes. Admissions, rare, are pickled at the end:
    both ends are processes of one engine, on a private channel."""
    header = np.array(
        [plan.number, len(plan.rows), len(plan.pages), len(plan.released)], np.int64
    ).tobytes()
    columns = [getattr(plan, name) for name in COLUMNS]
    numbers = np.concatenate([*columns, plan.pages, plan.released]).astype(np.int32, copy=False)
    admitted = pickle.dumps(plan.admitted, 5) if plan.admitted else b""
    return b"".join((header, numbers.tobytes(), admitted))


def decode(data: bytes) -> StepPlan:
    """The plan as it was, without the host's request objects."""
    number, size, pages, released = np.frombuffer(data, np.int64, 4).tolist()
    count = size * len(COLUMNS) + pages + released
    numbers = np.frombuffer(data, np.int32, count, offset=32).copy()
    *columns, page_numbers, free = np.split(
        numbers, np.cumsum([size] * len(COLUMNS) + [pages]).tolist()
    )
    rest = data[32 + 4 * count :]
    rows, starts, counts, sample, page_starts, page_counts = columns
    return StepPlan(
        number=number,
        rows=rows,
        starts=starts,
        counts=counts,
        sample=sample,
        page_starts=page_starts,
        page_counts=page_counts,
        pages=page_numbers,
        released=free,
        admitted=pickle.loads(rest) if rest else [],
    )
