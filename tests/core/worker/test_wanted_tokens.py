"""Which tokens a step computes to the end: those that are sampled, unless more of it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from core import LLM, SamplingParams, worker
from tests.tiny import greedy, save_tiny, tiny_model

TESTS = Path(__file__).parents[2]
DEALT = TESTS.parent / "examples" / "one_file" / "sequence_parallel"
PLAN = yaml.safe_load(DEALT.with_suffix(".yaml").read_text())["parallel"]["plan"]
BUDGET = 16  # tokens of a step
PROMPTS = [list(range(5)), list(range(20, 27)), list(range(40, 81))]  # the third takes chunks


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(
        save_tiny(tmp_path_factory.mktemp("tiny")),
        device="cpu",
        dtype="float32",
        runner="eager",
        cache={"page_size": 4, "pages": 64},
        scheduler={"use": "fcfs", "max_num_seqs": 8, "max_num_batched_tokens": BUDGET},
        enable_prefix_caching=False,
    ) as made:
        yield made


@pytest.fixture
def computed(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int, int]]]:
    """Of each step: tokens, and how many of them the last layer and the one before end with."""
    monkeypatch.setattr(worker, "SHORT", 2)
    seen: list[tuple[int, int, int]] = []
    model = llm.engine.executor._worker.model.model  # type: ignore[attr-defined]
    counts: list[int] = []

    def before_end(layer: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        counts.append(len(given[0]))

    def end(model: torch.nn.Module, given: object, hidden: torch.Tensor) -> None:
        seen.append((counts[0], counts[-2], counts[-1]))
        counts.clear()

    watched = [(x.self_attn.o_proj, x.mlp.down_proj) for x in model.layers]
    handles = [m.register_forward_pre_hook(before_end) for pair in watched for m in pair]
    handles.append(model.register_forward_hook(end))
    yield seen
    for handle in handles:
        handle.remove()


def run(llm: LLM, **params: object) -> list[list[int]]:
    asked = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, **params)
    outputs = llm.generate(PROMPTS, asked, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def test_the_last_layer_ends_with_sampled_tokens(llm, computed):
    assert run(llm) == greedy(tiny_model(), PROMPTS, 2)
    prompts = [counts for counts in computed if counts[0] == BUDGET]
    # in the first two prompts end; the others are chunks of the third, two with a decode beside
    assert [o for _, o, _ in prompts] == [down for _, _, down in prompts]
    assert prompts[0] == (16, 2, 2)
    assert all(1 <= o <= 2 for _, o, _ in prompts)
    assert any(o == 1 for _, o, _ in prompts)


def test_a_short_step_is_computed_to_the_end(llm, computed, monkeypatch):
    monkeypatch.setattr(worker, "SHORT", BUDGET)
    run(llm)
    assert all(tokens == o == down for tokens, o, down in computed)


def test_all_tokens_where_the_prompt_is_scored(llm, computed):
    run(llm, prompt_logprobs=1)
    prompts = [counts for counts in computed if counts[0] == BUDGET]
    assert prompts == [(BUDGET, BUDGET, BUDGET)] * len(prompts) != []


@pytest.mark.parametrize("plan", [{}, PLAN], ids=["whole", "dealt"])
def test_ranks(tmp_path, monkeypatch, plan):
    """With the plan, each rank has a share of the tokens between its layers."""
    monkeypatch.setattr(worker, "SHORT", 2)
    with LLM(
        save_tiny(tmp_path),
        device="cpu",
        dtype="float32",
        plugins=[str(TESTS / "threads.py"), str(DEALT.with_suffix(".py"))],
        executor="threads",
        parallel={"tensor": 3, "plan": plan},
        scheduler={"use": "fcfs", "max_num_seqs": 8, "max_num_batched_tokens": BUDGET},
    ) as ranks:
        assert run(ranks) == greedy(tiny_model(), PROMPTS, 2)


def test_decoding_behind_a_scored_prompt_is_as_any(llm, computed):
    run(llm, prompt_logprobs=0)
    assert computed[-1][0] == computed[-1][2] < BUDGET
