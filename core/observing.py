"""Observers as the engine knows them: may a request ask, and what came of it."""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import TYPE_CHECKING

from core.errors import UserError
from core.interfaces import Observer
from core.interfaces.versions import unfit
from core.plugins import acting
from core.plugins.blame import brief
from core.settings.ranges import parse_bytes

if TYPE_CHECKING:
    from core.config import Config
    from core.sampling.params import SamplingParams
    from core.setup import Setup
    from core.types import Request, StepOutput, StepPlan

log = logging.getLogger("plait")


def observers_of(config: Config, setup: Setup) -> list[Observer]:
    """The observers of the plugins that the configuration names, new ones.

    UserError if two have one name or read one key, or if a plugin gives something else.
    """
    found: list[Observer] = []
    taken: set[str] = set()
    for observer in acting(config).observers(config=config, setup=setup):
        if not isinstance(observer, Observer):
            raise UserError(
                f"a plugin's hook `observers` returned {observer!r}. It must be a "
                "core.interfaces.Observer, or None."
            )
        if reason := unfit(type(observer), Observer):
            raise UserError(f"the observer {observer.name!r}: {reason}")
        words = {observer.name, *observer.extra_args}
        if both := sorted(words & taken):
            raise UserError(
                f"two plugins observe under the name {both[0]!r}. Leave one out of plugins."
            )
        taken |= words
        found.append(observer)
    return found


class Observers:
    """All observers of an engine."""

    def __init__(self, config: Config, setup: Setup) -> None:
        self._each = {observer.name: observer for observer in observers_of(config, setup)}
        self._memory, self._most = config.observe.memory, parse_bytes(config.observe.memory)

    def reads(self, key: str) -> bool:
        """Whether one of them reads this key of a request's `extra_args`."""
        return any(key in observer.extra_args for observer in self._each.values())

    def reasons(self, params: SamplingParams, prompt: int, limit: int) -> list[str]:
        """Why a prompt of `prompt` tokens that grows to `limit` cannot be observed as it asks."""
        found: list[str] = []
        asked = self._asked(params)
        for observer in asked:
            found += observer.accepts(params)
        if asked and not found:
            size = params.n * sum(observer.size(params, prompt, limit) for observer in asked)
            if size > self._most:
                found.append(
                    f"what it wants to see may take {size / 2**20:,.1f} MiB, and observe.memory "
                    f"is {self._memory}. Ask for fewer layers or positions, lower max_tokens, or "
                    "raise it."
                )
        return found

    def others(self, params: SamplingParams) -> SamplingParams:
        """The parameters without what observers read, which is nobody else's concern."""
        extra = params.extra_args or {}
        if not any(map(self.reads, extra)):
            return params
        rest = params.clone()
        rest.extra_args = {key: value for key, value in extra.items() if not self.reads(key)}
        return rest

    def need_prompt(self, params: SamplingParams) -> bool:
        """Whether one of them must see the whole prompt."""
        return any(observer.needs_prompt(params) for observer in self._asked(params))

    def take(self, plan: StepPlan, output: StepOutput, running: Container[Request]) -> None:
        """What was seen in a step, of the requests whose caller still waits."""
        for name, seen in output.extras.items():
            for b, value in seen.items():
                request = plan.requests[b]
                if request in running and request.error is None:
                    try:
                        self._each[name].take(request, int(plan.starts[b]), value)
                    except Exception as error:
                        self._failed(name, request, error)

    def finish(self, request: Request) -> None:
        """A request has ended: fill its `extras`."""
        for name, observer in self._each.items():
            if observer.asked(request.params):
                try:
                    request.extras |= observer.finish(request)
                except Exception as error:
                    self._failed(name, request, error)
                if request.error is not None:
                    request.finish_reason = "error"

    def _asked(self, params: SamplingParams) -> list[Observer]:
        return [observer for observer in self._each.values() if observer.asked(params)]

    @staticmethod
    def _failed(name: str, request: Request, error: Exception) -> None:
        log.error("the observer %s failed for request %s", name, request.id, exc_info=error)
        request.error = f"the observer {name!r} failed. {brief(error)}"
