"""Sampling parameters from an app's settings, on top of the model's own defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from core.errors import UserError

if TYPE_CHECKING:
    from core.sampling.params import SamplingParams


def with_settings(
    defaults: SamplingParams, given: Mapping[str, Any], *, key: str = "run.params"
) -> SamplingParams:
    """`defaults` with the values `given`. UserError names `key` and whatever is wrong there."""
    try:
        return dataclasses.replace(defaults, **given)
    except UserError as error:
        raise UserError("\n".join(f"{key}: {line}" for line in str(error).splitlines())) from None
