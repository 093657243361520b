"""The generate app: what it asks of the engine, and what it prints, writes and returns."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from plugins.apps.generate import Generate

ANY: Any = None  # a configuration that nothing looks at


def app(**options: Any) -> Generate:
    return Generate(Generate.Options(**options))


def test_one_prompt_is_streamed(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    llm = fake_llm("so it is")

    assert app(prompt="Is it?").complete(llm, ["Is it?"]) == 0

    out = capsys.readouterr()
    assert out.out == "so it is\n"
    assert out.err.startswith("3 tokens in ")
    assert llm.asked == ["Is it?"]


def test_parameters_lie_upon_the_models_own(fake_llm: Any) -> None:
    llm = fake_llm()

    app(prompt="x", params={"top_k": 5}).complete(llm, ["x"])

    params = llm.params[0]
    assert (params.temperature, params.top_k, params.max_tokens) == (0.6, 5, 256)


def test_a_wrong_parameter_is_named(fake_llm: Any) -> None:
    with pytest.raises(UserError, match=r"run\.params: .*temprature.*temperature"):
        app(prompt="x", params={"temprature": 1}).complete(fake_llm(), ["x"])


def test_many_prompts_are_one_batch(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    llm = fake_llm("yes")

    assert app().complete(llm, ["one", "two"]) == 0

    assert capsys.readouterr().out == "Prompt: one\nAnswer: yes\n\nPrompt: two\nAnswer: yes\n\n"
    assert llm.asked == ["one", "two"]


def test_several_answers_are_numbered(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    app(params={"n": 2}).complete(fake_llm("yes"), ["one"])

    assert capsys.readouterr().out == "Prompt: one\nAnswer 1: yes\nAnswer 2: yes\n\n"


def test_answers_go_to_a_file(
    fake_llm: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "answers.jsonl"

    app(out=str(path)).complete(fake_llm("ja, schön"), ["one", [7, 8]])

    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [r["prompt"] for r in records] == ["one", None]
    assert records[0]["outputs"][0]["text"] == "ja, schön"
    assert records[0]["outputs"][0]["finish_reason"] == "stop"
    assert capsys.readouterr().out == ""


def test_what_comes_to_nothing_is_told_before_there_is_an_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("core.llm.LLM.open", lambda config: pytest.fail("an engine was made"))
    wish = {"logprobs": 0, "prompt_logprobs": 2}

    with pytest.raises(UserError, match=r"run\.out: .*/answers\.jsonl cannot be written: No such"):
        app(prompt="x", params=wish, out=f"{tmp_path}/none/answers.jsonl").run(ANY)
    with pytest.raises(UserError, match=r"logprobs and prompt_logprobs .* Set run\.out to a file"):
        app(prompt="x", params=wish).run(ANY)
    with pytest.raises(UserError, match=r"run\.params: logprobs would be shown nowhere"):
        app(prompt="x", params={"logprobs": -1, "prompt_logprobs": None}).run(ANY)


def test_answers_do_not_replace_their_prompts(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("one\n")

    with pytest.raises(UserError, match=r"another file than run\.prompts_file"):
        app(prompts_file=str(path), out=str(path)).run(ANY)
    assert path.read_text() == "one\n"


def test_a_disk_that_fills_up_is_told_of(fake_llm: Any) -> None:
    generate = app(prompt="x", out="/dev/full")
    generate.check()

    with pytest.raises(UserError, match=r"run\.out: /dev/full cannot be written: No space left"):
        generate.complete(fake_llm(), ["x"])


def test_a_chat_prompt_is_a_message(fake_llm: Any) -> None:
    llm = fake_llm()

    app(chat=True, chat_template={"enable_thinking": False}).complete(llm, ["Hello"])

    assert llm.asked == [[{"role": "user", "content": "Hello"}]]
    assert llm.templates == [{"chat_template_kwargs": {"enable_thinking": False}}]


def test_a_failed_request_fails_the_run(fake_llm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert app().complete(fake_llm(finish_reason="error"), ["one", "two"]) == 1

    assert "requests 0, 1: " in capsys.readouterr().err


def test_prompts_are_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))

    assert app(prompt="-").prompts() == ["two\nlines\n"]


def test_input_in_another_encoding_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"Gr\xfc\xdfe\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stream)

    with pytest.raises(UserError, match=r"standard input is no text in utf-8: .* \(0xfc\)"):
        app(prompt="-").prompts()


@pytest.mark.parametrize("options", [{}, {"prompt": "x", "prompts_file": "y"}])
def test_there_is_one_source_of_prompts(options: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"run\.prompt and run\.prompts_file"):
        app(**options).prompts()
