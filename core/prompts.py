"""What a caller may give as a prompt: text, token ids, or vLLM's mappings; one or many."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, NotRequired, TypedDict

from core.errors import UserError

Prompt = str | Sequence[int] | Mapping[str, Any]


class TextPrompt(TypedDict):
    """A prompt of text. vLLM's name for it."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt of token ids; `prompt` is the text they were made from. vLLM's name for it."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class Encoded(NamedTuple):
    """A prompt as the engine takes it."""

    text: str | None
    ids: list[int]
    salt: str | None = None  # prompts with different salts never share cached pages


KEYS = ("prompt", "prompt_token_ids", "cache_salt")


def listed(prompts: Any) -> list[Prompt]:
    """One prompt or several as a list. A flat list of numbers is one prompt."""
    if prompts is None:
        raise UserError("generate needs prompts: text, token ids, or a list of either.")
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if hasattr(prompts, "tolist"):  # an array, a tensor, or a column of a table
        prompts = prompts.tolist()
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | bytearray):
        raise UserError(f"prompts must be strings or token ids, not {type(prompts).__name__}.")
    found = list(prompts)
    return [found] if found and isinstance(found[0], Integral) else found


def with_token_ids(prompts: Any, ids: Any) -> list[Prompt]:
    """Prompts of token ids beside the texts they were made from, as older vLLMs take them."""
    tokens = listed(ids)
    texts = [None] * len(tokens) if prompts is None else listed(prompts)
    if len(texts) != len(tokens):
        raise UserError(f"{len(texts)} prompts and {len(tokens)} lists of prompt_token_ids.")
    return [{"prompt": t, "prompt_token_ids": i} for t, i in zip(texts, tokens, strict=True)]


def encoded(prompt: Prompt, encode: Callable[[str], list[int]]) -> Encoded:
    """A prompt as token ids. UserError when it is no prompt, or asks for what is not there."""
    if isinstance(prompt, str):
        return Encoded(prompt, encode(prompt))
    if not isinstance(prompt, Mapping):
        return Encoded(None, _ids(prompt))
    for key, value in prompt.items():
        if key not in KEYS and value:
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " Prompts are text or token ids."
            raise UserError(f"a prompt has no {key!r}.{hint}")
    text, salt = prompt.get("prompt"), prompt.get("cache_salt")
    if prompt.get("prompt_token_ids") is not None:
        return Encoded(text, _ids(prompt["prompt_token_ids"]), salt)
    if not isinstance(text, str):
        raise UserError(
            "a prompt given as a mapping needs 'prompt' (a string) or 'prompt_token_ids'; "
            f"this one has {', '.join(map(repr, prompt)) or 'nothing'}."
        )
    return Encoded(text, encode(text), salt)


def _ids(ids: Any) -> list[int]:
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise UserError(f"token ids must be a list of whole numbers, not {type(ids).__name__}.")
    if set(map(type, ids)) <= {int}:
        return list(ids)
    # numpy's whole numbers are fine; what is none is refused by name when all prompts are known
    return [int(i) if not isinstance(i, bool) and isinstance(i, Integral) else i for i in ids]
