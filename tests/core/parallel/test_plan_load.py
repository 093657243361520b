"""Executing a recipe: in place, in bounded pieces, ties kept, bytes as planned."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from toys import Config, checkpoint, toy, toy_plan

from core.errors import UserError
from core.parallel import (
    Call,
    Copy,
    DictSource,
    Fill,
    ParallelPlan,
    allocate,
    guard,
    load,
    loading,
    unshard,
)
from core.parallel.recipe import Box, chunks, volume


class Counting(DictSource):
    """Remembers what it was asked for."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.asked: list[tuple[str, Box]] = []

    def read(self, name: str, box: Box) -> Tensor:
        self.asked.append((name, box))
        return super().read(name, box)


@pytest.mark.parametrize("ranks", [1, 3])
def test_bytes_asked_for_are_the_recipe_s(ranks: int) -> None:
    config = Config()
    plan = toy_plan(ranks, config)
    for rank in range(ranks):
        source = Counting(checkpoint(config))
        model = allocate(plan.local_model(rank), "cpu", torch.float64)
        load(plan.recipe(rank), dict(model.named_parameters()), source)
        assert source.bytes_read == plan.bytes(rank, source.index())
        assert source.bytes_read == 8 * sum(volume(box) for _, box in source.asked)


def test_large_regions_are_read_in_pieces_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "STAGED", 12)
    whole = torch.arange(60.0).reshape(10, 6)
    source = Counting({"w": whole})
    target = torch.zeros(7, 4)
    load([Copy("w", ((2, 9), (1, 5)), "p", ((0, 7), (0, 4)))], {"p": target}, source)
    assert torch.equal(target, whole[2:9, 1:5])
    assert [box[0] for _, box in source.asked] == [(2, 5), (5, 8), (8, 9)]


def test_a_transposed_region_is_read_in_pieces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "STAGED", 12)
    whole = torch.arange(60.0).reshape(10, 6)
    target = torch.zeros(4, 7)
    op = Copy("w", ((2, 9), (1, 5)), "p", ((0, 4), (0, 7)), perm=(1, 0))
    load([op], {"p": target}, DictSource({"w": whole}))
    assert torch.equal(target, whole[2:9, 1:5].T)


def test_pieces_of_a_stepped_region_keep_the_step() -> None:
    pieces = list(chunks(((1, 12, 3), (0, 2)), 4))
    assert pieces == [((1, 5, 3), (0, 2)), ((7, 11, 3), (0, 2))]
    rows = [row for piece in pieces for row in range(*piece[0])]
    assert rows == list(range(1, 12, 3))


def test_a_call_computes_its_region_from_several() -> None:
    tensors = {"w": torch.full((4, 2), 3.0), "s": torch.tensor([1.0, 2.0, 4.0, 8.0])}
    op = Call(
        "tests_calls:scaled", (("w", ((2, 4), (0, 2))), ("s", ((2, 4),))), "p", ((0, 2), (0, 2))
    )
    import sys
    from types import ModuleType

    module = ModuleType("tests_calls")
    module.scaled = lambda w, s: w * s[:, None]  # type: ignore[attr-defined]
    sys.modules["tests_calls"] = module
    try:
        target = torch.zeros(2, 2)
        load([op], {"p": target}, DictSource(tensors))
    finally:
        del sys.modules["tests_calls"]
    assert target.tolist() == [[12.0, 12.0], [24.0, 24.0]]


def test_loading_casts_to_the_parameter_and_reports_bytes() -> None:
    target = torch.zeros(4, dtype=torch.bfloat16)
    seen: list[tuple[int, int]] = []
    recipe = [Copy("w", ((0, 3),), "p", ((0, 3),)), Fill("p", ((3, 4),), 9.0)]
    load(
        recipe,
        {"p": target},
        DictSource({"w": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)}),
        lambda done, total: seen.append((done, total)),
    )
    assert target.tolist() == [1.0, 2.0, 3.0, 9.0]
    assert seen == [(6, 8), (8, 8)]


def test_tied_parameters_share_memory_after_allocation() -> None:
    plan = toy_plan(2, Config(tie_word_embeddings=True))
    model = allocate(plan.local_model(1), "cpu", torch.bfloat16)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert not model.lm_head.weight.requires_grad


def test_a_parameter_may_keep_its_type() -> None:
    class Gate(nn.Linear):
        keep_dtype = ("weight",)

    with torch.device("meta"):
        model = nn.ModuleDict({"gate": Gate(2, 2), "codes": nn.Module()})
        codes = torch.zeros(2, dtype=torch.int32)
        model["codes"].weight = nn.Parameter(codes, requires_grad=False)
    allocate(model, "cpu", torch.bfloat16)
    types = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert types == {
        "gate.weight": torch.float32,
        "gate.bias": torch.bfloat16,
        "codes.weight": torch.int32,
    }


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reset_buffers()

    def reset_buffers(self) -> None:
        self.register_buffer("table", torch.arange(3.0), persistent=False)


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(3.0), persistent=False)


def test_buffers_lost_on_meta_are_computed_again_or_told() -> None:
    with torch.device("meta"):
        good, bad = nn.ModuleDict({"rope": Rotary()}), nn.ModuleDict({"rope": Forgetful()})
    allocate(good, "cpu", torch.float32)
    assert good["rope"].table.tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(UserError) as caught:
        allocate(bad, "cpu", torch.float32)
    assert str(caught.value) == (
        "rope (Forgetful) has buffers computed on the meta device and no reset_buffers() to "
        "compute them again; add that method to the module."
    )


def test_a_recipe_with_a_call_does_not_run_backwards() -> None:
    plan = toy_plan(1)
    states = [allocate(plan.local_model(0), "cpu", torch.float64).state_dict()]
    plan.built.recipes[0].append(Call("m:f", (("w", ()),), "model.norm.weight", ((0, 32),)))
    with pytest.raises(ValueError, match=r"model.norm.weight is computed .* cannot be undone"):
        unshard(plan, states)


def test_guards_swap_the_class_and_nothing_else() -> None:
    from core.parallel import ThreadGroup
    from core.parallel.groups import ThreadCommunicator

    plan = toy_plan(2)
    model = plan.local_model(0)
    before = list(model.state_dict())
    comm = ThreadCommunicator(ThreadGroup(2), 0)
    guard(model, plan, 0, comm)
    attention = model.get_submodule("model.layers.0.self_attn")
    assert type(attention.o_proj).__name__ == "AllReduceLinear"
    assert isinstance(attention.o_proj, nn.Linear)
    assert type(attention.o_proj) is type(model.get_submodule("model.layers.1.mlp.down_proj"))
    assert type(attention.qkv_proj) is nn.Linear
    assert list(model.state_dict()) == before
    assert not attention.o_proj._forward_hooks


def test_one_rank_has_no_guards() -> None:
    plan = toy_plan(1)
    model = guard(plan.local_model(0), plan, 0, None)
    assert all(type(module).__module__ in ("toys", "torch.nn.modules.linear",
               "torch.nn.modules.sparse", "torch.nn.modules.container")
               for module in model.modules())  # fmt: skip
    assert toy().model is type(model)


@pytest.mark.parametrize(("ranks", "models"), [(1, 1), (2, 2), (8, 2)])
def test_one_model_is_built_to_look_at_for_equal_ranks_and_the_whole(ranks, models) -> None:
    made: list[nn.Module] = []

    def model(config: Config) -> nn.Module:
        made.append(toy().model(config))
        return made[-1]

    plan = ParallelPlan.build(toy(model=model), Config(num_key_value_heads=8, vocab_size=104,
                              intermediate_size=64), ranks, replicate_limit=1.0)  # fmt: skip
    assert len({id(plan.skeleton(rank)) for rank in range(ranks)}) == 1
    assert len(made) == models
    assert plan.local_model(0) is not plan.local_model(0)
    assert plan.skeleton(0) is not made[-1]
