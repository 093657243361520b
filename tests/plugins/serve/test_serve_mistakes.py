"""Whatever a client sends, it gets an error object that names its mistake, and never a 500."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins.serve.protocol.chat import ChatRequest
from plugins.serve.protocol.completions import CompletionRequest
from plugins.serve.protocol.errors import ErrorAnswer
from tests.plugins.serve.running import Running

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def refused(answer: httpx.Response, status: int = 400) -> Any:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    return msgspec.json.decode(answer.content, type=ErrorAnswer).error


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "prompt", "prompt is missing"),
        ({"prompt": None}, "prompt", "prompt is missing"),
        ({"prompt": ""}, "prompt", "prompt is empty"),
        ({"prompt": []}, "prompt", "prompt is empty"),
        ({"prompt": [[]]}, "prompt", "prompt is empty"),
        ({"prompt": ["a", ""]}, "prompt", "prompt[1] is empty"),
        ({"prompt": 3}, "prompt", "expected"),
        ({"prompt": ["a", 1]}, "prompt", "mixes"),
        ({"prompt": [[1], "a"]}, "prompt", "mixes"),
        ({"prompt": [1.5]}, "prompt", "expected"),
        ({"prompt": [True]}, "prompt", "expected"),
        ({"prompt": "a\ud800"}, None, "half a character"),
        ({"prompt": [1] * 256}, "prompt", "The prompt has 256 tokens"),
        ({"prompt": [[1], [1] * 256]}, "prompt", "prompt[1] has 256 tokens"),
        ({"prompt": ["a", "a" * 100_000]}, "prompt", "prompt[1] has 100000 characters"),
        ({"prompt": [[1], [999]]}, "prompt", "Token 0 of prompt[1] is 999"),
        ({"prompt": ["a"] * 9, "n": 128}, None, "asks for 1152 answers, and no more than 1024"),
        ({"prompt": "a", "temprature": 1}, "temprature", "Did you mean temperature"),
        ({"prompt": "a", "temperature": "1"}, "temperature", "expected float"),
        ({"prompt": "a", "temperature": -0.5}, "temperature", "at least 0"),
        ({"prompt": "a", "temperature": True}, "temperature", "expected"),
        ({"prompt": "a", "top_p": 0}, "top_p", "more than 0"),
        ({"prompt": "a", "top_p": 1.1}, "top_p", "at most 1"),
        ({"prompt": "a", "top_k": -2}, "top_k", "at least -1"),
        ({"prompt": "a", "min_p": 2}, "min_p", "at most 1"),
        ({"prompt": "a", "n": 0}, "n", "at least 1"),
        ({"prompt": "a", "n": 129}, "n", "at most 128"),
        ({"prompt": "a", "n": 2, "temperature": 0}, "n", "temperature 0"),
        ({"prompt": "a", "n": 1.5}, "n", "expected int"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "is 0: it must be at least 1."),
        ({"prompt": "a", "max_tokens": 10**30}, "max_tokens", "at most"),
        ({"prompt": "a", "min_tokens": 5, "max_tokens": 4}, "min_tokens", "max_tokens"),
        ({"prompt": "a", "seed": 2**70}, "seed", "at most"),
        ({"prompt": "a", "presence_penalty": 2.5}, "presence_penalty", "at most 2"),
        ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty", "from 0.01 to 100"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "token id"),
        ({"prompt": "a", "logit_bias": {"999": 1}}, "logit_bias", "300"),
        ({"prompt": "a", "logit_bias": {"1": "x"}}, "logit_bias", "expected float"),
        ({"prompt": "a", "stop": ""}, "stop", "empty"),
        ({"prompt": "a", "stop": [1]}, "stop", "expected str"),
        ({"prompt": "a", "stop": ["x"] * 65}, "stop", "at most 64"),
        ({"prompt": "a", "stop": "x" * 16_385}, "stop", "16385 characters: at most 16384"),
        ({"prompt": "a", "stop": ["x" * 8_000] * 3}, "stop", "24000 characters"),
        ({"prompt": "a", "stop_token_ids": [1] * 1025}, "stop_token_ids", "length <= 1024"),
        ({"prompt": "a", "allowed_token_ids": [1] * (2**18 + 1)}, "allowed_token_ids", "<= 262144"),
        ({"prompt": "a", "logit_bias": {str(i): 1 for i in range(16_385)}}, "logit_bias",
         "length <= 16384"),
        ({"prompt": "a", "bad_words": ["x", "y" * 129]}, "bad_words", "length <= 128"),
        ({"prompt": "a", "bad_words": ["x" * 128] * 129}, "bad_words", "16512 characters"),
        ({"prompt": ["a"] * 65, "bad_words": ["x" * 128] * 127}, "prompt", "Split the request"),
        ({"prompt": "a", "stop_token_ids": [999]}, "stop_token_ids", "300"),
        ({"prompt": "a", "allowed_token_ids": []}, "allowed_token_ids", "Leave it out"),
        ({"prompt": "a", "allowed_token_ids": [-1]}, "allowed_token_ids", "token id"),
        ({"prompt": "a", "bad_words": ["x"] * 300}, "bad_words", "at most 256"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt": "a", "logprobs": -1}, "logprobs", "from 0 to 20"),
        ({"prompt": "a", "logprobs": True}, "logprobs", "expected int"),
        ({"prompt": "a", "prompt_logprobs": 99}, "prompt_logprobs", "from 0 to 20"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
        ({"prompt": "a", "best_of": 3}, "best_of", "same as n"),
        ({"prompt": "a", "use_beam_search": True}, "use_beam_search", "Beam search"),
        ({"prompt": "a", "stream_options": {}}, "stream_options", "where stream is true"),
        ({"prompt": "a", "stream": "yes"}, "stream", "expected bool"),
        ({"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options", "x"),
        ({"prompt": "a", "extra_args": {"a": 2**70}}, "extra_args", "64 bits"),
        ({"prompt": "a", "priority": 2**40}, "priority", "32 bits"),
        ({"prompt": "a", "guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "Choose"),
        ({"prompt": "a" * 100_000}, "prompt", "100000 characters"),
        ({"prompt": ["a"] * 1025}, "prompt", "1024 are the most"),
    ],
)  # fmt: skip
def test_completions_name_the_mistake(
    fake: Running, body: Any, param: str | None, says: str
) -> None:
    data = json.dumps(body)  # the standard library's writes half a character, too
    answer = fake.http.post(TEXT, content=data, headers={"Content-Type": "application/json"})
    error = refused(answer)
    assert error.param == param
    assert says in error.message
    assert error.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"messages": []}, "messages", "empty"),
        ({"messages": "Hello"}, "messages", "expected array"),
        ({"messages": [{"role": "user"}]}, "messages", "has no content"),
        ({"messages": [{"content": "x"}]}, "messages", "role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "robot"),
        ({"messages": [{"role": "user", "content": "x", "to": "y"}]}, "messages", "to"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages", "'image_url'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages", "expected"),
        ({"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 4},
         "max_completion_tokens", "contradicts"),
        ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "to 20"),
        ({"messages": HELLO, "logprobs": 2}, "logprobs", "expected bool"),
        ({"messages": HELLO, "audio": {}}, "audio", "Answers are text"),
        ({"messages": HELLO, "modalities": ["audio"]}, "modalities", "Answers are text"),
        ({"messages": HELLO, "functions": [{}]}, "functions", "replaced by tools"),
        ({"messages": HELLO, "reasoning_effort": "low"}, "reasoning_effort", "enable_thinking"),
        ({"messages": HELLO, "chat_template": "x"}, "chat_template", "own template"),
        ({"messages": HELLO, "tools": [{"type": "web_search"}]}, "tools", "web_search"),
        ({"messages": HELLO, "tools": [{**TOOL, "function": {"name": "a b"}}]}, "tools", "letters"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"messages": HELLO, "tools": [TOOL], "tool_choice": {"function": {"name": "g"}}},
         "tool_choice", "none of the tools"),
        ({"messages": HELLO, "tools": [TOOL], "tool_choice": "f"}, "tool_choice", "invalid"),
        ({"messages": HELLO, "response_format": {"type": "json_schema"}}, "response_format",
         "schema is missing"),
        ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format", "xml"),
        ({"messages": HELLO, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs",
         "tools"),
        ({"messages": HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs",
         "cannot hold messages"),
        ({"messages": HELLO, "guided_json": "x"}, "guided_json", "guided_json is"),
        ({"messages": [{"role": "user", "content": "a" * 400}]}, "messages", "tokens"),
        ({"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True},
         "messages", "choose one"),
        ({"messages": HELLO, "echo": True}, "echo", "Only /v1/completions"),
        ({"messages": HELLO, "model": "gpt-4o", "n": "x"}, "n", "expected int"),
    ],
)  # fmt: skip
def test_chat_names_the_mistake(fake: Running, body: Any, param: str, says: str) -> None:
    error = refused(fake.post(CHAT, body))
    assert error.param == param
    assert says in error.message


def test_all_mistakes_are_told_at_once(fake: Running) -> None:
    error = refused(fake.post(TEXT, {"prmpt": "a", "n": "x", "suffix": "b"}))
    for name in ("prmpt", "n:", "suffix", "prompt is missing"):
        assert name in error.message
    error = refused(fake.post(TEXT, {"prompt": "a", "top_p": 7, "min_p": 7}))
    assert error.message.count("at most 1") == 2


@pytest.mark.parametrize(("field", "value"), [("repetition_penalty", 0), ("n", 2**15)])
def test_a_field_has_one_bound(fake: Running, field: str, value: int) -> None:
    assert len(refused(fake.post(TEXT, {"prompt": "a", field: value})).message.splitlines()) == 1


def test_a_body_that_is_packed_is_refused(fake: Running) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    error = refused(fake.http.post(TEXT, content=gzip.compress(b"{}"), headers=headers), 415)
    assert "'gzip'" in error.message
    assert "Send it plain" in error.message
    plain = headers | {"Content-Encoding": "identity"}
    assert fake.http.post(TEXT, content=b'{"prompt": "a"}', headers=plain).status_code == 200


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"3", b"null", b'"x"', b"{} {}", b"\xff\xfe", b'{"prompt": NaN}',
     b'{"prompt": "\\ud800"}', b"[" * 100_000, b'{"a":' * 5000, b'{"prompt": 1e999}',
     b'{"prompt": "a", "metadata": ' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"}",
     b'{"prompt": ' + b"9" * 5000 + b"}", b"\x00", b"{'prompt': 'a'}"],
)  # fmt: skip
@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize", "/detokenize"])
def test_what_is_no_json_object_is_refused(fake: Running, path: str, data: bytes) -> None:
    answer = fake.http.post(path, content=data, headers={"Content-Type": "application/json"})
    assert refused(answer).code in ("invalid_json", "invalid_value")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "json"])
def test_other_kinds_of_bodies_are_refused(fake: Running, kind: str) -> None:
    answer = fake.http.post(TEXT, content=b'{"prompt": "a"}', headers={"Content-Type": kind})
    assert refused(answer, 415).code == "unsupported_media_type"


def test_unknown_paths_methods_and_models(fake: Running) -> None:
    assert refused(fake.http.get("/v2/models"), 404).code == "not_found"
    answer = fake.http.get(TEXT)
    assert refused(answer, 405).code == "method_not_allowed"
    assert answer.headers["allow"] == "POST"
    for path in ("/v1/embeddings", "/v1/responses", "/v1/images/generations"):
        assert path in refused(fake.post(path, {}), 404).message
    error = refused(fake.post(TEXT, {"prompt": "a", "model": "gpt-4o"}), 404)
    assert (error.code, error.param) == ("model_not_found", "model")


def test_a_full_queue_says_when_to_come_back(fake: Running) -> None:
    fake.engine.busy = 2.6
    for stream in (True, False):
        answer = fake.post(CHAT, {"messages": HELLO, "stream": stream})
        assert refused(answer, 429).type == "rate_limit_error"
        assert answer.headers["retry-after"] == "3"


def test_a_dead_engine_is_unavailable(fake: Running) -> None:
    fake.engine.die("Traceback: secret")
    for stream in (True, False):
        error = refused(fake.post(TEXT, {"prompt": "a", "stream": stream}), 503)
        assert "secret" not in error.message


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6) | st.sampled_from(["user", "text", "function", "auto", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.text(max_size=3) | st.sampled_from(["role", "content", "type", "name", "function"]),
        inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def bodies(kind: type[msgspec.Struct], right: dict[str, Any]) -> st.SearchStrategy[Any]:
    """A right request with a few of its fields replaced, or added, by anything."""
    names = st.sampled_from([*kind.__struct_fields__, "suffix", "audio", "functions", "unknown"])
    return st.dictionaries(names, VALUES, min_size=1, max_size=4).map(lambda wrong: right | wrong)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.tuples(st.just(TEXT), bodies(CompletionRequest, {"prompt": "a", "max_tokens": 2}))
    | st.tuples(st.just(CHAT), bodies(ChatRequest, {"messages": HELLO, "max_tokens": 2}))
)
def test_no_request_makes_the_server_fail(fake: Running, asked: tuple[str, Any]) -> None:
    path, body = asked
    data = json.dumps(body).encode()
    answer = fake.http.post(path, content=data, headers={"Content-Type": "application/json"})
    if answer.status_code == 200:
        return
    assert answer.status_code in (400, 404)
    refused(answer, answer.status_code)
