"""By priority, lower numbers first; when pages run out, the least urgent makes room."""

from __future__ import annotations

from collections.abc import Sequence

from core.scheduling import QueueScheduler
from core.types import Request


class Priority(QueueScheduler):
    """Requests of equal priority run first come, first served.

    Priority decides who is admitted next, and who is sent back when pages run out. An urgent
    request does not interrupt one that already runs; and while urgent ones keep coming, the
    others wait.
    """

    def order(self, request: Request) -> tuple[int, float]:
        return request.priority, request.arrival

    def victim(self, running: Sequence[Request]) -> Request:
        return max(reversed(running), key=self.order)
