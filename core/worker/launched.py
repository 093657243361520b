"""A step on its way: its ids go to the host while the next step is planned and launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from core.interfaces import Pending
from core.types import StepOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from core.interfaces import Sampled
    from core.types import StepPlan, TokenLogprobs

NO_TOKEN = (
    "no token can be drawn: no logit is finite, or one is NaN. Check the weights and the dtype."
)


class Landed:
    """Ids that lie in memory of the host once what was launched before is over."""

    def __init__(self, ids: Tensor) -> None:
        """`ids` [S] int32: memory that may be written again after `keep`."""
        self.ids = ids
        self._over: torch.cuda.Event | None = None
        if ids.is_pinned():
            self._over = torch.cuda.Event()
            self._over.record()

    def done(self) -> bool:
        """Whether they are there."""
        return self._over is None or self._over.query()

    def keep(self) -> Tensor:
        """Wait for them, and take them out of that memory. May be called again."""
        if self._over is not None:
            self._over.synchronize()
            self._over = None
        if not self._kept:
            self.ids, self._kept = self.ids.clone(), True
        return self.ids

    _kept = False


class Landing(NamedTuple):
    """Pinned memory for the ids of one step, and the event behind their copy."""

    ids: Tensor  # [R] int64
    copied: torch.cuda.Event


class Landings:
    """Buffers for ids on their way to the host; one is used again when its step was read."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._free: list[Landing] = []

    def take(self) -> Landing:
        """One that nobody writes to or reads."""
        if self._free:
            return self._free.pop()
        memory = torch.empty(self._rows, dtype=torch.int64, pin_memory=True)
        return Landing(memory, torch.cuda.Event())

    def give_back(self, landing: Landing) -> None:
        """Its ids have been read."""
        self._free.append(landing)


class Launched(Pending):
    """Waits for this step alone, and only where its result is asked for."""

    def __init__(
        self,
        plan: StepPlan,
        sampled: Sampled,
        about_prompts: Mapping[int, list[TokenLogprobs]],
        landings: Landings,
        extras: Mapping[str, Mapping[int, Any]] | None = None,
    ) -> None:
        self._extras = extras or {}
        self._plan, self._sampled, self._about_prompts = plan, sampled, about_prompts
        self._landings = landings
        self._landing: Landing | None = None
        self._output: StepOutput | None = None
        # a runner may write the next step's ids into the same memory
        if sampled.landed is not None:
            self._ids = sampled.landed.ids
        elif sampled.ids.device.type == "cpu":
            self._ids = sampled.ids.clone()
        else:
            landing = landings.take()
            # the memory is seen in the ids' own type, because casting would copy synchronously
            host = landing.ids.view(sampled.ids.dtype)[: len(sampled.ids)]
            self._ids = host.copy_(sampled.ids, non_blocking=True)
            landing.copied.record()
            self._landing = landing

    def __del__(self) -> None:
        # of a rank that nobody asks, or a step that nobody waits for; a later copy into the same
        # memory comes after this one on the stream
        if self._landing is not None:
            self._landings.give_back(self._landing)

    def done(self) -> bool:
        if self._output is not None:
            return True
        if (landed := self._sampled.landed) is not None:
            return landed.done()
        return self._landing is None or self._landing.copied.query()

    def result(self) -> StepOutput:
        if self._output is None:
            self._output = self._read()
        return self._output

    def _read(self) -> StepOutput:
        if self._landing is not None:
            self._landing.copied.synchronize()
        plan, sampled = self._plan, self._sampled
        if sampled.landed is not None:
            self._ids = sampled.landed.keep()
        ids = self._ids.numpy().astype(np.int32)  # a copy: the pinned memory is given back
        if self._landing is not None:
            self._landings.give_back(self._landing)
            self._landing = None
        found = dict(sampled.errors or {})
        for s in np.flatnonzero(ids < 0).tolist():
            found.setdefault(s, NO_TOKEN)
            ids[s] = 0
        errors = {}
        if found:
            sampled_rows = np.flatnonzero(plan.sample).tolist()
            errors = {sampled_rows[s]: text for s, text in found.items()}
        return StepOutput(
            number=plan.number,
            ids=ids,
            logprobs=dict(sampled.logprobs or {}),
            prompt_logprobs=dict(self._about_prompts),
            errors=errors,
            extras={name: dict(seen) for name, seen in self._extras.items()},
        )
