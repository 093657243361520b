"""First come, first served; when pages run out, the last to come makes room."""

from __future__ import annotations

from collections.abc import Sequence

from core.scheduling import QueueScheduler
from core.types import Request


class FirstComeFirstServed(QueueScheduler):
    """Nobody can be overtaken: a request that was sent back is again the first in the queue."""

    reads_priority = False

    def order(self, request: Request) -> float:
        return request.arrival

    def victim(self, running: Sequence[Request]) -> Request:
        return max(reversed(running), key=self.order)
