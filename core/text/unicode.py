"""The check that a text can be written as UTF-8 at all."""

from __future__ import annotations

from core.errors import UserError


def whole_text(text: object, what: str) -> str:
    """Return `text` if it is a string of whole characters.

    A lone surrogate is half of a UTF-16 pair. JSON can smuggle one in ("\\ud83d"), no tokenizer
    knows it, and no answer that holds one can be sent.

    Raises:
        UserError: it is not a string, or holds a lone surrogate. `what` begins the sentence.
    """
    if not isinstance(text, str):
        raise UserError(f"{what} must be text (str), not {type(text).__name__}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} holds half a character (the lone surrogate \\u{ord(text[error.start]):04x} at "
            f"position {error.start}); send the whole character, or decode the text with "
            "errors='replace' first."
        ) from None
    return text
