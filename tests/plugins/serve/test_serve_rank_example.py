"""The example that adds `/v1/rank`: its command and its curl line, its scores, its mistakes."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
import transformers

from core.plugins import load
from core.text import Tokenizer
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import ROOT, Running, launched, serving

FILE = ROOT / "examples" / "one_file" / "rank_route.py"
TEXT = FILE.read_text()
MODEL = ROOT / "models" / "qwen3" / "tiny"
QUESTIONS = [
    {"prompt": "The sun is", "continuations": [" sad", " bright", " hot"]},
    {"prompt": "The capital of Italy is", "continuations": [" Rome", " Paris and more", "n't"]},
    {"prompt": "The cat s", "continuations": ["at on the mat", "leeps", " ", "\n\né"]},
]


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)


def of_transformers(model: transformers.PreTrainedModel, question: dict) -> list[float]:
    """The sum of the log probabilities behind what all texts begin with, a forward pass each."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    texts = [tokenizer(question["prompt"] + text).input_ids for text in question["continuations"]]
    before = tokenizer(question["prompt"]).input_ids
    shared = 0
    while shared < len(before) and len({ids[shared] for ids in [before, *texts]}) == 1:
        shared += 1
    found = []
    for ids in texts:
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        found.append(sum(float(logprobs[i - 1, ids[i]]) for i in range(shared, len(ids))))
    return found


def test_its_command_serves_it_and_the_scores_are_those_of_transformers(model) -> None:
    (command,) = re.findall(r"python -m core\.run (.*)\n", TEXT)
    (curl,) = re.findall(r"curl (.*\\\\\n.*)\n", TEXT)
    path, *_, body = shlex.split(curl.replace("\\\\\n", " "))
    config, *words = shlex.split(command)
    with launched(str(ROOT / config), *words, "model.dtype=float32") as server:
        for question in [json.loads(body), *QUESTIONS]:
            answer = server.post(httpx.URL(path).path, question)
            assert answer.status_code == 200, answer.text
            results = answer.json()["results"]
            values = [result["logprob"] for result in results]
            assert values == sorted(values, reverse=True)
            assert sum(result["share"] for result in results) == pytest.approx(1)
            results.sort(key=lambda result: result["index"])
            assert [r["continuation"] for r in results] == question["continuations"]
            assert [r["logprob"] for r in results] == pytest.approx(
                of_transformers(model, question), abs=1e-3
            )


@pytest.fixture(scope="module")
def ranking(folder: Path) -> Iterator[Running]:
    """The same route on an engine that says -(token + position) / 1000, a byte a token."""
    with serving(FakeEngine(), folder, plugins=[str(FILE)], max_body=4000) as running:
        yield running
    load()


def asked(prompt: str = "ab", continuations: tuple = ("c", "da"), **more: object) -> dict:
    return {"prompt": prompt, "continuations": list(continuations), **more}


def test_sums_or_means_and_the_first_token_of_a_prompt_counts_nothing(
    ranking: Running, tokenizer: Tokenizer
) -> None:
    found = {r["index"]: r for r in ranking.post("/v1/rank", asked()).json()["results"]}
    assert [r["tokens"] for _, r in sorted(found.items())] == [1, 2]
    places = (("c", 2), ("d", 2), ("a", 3))
    c, d, a = (-(tokenizer.encode(letter)[0] + at) / 1000 for letter, at in places)
    assert [found[0]["logprob"], found[1]["logprob"]] == pytest.approx([c, d + a])
    means = ranking.post("/v1/rank", asked(by="mean")).json()["results"]
    assert sorted(r["logprob"] for r in means) == pytest.approx(sorted([c, (d + a) / 2]))


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (asked(continuations=()), 400, "continuations: expected array of length >= 1."),
        (asked(continuations=(1,)), 400, "continuations[0]: expected str, got int."),
        (asked(continuations=("c",) * 129), 400, "length <= 128"),
        (asked(by="max"), 400, "by: invalid enum value 'max'"),
        (asked(continutions=1), 400, "Did you mean continuations?"),
        ({"prompt": "a"}, 400, "continuations is missing."),
        (asked(continuations=("c", "")), 400, "continuations[1] adds nothing to the prompt"),
        (asked(prompt=""), 400, "prompt holds no token that every continuation leaves alone"),
        (asked(prompt="a" * 300), 400, "The prompt has 301 tokens"),  # says the engine
        (asked(prompt="a" * 5000), 413, "4000 bytes"),
        (asked(model="other"), 404, "The model 'other' does not exist."),
    ],
)
def test_mistakes_are_named(ranking: Running, body: dict, status: int, said: str) -> None:
    data = json.dumps(body).encode()
    answer = ranking.http.post(
        "/v1/rank", content=data, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


def test_nothing_is_left_with_the_engine_whatever_happens(ranking: Running) -> None:
    engine = ranking.engine
    engine.asked.clear()
    engine.busy = 3.0
    assert ranking.post("/v1/rank", asked()).status_code == 429
    engine.busy = None
    assert ranking.post("/v1/rank", asked(continuations=("c", "d" * 300))).status_code == 400
    assert len(engine.asked) == 2
    assert not any(each.submission.open for each in engine.asked[:1])
    engine.dead = "it is gone"
    answer = ranking.post("/v1/rank", asked())
    engine.dead = None
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_stopped"


def test_it_imports_only_what_core_exports_and_what_the_server_is_made_of() -> None:
    allowed = {"core", "starlette", "msgspec", *sys.stdlib_module_names}
    for node in ast.walk(ast.parse(TEXT)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert all(name.partition(".")[0] in allowed for name in names), names
