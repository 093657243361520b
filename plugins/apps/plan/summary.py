"""The footer of a dry run: sizes of model and cache, what ranks read, and what they wait for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.parallel.problems import ranges

if TYPE_CHECKING:
    import torch
    from torch import nn

    from core.config import Config
    from core.parallel import Index, ParallelPlan
    from core.setup import Setup

TYPES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F8_E4M3": "fp8"}


@dataclass(frozen=True)
class Cache:
    """What the keys and values of one token take over all layers, in bytes."""

    whole: int  # of the model on one device
    ranks: tuple[int, ...]
    page_size: int  # tokens


def cache_of(config: Config, setup: Setup, dtype: torch.dtype) -> Cache:
    """The cache that this configuration would make for a model of type `dtype`."""
    import torch

    from core import registry
    from core.parallel import on_meta

    plan = setup.plan
    asked = config.cache.dtype
    itemsize = dtype.itemsize if asked == "auto" else getattr(torch, asked).itemsize
    page_size = config.cache.page_size
    if page_size == "auto":  # what GPUs need: a plan does not depend on the machine that prints it
        page_size = next(iter(registry.attention.get(config.attention.use).page_sizes), 256)
    whole = _elements(on_meta(lambda: setup.architecture.model(setup.model_config)))
    ranks = (_elements(plan.skeleton(rank)) * itemsize for rank in range(plan.tensor))
    return Cache(whole * itemsize, tuple(ranks), page_size)


def _elements(model: nn.Module) -> int:
    """Elements of keys and values that one token adds."""
    from core.layers import Attention

    layers = [module for module in model.modules() if isinstance(module, Attention)]
    return sum(2 * layer.kv_heads * layer.head_dim for layer in layers)


def facts(plan: ParallelPlan, index: Index, cache: Cache) -> dict[str, str]:
    """Each line of the footer: what it is, and its value in words."""
    summary = plan.summary(index)
    parameters = sum(math.prod(shape) for shape, _ in index.values())
    types = sorted({TYPES.get(dtype, dtype) for _, dtype in index.values()})
    size = decimal(summary.checkpoint_bytes)
    page = cache.page_size
    found = {
        "model": f"{amount(parameters)} parameters, {size} in {' and '.join(types)}",
        "KV cache of a token": binary(cache.whole),
        "KV cache of a page": f"{binary(cache.whole * page)} for {page} tokens",
        "bytes read": by_rank([decimal(n) for n in summary.read_bytes]),
        "read by more than one rank": f"{summary.copied_share:.1%}",
        "fullest rank / mean": f"{summary.imbalance:.2f}",
        "collectives a forward pass": str(summary.collectives),
        "tensor sizes that work": ranges(summary.sizes),
    }
    if plan.tensor > 1:
        found["KV cache of a token"] += f"; {by_rank([binary(n) for n in cache.ranks])}"
    return found


def by_rank(values: Sequence[str]) -> str:
    """A value of each rank: `5 GB on ranks 0 to 2, 4 GB on rank 3`."""
    if len(set(values)) == 1:
        return f"{values[0]} on " + ("each rank" if len(values) > 1 else "the one rank")
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ", ".join(
        f"{value} on rank{'s' * (len(same) > 1)} {ranges(same)}" for value, same in ranks.items()
    )


def amount(number: int) -> str:
    """A large number as people say it: 8.19 B, 596 M, 1.4 k."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def decimal(count: int) -> str:
    """Bytes on a disk or link: 16.4 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def binary(count: int) -> str:
    """Bytes in memory: 144 KiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
