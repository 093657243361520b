"""What is seen is what transformers computes, whichever way the engine came to compute it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from core import SamplingParams
from tests.plugins.observers.conftest import matches, modules, prompts

TESTS = Path(__file__).parents[2]
THREADS = {"plugins": ["observers", str(TESTS / "threads.py")], "executor": "threads"}
AHEAD = {"executor": {"use": "local", "overlap": "on"}}
TOKENS = 10
ALL = {"hidden_states": "all", "attentions": "all"}
OBSERVED = (0, 2, 3, 5, 7)  # of the prompts; the others run beside them

CONDITIONS = {
    "as it comes": {},
    "chunks of three tokens": {"scheduler": {"max_num_batched_tokens": 3}},
    "preempted": {"cache": {"pages": 14}},
    "planned ahead": AHEAD,
    "planned ahead and preempted": {**AHEAD, "cache": {"pages": 14}},
    "2 ranks": {**THREADS, "tensor_parallel_size": 2},
    "3 ranks": {**THREADS, "tensor_parallel_size": 3},
    "3 ranks, chunks, preempted": {
        **THREADS,
        "tensor_parallel_size": 3,
        "scheduler": {"max_num_batched_tokens": 3},
        "cache": {"pages": 10},
    },
}


def asking(index: int, **more) -> SamplingParams:
    """Greedy for even prompts, sampled for odd ones; some of them observed."""
    temperature = 0.8 if index % 2 else 0.0
    extra = ALL if index in OBSERVED else {}
    return SamplingParams(
        temperature=temperature, seed=index, max_tokens=TOKENS, extra_args=extra, **more
    )


@pytest.fixture(scope="module")
def plain(engine) -> list[list[int]]:
    """The tokens without anybody looking."""
    asked = [asking(i).clone() for i in range(len(prompts()))]
    for params in asked:
        params.extra_args = {}
    with engine(plugins=[]) as llm:
        outputs = llm.generate(prompt_token_ids=prompts(), sampling_params=asked, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("settings", CONDITIONS.values(), ids=list(CONDITIONS))
def test_all_layers_are_those_of_transformers(engine, inside, plain, device, settings) -> None:
    with engine(device, **settings) as llm:
        asked = [asking(i) for i in range(len(prompts()))]
        outputs = llm.generate(prompt_token_ids=prompts(), sampling_params=asked, use_tqdm=False)
        preempted = llm.engine.statistics()["preemptions"]
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules(llm))

    assert (preempted > 0) == ("cache" in settings)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    for index, (prompt, output) in enumerate(zip(prompts(), outputs, strict=True)):
        if index in OBSERVED:
            matches(output.outputs[0], prompt, inside)
        else:
            assert output.outputs[0].extras == {}


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_hold_a_part_of_the_tokens_each(engine, inside, device, size) -> None:
    example = TESTS.parent / "examples/one_file/sequence_parallel"
    plan = yaml.safe_load(example.with_suffix(".yaml").read_text())["parallel"]["plan"]
    plugins = [*THREADS["plugins"], str(example.with_suffix(".py"))]
    settings = {"plugins": plugins, "executor": "threads"}
    with engine(device, parallel={"tensor": size, "plan": plan}, **settings) as llm:
        for index in (0, 5):
            (output,) = llm.generate(
                prompt_token_ids=[prompts()[index]],
                sampling_params=SamplingParams(temperature=0, max_tokens=4, extra_args=ALL),
                use_tqdm=False,
            )
            matches(output.outputs[0], prompts()[index], inside)


def test_two_ranks_in_two_processes(engine, inside, plain, device) -> None:
    if device != "cpu" and torch.cuda.device_count() < 2:
        pytest.skip("two ranks need two GPUs")
    with engine(device, tensor_parallel_size=2) as llm:
        (output,) = llm.generate(
            prompt_token_ids=prompts()[5:6], sampling_params=asking(5), use_tqdm=False
        )

    assert output.outputs[0].token_ids == plain[5]
    matches(output.outputs[0], prompts()[5], inside)


def test_a_neighbour_notices_nothing_to_the_bit(engine, device) -> None:
    def neighbour(extra) -> list:
        with engine(device) as llm:
            params = [
                SamplingParams(temperature=0, max_tokens=TOKENS, extra_args=extra),
                SamplingParams(temperature=0.7, seed=1, max_tokens=TOKENS, logprobs=5),
            ]
            outputs = llm.generate(
                prompt_token_ids=prompts()[-3:-1], sampling_params=params, use_tqdm=False
            )
        return outputs[1].outputs[0].logprobs

    assert neighbour(ALL) == neighbour({})


def test_what_the_prefix_cache_holds_is_computed_again(engine, inside, device) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, extra_args=ALL)
    with engine(device) as llm:
        for prompt in prompts()[-2:]:  # the second begins like the first
            for _ in range(2):
                (output,) = llm.generate(
                    prompt_token_ids=[prompt], sampling_params=params, use_tqdm=False
                )
                assert output.num_cached_tokens == 0
                matches(output.outputs[0], prompt, inside)


def test_who_looks_at_later_positions_reads_the_prefix_cache(engine, inside, device) -> None:
    prompt = prompts()[-1]
    wish = {"layers": "all", "positions": "output"}
    params = SamplingParams(
        temperature=0, max_tokens=5, extra_args={"hidden_states": wish, "attentions": wish}
    )
    with engine(device) as llm:
        asked = {"prompt_token_ids": [prompt], "sampling_params": params, "use_tqdm": False}
        llm.generate(**asked)
        (output,) = llm.generate(**asked)

    assert output.num_cached_tokens == 20
    answer = output.outputs[0]
    hidden, maps = inside((prompt + answer.token_ids)[:-1])
    for layer, states in answer.extras["hidden_states"].items():
        torch.testing.assert_close(states, hidden[layer][23:], rtol=1e-5, atol=1e-2)
    for layer, found in answer.extras["attentions"].items():
        torch.testing.assert_close(found, maps[layer][:, 23:], rtol=1e-5, atol=1e-5)


def test_steps_that_nobody_looks_at_go_to_the_runner(engine, device) -> None:
    settings = {"plugins": ["observers", str(Path(__file__).parent / "counting_runner.py")]}
    prompt = prompts()[4]
    wish = {"layers": [0], "positions": "prompt"}
    with engine(device, **settings, runner="counting") as llm:
        runner = llm.engine.executor._worker.runner
        for extra, steps in (({}, 6), ({"attentions": wish}, 5), ({"attentions": [0]}, 0)):
            runner.steps = 0
            params = SamplingParams(temperature=0, max_tokens=6, extra_args=extra)
            llm.generate(prompt_token_ids=[prompt], sampling_params=params, use_tqdm=False)
            assert runner.steps == steps, extra
