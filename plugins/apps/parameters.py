"""Sampling parameters from an app's settings, on top of the model's own defaults."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from core.errors import UserError

if TYPE_CHECKING:
    from core.params import SamplingParams


def with_settings(
    defaults: SamplingParams, given: Mapping[str, Any], *, key: str = "run.params"
) -> SamplingParams:
    """`defaults` with the values `given`. UserError names `key` and every wrong one."""
    known = [f.name for f in dataclasses.fields(defaults) if f.init and not f.name.startswith("_")]
    if unknown := [name for name in given if name not in known]:
        lines = []
        for name in unknown:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else f" There are: {', '.join(known)}."
            lines.append(f"{key}.{name}: there is no sampling parameter of this name.{hint}")
        raise UserError("\n".join(lines))
    return dataclasses.replace(defaults, **given)
