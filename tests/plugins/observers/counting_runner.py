"""A runner for tests, as a one-file plugin: the eager one, which counts its steps."""

from __future__ import annotations

from core.registry import runners
from plugins.runners.eager import Eager


@runners.register("counting", summary="counts the steps that come to it")
class Counting(Eager):
    steps = 0

    def run(self, batch):
        self.steps += 1
        return super().run(batch)
