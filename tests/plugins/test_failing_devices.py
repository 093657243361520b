"""A device that is lost ends the engine; an error that is only a step's does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, EngineDead, SamplingParams
from core.interfaces import Pending
from plugins.executors.steps import alone
from tests.tiny import save_tiny

FAULT = "CUDA error: an illegal memory access was encountered"


class Broken(Pending):
    """A step whose error shows where its result is asked for."""

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        raise RuntimeError(FAULT)


def broken_launch(plan: Any) -> Any:
    raise RuntimeError(FAULT)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def llm(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """An engine on a CPU that is taken for a GPU where steps fail."""
    with LLM(checkpoint, device="cpu", cache={"page_size": 4, "pages": 40}) as llm:
        monkeypatch.setattr(llm.engine.executor, "_explain", alone(torch.device("cuda", 0)))
        yield llm


def ask(llm: LLM) -> Any:
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    return llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0]


def synchronize(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def synchronize(device: torch.device) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)


@pytest.mark.parametrize("launch", [broken_launch, lambda plan: Broken()])
def test_an_engine_ends_with_its_device(llm, monkeypatch, launch):
    synchronize(monkeypatch, RuntimeError(f"{FAULT}\nCompile with ..."))
    monkeypatch.setattr(llm.engine.executor._worker, "launch", launch)
    said = rf"^cuda:0 no longer works in this process: {FAULT}\. Start the program anew\.$"
    with pytest.raises(EngineDead, match=said):
        ask(llm)
    with pytest.raises(EngineDead, match=said):
        llm.engine.check_alive()


@pytest.mark.parametrize("launch", [broken_launch, lambda plan: Broken()])
def test_an_engine_whose_device_works_goes_on(llm, monkeypatch, launch):
    synchronize(monkeypatch, None)
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.executor._worker, "launch", launch)
        assert ask(llm).finish_reason == "error"
    assert ask(llm).finish_reason == "length"


def test_the_device_of_an_engine_is_the_one_that_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "synchronize", asked.append)
    for device in (torch.device("cpu"), torch.device("cuda", 1)):
        alone(device)(RuntimeError(FAULT))
    assert asked == [torch.device("cuda", 1)]
