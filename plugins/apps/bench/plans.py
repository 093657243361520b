"""The steps that an engine has planned: what is in them, and how to go on by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.engine import Engine
    from core.types import StepPlan


class Plans:
    """What an engine plans from now on.

    A call of its `step` need not launch a step: with every row taken, say, it waits for a result.
    """

    def __init__(self, engine: Engine) -> None:
        self.made: list[StepPlan] = []
        self._engine, plan = engine, engine.scheduler.plan

        def planned() -> StepPlan | None:
            made = plan()
            if made is not None:
                self.made.append(made)
            return made

        engine.scheduler.plan = planned  # type: ignore[method-assign]

    def step(self) -> bool:
        """Go on until one more step is launched. False: nothing was left to compute."""
        before = len(self.made)
        while len(self.made) == before and self._engine.busy:
            self._engine.step()
        return len(self.made) > before
