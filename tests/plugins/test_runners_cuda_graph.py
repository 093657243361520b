"""The graph runner in an engine: the eager runner's tokens, one copy and one replay a step.

On a CPU a recorder stands in for CUDA's graphs; with `--on cuda` they are real.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.parallel.groups import ThreadCommunicator
from plugins.runners.cuda_graph import runner as runner_module
from tests.recorder import Recorder
from tests.tiny import greedy, save_tiny, tiny_model

DENSE = str(Path(__file__).parents[1] / "dense_attention.py")
THREADS = str(Path(__file__).parents[1] / "threads.py")
LENGTHS = (1, 3, 4, 5, 8, 11, 16)
TOKENS = 10
PLAIN = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


def prompts() -> list[list[int]]:
    return [
        torch.randint(0, 261, (n,), generator=torch.Generator().manual_seed(n)).tolist()
        for n in LENGTHS
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return greedy(tiny_model(), prompts(), TOKENS)


@pytest.fixture(autouse=True)
def recorders(device: str, monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Those that were made, where there is no CUDA."""
    made: list[Recorder] = []

    def capturing_on(_device: torch.device) -> Recorder:
        made.append(Recorder())
        return made[-1]

    if device == "cpu":
        monkeypatch.setattr(runner_module, "capturing_on", capturing_on)
    return made


Make = Callable[..., LLM]


@pytest.fixture
def engine(checkpoint: Path, device: str) -> Iterator[Make]:
    made = []

    def make(runner: Any = "cuda_graph", attention: str = "dense", **settings: Any) -> LLM:
        options: dict[str, Any] = {
            "device": device,
            "dtype": "float32",
            "plugins": [DENSE],
            "attention": attention,
            "runner": runner,
            "cache": {"page_size": 4, "pages": 64, "check": True},
            "scheduler": {"use": "fcfs", "max_num_seqs": 11, "max_num_batched_tokens": 64},
            "executor": {"use": "local", "overlap": "on"},
        }
        for key, value in settings.items():
            both = isinstance(value, dict) and isinstance(options.get(key), dict)
            options[key] = options[key] | value if both else value
        made.append(LLM(checkpoint, **options))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


def worker(llm: LLM) -> Any:
    return llm.engine.executor._worker


def graphs(llm: LLM) -> Any:
    return worker(llm).runner._graphs


def answers(llm: LLM, params: Any = PLAIN) -> list[list[int]]:
    outputs = llm.generate(prompts(), params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def replays(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(requests, size) of each step that is replayed from now on."""
    seen = []
    own = graphs(llm)
    original = own.fitting

    def fitting(requests: int) -> Any:
        graph = original(requests)
        seen.append((requests, graph.static.size))
        return graph

    monkeypatch.setattr(own, "fitting", fitting)
    return seen


@pytest.mark.parametrize("attention", ["dense", "dense-static", "triton"])
def test_greedy_tokens_are_those_of_transformers(engine, expected, monkeypatch, attention, device):
    if attention == "triton" and device == "cpu":
        pytest.skip("it needs a GPU")
    llm = engine(attention=attention)
    seen = replays(llm, monkeypatch)
    assert answers(llm) == expected
    assert seen == [(len(LENGTHS), 8)] * (TOKENS - 1)


def test_every_batch_fits_into_the_next_size(engine, expected, monkeypatch):
    llm = engine()
    seen = replays(llm, monkeypatch)
    params = [
        SamplingParams(temperature=0, max_tokens=n + 1, ignore_eos=True)
        for n in range(1, len(LENGTHS) + 1)
    ]
    cut = [tokens[: n + 2] for n, tokens in enumerate(expected)]
    assert answers(llm, params) == cut
    assert {count for count, _ in seen} == set(range(1, len(LENGTHS) + 1))
    assert all(size == min(s for s in (1, 2, 4, 8, 11) if s >= count) for count, size in seen)


def test_a_backends_own_state_is_refreshed_for_each_step(engine, expected):
    llm = engine(attention="dense-static")
    seen = type(worker(llm).backends[0]).refreshed
    seen.clear()
    assert answers(llm) == expected
    last = [n + TOKENS - 1 for n in LENGTHS]
    assert seen[-1] == (len(LENGTHS), last)
    assert [lens for _, lens in seen] == [[n + step for n in LENGTHS] for step in range(1, TOKENS)]


WISHES = {
    "random": [SamplingParams(temperature=1.2, seed=n, max_tokens=TOKENS) for n in range(7)],
    "truncated": SamplingParams(temperature=0.9, top_k=7, top_p=0.8, seed=4, max_tokens=TOKENS),
    "some": [
        PLAIN,
        SamplingParams(temperature=0.8, seed=3, max_tokens=TOKENS, ignore_eos=True),
        SamplingParams(temperature=0, repetition_penalty=1.9, max_tokens=TOKENS),
        SamplingParams(temperature=0, logprobs=2, max_tokens=TOKENS),
        SamplingParams(temperature=0.7, seed=9, logit_bias={7: 5.0}, max_tokens=4),
        PLAIN,
        SamplingParams(temperature=0, min_tokens=3, prompt_logprobs=1, max_tokens=TOKENS),
    ],
}


def outcome(llm: LLM, params: Any) -> list[Any]:
    found = []
    for output in llm.generate(prompts(), params, use_tqdm=False):
        one = output.outputs[0]
        ranks = [
            {token: (entry.rank, round(entry.logprob, 2)) for token, entry in step.items()}
            for step in one.logprobs or []
        ]
        known = [None if p is None else sorted(p) for p in output.prompt_logprobs or []]
        found.append((one.token_ids, one.finish_reason, ranks, known))
    return found


@pytest.mark.parametrize("wishes", WISHES)
def test_whatever_rows_ask_for_they_get_what_the_eager_runner_gives(engine, wishes, monkeypatch):
    llm = engine()
    seen = replays(llm, monkeypatch)
    assert outcome(llm, WISHES[wishes]) == outcome(engine("eager"), WISHES[wishes])
    assert len(seen) >= TOKENS - 1


def test_a_sampler_that_cannot_be_captured_gets_the_graphs_logits(engine, expected, monkeypatch):
    sampler = {"use": "default", "processors": ["plain-bias"]}
    plugin = str(Path(__file__).parents[1] / "plain_bias.py")
    llm = engine(sampler=sampler, plugins=[DENSE, plugin])
    assert not graphs(llm)._samples
    seen = replays(llm, monkeypatch)
    assert answers(llm) == expected
    assert len(seen) == TOKENS - 1


def test_preempted_requests_lose_nothing(engine, expected):
    llm = engine(cache={"pages": 14})
    assert answers(llm) == expected
    assert llm.engine.statistics()["preemptions"] > 0


def test_chunks_beside_decoding_run_eagerly(engine, expected, monkeypatch):
    llm = engine(scheduler={"max_num_batched_tokens": 8})
    seen = replays(llm, monkeypatch)
    assert answers(llm) == expected
    assert 0 < len(seen) < llm.engine.statistics()["steps"]


def test_a_second_run_is_warm_and_equal(engine, expected):
    llm = engine()
    answers(llm)
    assert answers(llm) == expected


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_replay_alike(engine, expected, monkeypatch, device, size):
    if device != "cpu":
        pytest.skip("ranks that are threads meet on the host")
    monkeypatch.setattr(ThreadCommunicator, "graphable", True)
    llm = engine(plugins=[DENSE, THREADS], executor="threads", tensor_parallel_size=size)
    assert answers(llm) == expected


def test_a_row_without_a_finite_logit_ends_alone(engine, expected, monkeypatch, device):
    if device != "cpu":
        pytest.skip("what is captured cannot be replaced afterwards")
    llm = engine(executor={"overlap": "off"})
    original = worker(llm).logits
    ids = [llm.engine.add(prompt, PLAIN) for prompt in prompts()[:3]]
    llm.engine.step()
    llm.engine.step()

    def broken(hidden, batch):
        made = original(hidden, batch)
        made[1] = torch.nan
        return made

    monkeypatch.setattr(worker(llm), "logits", broken)
    outputs = {output.request_id: output for output in llm.engine.step()}
    assert outputs[ids[1]].outputs[0].finish_reason == "error"
    assert "no token can be drawn" in outputs[ids[1]].outputs[0].error
    monkeypatch.setattr(worker(llm), "logits", original)
    while llm.engine.busy:
        outputs |= {output.request_id: output for output in llm.engine.step()}
    assert [outputs[ids[n]].outputs[0].token_ids for n in (0, 2)] == [expected[0], expected[2]]


def test_a_step_takes_no_copy_to_the_device(engine, monkeypatch):
    llm = engine(executor={"overlap": "auto"})
    for prompt in prompts():
        llm.engine.add(prompt, SamplingParams(temperature=0.5, max_tokens=40, ignore_eos=True))
    for _ in range(4):
        llm.engine.step()
    monkeypatch.setattr(worker(llm).rows.staging, "send", None)
    monkeypatch.setattr(worker(llm)._landings, "take", None)
    before = llm.engine.statistics()["steps"]
    for _ in range(20):  # requests begin a page every fourth step
        llm.engine.step()
    assert llm.engine.statistics()["steps"] >= before + 19


def test_steady_decoding_never_waits_for_the_device(engine, device):
    if device == "cpu":
        pytest.skip("nothing to wait for")
    llm = engine()
    for prompt in prompts():
        llm.engine.add(prompt, SamplingParams(temperature=0.5, max_tokens=60, ignore_eos=True))
    for _ in range(4):
        llm.engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(30):
            llm.engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("attention", "words"),
    [
        ("sdpa", "attention by Sdpa cannot be captured"),
        ("dense", "no graphs on cpu"),
    ],
)
def test_where_nothing_can_be_captured_it_says_so_and_runs(
    engine, expected, caplog, monkeypatch, device, attention, words
):
    if attention == "dense":
        if device != "cpu":
            pytest.skip("there are graphs")
        monkeypatch.undo()
    with caplog.at_level(logging.INFO, "plait"):
        llm = engine(attention=attention)
    assert words in caplog.text
    assert worker(llm).runner.most_decodes == 0
    assert answers(llm) == expected
