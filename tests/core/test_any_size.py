"""Tensor parallelism of any size gives the tokens of one rank, for models of any shape."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core import LLM, SamplingParams
from tests.tiny import greedy, save_tiny, tiny_model

THREADS = str(Path(__file__).parents[1] / "threads.py")
TOKENS = 8


@st.composite
def shapes(draw) -> dict:
    """Shapes that do not divide: the ones that ranks must share unevenly or copy."""
    kv = draw(st.integers(1, 3))
    group = draw(st.integers(-(-5 // kv), 6))  # at least a head for each of five ranks
    return {
        "num_key_value_heads": kv,
        "num_attention_heads": kv * group,
        "head_dim": draw(st.sampled_from([8, 32])),
        "hidden_size": draw(st.sampled_from([40, 64])),
        "intermediate_size": draw(st.integers(5, 101)),
        "vocab_size": draw(st.integers(262, 311)),
        "num_hidden_layers": draw(st.integers(1, 2)),
        "attention_bias": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 261, (n,), generator=generator).tolist() for n in (1, 9, 17)]


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(shapes())
def test_any_number_of_ranks_gives_the_same_tokens(shape):
    expected = greedy(tiny_model(**shape), prompts(), TOKENS)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    with tempfile.TemporaryDirectory() as folder:
        path = save_tiny(folder, **shape)
        for size in (1, 2, 3, 4, 5):
            with LLM(
                path,
                tensor_parallel_size=size,
                plugins=[THREADS],
                executor="threads",
                device="cpu",
                dtype="float32",
                cache={"page_size": 4, "pages": 64},
                parallel={"replicate_limit": 1.0},
            ) as llm:
                outputs = llm.generate(prompts(), params, use_tqdm=False)
                found = [output.outputs[0].token_ids for output in outputs]
            assert found == expected, size
