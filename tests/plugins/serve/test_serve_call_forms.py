"""Calls that are demanded are held to their tools, and tools go along with a form of the answer."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

from plugins.guided.vocabulary import vocabulary
from plugins.serve.text.call_grammars import calls, in_grammar, of_schema, or_calls
from tests.core.text.vocabularies import tokenizer
from tests.plugins.serve.running import ROOT, Launched

pytest.importorskip("llguidance")

from core.text import Tokenizer

QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Rome and in Paris?"}]
TINY = Tokenizer.open(ROOT / "models" / "qwen3" / "tiny")
TAG = TINY.encode("<tool_call>", add_special_tokens=False)[0]
ENDS = {str(token): -100 for token in TINY.special_ids}


class City(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=8)


class Trip(pydantic.BaseModel):
    """Nested, so that its schema has `$defs`."""

    model_config = pydantic.ConfigDict(extra="forbid")
    begin: City
    end: City


def tool(name: str, parameters: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("weather", City.model_json_schema())
TRIP = openai.pydantic_function_tool(Trip, name="trip")


def ask(server: Launched, **more: Any) -> Any:
    given: dict[str, Any] = {"model": "tiny", "messages": QUESTION, "seed": 3, "max_tokens": 120}
    return server.openai().chat.completions.create(**{**given, **more}).choices[0]


@pytest.mark.parametrize("tools", [[TRIP], [WEATHER, TRIP]])
def test_required_calls_keep_to_schemas_with_definitions(server: Launched, tools: Any) -> None:
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    choice = ask(server, tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])


@pytest.mark.parametrize("parameters", [{}, {"properties": {"a": {"type": "integer"}}}])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_arguments_are_objects_whatever_the_tool_says(
    server: Launched, parameters: Any, choice: Any
) -> None:
    for seed in range(3):
        found = ask(server, tools=[tool("f", parameters)], tool_choice=choice, seed=seed,
                    max_tokens=400, temperature=1.0)  # fmt: skip
        assert found.message.tool_calls[0].function.arguments.startswith("{")
        assert "<tool_call>" not in (found.message.content or "")


@pytest.mark.parametrize("parallel", [True, None, False])
def test_required_calls_may_be_several(server: Launched, parallel: bool | None) -> None:
    """Where no end is possible, another call is the only way to go on."""
    more: Any = {} if parallel is None else {"parallel_tool_calls": parallel}
    choice = ask(server, tools=[WEATHER], tool_choice="required", logit_bias=ENDS,
                 max_tokens=200, **more)  # fmt: skip
    calls = choice.message.tool_calls
    assert (len(calls) == 1) == (parallel is False)
    assert (choice.message.content or "<tool_call>").startswith("<tool_call>")  # half a call
    for call in calls[:-1]:
        City.model_validate_json(call.function.arguments)


def test_calls_that_are_sent_back_are_the_tokens_that_were_written(server: Launched) -> None:
    extra = {"return_token_ids": True, "chat_template_kwargs": {"enable_thinking": False}}
    given: Any = {"messages": QUESTION, "tools": [WEATHER], "max_tokens": 300, "temperature": 0}
    first = server.post("/v1/chat/completions", given | extra | {"tool_choice": "required"}).json()
    [choice] = first["choices"]
    again = [*QUESTION, choice["message"]]
    asked = given | {"messages": again, "add_generation_prompt": False, "max_tokens": 1}
    second = server.post("/v1/chat/completions", asked | extra).json()
    written = [token for token in choice["token_ids"] if token not in TINY.special_ids]
    sent = ",".join(map(str, second["prompt_token_ids"]))
    assert ",".join(map(str, written)) in sent


FORMS: list[Any] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema",
                         "json_schema": {"name": "t", "schema": Trip.model_json_schema()}}},
    {"extra_body": {"structured_outputs": {"choice": ["Rome", "Paris"]}}},
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_form_leaves_calls_possible(server: Launched, form: Any) -> None:
    for choice in ("auto", None):
        given: Any = {"tools": [WEATHER], **form} | ({"tool_choice": choice} if choice else {})
        found = ask(server, logit_bias={str(TAG): 100}, max_tokens=20, **given)
        assert found.message.content is None or "<tool_call>" in found.message.content
        assert not (found.message.content or "<").startswith(("{", "R", "P"))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_call_keeps_to_the_form(server: Launched, form: Any) -> None:
    found = ask(server, tools=[WEATHER], logit_bias={str(TAG): -100}, max_tokens=150, **form)
    text = found.message.content
    assert not found.message.tool_calls
    if "extra_body" in form:
        assert text in ("Rome", "Paris")
    elif found.finish_reason == "stop" and form["response_format"]["type"] == "json_schema":
        Trip.model_validate_json(text)
    else:
        assert text.startswith("{")


def test_a_call_is_read_where_there_is_a_form(server: Launched) -> None:
    bias = {str(TAG): 10}
    found = ask(server, tools=[WEATHER], temperature=0, max_tokens=60, logit_bias=bias, **FORMS[1])
    assert found.finish_reason == "tool_calls"
    assert found.message.content is None
    for call in found.message.tool_calls:
        json.loads(call.function.arguments)


@pytest.mark.parametrize(
    ("form", "text"), [({"regex": "a{3}"}, "aaa"), ({"grammar": 'start: "ab"'}, "ab")]
)
def test_forms_that_would_forbid_calls_are_refused(server: Launched, form: Any, text: str) -> None:
    body: Any = {"extra_body": {"structured_outputs": form}, "tools": [WEATHER]}
    with pytest.raises(openai.BadRequestError, match="would make calls of tools") as caught:
        ask(server, **body)
    assert caught.value.param == "structured_outputs"
    assert ask(server, tool_choice="none", **body).message.content == text


def test_a_tool_that_cannot_be_held_to_is_told_by_what_it_has(server: Launched) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
        ask(server, tools=[tool("f", schema)], tool_choice="required")
    assert "%json" not in str(caught.value)
    ask(server, tools=[tool("f", schema)], max_tokens=1)


def test_tags_are_tokens_or_text() -> None:
    assert in_grammar("<tool_call>", TINY) == "<tool_call>"
    assert in_grammar("<|im_end|>", TINY) is None  # it is left out of the text
    assert in_grammar("[TOOL]", TINY) == '"[TOOL]"'
    assert in_grammar("<tool_call>\n", TINY) is None
    assert in_grammar("<think>", tokenizer("bytes")) == "<think>"


ONE = '{"name": "f", "arguments": {"a": 1}}\n</CALL>'
TWO = f"{ONE}\n<CALL>\n{ONE}"


@pytest.mark.parametrize("tag", ["tool_call", "called"])  # one token each, and ordinary text
def test_grammars_of_calls_take_what_models_write(tag: str) -> None:
    from llguidance import LLMatcher

    words = vocabulary(TINY, TINY.vocab_size, sorted(TINY.eos_ids)).made
    begin, end = in_grammar(f"<{tag}>", TINY), in_grammar(f"</{tag}>", TINY)
    assert begin is not None
    assert end is not None

    def fits(grammar: str, text: str) -> bool:
        matcher = LLMatcher(words, grammar, log_level=0)
        ids = TINY.encode(text.replace("CALL", tag), add_special_tokens=False)
        return matcher.consume_tokens(ids) and matcher.is_accepting()

    schemas = {"e": {"type": "string"}, "f": {"type": "object"}}
    several = calls(schemas, (begin, end), several=True)
    assert fits(several, ONE)
    assert fits(several, TWO)
    single = calls(schemas, (begin, end), several=False)
    assert fits(single, ONE)
    assert not fits(single, TWO)
    assert fits(calls(schemas, (None, None), several=True), ONE.partition("\n")[0])
    for wrong in (ONE.replace('"f"', '"e"'), ONE.replace('"f"', '"g"'), ONE + "\n"):
        assert not fits(several, wrong)
    either = or_calls(of_schema({"type": "object"}), (begin, end))
    for right in ('{"a": 1}', f"<CALL>\n{ONE}", f"<CALL>\n{TWO}"):
        assert fits(either, right)
    assert not fits(either, "Well.")
