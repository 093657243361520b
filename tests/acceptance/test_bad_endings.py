"""Calls that are interrupted, abandoned or share one engine: everybody gets what is his."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from pathlib import Path

import pytest

import core.generation
from core import LLM, EngineDead, SamplingParams, UserError
from core.text import Detokenizer
from tests.acceptance.broken import whole
from tests.tiny import greedy, tiny_model

__all__ = ["whole"]

PROMPT = list(b"The wind")
OTHER = list(b"other")


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return greedy(tiny_model(), [PROMPT], 20)[0]


def make(whole: Path, device: str, **settings) -> LLM:
    cache = {"page_size": 4, "pages": 64, "check": True}
    return LLM(
        whole, device=device, dtype="float32", **{"max_num_seqs": 8, "cache": cache} | settings
    )


@pytest.fixture(scope="module")
def engine(whole: Path, device: str):
    with make(whole, device) as made:
        yield made


@pytest.fixture
def llm(engine: LLM, expected: list[int]):
    """The engine, which after the test must be idle, lose no page and answer as ever."""
    yield engine
    numbers = engine.engine.statistics()
    assert (numbers["running"], numbers["waiting"], numbers["pages_owned"]) == (0, 0, 0)
    assert answer(engine, plain()) == expected


def plain(**changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 20, "ignore_eos": True} | changes)


def answer(llm: LLM, params: SamplingParams, prompt=PROMPT) -> list[int]:
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return output.outputs[0].token_ids


def test_streams_that_are_read_in_turns_get_all_of_theirs(llm, expected):
    first, second = llm.stream(PROMPT, plain()), llm.stream(OTHER, plain(max_tokens=5))
    seen = [next(first)]
    others = list(second)
    seen += list(first)
    assert [len(o.outputs[0].token_ids) for o in others] == [1, 2, 3, 4, 5]
    assert [len(o.outputs[0].token_ids) for o in seen] == list(range(1, 21))
    assert seen[-1].outputs[0].token_ids == expected
    assert "".join(o.outputs[0].delta for o in seen) == seen[-1].outputs[0].text


def test_generate_while_a_stream_is_open_takes_nothing_from_it(llm, expected):
    stream = llm.stream(PROMPT, plain())
    next(stream)
    assert answer(llm, plain(max_tokens=30))[:20] == expected  # longer than what is left
    assert list(stream)[-1].outputs[0].token_ids == expected


def test_a_stream_that_is_let_go_of_is_aborted(llm):
    stream = llm.stream(PROMPT, plain(max_tokens=200))
    next(stream)
    del stream
    gc.collect()
    answer(llm, plain(max_tokens=1))
    assert llm.engine.statistics()["running"] == 0


def test_a_stream_that_is_let_go_of_keeps_no_cached_prompt(llm):
    stream = llm.stream(PROMPT, plain(max_tokens=200))
    next(stream)
    del stream
    llm.reset_prefix_cache()
    assert llm.engine.statistics()["pages_owned"] == 0


def test_a_stream_that_was_never_begun_is_aborted(llm):
    stream = llm.stream(PROMPT, plain(max_tokens=200))
    answer(llm, plain(max_tokens=2))
    stream.close()
    assert list(stream) == []


def test_a_stream_whose_request_is_aborted_ends_with_a_sentence(llm):
    stream = llm.stream(PROMPT, plain(max_tokens=200))
    id = next(stream).request_id
    llm.engine.abort(id)
    with pytest.raises(UserError, match=f"request {id} was aborted while its stream was read"):
        next(stream)
    assert list(stream) == []


def test_a_stream_keeps_its_engine(whole, device, expected):
    pieces = [o.outputs[0].delta for o in make(whole, device).stream(PROMPT, plain())]
    assert len(pieces) == 20


def test_an_engine_that_is_closed_with_requests_in_flight(whole, device):
    llm = make(whole, device)
    stream = llm.stream(PROMPT, plain(max_tokens=200))
    llm.engine.add(OTHER, plain(max_tokens=200))
    next(stream)
    llm.close()
    with pytest.raises(EngineDead, match="this engine was closed"):
        next(stream)
    with pytest.raises(EngineDead, match="was closed"):
        llm.generate(PROMPT, plain())
    llm.close()


def test_closing_frees_everything_at_once(whole, device):
    llm = make(whole, device)
    answer(llm, plain())
    worker = llm.engine.executor._worker
    held = [weakref.ref(one) for one in (worker, worker.model, worker.rows.history)]
    del worker
    gc.collect()
    gc.disable()  # memory that waits for the collector is not free for the next engine
    try:
        llm.close()
        assert [one() for one in held] == [None, None, None]
    finally:
        gc.enable()


def interrupt_in_forward(llm: LLM, monkeypatch, at: int, act) -> None:
    worker, calls = llm.engine.executor._worker, []
    original = worker.forward

    def forward(batch):
        calls.append(batch)
        if len(calls) == at:
            act()
        return original(batch)

    monkeypatch.setattr(worker, "forward", forward)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("act", [raise_interrupt, press])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_ctrl_c_ends_the_call_and_nothing_else(llm, monkeypatch, at, act):
    bystander = llm.stream(OTHER, plain())
    alone = answer(llm, plain(), OTHER)
    interrupt_in_forward(llm, monkeypatch, at, act)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([PROMPT, PROMPT + OTHER], plain(), use_tqdm=False)
    monkeypatch.undo()
    assert llm.engine.statistics()["running"] <= 1
    assert list(bystander)[-1].outputs[0].token_ids == alone
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_never_cuts_a_step_in_two(llm, monkeypatch):
    taken = []
    update = llm.engine.scheduler.update

    def counted(plan, output):
        press()
        taken.append(plan)
        return update(plan, output)

    monkeypatch.setattr(llm.engine.scheduler, "update", counted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPT, plain(), use_tqdm=False)
    assert len(taken) == 1


def test_ctrl_c_twice_does_not_wait(llm, monkeypatch):
    def twice() -> None:
        press()
        press()
        raise AssertionError("the second one came through")

    interrupt_in_forward(llm, monkeypatch, 2, twice)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPT, plain(), use_tqdm=False)


def test_ctrl_c_is_left_to_whoever_handles_it(llm, monkeypatch):
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        interrupt_in_forward(llm, monkeypatch, 2, press)
        assert len(answer(llm, plain())) == 20
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [1]


def test_ctrl_c_in_a_stream_ends_it(llm, monkeypatch):
    stream = llm.stream(PROMPT, plain())
    next(stream)
    interrupt_in_forward(llm, monkeypatch, 2, press)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    assert llm.engine.statistics()["running"] == 0


def test_an_engine_in_a_thread_of_its_own(whole, device, expected):
    found = []

    def work() -> None:
        with make(whole, device) as llm:
            found.append(answer(llm, plain()))
            found.append([o.outputs[0].delta for o in llm.stream(PROMPT, plain())])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] == expected
    assert len(found[1]) == 20


class Stumbles(Detokenizer):
    """Fails over one stop string."""

    def push(self, ids, check_stop: bool = True) -> str:
        if self._stops is not None and "stumble" in self._stops.strings and self.consumed == 3:
            raise ValueError("no such piece")
        return super().push(ids, check_stop)


@pytest.mark.parametrize("n", [1, 2])
def test_text_that_cannot_be_made_ends_its_own_request(llm, monkeypatch, expected, n):
    monkeypatch.setattr(core.generation, "Detokenizer", Stumbles)
    params = [plain(), plain(stop="stumble", n=n, temperature=n - 1.0, seed=1), plain()]
    before, broken, after = llm.generate([PROMPT] * 3, params, use_tqdm=False)
    assert before.outputs[0].token_ids == after.outputs[0].token_ids == expected
    for output in broken.outputs:
        assert output.finish_reason == "error"
        assert "its tokens could not be turned into text" in output.error
        assert "ValueError: no such piece" in output.error


def test_a_stream_whose_text_cannot_be_made_ends_with_the_error(llm, monkeypatch):
    monkeypatch.setattr(core.generation, "Detokenizer", Stumbles)
    outputs = list(llm.stream(PROMPT, plain(stop="stumble")))
    assert outputs[-1].finished
    assert outputs[-1].outputs[0].finish_reason == "error"


def test_requests_of_a_scheduler_that_refuses_leave_nothing(llm, monkeypatch):
    add, count = llm.engine.scheduler.add, []

    def refuse(request):
        count.append(request)
        if len(count) == 2:
            raise UserError("no more today")
        add(request)

    monkeypatch.setattr(llm.engine.scheduler, "add", refuse)
    with pytest.raises(UserError, match="no more today"):
        llm.generate(PROMPT, plain(n=3, temperature=1.0), use_tqdm=False)
    assert llm.engine.statistics()["waiting"] == 0
