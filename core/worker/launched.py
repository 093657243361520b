"""A step on its way: its ids go to the host while the next step is planned and launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from core.interfaces import Pending
from core.landed import Landed
from core.types import StepOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.interfaces import Sampled
    from core.types import StepPlan, TokenLogprobs

NO_TOKEN = (
    "no token can be drawn: no logit is finite, or one is NaN. Check the weights and the dtype."
)


class Launched(Pending):
    """Waits for this step alone, and only where its result is asked for."""

    def __init__(
        self,
        plan: StepPlan,
        sampled: Sampled,
        about_prompts: Mapping[int, list[TokenLogprobs]],
        extras: Mapping[str, Mapping[int, Any]] | None = None,
    ) -> None:
        self._plan, self._sampled, self._about_prompts = plan, sampled, about_prompts
        self._extras = extras or {}
        self._landed = sampled.landed or Landed.of(sampled.ids)
        self._output: StepOutput | None = None

    def done(self) -> bool:
        return self._landed.done()

    def result(self) -> StepOutput:
        if self._output is None:
            self._output = self._read()
        return self._output

    def _read(self) -> StepOutput:
        plan, sampled, ids = self._plan, self._sampled, self._landed.keep()
        found = dict(sampled.errors or {})
        for s in np.flatnonzero(ids < 0).tolist():
            found.setdefault(s, NO_TOKEN)
        errors = {}
        if found:
            sampled_rows = np.flatnonzero(plan.sample).tolist()
            errors = {sampled_rows[s]: text for s, text in found.items()}
        return StepOutput(
            number=plan.number,
            ids=np.maximum(ids, 0),
            logprobs=dict(sampled.logprobs or {}),
            prompt_logprobs=dict(self._about_prompts),
            errors=errors,
            extras={name: dict(seen) for name, seen in self._extras.items()},
        )
