"""The ways to measure, and the settings that each reads: others are refused, not ignored."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from core.errors import Mistakes

if TYPE_CHECKING:
    from plugins.apps.bench.app import Bench

READ = {  # by the setting that asks for the way, the first that is given; none of them: offline
    "url": {
        "url", "model", "api_key_env", "label", "vocabulary", "salt", "workloads", "repeat",
        "concurrency", "rounds", "rate", "burstiness", "seed", "slo", "out", "plot",
    },
    "host": {"host"},
    "trace": {"trace", "trace_steps", "workloads"},
    "": {"workloads", "repeat", "out", "peer", "continuous"},
}  # fmt: skip
OF = {"continuous": "peer", "burstiness": "rate", "seed": "rate", "rounds": "concurrency"}
"""What says more of another setting, and nothing without it."""


def check_read(options: Bench.Options) -> None:
    """UserError with every setting that differs from its default and would be read by nobody."""
    usual, mistakes = type(options)(), Mistakes()
    given = [f.name for f in fields(options) if getattr(options, f.name) != getattr(usual, f.name)]
    way = next(name for name in READ if name in given or not name)
    for name in given:
        if name in READ[way]:
            needed = OF.get(name, name)
        elif way:
            mistakes.add(f"run.{name} is not read with run.{way}. Leave one of them out.")
            continue
        else:
            needed = next(other for other in READ if name in READ[other])
        if needed not in given:
            mistakes.add(f"run.{name} is read with run.{needed} alone. Leave it out, or set that.")
    mistakes.tell()
