"""The demo prints a readable story, soon, alone, and the same one everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core import LLM, run
from core.settings import load
from tools.tiny_golden import DEMO, demo_text
from tools.tiny_heldout import read_words
from tools.tiny_measures import grams, known_words

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads(Path(__file__).with_name("golden_tiny.json").read_text())
# The command of `make demo`, in a process that ends when anything looks for a network.
ALONE = """\
import sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise SystemExit(f"{event} {arguments}")
sys.addaudithook(refuse)
from core.run import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def story() -> str:
    return demo_text()


def test_the_story_is_the_recorded_one(story: str) -> None:
    assert story == GOLDEN["demo"]


def test_two_ranks_tell_it_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main([str(DEMO), "parallel.tensor=2"]) == 0

    assert capsys.readouterr().out == GOLDEN["demo"]


def test_it_is_a_paragraph_or_two_of_words_from_books(story: str) -> None:
    words = known_words([story], read_words(ROOT / "models" / "qwen3" / "tiny"))

    assert 100 <= load(DEMO).run.options.params["max_tokens"] <= 150
    assert len(story.split()) > 75
    assert words > 0.98


def test_it_runs_in_no_loop(story: str) -> None:
    assert max(grams(story).values()) <= 3


def demo() -> str:
    """The output of a process that ends when anything looks for a network."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, "configs/qwen3-tiny.yaml"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_needs_no_network() -> None:
    assert demo() == GOLDEN["demo"]


@pytest.mark.speed
def test_it_is_done_in_20_seconds() -> None:
    start = time.monotonic()
    demo()

    assert time.monotonic() - start < 20


def test_a_question_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["run.chat=true", "run.prompt=What is the capital of Italy?", "run.params.temperature=0"]
    assert run.main([str(DEMO), *ask]) == 0

    assert "Rome" in capsys.readouterr().out


def test_a_chat_finds_its_beginning_in_the_cache() -> None:
    config = load(DEMO, ["run=chat"])
    ask = [{"role": "user", "content": "Tell me something about a ship, a whale and a captain."}]
    with LLM.open(config) as llm:
        reply = llm.chat(ask, use_tqdm=False)[0].outputs[0].text
        ask += [{"role": "assistant", "content": reply}, {"role": "user", "content": "Why?"}]
        again = llm.chat(ask, use_tqdm=False)[0]

        assert again.num_cached_tokens >= config.cache.page_size == 16
        assert llm.engine.statistics()["prefix_hits"] == again.num_cached_tokens
