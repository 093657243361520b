"""Observers of third parties: who is asked what, and what becomes of one that fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from core import LLM, SamplingParams, UserError
from tests.tiny import save_tiny

DOCS = Path(__file__).parents[2] / "docs"
PROMPTS = [[1, 2, 3, 4, 5], [6, 7, 8]]

OBSERVER = '''
from core.hooks import hookimpl
from core.interfaces import Observer

def _places(batch, w):
    return batch.positions[w.first : w.first + w.count].tolist()

class Places(Observer):
    """Which positions were seen, and {fault}."""
    interface = 2 if "{fault}" == "interface" else 1
    name = "{name}"
    extra_args = ("{name}",)
    def __init__(self): self.held = {{}}
    def observe(self, step, batch, watched):
        if "{fault}" == "observe": raise RuntimeError("blind")
        return step(), {{w.b: _places(batch, w) for w in watched}}
    def take(self, request, start, seen):
        if "{fault}" == "take": raise RuntimeError("clumsy")
        assert seen[0] == start
        self.held.setdefault(request, []).extend(seen)
    def finish(self, request):
        if "{fault}" == "finish": raise RuntimeError("lost")
        return {{"{name}": self.held.pop(request, [])}}

@hookimpl
def observers(config, setup):
    return Places() if "{fault}" != "type" else "me"
'''


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def start(tmp_path, checkpoint):
    """An engine with observers of these names, each with a fault or none."""

    def engine(**faults: str) -> LLM:
        files = []
        for file, fault in faults.items():
            path = tmp_path / f"{file}.py"
            path.write_text(OBSERVER.format(name=file.partition("__")[0], fault=fault))
            files.append(str(path))
        return LLM(checkpoint, device="cpu", plugins=files, cache={"page_size": 4, "pages": 64})

    return engine


def ask(llm: LLM, *extras: dict) -> list:
    params = [SamplingParams(temperature=0, max_tokens=4, extra_args=extra) for extra in extras]
    outputs = llm.generate(prompt_token_ids=PROMPTS, sampling_params=params, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def test_who_asks_gets_what_was_seen_and_nobody_else(start) -> None:
    with start(places="") as llm:
        first, second = ask(llm, {"places": True}, {})

    assert first.extras == {"places": list(range(8))}
    assert second.extras == {}


def test_two_observers_see_the_same_step(start) -> None:
    with start(places="", spots="") as llm:
        first, second = ask(llm, {"places": 1, "spots": 1}, {"spots": 1})

    assert first.extras == {"places": list(range(8)), "spots": list(range(8))}
    assert second.extras == {"spots": list(range(6))}


@pytest.mark.parametrize("fault", ["take", "finish"])
def test_what_fails_for_one_request_ends_that_one_alone(start, fault) -> None:
    with start(places=fault) as llm:
        first, second = ask(llm, {"places": True}, {})

        assert first.finish_reason == "error"
        assert "the observer 'places' failed. " in first.error
        assert "RuntimeError" in first.error
        assert second.error is None
        assert len(second.token_ids) == 4


def test_what_fails_in_a_step_ends_the_step_and_not_the_engine(start) -> None:
    with start(places="observe") as llm:
        first, second = ask(llm, {"places": True}, {})
        assert "RuntimeError: blind" in first.error
        assert "RuntimeError: blind" in second.error

        first, second = ask(llm, {}, {})
        assert (first.error, second.error) == (None, None)


def test_a_hook_that_gives_something_else_is_refused(start) -> None:
    with pytest.raises(UserError, match=r"`observers` returned 'me'. It must be a core\.inter"):
        start(places="type")


def test_an_observer_for_an_interface_to_come_is_refused(start) -> None:
    with pytest.raises(UserError, match=r"'places': it was written for version 2 of core\.interf"):
        start(places="interface")


def test_two_observers_of_one_name_are_refused(start) -> None:
    with pytest.raises(UserError, match="two plugins observe under the name 'places'"):
        start(places="", places__again="")


def test_the_observer_of_the_guide_runs_as_it_stands(tmp_path, checkpoint) -> None:
    code = re.findall(r"```python\n(.*?)```", DOCS.joinpath("seeing-inside.md").read_text(), re.S)
    file = tmp_path / "norms.py"
    file.write_text(next(block for block in code if "class Norms" in block))
    with LLM(checkpoint, device="cpu", plugins=[str(file), "observers"]) as llm:
        first, _ = ask(llm, {"norms": True, "hidden_states": [-1]}, {})

    lengths = first.extras["hidden_states"][-1].norm(dim=-1)
    torch.testing.assert_close(torch.tensor(first.extras["norms"]), lengths)
