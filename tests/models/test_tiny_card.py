"""What the tiny model's card says is so."""

from __future__ import annotations

import json
import re
import shlex
import tomllib

import pytest

from tools import tiny_sources, train_tiny
from tools.eval_tiny import QUESTIONS
from tools.tiny_card import parameters
from tools.tiny_engines import answers
from tools.tiny_golden import MODEL, open_model
from tools.tiny_heldout import read_excerpt
from tools.tiny_measures import xz_bits_per_byte
from tools.tiny_trainer import Recipe

CARD = (MODEL / "README.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]] for line in CARD.splitlines() if "|" in line
]
LINE = " ".join(CARD.split())


def row(first: str) -> list[str]:
    (found,) = [cells for cells in ROWS if cells[0] == first]
    return found


def test_nothing_is_beside_it_that_nobody_reads() -> None:
    assert {path.name for path in MODEL.iterdir()} == {
        "README.md", "chat_template.jinja", "config.json", "generation_config.json", "heldout.txt",
        "model.safetensors", "tokenizer.json", "tokenizer_config.json", "words.txt.xz",
    }  # fmt: skip


def test_every_file_goes_into_the_wheel() -> None:
    project = tomllib.loads((MODEL.parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["models"]

    for path in MODEL.iterdir():
        assert any(path.match(pattern) for pattern in patterns), path.name


def test_sizes() -> None:
    size = (MODEL / "model.safetensors").stat().st_size
    config = json.loads((MODEL / "config.json").read_text())

    assert LINE.startswith(f"# A tiny Qwen3 {parameters(MODEL):,} parameters, {size / 1e6:.1f} MB")
    shape = (config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"])
    assert row("layers, width, inner width")[1] == ", ".join(map(str, shape))
    assert row("context")[1] == f"{config['max_position_embeddings']:,} tokens"


def test_the_excerpt() -> None:
    text = read_excerpt(MODEL)
    _, size, bits, xz, share = row("excerpt")

    assert size == f"{len(text.encode()):,}"
    assert xz == f"{xz_bits_per_byte(text):.3f}"
    assert share == f"{1 - float(bits) / float(xz):.0%}"
    assert float(bits) < 2.0


def test_sampled_words() -> None:
    shares = re.findall(r"([\d.]+)%", LINE.split("the whole vocabulary allowed), ")[1])[:5]

    assert len(shares) == 5
    assert min(map(float, shares)) >= 90


def test_every_source_is_listed_with_its_licence() -> None:
    for source in tiny_sources.SOURCES:
        assert [source.name, f"{source.client}: `{source.package}`", source.licence] in [
            cells[:3] for cells in ROWS
        ]


def test_the_weights_are_those_of_the_lowest_validation_loss() -> None:
    curve = [cells for cells in ROWS if len(cells) == 3 and re.fullmatch(r"[\d,]+", cells[0])]
    kept = re.search(r"those after step ([\d,]+),", LINE)[1]

    assert kept == min(curve, key=lambda cells: float(cells[2]))[0]


def test_the_training_command_repeats_the_recipe() -> None:
    command = re.search(r"python -m tools.train_tiny (.*\\\n.*\\\n.*)", CARD)[1]
    options = train_tiny.command_line().parse_args(shlex.split(command.replace("\\\n", "")))
    recipe = Recipe.parse(options.trial[0], Recipe())

    assert (options.steps, options.examples, options.seed) == (6593, 80_000, 1)
    assert recipe == Recipe(decay=0.3, dropout=0.25, chat=0.2)
    said = f"{recipe.batch} rows a step, {options.steps:,} steps"
    assert said in LINE
    assert f"weight decay {recipe.decay}, dropout {recipe.dropout} in training only" in LINE


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    with open_model() as llm:
        return dict(zip(QUESTIONS, answers(llm, QUESTIONS, thinking=False), strict=True))


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer(said: dict[str, str], question: str) -> None:
    assert row(question)[1] == " ".join(said[question].split())
