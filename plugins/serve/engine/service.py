"""The loop of the engine's process: take in requests, step, tell what came of it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from core.errors import UserError
from core.plugins.blame import brief
from core.sampling.params import SamplingParams
from plugins.serve.engine.bulletin import Bulletin
from plugins.serve.engine.link import Gone
from plugins.serve.engine.messages import (
    Accepted,
    Ask,
    Cancel,
    Counters,
    News,
    Piece,
    Rejected,
    Request,
    Submit,
    unpack,
)

if TYPE_CHECKING:
    from core.engine import Engine
    from plugins.serve.engine.link import Link

log = logging.getLogger("plait")

PAUSE = 0.0005  # seconds
"""Steps that are shorter share their turns at the socket: two system calls cost 30 us or more,
which is much beside a step of 150 us, and nothing beside one that computes."""


class Service:
    """Runs an engine for whoever is at the other end of the link."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine, self._link = engine, link
        self._bulletin = Bulletin(link.put)
        self._answers: dict[int, int] = {}  # how many each submitted prompt has; those that run
        engine.on_step = self._bulletin

    def run(self) -> None:
        """Until the other end is closed. EngineDead, or what a plugin raises, when it breaks."""
        engine, link = self._engine, self._link
        spoke = 0.0
        try:
            while True:
                if not engine.busy or time.monotonic() - spoke >= PAUSE:
                    link.flush()
                    if requests := link.receive(wait=not engine.busy):
                        for request in requests:
                            self._do(request)
                        link.flush()
                    spoke = time.monotonic()
                if engine.busy:
                    for output in engine.step():
                        del self._answers[int(output.request_id)]
        except Gone:
            return

    def _do(self, request: Request) -> None:
        if isinstance(request, Submit):
            self._submit(request)
        elif isinstance(request, Cancel):
            self._cancel(request.number, request.index)
        else:
            assert isinstance(request, Ask)
            self._link.put(Counters(self._engine.statistics()))

    def _submit(self, asked: Submit) -> None:
        number, answers = asked.number, asked.params.get("n", 1)
        try:
            params = SamplingParams(**asked.params)
            if asked.priority and not self._engine.scheduler.reads_priority:
                raise UserError(
                    f"priority is {asked.priority}, and the scheduler of this server does not "
                    "look at priorities. Leave it out."
                )
            self._engine.add(
                unpack(asked.ids),
                params,
                id=str(number),
                priority=asked.priority,
                salt=asked.salt,
            )
        except UserError as error:
            self._link.put(Rejected(number, str(error).splitlines()))
        except Exception as error:  # of a plugin, say, that looks at requests
            log.error("request %d could not be queued", number, exc_info=error)
            text = f"the request could not be queued. {brief(error)}"
            pieces = [Piece(index, [], finish="error", error=text) for index in range(answers)]
            others = [(number + piece.index, piece) for piece in pieces]
            self._link.put(News(b"", b"", others))
        else:
            self._bulletin.expect(str(number), number, params)
            self._answers[number] = params.n
            self._link.put(Accepted(number))

    def _cancel(self, number: int, index: int | None) -> None:
        if (answers := self._answers.get(number)) is None:
            return  # it has ended meanwhile
        self._bulletin.forget(str(number), index, answers)
        if self._engine.abort(str(number), index) is not None:
            del self._answers[number]
