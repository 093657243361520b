"""Chats become prompts exactly as transformers renders them, and mistakes name the message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vocabularies import raw_trained

from core.errors import UserError
from core.text import Tokenizer

QWEN_LIKE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'Call these:' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(calls=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {%- generation %}{{- message.content.lstrip('\\n') }}{%- endgeneration %}
        {%- for call in message.tool_calls or [] %}
            {%- set ns.calls = ns.calls + 1 %}
            {{- '\\n<call>' + call.function.name + ' ' }}{{- call.function.arguments | tojson }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role != 'system' %}
        {{- raise_exception('Unexpected role ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

USER = {"role": "user", "content": "Wie spät ist es? 😀"}
CALL = {"type": "function", "function": {"name": "clock", "arguments": {"zone": "Köln <&>"}}}
TOOL = {"type": "function", "function": {"name": "clock", "description": "Zeit für <b>"}}
LONG = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm\n"},
    {"role": "tool", "content": "12:00", "name": None},
    {"role": "assistant", "content": "\nNoon."},
    {"role": "user", "content": "Thanks"},
]


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=raw_trained(),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=QWEN_LIKE,
    )


@pytest.fixture(scope="module")
def ours(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("checkpoint")
    theirs.save_pretrained(folder)
    return Tokenizer.open(folder)


def plain(template: str | None = QWEN_LIKE, **named: str) -> Tokenizer:
    templates = {} if template is None else {"default": template}
    return Tokenizer(raw_trained(), chat_templates=templates, special_tokens=named, source="here")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_thinking": False},
        {"enable_thinking": True, "nobody_knows_this": [1, {"a": None}]},
        {"tools": [TOOL]},
        {"add_generation_prompt": False},
        {"chat_template": "{{ messages | tojson(indent=2) }}{{ eos_token }}"},
        {"chat_template": "{% for m in messages %}{% if loop.index0 %}{% break %}{% endif %}x"
                          "{% endfor %}{{ strftime_now('%Y')[:2] }}"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("messages", [[USER], LONG], ids=["one", "long"])
def test_prompts_are_those_of_transformers(
    ours: Tokenizer, theirs: Any, messages: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    wanted = {"add_generation_prompt": True} | options
    text, ids = ours.chat(messages, **options)
    assert text == theirs.apply_chat_template(messages, tokenize=False, **wanted)
    assert ids == theirs.apply_chat_template(messages, tokenize=True, **wanted)["input_ids"]


def test_the_final_message_can_be_continued(ours: Tokenizer, theirs: Any) -> None:
    messages = [USER, {"role": "assistant", "content": "It is "}]
    text, _ = ours.chat(messages, continue_final_message=True)
    assert text.endswith("assistant\nIt is ")
    assert text == theirs.apply_chat_template(
        messages, tokenize=False, continue_final_message=True, add_generation_prompt=False
    )
    with pytest.raises(UserError, match="choose one"):
        ours.chat(messages, continue_final_message=True, add_generation_prompt=True)


def test_messages_are_not_changed(ours: Tokenizer) -> None:
    messages = [dict(message) for message in LONG]
    ours.chat(messages, continue_final_message=True)
    assert messages == LONG


def test_null_content_beside_tool_calls_is_empty_text(ours: Tokenizer) -> None:
    """Clients send `"content": null` there, and templates take the length of it."""
    null = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    empty = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    assert ours.chat(null) == ours.chat(empty)


def test_text_parts_become_lines(ours: Tokenizer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert ours.chat([{"role": "user", "content": parts}]) == ours.chat(
        [{"role": "user", "content": "one\ntwo"}]
    )


@pytest.mark.parametrize("kind", ["input_text", "output_text", "refusal"])
def test_parts_under_other_names_are_text(ours: Tokenizer, kind: str) -> None:
    key = "refusal" if kind == "refusal" else "text"
    parts = [{"type": kind, key: "No."}]
    said = {"role": "assistant", "content": "No."}
    assert ours.chat([USER, {**said, "content": parts}, USER]) == ours.chat([USER, said, USER])


ARGUMENTS = """{% for m in messages %}{% for c in m.tool_calls or [] %}{{ WRITTEN }}\
{% endfor %}{% endfor %}"""


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("c.function.arguments | tojson", '{"city": "Rome"}'),
        ("c.function.arguments.items() | list", "[('city', 'Rome')]"),
        ("c.function.arguments if c.function.arguments is string else 'x'", '{ "city":"Rome"}'),
    ],
)
def test_templates_get_arguments_as_they_want_them(written: str, shown: str) -> None:
    """As a client sends a call back: JSON in a text."""
    call = {"type": "function", "function": {"name": "f", "arguments": '{ "city":"Rome"}'}}
    messages = [USER, {"role": "assistant", "tool_calls": [call]}, USER]
    text, _ = plain(ARGUMENTS.replace("WRITTEN", written)).chat(messages)
    assert text == shown
    call["function"]["arguments"] = "no JSON"
    text, _ = plain(ARGUMENTS.replace("WRITTEN", "c.function.arguments")).chat(messages)
    assert text == "no JSON"


def test_named_templates_from_files_and_from_a_list(tmp_path: Path) -> None:
    raw_trained().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "default", "template": "{{ 1 }}"},'
        ' {"name": "tool_use", "template": "{{ 2 }}"}]}'
    )
    reader = Tokenizer.open(tmp_path)
    assert reader.chat([USER])[0] == "1"
    assert reader.chat([USER], tools=[TOOL])[0] == "2"
    assert reader.chat([USER], chat_template="tool_use")[0] == "2"

    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("{{ 3 }}")
    reader = Tokenizer.open(tmp_path)
    assert reader.chat([USER], chat_template="rag")[0] == "3"
    with pytest.raises(UserError, match=r"no default(.|\n)*rag"):
        reader.chat([USER])
    (tmp_path / "chat_template.jinja").write_text("{{ 4 }}")
    assert Tokenizer.open(tmp_path).chat([USER])[0] == "4"


def test_no_template_and_no_such_template() -> None:
    with pytest.raises(UserError, match="here has no chat template"):
        plain(None).chat([USER])
    with pytest.raises(UserError, match=r"'rag' is neither Jinja source nor one of(.|\n)*default"):
        plain().chat([USER], chat_template="rag")


@pytest.mark.parametrize(
    ("messages", "parts"),
    [
        ([], ["messages is empty"]),
        ("hello", ["must be a list of messages, not str"]),
        ({"role": "user"}, ["must be a list of messages, not dict"]),
        ([USER, "hello"], ["messages[1] is a str"]),
        ([USER, {"content": "x"}], ["messages[1] has no role"]),
        ([USER, {"role": 3, "content": "x"}], ["messages[1] has no role"]),
        ([USER, {"role": "user"}], ["messages[1] (role 'user') has no content"]),
        ([{"role": "assistant", "tool_calls": []}], ["messages[0] (role 'assistant') has no"]),
        ([USER, {"role": "user", "content": 3}], ["messages[1].content must be text", "int"]),
        ([USER, {"role": "user", "content": "\ud83d"}], ["messages[1].content", "surrogate"]),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            ["messages[0].content[0]", "'image_url'"],
        ),
        ([{"role": "user", "content": ["x"]}], ["messages[0].content[0]", "'str'"]),
        ([{"role": "user", "content": [{"type": []}]}], ["messages[0].content[0]", "[]"]),
        (
            [USER, {"role": "user"}, USER, {"content": "x"}],
            ["messages[1] (role 'user') has no content", "\nmessages[3] has no role"],
        ),
        ([USER, {"role": "robot", "content": "x"}, USER], ["messages[1]", "Unexpected role robot"]),
    ],
)
def test_a_mistake_names_the_message(messages: Any, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        plain().chat(messages)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("bad", range(5))
def test_the_message_at_which_a_template_fails_is_found(bad: int) -> None:
    messages = [dict(USER) for _ in range(5)]
    messages[bad]["name"] = "x"
    template = "{% for m in messages %}{% if m.name %}{{ m.name.last.x }}{% endif %}{% endfor %}"
    with pytest.raises(UserError, match=rf"fails at messages\[{bad}\] \(role 'user'\)"):
        plain(template).chat(messages)


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("{% for %}", r"not valid Jinja: .* \(line 1\)"),
        ("{{ nothing.at.all }}", "template fails: 'nothing' is undefined"),
        ("{{ 1 / 0 }}", "template fails: ZeroDivisionError"),
        ("{{ messages.append(1) }}", "template fails: SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "template fails: SecurityError"),
        ("{% include 'etc' %}", "template fails: TypeError"),
    ],
)
def test_a_template_that_fails_by_itself(template: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        plain(template).chat([USER])


def test_a_message_that_a_template_drops_is_not_lost_silently() -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}"
    messages = [USER, {"role": "developer", "content": "Be brief."}]
    with pytest.raises(UserError, match=r"messages\[1\]: .* leaves out .* 'developer'"):
        plain(template + "{% endfor %}").chat(messages)


def test_an_empty_list_of_tools_is_none(ours: Tokenizer) -> None:
    assert ours.chat([USER], tools=[]) == ours.chat([USER])


@pytest.mark.parametrize("tools", ["clock", {"name": "clock"}, [3]])
def test_wrong_tools_are_refused(tools: Any) -> None:
    with pytest.raises(UserError, match=r"tools must|Tools should"):
        plain().chat([USER], tools=tools)


def test_names_of_the_renderer_cannot_be_given_to_a_template() -> None:
    with pytest.raises(UserError, match="messages cannot be given"):
        plain().chat([USER], **{"messages": []})


def test_special_tokens_reach_the_template() -> None:
    reader = plain("{{ eos_token }}{{ pad_token is defined }}", eos_token="<|im_end|>")
    assert reader.chat([USER])[0] == "<|im_end|>False"
