"""Replicate: the whole weight on every rank, which then computes the same as the others."""

from __future__ import annotations

from core.parallel import Sharding


class Replicate(Sharding):
    """Nothing is cut."""

    takes_axis = False
