"""The tags that Qwen3 is said to write are those of its chat template and its vocabulary."""

from __future__ import annotations

from core.text import Tokenizer
from models.qwen3 import find_model
from models.qwen3.architecture import Qwen3

CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


def rendered(**more: object) -> str:
    folder = find_model("tiny")
    assert folder is not None
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi", "reasoning_content": "Hm", "tool_calls": [CALL]},
    ]
    return Tokenizer.open(folder).chat(messages, **more)[0]  # type: ignore[arg-type]


def test_thoughts_stand_between_their_tags() -> None:
    assert Qwen3.dialect.thinking is not None
    begin, end = Qwen3.dialect.thinking
    assert f"{begin}\nHm\n{end}\n\nHi" in rendered()


def test_calls_stand_between_their_tags() -> None:
    assert Qwen3.dialect.tool_call is not None
    begin, end = Qwen3.dialect.tool_call
    assert f'{begin}\n{{"name": "f", "arguments": {{"a": 1}}}}\n{end}' in rendered()


def test_the_switch_closes_thoughts_at_once() -> None:
    switch, tags = Qwen3.dialect.thinking_switch, Qwen3.dialect.thinking
    assert switch is not None
    assert tags is not None
    text = rendered(add_generation_prompt=True, **{switch: False})
    assert text.endswith(f"{tags[0]}\n\n{tags[1]}\n\n")
