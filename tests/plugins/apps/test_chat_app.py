"""The chat app: history, commands, and answers that Ctrl-C cuts short."""

from __future__ import annotations

import io
import os
import pty
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from core.errors import UserError
from plugins.apps.chat import Chat, Conversation, turns


def converse(llm: Any, *lines: str, **options: Any) -> tuple[Conversation, str]:
    out = io.StringIO()
    conversation = Conversation(llm, Chat.Options(**options), out)
    conversation.follow(iter(lines))
    return conversation, out.getvalue()


def test_turns_in_another_encoding_are_told_of() -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"Gr\xfc\xdfe\n"), encoding="utf-8")

    with pytest.raises(UserError, match=r"standard input is no text in utf-8: .* \(0xfc\)"):
        list(turns(stream))


def test_each_turn_sees_those_before(fake_llm: Any) -> None:
    llm = fake_llm("yes it is")

    _, out = converse(llm, "Is it?", "Really?")

    assert out == "yes it is\nyes it is\n"
    assert llm.asked[1] == [
        {"role": "user", "content": "Is it?"},
        {"role": "assistant", "content": "yes it is"},
        {"role": "user", "content": "Really?"},
    ]


def test_reset_forgets_all_but_the_system_message(fake_llm: Any) -> None:
    llm = fake_llm()

    converse(llm, "one", "/reset", "two", system="Be brief.")

    assert llm.asked[1] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "two"},
    ]


def test_system_replaces_the_system_message(fake_llm: Any) -> None:
    llm = fake_llm()

    converse(llm, "one", "/system Speak like a pirate.", "two", "/system", "three")

    assert [m["role"] for m in llm.asked[1]] == ["system", "user"]
    assert llm.asked[1][0]["content"] == "Speak like a pirate."
    assert [m["role"] for m in llm.asked[2]] == ["user"]


def test_set_changes_a_parameter(fake_llm: Any) -> None:
    llm = fake_llm()

    _, out = converse(llm, "/set temperature=0.3", "/set stop=[END]", "go", "/set")

    assert (llm.params[0].temperature, llm.params[0].stop) == (0.3, ["END"])
    assert "temperature=0.3" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set temprature=1", "temperature"),
        ("/set temperature=-1", "temperature"),
        ("/set temperature", "NAME=VALUE"),
        ("/think maybe", "on, off or auto"),
        ("/what", "/what is no command"),
    ],
)
def test_a_mistake_is_explained_and_the_conversation_goes_on(
    fake_llm: Any, line: str, words: str
) -> None:
    llm = fake_llm("still here")

    _, out = converse(llm, line, "go")

    assert words in out.splitlines()[0]
    assert out.endswith("still here\n")
    assert llm.params[0].temperature == 0.6


def test_think_reaches_the_chat_template(fake_llm: Any) -> None:
    llm = fake_llm()

    converse(llm, "a", "/think off", "b", "/think on", "c", "/think auto", "d")

    asked = [t["chat_template_kwargs"] for t in llm.templates]
    assert asked == [{}, {"enable_thinking": False}, {"enable_thinking": True}, {}]


@pytest.mark.parametrize("line", ["/quit", "/exit"])
def test_quit_ends_it(fake_llm: Any, line: str) -> None:
    llm = fake_llm()

    converse(llm, line, "never asked")

    assert llm.asked == []


def test_an_answer_may_be_as_long_as_the_model_allows(fake_llm: Any) -> None:
    llm = fake_llm()

    converse(llm, "go")

    assert llm.params[0].max_tokens is None


def test_a_refused_message_leaves_no_trace(fake_llm: Any) -> None:
    llm = fake_llm()
    llm.refusal = UserError("this is too long.")

    conversation, out = converse(llm, "go")

    assert out == "this is too long.\n"
    assert conversation.messages == []


def test_ctrl_c_keeps_what_there_is_of_an_answer(fake_llm: Any) -> None:
    class Interrupted(fake_llm):
        def _pieces(self, prompt: Any) -> Iterator[Any]:
            for number, piece in enumerate(super()._pieces(prompt)):
                if number == 1 and len(self.asked) == 1:
                    os.kill(os.getpid(), signal.SIGINT)
                yield piece

    llm = Interrupted("one two three four")

    conversation, out = converse(llm, "first", "second")

    assert out == "one two\none two three four\n"
    assert conversation.messages[1] == {"role": "assistant", "content": "one two"}
    assert llm.closed == [True, False]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_pipe_gives_a_turn_a_line() -> None:
    assert list(turns(io.StringIO("one\n\n two \n"))) == ["one", "", "two"]


def test_a_terminal_asks_until_ctrl_d(monkeypatch: pytest.MonkeyPatch) -> None:
    leader, follower = pty.openpty()
    with os.fdopen(follower) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        answers = iter(["hello ", KeyboardInterrupt, "again", EOFError])

        def read(prompt: str) -> str:
            answer = next(answers)
            if isinstance(answer, str):
                return answer
            raise answer

        monkeypatch.setattr("builtins.input", read)
        assert list(turns(terminal)) == ["hello", "again"]
    os.close(leader)
