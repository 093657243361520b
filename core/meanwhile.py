"""What the host does while it waits for a step: text that is not asked for yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.generation import Generation
    from core.interfaces import Pending
    from core.types import StepOutput

TURNS = 8  # visits between two looks at the step


def awaited(pending: Pending, generations: Mapping[str, Generation], first: int) -> StepOutput:
    """The result of a step. While it is computed, ids that are known become text.

    Requests whose text is wanted at their end alone often end together, and the device would then
    wait for the text of them all. `first`: which of the generations has the first turn, so that
    each has one now and then.
    """
    if not pending.done():
        waiting = list(generations.values())
        for turn in range(len(waiting)):
            waiting[(first + turn) % len(waiting)].advance()
            if turn % TURNS == TURNS - 1 and pending.done():
                break
    return pending.result()
