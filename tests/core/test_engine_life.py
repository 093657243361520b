"""An engine's beginning and end: what it takes from its files, and what it gives back."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from core import LLM, EngineDead, SamplingParams
from plugins.sampling.default import DefaultSampler
from tests.tiny import IM_END, save_tiny

PROMPT = list(b"The wind")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), eos=[IM_END])


def plain(**changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 12, "ignore_eos": True} | changes)


def answer(llm: LLM, params: SamplingParams):
    (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    return output.outputs[0]


def test_an_engine_frees_its_workers_whatever_its_sampler_does(checkpoint, device, monkeypatch):
    llm = LLM(checkpoint, device=device, cache={"page_size": 4, "pages": 80})

    def close(_):
        raise ValueError("no luck")

    monkeypatch.setattr(DefaultSampler, "close", close)
    with pytest.raises(ValueError, match="no luck"):
        llm.close()
    assert llm.engine.executor._worker is None


@pytest.mark.parametrize("place", ["sampler", "runner", "group"])
def test_closing_goes_on_where_ctrl_c_has_ended_it(checkpoint, device, monkeypatch, place):
    before, stopped = torch.get_num_threads(), []
    llm = LLM(
        checkpoint,
        device=device,
        cache={"page_size": 4, "pages": 80},
        executor={"use": "local", "threads": before + 1},
    )
    executor = llm.engine.executor
    owners = {"sampler": llm.engine.sampler, "runner": executor._worker.runner}
    owner = type(owners.get(place, executor._comm))
    closed, original = [], owner.close

    def close(self):
        closed.append(self)
        if len(closed) == 1:
            raise KeyboardInterrupt
        original(self)

    monkeypatch.setattr(owner, "close", close)
    monkeypatch.setattr(
        llm.engine, "hooks", SimpleNamespace(engine_stopped=lambda engine: stopped.append(engine))
    )
    with pytest.raises(KeyboardInterrupt):
        llm.close()
    for _ in range(2):
        llm.close()
    assert (executor._worker, executor._comm) == (None, None)
    assert torch.get_num_threads() == before
    assert len(closed) == 2
    assert stopped == [llm.engine]
    with pytest.raises(EngineDead, match="was closed"):
        answer(llm, plain())


def test_a_stream_that_is_collected_within_a_step_is_aborted_behind_it(
    checkpoint, device, monkeypatch
):
    """The garbage collector may find a stream at any line, that of a scheduler's plan say."""
    with LLM(checkpoint, device=device, cache={"page_size": 4, "pages": 80}) as llm:
        expected = answer(llm, plain()).token_ids
        scheduler, within, cut = llm.engine.scheduler, [], []
        plan, finish, gone = scheduler.plan, scheduler.finish, []

        def planning():
            if gone:
                gone.clear()
                within.append(True)
                gc.collect()
                within.clear()
            return plan()

        monkeypatch.setattr(scheduler, "plan", planning)
        monkeypatch.setattr(scheduler, "finish", lambda *a: (cut.extend(within), finish(*a)))
        stream = llm.stream(PROMPT, plain(max_tokens=60))
        next(stream)
        stream.itself = stream
        gc.disable()
        try:
            del stream
            gone.append(True)
            assert answer(llm, plain()).token_ids == expected
            assert not gone
        finally:
            gc.enable()
        assert not cut
        assert llm.engine.statistics()["pages_owned"] == 0
        assert not llm.engine.busy


def test_every_sampler_that_was_made_is_closed(checkpoint, device, monkeypatch):
    """The engine has one to ask, and each rank one that samples."""
    made, closed = set(), set()
    original = DefaultSampler.__init__

    def init(self, *args):
        made.add(self)
        original(self, *args)

    monkeypatch.setattr(DefaultSampler, "__init__", init)
    monkeypatch.setattr(DefaultSampler, "close", lambda self: closed.add(self))
    LLM(checkpoint, device=device, cache={"page_size": 4, "pages": 80}).close()
    assert len(made) >= 2
    assert closed == made


def test_ends_of_text_come_from_the_file_that_is_named_too(tmp_path, checkpoint, device):
    file = tmp_path / "generation_config.json"
    file.write_text('{"eos_token_id": [42]}')
    cache = {"page_size": 4, "pages": 80}
    with LLM(checkpoint, device=device, cache=cache, generation_config=str(file)) as llm:
        assert llm.engine.eos_ids >= {42, IM_END}


def test_an_engine_leaves_the_callers_random_numbers_alone(checkpoint, device):
    torch.manual_seed(123)
    wanted = torch.rand(4)
    torch.manual_seed(123)
    with LLM(checkpoint, device=device, cache={"page_size": 4, "pages": 80}) as llm:
        answer(llm, plain(temperature=1))
    assert torch.equal(torch.rand(4), wanted)


def test_two_engines_live_at_once_and_the_model_goes_with_its_engine(checkpoint, device):
    first = LLM(checkpoint, device=device, cache={"page_size": 4, "pages": 80}, seed=1)
    second = LLM(checkpoint, device=device, cache={"page_size": 16, "pages": 20}, seed=1)
    model = weakref.ref(first.engine.executor._worker.model)
    assert answer(first, plain()).token_ids == answer(second, plain()).token_ids
    first.close()
    first.close()
    del first
    gc.collect()
    assert model() is None
    assert answer(second, plain()).finish_reason == "length"
    second.close()
    with pytest.raises(Exception, match="was closed"):
        answer(second, plain())
