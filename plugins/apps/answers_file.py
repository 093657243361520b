"""Answers as JSON lines: what `run.out` of the generate app gets, an object for each prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plugins.apps.output_files import writing

if TYPE_CHECKING:
    from core.outputs import CompletionOutput, Logprob, RequestOutput

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say. As in the server's answers."""


def write_answers(path: str, outputs: Sequence[RequestOutput]) -> None:
    """Write a file anew. UserError if that fails."""
    with writing("out", path), open(path, "w", encoding="utf-8") as file:
        for output in outputs:
            file.write(json.dumps(record(output), ensure_ascii=False) + "\n")


def record(output: RequestOutput) -> dict[str, Any]:
    """What is known of one prompt and its answers.

    `error` is there where an answer has one, `logprobs` and `prompt_logprobs` where they were asked
    for: at each position the token that stands there, then the likeliest others. The first token of
    a prompt has null.
    """
    found: dict[str, Any] = {
        "id": output.request_id,
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [_answer(answer) for answer in output.outputs],
    }
    if output.prompt_logprobs is not None:
        found["prompt_logprobs"] = [
            None if position is None else _position(position) for position in output.prompt_logprobs
        ]
    return found


def _answer(answer: CompletionOutput) -> dict[str, Any]:
    found: dict[str, Any] = {
        "index": answer.index,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    if answer.error is not None:
        found["error"] = answer.error
    if answer.logprobs is not None:
        found["logprobs"] = [_position(position) for position in answer.logprobs]
    return found


def _position(tokens: dict[int, Logprob]) -> list[dict[str, Any]]:
    return [
        {
            "id": token,
            "text": entry.decoded_token,
            "logprob": max(LEAST, entry.logprob),
            "rank": entry.rank,
        }
        for token, entry in tokens.items()
    ]
