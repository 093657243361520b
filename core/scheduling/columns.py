"""The last stage of planning: what each request computes, laid out as the columns of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from core.types import Admission, StepPlan

if TYPE_CHECKING:
    from core.scheduling.running import RunningRequests
    from core.types import Ints, Request


def compose(
    number: int,
    columns: Ints,
    requests: list[Request],
    admitted: list[tuple[Request, int]],
    running: RunningRequests,
) -> StepPlan | None:
    """The plan of a step, or None if no request computes anything.

    `columns` [5, n] are row, start, count, page start and page count of the requests that ran
    before; counts may be 0. `admitted` are those that have just got their row, with their counts.
    Every array of the plan is fresh, because an executor may hold it while the next step is made.
    """
    if admitted:
        entered = [(r.row, r.computed, count, 0, len(r.pages)) for r, count in admitted]
        columns = np.concatenate([columns, np.array(entered, np.int32).T], axis=1)
        requests = requests + [request for request, _count in admitted]
    if not (columns[2] == 1).all():
        order = np.argsort(columns[2] != 1, kind="stable")
        order = order[columns[2, order] > 0]
        columns = columns[:, order]
        requests = [requests[i] for i in order.tolist()]
    if not requests:
        return None
    rows, starts, counts, page_starts, page_counts = columns
    pages: list[int] = []
    for b in np.flatnonzero(page_counts).tolist():
        start = int(page_starts[b])
        pages += requests[b].pages[start : start + int(page_counts[b])]
    return StepPlan(
        number=number,
        rows=rows,
        starts=starts,
        counts=counts,
        sample=(starts + counts == running.length[rows]).astype(np.int32),
        page_starts=page_starts,
        page_counts=page_counts,
        pages=np.array(pages, np.int32),
        released=running.take_released(),
        admitted=[admission(request) for request, _count in admitted],
        requests=requests,
    )


def admission(request: Request) -> Admission:
    """What the workers must know about a request that has just got its row."""
    return Admission(
        row=request.row,
        request_id=request.id,
        tokens=np.array(request.prompt + request.output, np.int32),
        prompt_length=len(request.prompt),
        params=request.params,
        seed=request.seed,
        stop_ids=request.stop_ids,
    )
