"""Parallel plans: a rank is a narrower model, a read recipe, and a few guards.

Names are imported on first use, so that declaring axes and matching rules need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.parallel.axes import Axis as Axis
    from core.parallel.axes import Infeasible as Infeasible
    from core.parallel.axes import Partition as Partition
    from core.parallel.axes import Partitioner as Partitioner
    from core.parallel.axes import axis as axis
    from core.parallel.axes import even as even
    from core.parallel.axes import experts as experts
    from core.parallel.axes import gqa as gqa
    from core.parallel.axes import vocab as vocab
    from core.parallel.encoding import EncodedSource as EncodedSource
    from core.parallel.facts import allocate as allocate
    from core.parallel.facts import on_meta as on_meta
    from core.parallel.facts import weight_bytes as weight_bytes
    from core.parallel.formats import Format as Format
    from core.parallel.formats import Quantization as Quantization
    from core.parallel.formats import formats_of as formats_of
    from core.parallel.groups import Communicator as Communicator
    from core.parallel.groups import RankLost as RankLost
    from core.parallel.groups import Solo as Solo
    from core.parallel.groups import ThreadGroup as ThreadGroup
    from core.parallel.guards import Guard as Guard
    from core.parallel.guards import guard as guard
    from core.parallel.index import Index as Index
    from core.parallel.loading import load as load
    from core.parallel.loading import unshard as unshard
    from core.parallel.logits import CutLogits as CutLogits
    from core.parallel.plan import ParallelPlan as ParallelPlan
    from core.parallel.process_groups import connect as connect
    from core.parallel.recipe import Call as Call
    from core.parallel.recipe import Copy as Copy
    from core.parallel.recipe import Fill as Fill
    from core.parallel.sources import DictSource as DictSource
    from core.parallel.sources import Headers as Headers
    from core.parallel.sources import Source as Source
    from core.parallel.sources import dtype_name as dtype_name
    from core.parallel.strategy import Sharding as Sharding
    from core.parallel.verify import verify_plan as verify_plan

_HOMES = {
    "axes": "Axis Infeasible Partition Partitioner axis even experts gqa vocab",
    "encoding": "EncodedSource",
    "facts": "allocate on_meta weight_bytes",
    "formats": "Format Quantization formats_of",
    "groups": "Communicator RankLost Solo ThreadGroup",
    "guards": "Guard guard",
    "index": "Index",
    "loading": "load unshard",
    "logits": "CutLogits",
    "plan": "ParallelPlan",
    "process_groups": "connect",
    "recipe": "Call Copy Fill",
    "sources": "DictSource Headers Source dtype_name",
    "strategy": "Sharding",
    "verify": "verify_plan",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
