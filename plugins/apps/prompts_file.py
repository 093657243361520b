"""Prompts from a file, one a line: plain text, or JSON objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from core.errors import UserError


def read_prompts(path: Path) -> list[str | list[int]]:
    """The prompts of a file: its lines, or what JSON objects in a `.jsonl` or `.json` file have.

    UserError for a file that cannot be read or holds no prompt, and for a line that is none.
    """
    if path.suffix in (".jsonl", ".json"):
        prompts = [_from_json(path, number, line) for number, line in _lines(path)]
    else:
        prompts = [line for _, line in _lines(path)]
    if not prompts:
        raise UserError(f"run.prompts_file: {path} holds no prompt.")
    return prompts


def _from_json(path: Path, number: int, line: str) -> str | list[int]:
    try:
        record = json.loads(line)
        found: str | list[int]
        found = record["prompt_token_ids" if "prompt_token_ids" in record else "prompt"]
        return found
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f'{path}:{number} is no JSON object with "prompt" or "prompt_token_ids".'
        ) from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers.

    A line feed ends a line, with a carriage return before it or without. Other characters at which
    `str.splitlines` cuts are part of a prompt, and JSON may have U+2028 in its strings.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                # what some editors put in front of a text is no part of it
                line = _text(path, number, raw, "utf-8-sig" if number == 1 else "utf-8")
                line = line.removesuffix("\n").removesuffix("\r")
                if line.strip():
                    yield number, line
    except OSError as error:
        raise UserError(f"run.prompts_file: {path} cannot be read: {error.strerror}.") from None


def _text(path: Path, number: int, raw: bytes, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"run.prompts_file: {path}:{number} is no text in UTF-8: {error.reason} "
            f"({raw[error.start]:#04x}). Save the file in UTF-8."
        ) from None
