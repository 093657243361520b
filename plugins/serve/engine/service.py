"""The loop of the engine's process: take in requests, step, tell what came of it."""

from __future__ import annotations

import logging
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, NamedTuple

from core.asking import Asking
from core.errors import Mistakes, UserError
from core.plugins.blame import brief
from core.sampling.params import SamplingParams
from plugins.serve.engine.bulletin import Bulletin
from plugins.serve.engine.link import Gone
from plugins.serve.engine.messages import (
    Accepted,
    Ask,
    Cancel,
    Counters,
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


LOOK = 0.002  # seconds
"""Between two looks at the socket, while nothing runs and a prompt is asked about."""


class Asked(NamedTuple):
    """A prompt whose acceptance takes long: a thread asks about it, and the others go on."""

    submit: Submit
    params: SamplingParams
    future: Future[list[str]]
    cancels: list[Cancel]  # that came meanwhile


class Service:
    """Runs an engine for whoever is at the other end of the link."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self._engine, self._link = engine, link
        self._bulletin = Bulletin(link.put)
        self._answers: dict[int, int] = {}  # how many each submitted prompt has; those that run
        self._asking = Asking(engine.sampler)
        self._asked: dict[int, Asked] = {}
        engine.on_step = self._bulletin

    def run(self) -> None:
        """Until the other end is closed. EngineDead, or what a plugin raises, when it breaks."""
        engine, link = self._engine, self._link
        spoke = 0.0
        try:
            while True:
                if not engine.busy or time.monotonic() - spoke >= PAUSE:
                    link.flush()
                    if self._asked:
                        self._settle(0.0 if engine.busy else LOOK)
                    for request in link.receive(wait=not engine.busy and not self._asked):
                        self._do(request)
                    link.flush()
                    spoke = time.monotonic()
                if engine.busy:
                    for output in engine.step():
                        del self._answers[int(output.request_id)]
        except Gone:
            return
        finally:
            self._asking.close()

    def _do(self, request: Request) -> None:
        if isinstance(request, Submit):
            self._submit(request, None)
        elif isinstance(request, Cancel):
            self._cancel(request)
        else:
            assert isinstance(request, Ask)
            self._link.put(Counters(self._engine.statistics()))

    def _settle(self, seconds: float) -> None:
        """Submit the prompts about which is known now what takes long; wait so long for one."""
        futures = {asked.future: number for number, asked in self._asked.items()}
        done, _ = wait(futures, seconds, FIRST_COMPLETED)
        for number in sorted(futures[future] for future in done):
            asked = self._asked.pop(number)
            self._submit(asked.submit, asked.params)
            for cancel in asked.cancels:
                self._cancel(cancel)

    def _submit(self, asked: Submit, params: SamplingParams | None) -> None:
        """`params`: they were asked about. None: they may still have to be."""
        number, answers = asked.number, asked.params.get("n", 1)
        try:
            if params is None:
                params = SamplingParams(**asked.params)
                self._check(params, asked.priority)
                if (future := self._asking.start(params)) is not None:
                    self._asked[number] = Asked(asked, params, future, [])
                    return
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
            self._link.put(Accepted(number))  # it is no mistake of whoever asks
            text = f"the request could not be queued. {brief(error)}"
            self._bulletin.never_ran(number, answers, text)
        else:
            self._bulletin.expect(str(number), number, params)
            self._answers[number] = params.n
            self._link.put(Accepted(number))

    def _check(self, params: SamplingParams, priority: int) -> None:
        """UserError for what would run, and not give what was asked for."""
        mistakes = Mistakes()
        for key, value in (params.extra_args or {}).items():
            if value is not None and self._engine.observers.reads(key):
                mistakes.add(
                    f"extra_args: {key} asks for what a server cannot send. Leave it out, or ask "
                    "core.LLM for it."
                )
        if priority and not self._engine.scheduler.reads_priority:
            mistakes.add(
                f"priority is {priority}, and the scheduler of this server does not look at "
                "priorities. Leave it out."
            )
        mistakes.tell()

    def _cancel(self, cancel: Cancel) -> None:
        number, index = cancel.number, cancel.index
        if number in self._asked:
            self._asked[number].cancels.append(cancel)
            return
        if (answers := self._answers.get(number)) is None:
            return  # it has ended meanwhile
        self._bulletin.forget(str(number), index, answers)
        if self._engine.abort(str(number), index) is not None:
            del self._answers[number]
