"""Files of requests become files of answers: all of them, once each, however often it is begun."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("msgspec")

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from core.dialect import arguments
from core.errors import EngineDead, UserError
from core.settings import from_arguments
from plugins.serve.app import Serve
from plugins.serve.batch.answers import Answers
from plugins.serve.batch.app import Batch
from plugins.serve.batch.ids import Ids
from plugins.serve.batch.requests import Request, read, survey
from plugins.serve.batch.running import Counts, line, run
from plugins.serve.http import build
from tests.plugins.serve.fake_engine import FakeEngine
from tests.tiny import IM_END, save_tiny


def completion(name: str, **body: Any) -> dict[str, Any]:
    asked = {"prompt": [1, 2, 3], "max_tokens": 3} | body
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": asked}


def write(path: Path, *lines: Any) -> Path:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("".join(text + "\n" for text in texts))
    return path


def answers_in(path: Path) -> dict[str, Any]:
    found = [json.loads(text) for text in path.read_text().splitlines()]
    assert len({each["custom_id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("batch"), eos=[IM_END])


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(max_length=64)


@pytest.fixture
def app(checkpoint: Path, engine: FakeEngine) -> Iterator[Starlette]:
    config = from_arguments(arguments({"model": str(checkpoint), "device": "cpu"}))
    app = build(config, engine, Serve.Options())  # type: ignore[arg-type]
    yield app
    app.state.serving.prompts.close()


async def start(
    app: Starlette,
    engine: Any,
    coming: Iterator[Request],
    answers: Answers,
    counts: Counts,
    at_once: int,
    progress: Callable[[int], None] = lambda tokens: None,
) -> None:
    """Answer these requests, with an engine of the test's."""
    await run(app, engine, coming, answers, at_once=at_once, counts=counts, progress=progress)


def answer(
    app: Starlette, engine: FakeEngine, source: Path, target: Path, at_once: int = 4, **more: Any
) -> Counts:
    """What the app does, with an engine of the test's."""
    counts = Counts()
    asked = survey(source)
    with Answers(target) as answers:
        done = answers.done()
        assert not done.outside(asked)
        asyncio.run(start(app, engine, read(source, done), answers, counts, at_once, **more))
    return counts


def test_every_request_gets_the_answer_of_the_server(
    app: Starlette, engine: FakeEngine, tmp_path: Path
) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    source = write(
        tmp_path / "in",
        completion("one", prompt="hi"),
        {"custom_id": "two", "url": "/v1/chat/completions", "body": chat},
        "",
    )
    heard: list[int] = []
    counts = answer(app, engine, source, tmp_path / "out", progress=heard.append)
    found = answers_in(tmp_path / "out")
    first = found["one"]["response"]
    assert (first["status_code"], found["one"]["error"]) == (200, None)
    assert first["body"]["choices"][0]["text"] == "hi"
    assert found["two"]["response"]["body"]["object"] == "chat.completion"
    assert found["one"]["id"].startswith("batch_req_")
    assert (counts, heard) == (Counts(well=2), [2, 2])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "GET"}, "method must be POST"),
        ({"url": "/v1/embeddings"}, "url is '/v1/embeddings'"),
        ({"url": 7}, "url must be text"),
        ({"body": [1]}, "body must be a JSON object"),
        ({"body": {"prompt": "x", "stream": True}}, "stream must be left out"),
        ({"body": {"prompt": "x", "temperatur": 1}}, "Did you mean temperature"),
        ({"body": {"prompt": [1] * 99}}, "the prompt has 99 tokens"),
        ({"body": {"prompt": "x", "model": "other"}}, "does not exist"),
    ],
)
def test_a_request_that_is_wrong_has_an_error_of_openais_form(
    app: Starlette, engine: FakeEngine, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    source = write(tmp_path / "in", completion("bad") | changes, completion("good"))
    answer(app, engine, source, tmp_path / "out")
    found = answers_in(tmp_path / "out")
    assert found["good"]["response"]["status_code"] == 200
    response = found["bad"]["response"]
    assert 400 <= response["status_code"] < 500
    assert words.lower() in response["body"]["error"]["message"].lower()
    assert set(response["body"]["error"]) == {"message", "type", "param", "code"}


def test_a_file_with_broken_or_repeated_lines_is_refused(tmp_path: Path) -> None:
    deep = '{"custom_id": "deep", "body": ' + "[" * 10_000 + "]" * 10_000 + "}"
    source = write(
        tmp_path / "in", completion("a"), "{", {"url": "x"}, completion("b"), completion("a"), deep
    )
    with pytest.raises(UserError) as told:
        survey(source)
    lines = str(told.value).splitlines()
    assert [text.split(" ", 1)[0] for text in lines] == [f"{source}:{n}" for n in (2, 3, 6, 5)]
    assert "it is nested too deeply" in lines[2]
    assert "has the custom_id of line 1, 'a'" in lines[3]
    with pytest.raises(UserError, match="holds no request"):
        survey(write(tmp_path / "empty", ""))
    with pytest.raises(UserError, match="cannot be read"):
        survey(tmp_path / "missing")


@settings(max_examples=30)
@given(st.lists(st.text(max_size=3), max_size=30), st.lists(st.text(max_size=3), max_size=30))
def test_names_are_kept_as_a_set_would(names: list[str], others: list[str]) -> None:
    found = Ids(names)
    assert all(name in found for name in names)
    assert [name in found for name in others] == [name in set(names) for name in others]
    again = found.repeated()
    assert {n for n in names if n in again} == {n for n in names if names.count(n) > 1}
    assert Ids(set(names)).outside(Ids(others)) == len(set(names) - set(others))


@pytest.mark.parametrize("end", [b"", b'{"custom_id": "c", "resp', b"\x00\x00", b"{}"])
def test_half_a_line_at_the_end_is_mended(tmp_path: Path, end: bytes) -> None:
    whole = line("a", 200, b"{}") + line("b", 200, b"{}")
    path = tmp_path / "out"
    path.write_bytes(whole + end)
    with Answers(path) as answers:
        done = answers.done()
        assert ("a" in done, "b" in done, "c" in done) == (True, True, False)
        answers.append(line("c", 200, b"{}"))
    assert list(answers_in(path)) == ["a", "b", "c"]


def test_a_whole_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(line("a", 200, b"{}")[:-1])
    with Answers(path) as answers:
        assert "a" in answers.done()
        answers.append(line("b", 200, b"{}"))
    assert list(answers_in(path)) == ["a", "b"]


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path / "out", "my notes", "more of them")
    with pytest.raises(UserError, match=r"out:1 is no answer"), Answers(path) as answers:
        answers.done()
    assert path.read_text() == "my notes\nmore of them\n"


def test_two_processes_do_not_write_to_one_file(tmp_path: Path) -> None:
    with Answers(tmp_path / "out"), pytest.raises(UserError, match="another process"):
        Answers(tmp_path / "out")
    Answers(tmp_path / "out").__exit__()


@pytest.mark.parametrize("path", ["/dev/full", "/dev/zero", "/dev/null"])
def test_what_is_no_file_is_not_read_to_its_end(path: str) -> None:
    with pytest.raises(UserError, match=f"{path} is no file"):
        Answers(Path(path))


def test_what_is_answered_is_not_asked_again(
    app: Starlette, engine: FakeEngine, tmp_path: Path
) -> None:
    source = write(tmp_path / "in", *(completion(str(i)) for i in range(6)))
    (tmp_path / "out").write_bytes(line("2", 200, b"{}") + line("4", 400, b"{}"))
    answer(app, engine, source, tmp_path / "out")
    assert sorted(answers_in(tmp_path / "out")) == [str(i) for i in range(6)]
    assert len(engine.asked) == 4
    answer(app, engine, source, tmp_path / "out")
    assert len(engine.asked) == 4


def test_an_answer_that_stands_there_twice_hides_no_other_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in", *map(completion, "abc"))
    target, a, b = tmp_path / "out", line("a", 200, b"{}"), line("b", 200, b"{}")
    target.write_bytes(a + a + b)
    found: list[int] = []
    monkeypatch.setattr(Batch, "_answer", lambda *args: found.append(args[4]) or 0)
    Batch(Batch.Options(input=str(source), output=str(target))).run(None)  # type: ignore[arg-type]
    assert found == [1]
    assert "3 requests, 2 answered before" in capsys.readouterr().err


def test_when_the_engine_dies_nothing_is_written_of_what_it_had(
    app: Starlette, engine: FakeEngine, tmp_path: Path
) -> None:
    source = write(tmp_path / "in", *(completion(str(i)) for i in range(20)))

    def dying(ids: list[int], params: Any, index: int) -> list[int]:
        if len(engine.asked) > 9:
            engine.die("the engine is gone: killed.")
        return ids

    engine.answer = dying
    with pytest.raises(EngineDead, match="killed"):
        answer(app, engine, source, tmp_path / "out")
    found = answers_in(tmp_path / "out")
    assert 0 < len(found) < 20
    assert all(each["response"]["status_code"] == 200 for each in found.values())
    engine.dead, engine.answer = None, lambda ids, params, index: ids
    answer(app, engine, source, tmp_path / "out")
    assert len(answers_in(tmp_path / "out")) == 20


def test_no_more_requests_are_read_than_are_under_way(
    app: Starlette, engine: FakeEngine, tmp_path: Path
) -> None:
    given = 0

    def coming() -> Iterator[Request]:
        nonlocal given
        for request in read(write(tmp_path / "in", *map(completion, map(str, range(60)))), Ids()):
            given += 1
            yield request
            assert given - answers.count <= 5

    with Answers(tmp_path / "out") as answers:
        asyncio.run(start(app, engine, coming(), answers, Counts(), 5))
    assert given == answers.count == 60


def test_a_long_file_takes_little_memory(tmp_path: Path) -> None:
    source = tmp_path / "in"
    with source.open("w") as file:
        for number in range(20_000):
            file.write(json.dumps(completion(f"request-{number}", prompt="x" * 200)) + "\n")
    tracemalloc.start()
    asked = survey(source)
    assert sum(1 for _ in read(source, Ids())) == len(asked) == 20_000
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3e6  # the file has 6 MB


def test_files_must_be_named_and_different(tmp_path: Path) -> None:
    path = str(write(tmp_path / "in", completion("a")))
    for options, words in (
        (Batch.Options(input=path), "run.input and run.output"),
        (Batch.Options(input=path, output=path), "another file than"),
        (Batch.Options(input=path, output=path + "x", at_once=0), "at_once"),
    ):
        with pytest.raises(UserError, match=words):
            Batch(options).run(None)  # type: ignore[arg-type]
