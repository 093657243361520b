"""Any number of ranks computes what one does, and gives the checkpoint back bit for bit."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toys import Config, checkpoint, reference, toy, toy_plan

from core.parallel import Communicator, ThreadGroup, unshard, verify_plan
from core.parallel.verify import build_rank

configs = st.builds(
    lambda kv, group, **rest: Config(
        num_attention_heads=kv * group, num_key_value_heads=kv, num_hidden_layers=1, **rest
    ),
    st.integers(1, 4),
    st.integers(1, 7),
    hidden_size=st.sampled_from([24, 32]),
    intermediate_size=st.integers(3, 80),
    vocab_size=st.integers(5, 131),
    head_dim=st.sampled_from([4, 8]),
    attention_bias=st.booleans(),
    mlp_bias=st.booleans(),
    tie_word_embeddings=st.booleans(),
)


@settings(max_examples=40)
@given(configs, st.integers(1, 8), st.integers(0, 99))
def test_n_ranks_equal_the_reference_and_give_the_checkpoint_back(
    config: Config, ranks: int, seed: int
) -> None:
    ranks = min(ranks, config.num_attention_heads)
    weights = checkpoint(config, seed)
    ids = torch.randint(0, config.vocab_size, (7,), generator=torch.Generator().manual_seed(seed))
    plan = toy_plan(ranks, config)

    @torch.inference_mode()
    def rank(comm: Communicator) -> tuple[Tensor, dict[str, Tensor]]:
        model = build_rank(plan, comm.rank, weights, comm)
        return model(ids), model.state_dict()

    logits, states = zip(*ThreadGroup(ranks).run(rank), strict=True)
    expected = reference(config, weights, ids)
    for found in logits:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        assert torch.equal(found, logits[0])  # every rank holds the same bits
    back = unshard(plan, states)
    assert set(back) == set(weights)
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_ranks_without_any_of_the_intermediate_size() -> None:
    config = Config(intermediate_size=3, mlp_bias=True)
    ran = verify_plan(toy(), config, (5, 8), reference=lambda w, ids: reference(config, w, ids))
    assert ran == [5, 8]


def test_ranks_without_a_row_of_the_vocabulary() -> None:
    config = Config(vocab_size=5)  # at 4 ranks: 2, 2, 1 and 0 rows
    assert toy_plan(4, config).cuts["vocab"].spans[3] == ()
    verify_plan(toy(), config, (4,), reference=lambda w, ids: reference(config, w, ids))


def test_foreign_rows_may_hold_infinities() -> None:
    config = Config(num_hidden_layers=1)
    weights = checkpoint(config)
    weights["model.embed_tokens.weight"][0] = torch.inf  # what rank 0 looks up for foreign ids
    plan = toy_plan(2, config)

    @torch.inference_mode()
    def rank(comm: Communicator) -> Tensor:
        return build_rank(plan, comm.rank, weights, comm)(torch.tensor([99, 3]))

    for logits in ThreadGroup(2).run(rank):
        assert logits.isfinite().all()


def test_an_axis_that_no_rule_uses_is_not_narrowed() -> None:
    whole = [
        {"source": name, "strategy": "replicate", "size": "intermediate_size"}
        for name in ("gate_proj", "up_proj")
    ]
    overrides = {
        "model.layers.*.mlp.gate_up_proj": {"strategy": "packed", "parts": whole},
        "model.layers.*.mlp.down_proj": "replicate",
        "model.embed_tokens": "replicate",
        "lm_head": "replicate",
    }
    config = Config()
    local = toy_plan(3, config, overrides=overrides).local_config(2)
    assert (local.vocab_size, local.intermediate_size) == (101, 52)
    assert local.num_attention_heads == 4
    verify_plan(
        toy(),
        config,
        (3,),
        overrides=overrides,
        reference=lambda w, ids: reference(config, w, ids),
    )
