"""Tables for people and for pipes."""

from __future__ import annotations

import io

from plugins.apps.terminal import plain_columns, printable, show_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_aligned() -> None:
    lines = plain_columns(["name", "size"], [["a", "10"], ["longer", "7"]], right=(1,))

    assert lines == ["name    size", "a         10", "longer     7"]


def test_a_pipe_gets_plain_columns() -> None:
    out = io.StringIO()

    show_table(["name"], [["[bold]x"]], title="T", stream=out)

    assert out.getvalue() == "T\nname\n[bold]x\n"


def test_a_terminal_gets_a_drawn_table_with_the_text_as_it_is() -> None:
    out = Terminal()

    show_table(["name"], [["[bold]x"]], stream=out)

    assert "[bold]x" in out.getvalue()
    assert "┃" in out.getvalue()


def test_a_model_cannot_steer_the_terminal() -> None:
    text = "a\tb\n\x1b[2J\x07é\x9b"

    assert printable(text, Terminal()) == "a\tb\n\ufffd[2J\ufffdé\ufffd"
    assert printable(text, io.StringIO()) == text
