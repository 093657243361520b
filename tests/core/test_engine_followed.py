"""An engine whose ids are followed step by step, by somebody who makes the text himself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core import LLM, SamplingParams
from core.engine import Engine
from core.types import Request
from tests.tiny import save_tiny

PROMPTS = [[1, 2, 3], [7, 8, 9, 10], [4] * 30]
PARAMS = SamplingParams(max_tokens=9, n=2, seed=3, logprobs=1, prompt_logprobs=1, stop=["a", "e"])


class Followed:
    """What `on_step` was told, by the request's id."""

    def __init__(self) -> None:
        self.ids: dict[str, list[int]] = {}
        self.ends: dict[str, str] = {}
        self.failed = 0

    def __call__(self, plan: object, output: object, news: list[Request]) -> None:
        self.failed += output is None
        for request in news:
            self.ids[request.id] = list(request.output)
            if request.finish_reason is not None:
                self.ends[request.id] = request.finish_reason


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, device: str) -> Iterator[LLM]:
    checkpoint = save_tiny(tmp_path_factory.mktemp("tiny"))
    with LLM(checkpoint, device=device, dtype="float32", block_size=4, max_num_seqs=4) as made:
        yield made


@pytest.fixture
def engine(llm: LLM) -> Iterator[Engine]:
    yield llm.engine
    llm.engine.on_step = None


def run(engine: Engine, params: SamplingParams) -> Followed:
    engine.on_step = followed = Followed()
    for prompt in PROMPTS:
        engine.add(prompt, params)
    while engine.busy:
        engine.step()
    return followed


def test_the_ids_are_those_of_generate_without_its_stop_strings(llm: LLM, engine: Engine) -> None:
    unstopped = PARAMS.clone()
    unstopped.stop = None
    expected = [
        list(answer.token_ids)
        for output in llm.generate(PROMPTS, unstopped, use_tqdm=False)
        for answer in output.outputs
    ]

    followed = run(engine, PARAMS)

    # by the time of their first ids, which is the order of the requests
    assert list(followed.ids.values()) == expected
    assert set(followed.ends) == set(followed.ids)


def test_nobody_makes_text(engine: Engine) -> None:
    engine.on_step = Followed()
    engine.add(PROMPTS[0], PARAMS)
    outputs = []
    while engine.busy:
        outputs += engine.step()

    (output,) = outputs
    assert [answer.text for answer in output.outputs] == ["", ""]
    assert [len(answer.token_ids) for answer in output.outputs] == [9, 9]


def test_one_answer_ends_and_the_other_goes_on(engine: Engine) -> None:
    engine.on_step = followed = Followed()
    id = engine.add(PROMPTS[0], PARAMS)
    engine.step()
    engine.step()

    assert engine.abort(id, 0) is None
    while engine.busy:
        engine.step()

    assert len(followed.ids[f"{id}/0"]) < 9
    assert len(followed.ids[f"{id}/1"]) == 9
    assert engine.statistics()["pages_owned"] == 0


def test_a_request_ends_with_the_last_of_its_answers(engine: Engine) -> None:
    engine.on_step = Followed()
    id = engine.add(PROMPTS[0], PARAMS)
    engine.step()

    assert engine.abort(id, 1) is None
    output = engine.abort(id, 0)

    assert output is not None
    assert [answer.finish_reason for answer in output.outputs] == ["abort", "abort"]
    assert engine.abort(id) is None


def test_a_step_that_fails_is_told_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("it is broken")

    monkeypatch.setattr(engine.executor._worker, "launch", broken)
    followed = run(engine, PARAMS)

    assert followed.failed >= 1
    assert set(followed.ends.values()) == {"error"}
