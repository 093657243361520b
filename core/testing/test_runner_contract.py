"""What every runner must do: the tokens of a plain one; run for each `--runner`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.interfaces import Runner
from core.llm import LLM
from core.outputs import RequestOutput
from core.registry import registries
from core.sampling.params import SamplingParams
from core.testing.checkpoints import sequences, write_random
from core.testing.running import answers, assert_same, engine, plain_runner
from core.testing.session import name_of

Kind = type[Runner]

TOKENS = 10


def greedy(tokens: int = TOKENS, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, **more)


def drawn(seed: int, **more: Any) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=TOKENS, ignore_eos=True, **more)


WISHES = {
    "greedy": [greedy()] * 10,
    "of unequal lengths": [greedy(n) for n in (1, 14, 3, 9, 2, 7, 20, 1, 5, 12)],
    "drawn": [
        drawn(1),
        drawn(2, temperature=0.3),
        drawn(3, top_p=0.5),
        drawn(4, top_k=3),
        drawn(5, min_p=0.2),
        drawn(6, temperature=2.0, top_k=50, top_p=0.9),
        greedy(),
        drawn(7),
        drawn(8, top_p=0.9),
        greedy(),
    ],
    "with wishes": [
        greedy(presence_penalty=2.0),
        drawn(1, frequency_penalty=1.0),
        greedy(repetition_penalty=1.5),
        greedy(logit_bias={5: 100.0}),
        drawn(2, allowed_token_ids=[3, 4, 5, 6]),
        greedy(logprobs=3),
        drawn(3, prompt_logprobs=2),
        greedy(prompt_logprobs=0, logprobs=0),
        greedy(),
        drawn(4, logprobs=2),
    ],
    "without a token": [
        greedy(),
        greedy(allowed_token_ids=[3], stop_token_ids=[3], min_tokens=2),
        *[greedy()] * 8,
    ],
}


@dataclass(frozen=True)
class World:
    """A checkpoint, prompts, and what a plain runner answers."""

    folder: Path
    device: str
    words: list[str]
    prompts: list[list[int]]
    expected: dict[str, list[RequestOutput]]

    def open(self, runner: Kind, **settings: Any) -> LLM:
        name = name_of(registries.runners, runner)
        return engine(self.folder, name, self.device, plugins=self.words, **settings)


@pytest.fixture(scope="module")
def world(
    plait_words: tuple[str, ...],
    device: str,
    refused: Callable[[list[str]], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    """On the first model that transformers has, too, the built-in ones before others."""
    entries = sorted(
        registries.models.entries(), key=lambda entry: entry.provider.source != "built in"
    )
    made = (write_random(entry.name, tmp_path_factory.mktemp("runner")) for entry in entries)
    folder = next((path for path in made if path), None)
    if folder is None:
        refused(["there is no model to run: transformers has none of those registered"])
    assert folder is not None
    prompts = [*sequences(301), *sequences(301, seed=1)]
    words = list(plait_words)
    with plain_runner() as plain, engine(folder, plain, device, plugins=words) as llm:
        expected = {name: answers(llm, prompts, wishes) for name, wishes in WISHES.items()}
    return World(folder, device, words, prompts, expected)


@pytest.fixture(scope="module")
def llm(world: World, runner: Kind) -> Iterator[LLM]:
    """One engine for several tests, so that each finds what others have left."""
    with world.open(runner) as opened:
        yield opened


@pytest.mark.parametrize("wishes", WISHES)
def test_requests_get_the_tokens_of_a_plain_runner(world: World, llm: LLM, wishes: str) -> None:
    assert_same(answers(llm, world.prompts, WISHES[wishes]), world.expected[wishes])


def test_one_at_a_time_after_many(world: World, llm: LLM) -> None:
    for number, prompt in enumerate(world.prompts[:3]):
        found = answers(llm, [prompt], WISHES["greedy"][:1])
        assert_same(found, world.expected["greedy"][number : number + 1])


def test_any_number_of_requests(world: World, llm: LLM) -> None:
    for count in range(1, 9):
        found = answers(llm, world.prompts[:count], WISHES["drawn"][:count])
        assert_same(found, world.expected["drawn"][:count])


@pytest.mark.parametrize("wishes", ["drawn", "with wishes"])
def test_steps_of_many_requests_and_tokens(world: World, runner: Kind, wishes: str) -> None:
    """More than the other engines have room for; nothing comes from the cache."""
    sizes = {"use": "fcfs", "max_num_seqs": 40, "max_num_batched_tokens": 400}
    with world.open(runner, pages=800, scheduler=sizes, enable_prefix_caching=False) as llm:
        found = answers(llm, world.prompts * 4, WISHES[wishes] * 4)
        assert_same(found, world.expected[wishes] * 4)


SETTINGS: dict[str, dict[str, Any]] = {
    "chunks": {"budget": 7},
    "few pages": {"pages": 14, "max_model_len": 50},
    "no prefix cache": {"enable_prefix_caching": False},
    "planned ahead": {"executor": {"use": "local", "overlap": "on"}},
    "not planned ahead": {"executor": {"use": "local", "overlap": "off"}},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_engines_of_every_kind(world: World, runner: Kind, settings: str) -> None:
    with world.open(runner, **SETTINGS[settings]) as llm:
        for wishes in ("drawn", "with wishes"):
            assert_same(answers(llm, world.prompts, WISHES[wishes]), world.expected[wishes])


def test_an_aborted_request_leaves_nothing_behind(world: World, llm: LLM) -> None:
    stream = llm.stream(world.prompts[0], greedy(40))
    next(iter(stream))
    stream.close()  # type: ignore[attr-defined]
    found = answers(llm, world.prompts, WISHES["greedy"])
    assert_same(found, world.expected["greedy"])
