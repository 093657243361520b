"""Record what the tiny model writes: `python -m tools.tiny_golden tests/models/golden_tiny.json`.

Token ids of greedy and of seeded samples, and the text of the demo, in float32 on the CPU. Tests
hold every way of computing them against the file. Record it again only when the model, a prompt
or the meaning of a sampling parameter has changed: an engine that became faster writes the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from core import LLM, SamplingParams, run
from tools.output_file import output_file

MODEL = Path(__file__).parents[1] / "models" / "qwen3" / "tiny"
DEMO = Path(__file__).parents[1] / "configs" / "qwen3-tiny.yaml"
CHAT = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    "<think>\n\n</think>\n\n"
)
GREEDY = {"temperature": 0.0, "max_tokens": 40}
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, GREEDY),
    ("In the beginning", GREEDY),
    ("It was a dark night, and Tom", GREEDY | {"ignore_eos": True}),
    (CHAT.replace("France", "Italy"), GREEDY),
    ("Elizabeth walked along the river, and", {"temperature": 1.0, "seed": 7, "max_tokens": 40}),
    (
        "The members of this Congress",
        {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 2**40, "max_tokens": 40},
    ),
    (
        "It was a dark night, and Tom went out of the house",
        {"temperature": 0.9, "min_p": 0.05, "repetition_penalty": 1.2, "seed": 3, "max_tokens": 40},
    ),
)


def open_model(**settings: Any) -> LLM:
    """An engine for the tiny model with small pages, in float32 on the CPU."""
    options = {"device": "cpu", "dtype": "float32", "cache": {"page_size": 16, "pages": 128}}
    return LLM(MODEL, **(options | settings))


def ids_of(llm: LLM, cases: list[dict[str, Any]]) -> list[list[int]]:
    """The ids that an engine writes for recorded cases."""
    params = [SamplingParams(**case["params"]) for case in cases]
    outputs = llm.generate([case["prompt"] for case in cases], params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def demo_text() -> str:
    """What the demo prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run.main([str(DEMO)]) == 0
    return printed.getvalue()


def main(arguments: list[str]) -> None:
    """Command line: one argument, the file to write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=output_file)
    file = parser.parse_args(arguments).file
    cases = [{"prompt": prompt, "params": params} for prompt, params in CASES]
    with open_model() as llm:
        for case, ids in zip(cases, ids_of(llm, cases), strict=True):
            case["token_ids"] = ids
    lines = ",\n".join(f"  {json.dumps(case)}" for case in cases)  # a case a line, for diffs
    text = f'{{\n "demo": {json.dumps(demo_text())},\n "cases": [\n{lines}\n ]\n}}\n'
    file.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
