"""Qwen3's own plan on a checkpoint as transformers writes it, in files, for several ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from core import registry
from core.errors import UserError
from core.parallel import ParallelPlan, allocate, load, unshard
from models.qwen3.architecture import Qwen3
from tests.tiny import save_tiny


def read(folder: Path, plan: ParallelPlan, rank: int) -> dict[str, Tensor]:
    with registry.sources.get("mmap").open(folder, {}) as source:
        plan.check(source.index(), source, rank)
        model = allocate(plan.local_model(rank), "cpu", torch.float32)
        load(plan.recipe(rank, source.index()), dict(model.named_parameters()), source)
        assert source.bytes_read >= plan.bytes(rank, source.index())  # twins are compared, too
    return model.state_dict()


def plan_of(folder: Path, ranks: int, **options: Any) -> ParallelPlan:
    raw = json.loads((folder / "config.json").read_text())
    return ParallelPlan.build(Qwen3, Qwen3.config(raw), ranks, **options)


def stored(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"attention_bias": True, "tie_word_embeddings": False}])
def test_shards_are_slices_and_give_the_files_back(
    ranks: int, options: dict[str, bool], tmp_path: Path
) -> None:
    folder = save_tiny(tmp_path, tokenizer=False, max_shard_size="200KB", **options)
    assert len(list(folder.glob("*.safetensors"))) > 1
    plan, tensors = plan_of(folder, ranks), stored(folder)
    states = [read(folder, plan, rank) for rank in range(ranks)]
    back = unshard(plan, states)
    assert set(back) == set(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    at = "model.layers.2"
    roles = ("weight", "bias") if options else ("weight",)
    for rank, state in enumerate(states):
        q, kv, mlp = (plan.cuts[axis].spans[rank] for axis in ("q", "kv", "mlp"))
        for role in roles:
            qkv = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)]
            expected = torch.cat(
                [tensors[f"{at}.self_attn.{n}.{role}"][a:b] for n, spans in qkv for a, b in spans]
            )
            assert torch.equal(state[f"{at}.self_attn.qkv_proj.{role}"], expected)
        expected = torch.cat(
            [tensors[f"{at}.mlp.{n}.weight"][a:b] for n in ("gate_proj", "up_proj") for a, b in mlp]
        )
        assert torch.equal(state[f"{at}.mlp.gate_up_proj.weight"], expected)


def test_an_equal_head_beside_a_tied_embedding_loads_and_a_different_one_does_not(
    tmp_path: Path,
) -> None:
    folder = save_tiny(tmp_path, tokenizer=False)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    save_file(tensors, file)
    plan = plan_of(folder, 2)
    assert torch.equal(
        read(folder, plan, 1)["lm_head.weight"][:5], tensors["lm_head.weight"][160:165]
    )
    tensors["lm_head.weight"][300] += 1
    save_file(tensors, file)
    with pytest.raises(UserError, match=r"^P11 the checkpoint holds lm_head.weight and "):
        read(folder, plan, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_files_of_another_type_are_cast(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, tokenizer=False, dtype=dtype)
    state, tensors = read(folder, plan_of(folder, 1), 0), stored(folder)
    name = "model.layers.0.self_attn.o_proj.weight"
    assert tensors[name].dtype == dtype
    assert torch.equal(state[name], tensors[name].float())


def test_dummy_weights_are_the_same_model_at_any_size(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, tokenizer=False, attention_bias=True)
    tensors: list[dict[str, Tensor]] = []
    for ranks in (1, 3):
        plan = plan_of(folder, ranks)
        states = []
        for rank in range(ranks):
            source = registry.sources.get("dummy").open(None, plan.expected_index("F32"), seed=5)
            model = allocate(plan.local_model(rank), "cpu", torch.float32)
            load(plan.recipe(rank), dict(model.named_parameters()), source)
            states.append(model.state_dict())
        tensors.append(unshard(plan, states))
    assert set(tensors[0]) == set(tensors[1])
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])


@pytest.mark.parametrize("size", ["0.6B", "1.7B", "4B", "8B", "14B", "32B"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_published_size_has_a_plan_and_aligned_shards(size: str, ranks: int) -> None:
    sizes = Path(__file__).parents[3] / "models" / "qwen3" / "sizes"
    plan = plan_of(sizes / f"Qwen3-{size}", ranks)
    plan.check(plan.expected_index())
    local = plan.local_config(ranks - 1)
    assert local.intermediate_size % 16 == 0
    assert local.vocab_size % 16 == 0
    assert plan.summary().imbalance < 1.25
