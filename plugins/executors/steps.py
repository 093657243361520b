"""Steps that a local engine has launched, and what is told of those that break."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import torch

from core.errors import EngineDead
from core.interfaces import Pending
from core.types import StepOutput
from plugins.executors.ranks import Ranks

Explain = Callable[[Exception], None]
"""Raises EngineDead where an error is more than that of a step; returns where the engine lives."""


def alone(device: torch.device) -> Explain:
    """For an engine of one rank: it lives on as long as its device does."""

    def explain(error: Exception) -> None:
        # after an illegal access, say, all that the device is asked fails
        if device.type == "cuda":
            try:
                torch.cuda.synchronize(device)
            except RuntimeError as fault:
                first = str(fault).partition("\n")[0].rstrip(".")
                raise EngineDead(
                    f"{device} no longer works in this process: {first}. Start the program anew."
                ) from error

    return explain


class Watched(Pending):
    """A step on its way. With several ranks, the one that broke explains what breaks it."""

    def __init__(self, pending: Pending, explain: Explain, ranks: Ranks | None) -> None:
        self._pending, self._explain, self._ranks = pending, explain, ranks

    def done(self) -> bool:
        return self._pending.done()

    def result(self) -> StepOutput:
        try:
            output = self._pending.result()
        except Exception as error:
            self._explain(error)
            raise
        if self._ranks is not None:
            self._ranks.check()  # a step that was aborted ends, too
        return output


class InThread(Pending):
    """A step that a thread launches."""

    def __init__(self, future: Future[Pending]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def result(self) -> StepOutput:
        return self._future.result().result()


class Failed(Pending):
    """A step that could not be launched; the caller learns it where it asks for the result."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def result(self) -> StepOutput:
        raise self._error
