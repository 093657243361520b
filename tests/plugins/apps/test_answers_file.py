"""Records of answers: JSON, with everything that was asked for and nothing that was not."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from core.outputs import CompletionOutput, Logprob, RequestOutput
from plugins.apps.answers_file import record, write_answers

PLAIN = {"index", "text", "token_ids", "finish_reason", "stop_reason"}
LEFT_OUT = {
    "delta",  # what streams have
    "extras",  # tensors, of plugins
    "cumulative_logprob",  # the sum of logprobs
    "finished",
    "metrics",
    "num_cached_tokens",
}

AT_FIRST = {7: Logprob(-1.5, 2, "seven"), 3: Logprob(-0.5, 1, "three")}
THEN = {4: Logprob(-math.inf, None, None)}


def answered(**fields: Any) -> RequestOutput:
    scores = fields.pop("prompt_logprobs", None)
    answer = CompletionOutput(0, "so it is", [7, 4], **fields)
    return RequestOutput("12", "Is it?", [1, 2], [answer], True, prompt_logprobs=scores)


def test_what_was_not_asked_for_is_left_out() -> None:
    found = record(answered(finish_reason="stop"))

    assert found.keys() == {"id", "prompt", "prompt_token_ids", "outputs"}
    assert found["id"] == "12"
    assert found["outputs"][0].keys() == PLAIN


def test_log_probabilities_stand_by_position() -> None:
    output = answered(logprobs=[AT_FIRST, THEN], prompt_logprobs=[None, AT_FIRST])
    first = [
        {"id": 7, "text": "seven", "logprob": -1.5, "rank": 2},
        {"id": 3, "text": "three", "logprob": -0.5, "rank": 1},
    ]

    found = record(output)

    assert found["prompt_logprobs"] == [None, first]
    then = [{"id": 4, "text": None, "logprob": -9999.0, "rank": None}]
    assert found["outputs"][0]["logprobs"] == [first, then]


def test_an_error_stands_in_the_answer_that_has_it() -> None:
    output = answered(finish_reason="error", error="the logits are not finite.")

    (answer,) = record(output)["outputs"]

    assert answer["error"] == "the logits are not finite."


def test_every_field_is_written_or_known_to_be_left_out() -> None:
    output = answered(error="e", logprobs=[THEN], prompt_logprobs=[None])
    found = record(output)

    fields = {
        f.name for kind in (RequestOutput, CompletionOutput) for f in dataclasses.fields(kind)
    }
    written = {"request_id", *found, *found["outputs"][0]} - {"id"}
    assert written | LEFT_OUT == fields
    assert not written & LEFT_OUT


def test_a_line_is_json_for_any_reader(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"

    write_answers(str(path), [answered(logprobs=[AT_FIRST, {4: Logprob(math.nan)}])] * 2)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    assert len([json.loads(line, parse_constant=refuse) for line in lines]) == 2
