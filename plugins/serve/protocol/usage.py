"""The numbers of tokens that an answer took."""

from __future__ import annotations

import msgspec


class PromptTokens(msgspec.Struct, forbid_unknown_fields=True):
    """Where tokens of the prompt came from."""

    cached_tokens: int  # found in the prefix cache, so not computed again


class Usage(msgspec.Struct, forbid_unknown_fields=True):
    """Prompts count once each, however many answers were asked for."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens


def usage(prompt: int, completion: int, cached: int) -> Usage:
    """Numbers of tokens, with their sum."""
    return Usage(prompt, completion, prompt + completion, PromptTokens(cached))
