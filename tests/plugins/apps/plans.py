"""Random plans of the toy, and what their ranks read, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from core.errors import UserError
from core.parallel import Index, ParallelPlan
from core.parallel.recipe import reads, slices
from tests.core.parallel.toys import GATE_UP, PLAN, Config, toy


@st.composite
def toy_plans(draw: st.DrawFn) -> ParallelPlan:
    """Sizes that nothing divides, one to seven ranks, gate and up stored in any of three ways."""
    kv_heads = draw(st.integers(1, 4))
    config = Config(
        vocab_size=draw(st.integers(3, 40)),
        hidden_size=draw(st.integers(2, 12)),
        intermediate_size=draw(st.integers(1, 30)),
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=kv_heads * draw(st.integers(1, 4)),
        num_key_value_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 3)),
        attention_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()),
    )
    on_disk = draw(st.sampled_from(["split", "fused", "interleaved:2"]))
    rule: dict[str, Any] = {
        "strategy": "packed",
        "on_disk": on_disk,
        "parts": [
            {"source": "gate_proj", "strategy": "colwise:mlp"},
            {"source": "up_proj", "strategy": "colwise:mlp"},
        ],
    }
    if on_disk != "split":
        rule["source"] = "gate_up_proj"
    if draw(st.booleans()):
        rule["perm"] = [1, 0]  # the weight is stored transposed
    head: dict[str, Any] = {"strategy": "vocab_head"}
    if draw(st.booleans()) and not config.tie_word_embeddings:
        head["perm"] = [1, 0]
    family = toy(plan={**PLAN, GATE_UP: rule, "lm_head": head})
    try:
        return ParallelPlan.build(family, config, draw(st.integers(1, 7)), replicate_limit=1.0)
    except UserError:  # more ranks than query heads
        assume(False)
        raise


def read_by(plan: ParallelPlan, index: Index) -> Mapping[str, np.ndarray]:
    """For each tensor and rank whether each element is read: [ranks, *shape]."""
    masks = {name: np.zeros((plan.tensor, *shape), bool) for name, (shape, _) in index.items()}
    for rank in range(plan.tensor):
        for op in plan.recipe(rank, index):
            for name, box in reads(op):
                masks[name][(rank, *slices(box))] = True
    return masks
