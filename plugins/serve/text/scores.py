"""Log probabilities in the forms of OpenAI's two endpoints, and in vLLM's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.outputs import logprob_dict
from plugins.serve.protocol.chat_answers import ChatLogprobs, TokenLogprob, TopLogprob
from plugins.serve.protocol.completions import CompletionLogprobs

if TYPE_CHECKING:
    from core.outputs import Logprob
    from core.text import TokenizerLike
    from core.types import TokenLogprobs

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say. As in vLLM."""

Position = tuple[int, Mapping[int, "Logprob"]]
"""The id that was chosen, and what is known of it and of the likeliest ones."""


def for_chat(
    positions: Sequence[Position], count: int, tokenizer: TokenizerLike | None
) -> ChatLogprobs:
    """`count`: so many of the likeliest tokens of each position."""

    def entry(token: int, found: Logprob) -> tuple[str, float, list[int] | None]:
        data = tokenizer.token_bytes(token) if tokenizer else None
        return _text(token, found), _finite(found.logprob), list(data) if data else None

    return ChatLogprobs(
        [
            TokenLogprob(
                *entry(token, tops[token]),
                [TopLogprob(*entry(t, found)) for t, found in likeliest(tops, count)],
            )
            for token, tops in positions
        ]
    )


def for_completion(
    positions: Sequence[Position | None], count: int, offsets: list[int], first: str = ""
) -> CompletionLogprobs:
    """`offsets`: where each token begins in the text. A position that is None has the text `first`
    and no log probability: it is the prompt's first token."""
    tokens, values, tops = [], [], []
    for position in positions:
        if position is None:
            text, value, best = first, None, None
        else:
            token, found = position
            text, value = _text(token, found[token]), _finite(found[token].logprob)
            best = {text: value}
            for other, one in reversed(likeliest(found, count)):  # of equal texts the likelier
                best[_text(other, one)] = _finite(one.logprob)
            best[text] = max(value, best[text])
        tokens.append(text)
        values.append(value)
        tops.append(best)
    return CompletionLogprobs(tokens, values, tops if count else None, offsets)


def likeliest(tops: Mapping[int, Logprob], count: int) -> list[tuple[int, Logprob]]:
    """The best `count` of one position, the likeliest first."""
    ranked = [(t, found) for t, found in tops.items() if (found.rank or 0) <= count]
    return sorted(ranked, key=lambda entry: entry[1].rank or 0)[:count]


def of_prompt(
    ids: Sequence[int], found: Sequence[TokenLogprobs], tokenizer: TokenizerLike | None
) -> list[Position | None]:
    """What is known of each token of a prompt; nothing of the first."""
    text = tokenizer.token_text if tokenizer else None
    return [
        None,
        *((i, logprob_dict(position, text)) for i, position in zip(ids[1:], found, strict=False)),
    ]


def as_vllm(positions: Sequence[Position | None]) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: by token id."""
    return [
        None
        if position is None
        else {
            str(token): {
                "logprob": _finite(found.logprob),
                "rank": found.rank,
                "decoded_token": found.decoded_token,
            }
            for token, found in position[1].items()
        }
        for position in positions
    ]


def _text(token: int, found: Logprob) -> str:
    return f"token_id:{token}" if found.decoded_token is None else found.decoded_token


def _finite(value: float) -> float:
    return max(value, LEAST)
