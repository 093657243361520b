"""One answer of a chat as its text arrives: what was thought, what was said, what was called."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from core.interfaces import Dialect
from plugins.serve.protocol.chat_answers import CalledFunction, CalledTool
from plugins.serve.text.reasoning import ReasoningSplitter
from plugins.serve.text.tool_calls import Found, ToolCallParser


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers to one request are to be read."""

    dialect: Dialect
    thinking: bool = False  # tags of thoughts are looked for
    opened: bool = False  # the prompt ends inside of thoughts
    tools: bool = False  # tags of calls are looked for
    begun: str = ""  # of the answer, already in the prompt: the front of a call
    parallel: bool = True  # more than one call is handed out
    thoughts: bool = True  # thoughts are handed out


@dataclass(slots=True)
class Said:
    """What is new."""

    content: str = ""
    reasoning: str = ""
    calls: list[CalledTool] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)

    def add(self, calls: list[CalledTool]) -> None:
        """Further parts of calls; those of one call are put together."""
        for call in calls:
            last = self.calls[-1] if self.calls else None
            if last is None or last.index != call.index:
                self.calls.append(call)
                continue
            assert last.function is not None
            assert call.function is not None
            last.function.arguments = (last.function.arguments or "") + (
                call.function.arguments or ""
            )


class Reply:
    """Takes the text of one answer."""

    def __init__(self, reading: Reading, *, live: bool) -> None:
        dialect = reading.dialect
        self._reading = reading
        self._splitter = self._parser = None
        if reading.thinking and dialect.thinking is not None:
            self._splitter = ReasoningSplitter(dialect.thinking, opened=reading.opened)
        if reading.tools and dialect.tool_call is not None:
            self._parser = ToolCallParser(dialect.tool_call, live=live)
        self._front = [] if self._parser is None else self._parser.push(reading.begun)

    @property
    def plain(self) -> bool:
        """Whether all further text is content, unchanged."""
        return self._parser is None and (self._splitter is None or self._splitter.passing)

    @property
    def called(self) -> bool:
        """Whether any tool was called."""
        return self._parser is not None and self._parser.calls > 0

    @property
    def calls_ended(self) -> int:
        """Calls whose end has been seen."""
        return 0 if self._parser is None else self._parser.ended

    def take(self, text: str) -> Said:
        """New text. -> what of it is decided."""
        said = Said()
        if self._front:
            self._add(said, self._front)
            self._front = []
        if self._splitter is not None and text:
            thought, text = self._splitter.push(text)
            said.reasoning = thought
        if self._parser is None:
            said.content = text
        elif text:
            self._add(said, self._parser.push(text))
        return self._wanted(said)

    def finish(self) -> Said:
        """The answer has ended. -> what was undecided."""
        said = Said()
        text = ""
        if self._splitter is not None:
            said.reasoning, text = self._splitter.finish()
        if self._parser is None:
            said.content = text
        else:
            if text:
                self._add(said, self._parser.push(text))
            self._add(said, self._parser.finish())
        return self._wanted(said)

    def _wanted(self, said: Said) -> Said:
        if not self._reading.thoughts:
            said.reasoning = ""
        return said

    def _add(self, said: Said, found: list[Found]) -> None:
        for text, call, name in found:
            if call is None:
                said.content += text
            elif call and not self._reading.parallel:
                continue
            elif name is None:
                said.add([CalledTool(call, function=CalledFunction(None, text))])
            else:
                id = f"call_{uuid.uuid4().hex[:24]}"
                said.add([CalledTool(call, id, "function", CalledFunction(name, text))])
