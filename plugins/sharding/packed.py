"""Packed: checkpoint modules laid end to end in one module, each cut by its own strategy."""

from __future__ import annotations

from typing import Any

from core.parallel import Guard, Sharding


class Packed(Sharding):
    """The parts say what is cut; the whole has their guard, on which they must agree."""

    takes_axis = False
    composite = True

    @property
    def guard(self) -> type[Guard] | None:
        return self.parts[0].guard

    def accepts(self, module: Any) -> str | None:
        for part in self.parts:
            if reason := part.accepts(module):
                return reason
        first, *others = self.parts
        for part in others:
            if (part.guard, part.options) != (first.guard, first.options) and (
                part.guard or first.guard
            ):
                return "Its parts need different collectives; keep them in modules of their own."
        return None

    def layout(self) -> tuple[str, str]:
        before = {part.layout()[0] for part in self.parts}
        after = list(dict.fromkeys(part.layout()[1] for part in self.parts))
        return " ".join(sorted(before)), " ".join(after)
