"""Where each running request is: queued, prefill or decode, as slices on a track of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plait_trace.file import REQUESTS, instant, slice_, track_name

if TYPE_CHECKING:
    from core.types import Request, StepPlan

Event = dict[str, Any]


@dataclass(slots=True)
class Running:
    """A request that the trace knows, and the slice that it is in."""

    track: int
    phase: str
    since: float  # seconds, as time.monotonic()
    preemptions: int = 0


class Requests:
    """Makes the events of requests; remembers those that run, and no others."""

    def __init__(self, micros: Callable[[float], float]) -> None:
        """`micros`: the trace's time of a moment of time.monotonic()."""
        self._micros = micros
        self._running: dict[Request, Running] = {}
        self._tracks = 0
        # a step may already be on its way with a request that has ended
        self._ended: set[Request] = set()
        self._ended_before: set[Request] = set()

    def step(self, plan: StepPlan, launched: float, now: float) -> list[Event]:
        """What a step that has just ended changes."""
        events: list[Event] = []
        for request, sampled in zip(plan.requests, plan.sample.tolist(), strict=True):
            state = self._running.get(request)
            if state is None:
                if request in self._ended or request in self._ended_before:
                    continue
                state = self._meet(request, events)
                self._turn(state, "prefill", launched, events)
            if request.preemptions > state.preemptions:
                state.preemptions = request.preemptions
                events.append(instant(REQUESTS, state.track, "preempted", self._micros(launched)))
            if sampled and state.phase == "prefill":
                self._turn(state, "decode", now, events)
        self._ended_before, self._ended = self._ended, set()
        return events

    def done(self, request: Request, now: float) -> list[Event]:
        """The end of a request that ran, or only waited."""
        events: list[Event] = []
        state = self._running.get(request) or self._meet(request, events)
        del self._running[request]
        self._ended.add(request)
        self._turn(
            state, "", now, events,
            prompt_tokens=len(request.prompt), output_tokens=len(request.output),
            cached_tokens=request.cached, preemptions=request.preemptions,
            finish_reason=request.finish_reason,
        )  # fmt: skip
        return events

    def lost(self, now: float) -> list[Event]:
        """The end of all that still run when the engine stops."""
        events: list[Event] = []
        for state in self._running.values():
            self._turn(state, "", now, events, finish_reason="engine stopped")
        self._running.clear()
        return events

    def _meet(self, request: Request, events: list[Event]) -> Running:
        self._tracks += 1
        state = self._running[request] = Running(self._tracks, "queued", request.arrival)
        events.append(track_name(REQUESTS, state.track, f"request {request.id}"))
        return state

    def _turn(
        self, state: Running, phase: str, at: float, events: list[Event], **args: Any
    ) -> None:
        """End the present slice, and begin the next one."""
        start, stop = self._micros(state.since), self._micros(at)
        events.append(slice_(REQUESTS, state.track, state.phase, start, stop, **args))
        state.phase, state.since = phase, max(at, state.since)
