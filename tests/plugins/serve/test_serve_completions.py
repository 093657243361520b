"""`/v1/completions` and the smaller endpoints, on a stand-in for an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.text import Tokenizer
from plugins.serve.protocol.completions import Completion
from plugins.serve.protocol.models import Model, ModelList, Version
from plugins.serve.protocol.tokens import Tokens
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import Running, serving
from tests.tiny import END_OF_TEXT, IM_END

PATH = "/v1/completions"


def whole(fake: Running, **body: Any) -> Any:
    answer = fake.post(PATH, body)
    assert answer.status_code == 200, answer.text
    msgspec.json.decode(answer.content, type=Completion)
    return answer.json()


def streamed(fake: Running, **body: Any) -> list[Any]:
    events = fake.events(PATH, body)
    for event in events:
        msgspec.json.decode(event, type=Completion)
    return [json.loads(event) for event in events]


@pytest.fixture(autouse=True)
def answer(fake: Running, tokenizer: Tokenizer) -> None:
    """The prompt again, in capitals and with its end."""
    fake.engine.answer = lambda ids, params, index: [
        *tokenizer.encode(tokenizer.decode(ids).upper()),
        IM_END,
    ]


def test_prompts_may_be_texts_or_ids(fake: Running, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abc")
    for prompt, texts in (
        ("abc", ["ABC"]),
        (["abc", "d"], ["ABC", "D"]),
        (ids, ["ABC"]),
        ([ids, ids[:1]], ["ABC", "A"]),
    ):
        found = whole(fake, prompt=prompt)
        assert [choice["text"] for choice in found["choices"]] == texts
        assert [choice["index"] for choice in found["choices"]] == list(range(len(texts)))
        assert found["usage"]["prompt_tokens"] == len("".join(texts))


def test_several_answers_to_several_prompts(fake: Running) -> None:
    found = whole(fake, prompt=["a", "bc"], n=2)
    assert [choice["text"] for choice in found["choices"]] == ["A", "A", "BC", "BC"]
    assert found["usage"]["prompt_tokens"] == 3
    assert found["usage"]["completion_tokens"] == 2 + 2 + 3 + 3
    texts = [""] * 4
    *events, last = streamed(fake, prompt=["a", "bc"], n=2, stream_options={"include_usage": True})
    for event in events:
        [choice] = event["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == ["A", "A", "BC", "BC"]
    assert last["usage"] == found["usage"]


def test_the_prompt_is_echoed(fake: Running, tokenizer: Tokenizer) -> None:
    assert whole(fake, prompt="ab", echo=True)["choices"][0]["text"] == "abAB"
    ids = tokenizer.encode("ab")
    assert whole(fake, prompt=ids, echo=True)["choices"][0]["text"] == "abAB"
    events = streamed(fake, prompt="ab", echo=True)
    assert events[0]["choices"][0]["text"] == "abA"
    assert "".join(event["choices"][0]["text"] for event in events) == "abAB"


def test_scores_of_an_echo_begin_with_the_prompt(fake: Running) -> None:
    [choice] = whole(fake, prompt="ab", echo=True, logprobs=1)["choices"]
    scores = choice["logprobs"]
    assert scores["tokens"] == ["a", "b", "A", "B", "<|im_end|>"]
    assert scores["token_logprobs"][0] is None
    assert scores["top_logprobs"][0] is None
    assert scores["text_offset"] == [0, 1, 2, 3, 4]
    assert all(value < 0 for value in scores["token_logprobs"][1:])
    told: dict[str, list[Any]] = {name: [] for name in scores}
    for event in streamed(fake, prompt="ab", echo=True, logprobs=1):
        for name, values in (event["choices"][0]["logprobs"] or {}).items():
            told[name] += values
    assert told == scores


@pytest.mark.parametrize("echo", [True, False])
def test_offsets_are_those_of_characters_however_many_tokens_one_has(
    fake: Running, tokenizer: Tokenizer, echo: bool
) -> None:
    end = len(tokenizer.encode("\u20ac"))
    assert end == 3
    ids = [*tokenizer.encode("ñ"), END_OF_TEXT, *tokenizer.encode("€b"), IM_END]
    fake.engine.answer = lambda prompt, params, index: ids
    body: Any = {"prompt": "日é", "echo": echo, "logprobs": 0}
    [choice] = whole(fake, **body)["choices"]
    prompt = "日é" * echo
    assert choice["text"] == prompt + "ñ€b"
    begun = len(prompt)
    places = [0, 0, 0, 1, 1] * echo + [begun + at for at in (0, 0, 1, 1, 1, 1, 2, 3)]
    assert choice["logprobs"]["text_offset"] == places
    told = [at for event in streamed(fake, **body)
            for at in (event["choices"][0]["logprobs"] or {}).get("text_offset", ())]  # fmt: skip
    assert told == places


def test_a_prompt_can_be_scored_alone(fake: Running) -> None:
    found = whole(fake, prompt="abc", echo=True, logprobs=0, max_tokens=0)
    [choice] = found["choices"]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["top_logprobs"] is None
    assert choice["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 0
    [event] = streamed(fake, prompt="abc", echo=True, logprobs=0, max_tokens=0)
    assert event["choices"][0]["logprobs"] == choice["logprobs"]


def test_prompt_logprobs_are_told_by_id(fake: Running, tokenizer: Tokenizer) -> None:
    [choice] = whole(fake, prompt="ab", prompt_logprobs=0)["choices"]
    b = tokenizer.encode("b")[0]
    nothing, found = choice["prompt_logprobs"]
    assert nothing is None
    assert found == {str(b): {"logprob": pytest.approx(-(b + 1) / 1000), "rank": 1,
                              "decoded_token": "b"}}  # fmt: skip


def test_characters_are_never_cut(fake: Running) -> None:
    events = streamed(fake, prompt="añ€😀")
    texts = [event["choices"][0]["text"] for event in events]
    assert [text for text in texts if text] == ["A", "Ñ", "€", "😀"]


def test_every_token_has_its_event_though_its_text_comes_later(
    fake: Running, tokenizer: Tokenizer
) -> None:
    texts = [event["choices"][0]["text"] for event in streamed(fake, prompt="añ€😀")]
    assert len(texts) == len(tokenizer.encode("AÑ€😀")) + 1
    assert texts[1:3] == ["", "Ñ"]


def test_stop_ids_are_told_where_they_were_named(fake: Running, tokenizer: Tokenizer) -> None:
    [b] = tokenizer.encode("B")
    [choice] = whole(fake, prompt="abc", stop_token_ids=[b])["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("A", "stop", b)
    [choice] = whole(fake, prompt="abc")["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    [choice] = whole(fake, prompt="abc", max_tokens=2)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("AB", "length")


@pytest.mark.parametrize(
    ("body", "most"),
    [({}, 16), ({"min_tokens": 20}, 20), ({"min_tokens": 3}, 16), ({"max_tokens": 40}, 40)],
)
def test_an_answer_is_short_unless_more_is_asked_for(fake: Running, body: Any, most: int) -> None:
    whole(fake, prompt="a", **body)
    assert fake.engine.asked[-1].params.max_tokens == most


def test_the_models_own_length_comes_first(folder: Path) -> None:
    defaults = {"max_new_tokens": 9, "min_new_tokens": 2}
    with serving(FakeEngine(defaults=defaults), folder) as running:
        whole(running, prompt="a")
        assert running.engine.asked[-1].params.max_tokens == 9


def test_special_tokens_are_added_unless_declined(fake: Running) -> None:
    whole(fake, prompt="a", add_special_tokens=False)
    assert len(fake.engine.asked[-1].ids) == 1


def test_priorities_need_a_scheduler_that_looks_at_them(fake: Running) -> None:
    refused = fake.post(PATH, {"prompt": "a", "priority": 3})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "priority"
    assert whole(fake, prompt="a", priority=0)


def test_models(fake: Running) -> None:
    models = msgspec.json.decode(fake.http.get("/v1/models").content, type=ModelList)
    assert [model.id for model in models.data] == ["tiny"]
    model = msgspec.json.decode(fake.http.get("/v1/models/tiny").content, type=Model)
    assert model.max_model_len == 256
    assert fake.http.get("/v1/models/Qwen/Qwen3-8B").status_code == 404


def test_tokens_and_text(fake: Running) -> None:
    answer = fake.post("/tokenize", {"prompt": "aé", "return_token_strs": True})
    found = msgspec.json.decode(answer.content, type=Tokens)
    assert (found.count, found.max_model_len) == (3, 256)
    assert found.token_strs == ["a", "\ufffd", "\ufffd"]
    text = fake.post("/detokenize", {"tokens": [*found.tokens, IM_END]}).json()
    assert text == {"prompt": "aé<|im_end|>"}
    chat = {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False}
    ids = fake.post("/tokenize", chat).json()["tokens"]
    assert fake.post("/detokenize", {"tokens": ids}).json()["prompt"] == (
        "<|im_start|>user\na<|im_end|>\n"
    )


def test_health_and_version(fake: Running) -> None:
    assert fake.http.get("/health").status_code == 200
    assert msgspec.json.decode(fake.http.get("/version").content, type=Version).version == "0"
    fake.engine.die()
    assert fake.http.get("/health").status_code == 503
