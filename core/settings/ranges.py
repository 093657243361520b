"""Values that have the right type and still cannot be meant: ranges, sizes, reserved keys."""

from __future__ import annotations

import re

from core.config import Config
from core.errors import UserError

MOST_RANKS = 1024  # that share a layer; a plan is made for each of them before anything starts
LARGEST = 2**31 - 1  # tokens and pages are 32-bit numbers
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str) -> int:
    """Bytes in a size such as "4GiB", "512 MiB" or "1.5GB". UserError if it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise UserError(f"{text!r} is not a size. Write a number and a unit, such as 4GiB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def out_of_range(config: Config) -> list[tuple[str, str]]:
    """(key, sentence) for each such value."""
    model, parallel, cache = config.model, config.parallel, config.cache
    found = []

    def demand(good: bool, key: str, sentence: str) -> None:
        if not good:
            found.append((key, sentence))

    demand(model.path != "", "model.path", "is empty. Name the folder of a checkpoint.")
    demand(
        re.fullmatch(r"auto|cpu|cuda(:\d+)?", model.device) is not None,
        "model.device",
        f"must be auto, cpu, cuda or cuda:N, not {model.device!r}.",
    )
    for key, value, least, most in (
        ("model.max_length", model.max_length, 2, LARGEST),  # a prompt and an answer
        ("model.seed", model.seed, 0, 2**63 - 1),
        ("parallel.tensor", parallel.tensor, 1, MOST_RANKS),
        ("cache.page_size", cache.page_size, 1, LARGEST),
        ("cache.pages", cache.pages, 1, LARGEST),
    ):
        if isinstance(value, int):
            demand(value >= least, key, f"must be {least} or more, not {value}.")
            demand(value <= most, key, f"must be {most} or less, not {value}.")
    for key in ("pipeline", "data", "expert"):
        value = getattr(parallel, key)
        sentence = f"{key} parallel is not implemented: it must be 1, not {value}."
        demand(value == 1, f"parallel.{key}", sentence)
    limit, fraction = parallel.replicate_limit, cache.memory_fraction
    demand(0 <= limit <= 1, "parallel.replicate_limit", f"must lie in 0 to 1, not {limit}.")
    demand(
        0 < fraction <= 1,
        "cache.memory_fraction",
        f"must be above 0 and at most 1, not {fraction}.",
    )
    for key, size in (("cache.memory", cache.memory), ("observe.memory", config.observe.memory)):
        if size is not None:
            try:
                demand(parse_bytes(size) > 0, key, "must be more than nothing.")
            except UserError as error:
                found.append((key, str(error)))
    return found
