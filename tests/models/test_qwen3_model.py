"""Qwen3 against transformers: the same logits from one sequence, chunks, and mixed batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.rope import Rope
from plugins.kernels.torch import TorchKernels
from tests.models.by_hand import ByHand, reference_logits
from tests.tiny import tiny_model

THETA = 1e4
ROPES = {
    "default": {},
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {
        "short_factor": [1.0 + 0.1 * i for i in range(16)],
        "long_factor": [1.0 + 0.5 * i for i in range(16)],
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}
SHAPES = {
    "plain": {},
    "biases": {"attention_bias": True},
    "untied": {"tie_word_embeddings": False, "attention_bias": True},
    "one key head": {"num_key_value_heads": 1},
    "no groups": {"num_key_value_heads": 4},
    "narrow heads": {"head_dim": 8, "hidden_size": 48, "num_attention_heads": 6},
    "pairs": {"head_dim": 2, "vocab_size": 32, "intermediate_size": 15},
    "window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    "two kinds": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "odd layers": {
        "use_sliding_window": True,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "large eps": {"rms_norm_eps": 0.5},
}


def ids(count: int, seed: int = 0, vocabulary: int = 301) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (count,), generator=generator).tolist()


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal within 1e-5 of the largest logit: float32 resolves no more in a sum of this size."""
    assert found.shape == expected.shape
    worst = (found.cpu() - expected).abs().max() / expected.abs().max()
    assert worst < 1e-5, f"off by {worst:.2e} of the largest logit"


def in_chunks(model: ByHand, tokens: Sequence[int], cuts: Sequence[int], name: str) -> Tensor:
    ends = [*cuts, len(tokens)]
    starts = [0, *cuts]
    parts = [model.step({name: tokens[a:b]})[name] for a, b in zip(starts, ends, strict=True)]
    return torch.cat(parts)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_transformers(shape, device):
    theirs = tiny_model(seed=1, **SHAPES[shape])
    tokens = ids(23, vocabulary=theirs.config.vocab_size)
    expected = reference_logits(theirs, tokens)
    ours = ByHand(theirs, device=device)
    assert_same(ours.step({"whole": tokens})["whole"], expected)
    assert_same(in_chunks(ours, tokens, [1, 8, 9, 20, 21, 22], "chunks"), expected)


@pytest.mark.parametrize("kind", ROPES)
def test_rope_types_are_those_of_transformers(kind, device):
    rope = {"rope_type": kind, "rope_theta": THETA, **ROPES[kind]}
    theirs = tiny_model(seed=2, max_position_embeddings=32, rope_parameters=rope)
    # dynamic is right for sequences of just the longest length, so one of that length it is
    tokens = ids(48 if kind == "dynamic" else 23)
    expected = reference_logits(theirs, tokens)
    ours = ByHand(theirs, max_length=len(tokens), device=device)
    assert_same(in_chunks(ours, tokens, [7, 15, 16], "a"), expected)


def test_neighbours_in_a_batch_do_not_matter(device):
    theirs = tiny_model(seed=3, **SHAPES["two kinds"])
    ours = ByHand(theirs, device=device)
    long, short, third = ids(20, 1), ids(6, 2), ids(9, 3)
    found = {
        "long": [ours.step({"long": long[:10]})["long"]],
        "short": [],
        "third": [],
    }
    for work in (
        {"long": long[10:11], "short": short},
        {"third": third[:1], "long": long[11:12]},
        {"long": long[12:19], "third": third[1:]},
        {"long": long[19:]},
    ):
        for name, logits in ours.step(work).items():
            found[name].append(logits)
    for name, tokens in (("long", long), ("short", short), ("third", third)):
        assert_same(torch.cat(found[name]), reference_logits(theirs, tokens))


@given(
    steps=st.lists(st.tuples(*[st.integers(0, 9)] * 3).filter(any), min_size=1, max_size=6),
    page_size=st.sampled_from([1, 2, 4, 16]),
)
@settings(max_examples=25)
def test_any_schedule_gives_the_same_logits(steps, page_size):
    theirs = tiny_model(seed=4, **SHAPES["two kinds"])
    ours = ByHand(theirs, page_size=page_size, pages=192)
    found: list[list[Tensor]] = [[], [], []]
    sequences = [ids(sum(counts), seed) for seed, counts in enumerate(zip(*steps, strict=True))]
    done = [0, 0, 0]
    for counts in steps:
        work = {
            str(i): sequences[i][done[i] : done[i] + count]
            for i, count in enumerate(counts)
            if count
        }
        done = [before + count for before, count in zip(done, counts, strict=True)]
        for name, logits in ours.step(work).items():
            found[int(name)].append(logits)
    for logits, tokens in zip(found, sequences, strict=True):
        if tokens:
            assert_same(torch.cat(logits), reference_logits(theirs, tokens))


def test_packed_weights_give_the_same_logits():
    theirs = tiny_model(seed=5, attention_bias=True)
    tokens = ids(17)
    ours = ByHand(theirs, pack_from=0)
    down = ours.model.model.layers[0].mlp.down_proj
    if down.weight.layout is torch.strided:
        pytest.skip("this machine's torch packs no weights")
    assert_same(ours.step({"a": tokens})["a"], reference_logits(theirs, tokens))
    assert ours.step({"a": [1]})["a"].shape == (1, 301)
    # a tied head keeps a copy of its own, since rows of the embedding must stay readable
    assert ours.model.lm_head.weight is ours.model.model.embed_tokens.weight
    theirs_down = theirs.model.layers[0].mlp.down_proj.weight
    assert torch.equal(down.weight.to_dense(), theirs_down)


def test_bfloat16_is_as_exact_as_in_transformers():
    theirs = tiny_model(seed=6, initializer_range=0.15)
    tokens = ids(64)
    ours = ByHand(theirs, dtype=torch.bfloat16)
    found = ours.step({"a": tokens})["a"].double()
    rounded = theirs.to(torch.bfloat16)
    rough = reference_logits(rounded, tokens).double()
    exact = reference_logits(rounded.double(), tokens)
    own_error, their_error = ((x - exact).square().mean().sqrt() for x in (found, rough))
    assert own_error <= 1.05 * their_error
    assert their_error > 1e-3  # or it would mean nothing


def test_a_tied_head_is_one_parameter():
    ours = ByHand(tiny_model())
    assert ours.model.lm_head.weight is ours.model.model.embed_tokens.weight
    untied = ByHand(tiny_model(tie_word_embeddings=False))
    assert untied.model.lm_head.weight is not untied.model.model.embed_tokens.weight


def test_no_rows_have_no_logits():
    for pack_from in (None, 0):
        ours = ByHand(tiny_model(), pack_from=pack_from)
        assert ours.model.logits(torch.zeros(0, 64)).shape == (0, 301)


FAULTS = {
    "no rotation": (Rope, "table", lambda self, device, positions: _still(self, device)),
    "no q norm": (TorchKernels, "rope_store", lambda self, *a: _plain_norm(self, *a)),
}


def _still(rope: Rope, device) -> Tensor:
    table = torch.zeros(rope.length, 2, rope.head_dim // 2)
    table[:, 0] = 1
    return table.to(device)


_rope_store = TorchKernels.rope_store


def _plain_norm(kernels, q, k, v, norms, *rest):
    return _rope_store(kernels, q, k, v, (torch.ones_like(norms[0]), *norms[1:]), *rest)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_oracle_sees_faults(fault, monkeypatch):
    owner, name, wrong = FAULTS[fault]
    monkeypatch.setattr(owner, name, wrong)
    theirs = tiny_model()
    tokens = ids(9)
    found = ByHand(theirs).step({"a": tokens})["a"]
    with pytest.raises(AssertionError, match="off by"):
        assert_same(found, reference_logits(theirs, tokens))
