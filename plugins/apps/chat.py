"""`run: chat`: a conversation in the terminal, or with one turn a line from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import yaml

from core.errors import UserError
from core.interfaces import App
from core.visible import visible
from plugins.apps.parameters import with_settings
from plugins.apps.terminal import dim, interactive, one_interrupt, printable, text_from_input

if TYPE_CHECKING:
    from core.config import Config
    from core.llm import LLM

HELP = """\
/reset                 forget the conversation
/set NAME=VALUE        change a sampling parameter, such as temperature=0.3; /set alone shows them
/think on|off|auto     let the model think first, or not; auto leaves it to the chat template
/system TEXT           set the system message and start over; without a text, remove it
/quit                  leave; so does Ctrl-D
Ctrl-C stops an answer and keeps what there is of it."""

THINKING = {"on": True, "off": False, "auto": None}


class Chat(App):
    """Keeps a conversation going until its input ends."""

    @dataclass
    class Options:
        system: str | None = field(default=None, metadata={"help": "the system message"})
        thinking: bool | None = field(
            default=None,
            metadata={"help": "whether the model thinks first; null: as its chat template has it"},
        )
        params: dict[str, Any] = field(
            default_factory=dict,
            metadata={"help": "sampling parameters, such as temperature, top_p, max_tokens"},
        )

    options: Options

    def run(self, config: Config) -> int:
        from core import LLM

        with LLM.open(config) as llm:
            if interactive(sys.stdin):
                print(dim("Ask something, or /help. Ctrl-D leaves.", sys.stdout))
            Conversation(llm, self.options).follow(turns(sys.stdin))
        return 0


def turns(stream: TextIO) -> Iterator[str]:
    """What the user says, a line each: with a prompt and line editing on a terminal."""
    if not interactive(stream):
        with text_from_input():
            for line in stream:
                yield line.strip()
        return
    with suppress(ImportError):
        import readline  # noqa: F401  gives `input` history and editing
    while True:
        try:
            yield input("> ").strip()
        except KeyboardInterrupt:
            print("\nCtrl-D or /quit leaves.")
        except EOFError:
            print()
            return


class Conversation:
    """The messages so far, and how the next one is answered."""

    def __init__(self, llm: LLM, options: Chat.Options, out: TextIO | None = None) -> None:
        self.llm, self.out = llm, out or sys.stdout
        self.system, self.thinking = options.system, options.thinking
        # an answer may go on to the end of the model's context unless the settings say less
        self.params = with_settings(
            llm.get_default_sampling_params(), {"max_tokens": None} | options.params
        )
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def follow(self, lines: Iterator[str]) -> None:
        """Obey or answer each line. A mistake is explained, and the conversation goes on."""
        for line in lines:
            if line in ("/quit", "/exit"):
                return
            try:
                if line.startswith("/"):
                    self.command(line)
                elif line:
                    self.answer(line)
            except UserError as error:
                self._say(str(error))

    def answer(self, text: str) -> None:
        """Print the model's answer to `text` as it comes, and remember both."""
        self.messages.append({"role": "user", "content": text})
        template = {} if self.thinking is None else {"enable_thinking": self.thinking}
        try:
            pieces = self.llm.stream_chat(self.messages, self.params, chat_template_kwargs=template)
        except UserError:
            self.messages.pop()
            raise
        completion = None
        with one_interrupt() as interrupt, closing(pieces):
            for output in pieces:
                completion = output.outputs[0]
                print(printable(completion.delta, self.out), end="", file=self.out, flush=True)
                if interrupt:
                    break
        print(file=self.out, flush=True)
        if completion is not None:
            self.messages.append({"role": "assistant", "content": completion.text})
            if completion.finish_reason == "error":
                self._say(completion.error or "the request failed.")
            elif completion.finish_reason == "length":
                self._say("(The answer ends here: its limit of tokens is reached.)")

    def command(self, line: str) -> None:
        """Obey one /command. UserError if there is none of this name or its value is wrong."""
        name, _, rest = line[1:].partition(" ")
        rest = rest.strip()
        match name:
            case "help":
                self._say(HELP)
            case "reset":
                self.reset()
                self._say("The conversation starts over.")
            case "set" if not rest:
                self._say(str(self.params))
            case "set":
                self._set(rest)
            case "think":
                if rest not in THINKING:
                    raise UserError("/think takes on, off or auto.")
                self.thinking = THINKING[rest]
                self._say(f"Thinking is {rest}.")
            case "system":
                self.system = rest or None
                self.reset()
                self._say("The conversation starts over with the new system message.")
            case _:
                raise UserError(f"/{name} is no command. /help lists them.")

    def _set(self, setting: str) -> None:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UserError("/set takes NAME=VALUE, such as /set temperature=0.3.")
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError:
            read = value
        self.params = with_settings(self.params, {name.strip(): read}, key="/set")
        self._say(f"{name.strip()} is {read}.")

    def _say(self, text: str) -> None:
        print(dim(visible(text), self.out), file=self.out, flush=True)
