"""Answers in a given form over HTTP: whole, streamed, refused, and beside others."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event
from typing import Any

import openai
import pytest

from tests.plugins.serve.running import Launched

pytest.importorskip("llguidance")

QUESTION: list[Any] = [{"role": "user", "content": "Who lives in the wood?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "animal", "strict": True, "schema": SCHEMA},
}


def ask(server: Launched, **more: Any) -> Any:
    given: dict[str, Any] = {"model": "tiny", "messages": QUESTION, "seed": 2, "max_tokens": 120}
    return server.openai().chat.completions.create(**{**given, **more})


def check(text: str) -> None:
    animal = json.loads(text)
    assert set(animal) == {"name", "age"}
    assert len(animal["name"]) <= 12
    assert 0 <= animal["age"] <= 99


def test_a_schema_is_kept_to(server: Launched) -> None:
    for choice in ask(server, response_format=FORMAT, n=4).choices:
        assert choice.finish_reason == "stop"
        check(choice.message.content)


def test_a_stream_keeps_to_it_too(server: Launched) -> None:
    parts = list(ask(server, response_format=FORMAT, stream=True))
    check("".join(part.choices[0].delta.content or "" for part in parts if part.choices))


def test_any_json_object(server: Launched) -> None:
    answer = ask(server, response_format={"type": "json_object"}, max_tokens=80).choices[0]
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)
    assert answer.message.content.startswith("{")


@pytest.mark.parametrize(
    ("form", "expression"),
    [
        ({"choice": ["a mole", "a rat"]}, "a mole|a rat"),
        ({"regex": "[a-z]{3,7} [0-9]{2}"}, "[a-z]{3,7} [0-9]{2}"),
        ({"grammar": 'root ::= "<" [a-z] [a-z] ">"'}, "<[a-z]{2}>"),
    ],
)
def test_vllms_forms_on_completions(server: Launched, form: Any, expression: str) -> None:
    answer = server.openai().completions.create(
        model="tiny", prompt="It was", max_tokens=30, extra_body={"structured_outputs": form}
    )
    assert re.fullmatch(expression, answer.choices[0].text)


@pytest.mark.parametrize(
    "form",
    [
        {"json": {"not": {}}},
        {"regex": "(a"},
        {"grammar": "start: nobody"},
        {"json": SCHEMA, "regex": "a"},
        {"choice": []},
    ],
)
def test_what_cannot_be_served_is_a_mistake_of_the_client(server: Launched, form: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(server, extra_body={"structured_outputs": form})


BAD: Any = {"properties": {"a": {"type": "zzz"}}}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in (("good", {}), ("bad", BAD))
]


@pytest.mark.parametrize(
    ("asked", "param", "begins"),
    [
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "bad"}}},
         "tools", "tools[1].function.parameters (bad): this schema cannot be served: "),
        ({"tools": TOOLS[1:], "tool_choice": "required"},
         "tools", "tools[0].function.parameters (bad): "),
        ({"tools": TOOLS, "tool_choice": "required"}, "tools", "tools: "),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}}},
         "response_format", "response_format: this schema cannot be served: "),
        ({"guided_json": BAD}, "guided_json", "guided_json: this schema cannot"),
        ({"guided_regex": "(a"}, "guided_regex", "guided_regex: this regex cannot"),
        ({"structured_outputs": {"json": BAD}}, "structured_outputs", "structured_outputs: this"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos",
         "ignore_eos would leave"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_cannot_be_served_is_called_by_its_field(
    server: Launched, asked: dict[str, Any], param: str, begins: str, stream: bool
) -> None:
    answer = server.post("/v1/chat/completions", {"messages": QUESTION, "stream": stream} | asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(begins)


OF_STRANGERS: dict[str, tuple[dict[str, Any], str | None]] = {
    "takes a minute to read": ({"json": {"type": "integer", "multipleOf": 7654321}}, "computing"),
    "overflows the stack": (
        {
            "grammar": "start: r0\n"
            + "".join(f"r{i}: r{i + 1} |\n" for i in range(2000))
            + 'r2000: "a"'
        },
        "nesting",
    ),
    "comes to a limit of each token": (
        {"regex": "((((a{1,50}){1,50}){1,50}){1,50}){1,50}"},
        "no token is possible",
    ),
    "has no end": ({"json": {"$ref": "#"}}, "no answer would ever end"),
    "is long": ({"json": {"enum": ["x" * 2**21]}}, "are the most"),
    "is long for the engine": ({"choice": ["x" * 2**17]}, "characters"),
    "backtracks elsewhere": ({"regex": "(a|a)*(a+)+.*b.{300}"}, None),
    "counts": ({"regex": "[ab]{30000}"}, None),
    "has a large alphabet": ({"regex": r"(\p{L}\p{M}*){1,500}\w{200}"}, None),
    "is large": ({"json": {"type": "integer", "multipleOf": 30011}}, None),
}


def test_others_go_on_beside_forms_of_strangers(server: Launched) -> None:
    """A step takes some milliseconds, and what is refused takes up to a second of computing."""

    def stranger(form: dict[str, Any]) -> Any:
        return server.post(
            "/v1/completions", {"prompt": "a", "max_tokens": 20, "structured_outputs": form}
        )

    def streamed() -> list[float]:
        stream = ask(server, stream=True, max_tokens=700, extra_body={"ignore_eos": True})
        times = []
        for _ in stream:
            times.append(time.monotonic())
            going.set()
        return times

    going = Event()
    with ThreadPoolExecutor(1 + len(OF_STRANGERS)) as pool:
        streaming = pool.submit(streamed)
        assert going.wait(30)
        answers = pool.map(stranger, [form for form, _ in OF_STRANGERS.values()])
        for answer, (name, (_, words)) in zip(answers, OF_STRANGERS.items(), strict=True):
            assert answer.status_code == (200 if words is None else 400), (name, answer.text)
            assert words is None or words in answer.json()["error"]["message"], name
        times = streaming.result(60)
    assert len(times) > 500
    assert max(later - one for one, later in pairwise(times)) < 0.6
