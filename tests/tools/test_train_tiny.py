"""The training script end to end on a CPU, its tokenizer and its chat format."""

from __future__ import annotations

import functools
import json
import random
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools import eval_tiny
from tools.tiny_chat import ChatExamples, Turn, render
from tools.tiny_heldout import read_excerpt, read_words
from tools.tiny_sources import SOURCES
from tools.tiny_text import PARTS, save
from tools.tiny_tokenizer import MARKUP, SPECIAL
from tools.tiny_trainer import Recipe, Trainer
from tools.train_tiny import main, measure, prepare


def prose(seed: int, sentences: int) -> str:
    rng = random.Random(seed)
    subjects, verbs = (
        ["the king", "a child", "my ship", "the sea"],
        ["saw", "left", "loved", "took"],
    )
    said = [
        f"{rng.choice(subjects)} {rng.choice(verbs)} {rng.choice(subjects)}."
        for _ in range(sentences)
    ]
    return "\n\n".join(" ".join(said[i : i + 8]).capitalize() for i in range(0, sentences, 8))


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-text")
    save(folder / "train.json.xz", [["alice", prose(n, 200)] for n in range(4)])
    save(folder / "validation.json.xz", [["book", prose(9, 900)]])
    save(folder / "heldout.json.xz", [["alice", prose(7, 60)], ["austen", prose(8, 60)]])
    save(folder / "definitions.json.xz", {"king": "a man who rules"})
    sizes = {source.name: dict.fromkeys(PARTS, 7) for source in SOURCES}
    (folder / "summary.json").write_text(json.dumps(sizes))
    return folder


def shorten(patch: pytest.MonkeyPatch, context: int) -> None:
    """Rows of so many tokens, which take less time."""
    for module in ("train_tiny", "tiny_trainer"):
        patch.setattr(f"tools.{module}.CONTEXT", context)


@pytest.fixture(scope="module")
def trained(text_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch, 256)
        main(
            f"--text {text_folder} --out {out} --device cpu --steps 3 --examples 200 --no-eval"
            " --trial batch=1,epochs=1,chat=0.3".split()
        )
    return out


def test_training_leaves_a_model_that_transformers_loads(trained: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(trained)
    assert model.dtype == torch.bfloat16
    assert model.config.num_attention_heads * model.config.head_dim != model.config.hidden_size
    assert model.config.tie_word_embeddings
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (trained / "model.safetensors").stat().st_size < 16_000_000
    tokenizer = AutoTokenizer.from_pretrained(trained)
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids(
        ["<|im_end|>", "<|endoftext|>"]
    )
    ids = torch.tensor([tokenizer("The king saw")["input_ids"]])
    assert model(ids).logits.isfinite().all()


def test_a_run_is_measured_and_gets_a_card(
    text_folder: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = functools.partial(eval_tiny.samples, pieces=2, length=20)
    monkeypatch.setattr(eval_tiny, "samples", short)
    monkeypatch.setattr(eval_tiny, "SEEDS", [1])
    monkeypatch.setattr(eval_tiny, "QUESTIONS", ["Who?"])
    measure(text_folder, trained, "cpu")

    assert "king" in read_words(trained)
    assert read_excerpt(trained) == prose(7, 60) + "\n\n" + prose(8, 60) + "\n"
    report = json.loads((trained / "report.json").read_text())
    figures = [report[name] for name in ("excerpt", "held-out", "alice", "austen")]
    assert all(1.5 < row["bits_per_byte"] < 2.5 for row in figures)  # it hardly learned anything
    assert len(report["known_words"]) == 1
    card = (trained / "README.md").read_text()
    assert "--seed 1 --examples 200 --steps 3 " in card
    assert "optimizer=muon,lr=0.003,decay=0.1,dropout=0.1,batch=1,chat=0.3" in card
    assert "| Who? | " in card


def test_loss_falls_and_the_same_seed_gives_the_same_run(
    text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, 128)
    data = prepare(text_folder, seed=1, examples=200, device=torch.device("cpu"))
    data.validation = data.validation[:1]
    runs = []
    for _ in range(2):
        trainer = Trainer(data, seed=1, compiled=False)
        before = trainer.validate()
        after, _, record = trainer.run(Recipe(batch=2, lr=0.01, chat=0.1), 4, deadline=0)
        assert after < before - 0.5
        runs.append(record["curve"])
    assert runs[0] == runs[1]


def test_tokenizer_gives_any_text_back(trained: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained)
    for text in (
        "The king saw 1,204 ships.",
        "caf\u00e9 \u2603 \U0001f600\n\n  x\t\u4e2d",
        " a  b ",
    ):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_special_tokens_are_last_and_whole(trained: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained)
    names = [*SPECIAL, *MARKUP]
    ids = tokenizer.convert_tokens_to_ids(names)
    assert ids == list(range(len(tokenizer) - len(names), len(tokenizer)))
    assert tokenizer("".join(names))["input_ids"] == ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "".join(MARKUP)


def test_template_switches_thinking_off_with_an_empty_thought(trained: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained)
    ask = [{"role": "user", "content": "Hi"}]
    on = tokenizer.apply_chat_template(ask, tokenize=False, add_generation_prompt=True)
    off = tokenizer.apply_chat_template(
        ask, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert on == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert off == on + "<think>\n\n</think>\n\n"


def test_template_lists_tools_and_wraps_calls_and_responses(trained: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "R"},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[tool], tokenize=False)
    assert '<tools>\n{"type": "function", "function": {"name": "f"' in text
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert text.endswith("<|im_start|>user\n<tool_response>\nR\n</tool_response><|im_end|>\n")


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_examples_are_what_the_template_renders(trained: Path, thinking: bool, system: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained)
    turns = [Turn("1 + 1?", "2", "One and one."), Turn("Why?", "Because.", "Hm.")]
    messages = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages.append({"role": "user", "content": turn.question})
        thought = turn.thought if thinking else ""
        messages.append({"role": "assistant", "content": turn.answer, "reasoning_content": thought})
    assert tokenizer.apply_chat_template(messages, tokenize=False) == render(
        turns, thinking, system
    )


def test_chat_examples_are_right_and_repeatable() -> None:
    make = lambda: ChatExamples(5, [("alice", prose(1, 200))], {})  # noqa: E731
    first, second = make(), make()
    assert [first.conversation() for _ in range(50)] == [second.conversation() for _ in range(50)]
    for _ in range(50):
        turn = first.addition()
        a, b = (int(n) for n in re.findall(r"\d+", turn.question))
        assert str(a + b) in turn.answer
