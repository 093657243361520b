"""A scheduler that raises when it is to plan a prompt of thirteen tokens, and one that hangs."""

from __future__ import annotations

import time
from typing import Any

from core import registry
from core.types import Request
from plugins.scheduling.fcfs import FirstComeFirstServed


@registry.schedulers.register("breaking")
class Breaking(FirstComeFirstServed):
    """Fine until then."""

    def plan(self) -> Any:
        if any(len(request.prompt) == 13 for request in self._ages):
            raise RuntimeError("thirteen tokens")
        if any(len(request.prompt) == 14 for request in self._ages):
            time.sleep(3600)
        return super().plan()

    def add(self, request: Request) -> None:
        if len(request.prompt) == 15:
            raise RuntimeError("fifteen tokens")
        super().add(request)
