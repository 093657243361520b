"""What cannot be served is refused when it is asked for, in a sentence, within bounds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams, UserError
from core.interfaces import Sampler
from core.registry import registries
from plugins.guided.form import Form
from plugins.guided.gate import Gate
from tests.plugins.guided.conftest import start
from tests.tiny import save_tiny


def refusal(llm: LLM, form: dict[str, Any], **wishes: Any) -> str:
    params = SamplingParams(structured_outputs=form, **wishes)
    with pytest.raises(UserError) as told:
        llm.generate(["x"], params, use_tqdm=False)
    assert not llm.engine.busy
    return str(told.value)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def chain(rules: int) -> str:
    """A grammar in which each x may belong to any rule."""
    links = (f'r{i}: r{i + 1} | "x" r{i + 1} |' for i in range(rules))
    return "\n".join(["start: r0", *links, f'r{rules}: "a"'])


UNSERVED: list[tuple[dict[str, Any], str]] = [
    ({"json": {"not": {"type": "string"}}}, 'Unimplemented keys: ["not"]'),
    ({"json": {"type": "string", "format": "colour"}}, "Unknown format: colour"),
    ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "oneOf"),
    ({"json": {"$ref": "http://example.org/schema"}}, "example.org"),
    ({"json": {"$ref": "#/$defs/nobody"}}, "nobody"),
    ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
    ({"json": {"type": "sring"}}, "sring"),
    ({"json": nested(900)}, "the schema cannot be read: recursion limit"),
    ({"json": {"$ref": "#"}}, "by itself alone"),
    ({"grammar": "start: a\na: start"}, "by itself alone"),
    ({"json": nested(20_000)}, "nested too deeply"),
    ({"regex": "(a"}, "unclosed group"),
    ({"regex": r"(a)\1"}, "backreferences"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"grammar": "root ::= a" + "\n" * 65_000}, "Rule 'a' not found"),
    ({"grammar": "start: nobody"}, 'unknown name: "nobody"'),
    ({"grammar": "start: " + "(" * 9000 + '"a"' + ")" * 9000}, "too deeply nested"),
    ({"choice": ["x" * 70_000]}, "characters"),
    ({"json": {"type": "object", "properties": {f"p{i}": {} for i in range(9000)}}}, "characters"),
]


@pytest.mark.parametrize(("form", "words"), UNSERVED, ids=[words for _, words in UNSERVED])
def test_what_cannot_be_served_is_said(wild: LLM, form: dict[str, Any], words: str) -> None:
    began = time.process_time()
    assert words in refusal(wild, form)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"json": {"type": "integer", "multipleOf": 1234567}}, "more than 0.5 s"),  # 10 s, 600 MB
        ({"grammar": chain(2000)}, "nesting"),  # would overflow the engine's stack
    ],
)
def test_bombs_go_off_elsewhere(byte_checkpoint: Path, form: dict[str, Any], words: str) -> None:
    sampler = {"use": "default", "structured": {"use": "guided", "seconds": 0.5}}
    with start(byte_checkpoint, sampler=sampler) as llm:
        began = time.monotonic()
        assert words in refusal(llm, form)
        # what was refused once is known
        again = time.monotonic()
        assert words in refusal(llm, form)
        assert time.monotonic() - again < (again - began) / 2
        params = SamplingParams(structured_outputs={"choice": ["fine"]})
        assert llm.generate(["x"], params, use_tqdm=False)[0].outputs[0].text == "fine"


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "(a?){500}a{500}"},
        {"regex": r"\w{200}\s\p{L}{300}"},
        {"regex": "(.*a){12}(.|b){40}(a.*|b.*c.*){20}"},
        {"regex": "((((a{1,50}){1,50}){1,50}){1,50}){1,50}"},
        {"regex": "[ab]a{60000}"},
        {"json": {"type": "string", "pattern": "^(([a-z]+)*[0-9]{1,300}){1,300}$"}},
        {"json": {"type": "object", "properties": {f"p{i}": {} for i in range(1000)}}},
        {"json": {"type": "array", "maxItems": 10**6, "items": {"type": "string"}}},
    ],
    ids=lambda form: str(form)[:40],
)
def test_costly_forms_hold_nobody_up_for_long(wild: LLM, form: dict[str, Any]) -> None:
    params = [SamplingParams(max_tokens=40, seed=1, structured_outputs=form),
              SamplingParams(max_tokens=40, seed=2)]  # fmt: skip
    began = time.process_time()
    costly, free = wild.generate(["x", "y"], params, use_tqdm=False)
    assert time.process_time() - began < 10
    assert len(free.outputs[0].token_ids) == 40
    assert costly.outputs[0].finish_reason in ("stop", "length", "error")


def test_a_grammar_with_ever_more_ways_comes_to_an_end(wild: LLM) -> None:
    """Each step of it would take longer than the one before, and all others wait for steps."""
    (x,) = wild.engine.tokenizer.encode("x")
    params = SamplingParams(
        max_tokens=120, logit_bias={x: 100.0}, structured_outputs={"grammar": chain(120)}
    )
    began = time.process_time()
    answer = wild.generate(["x"], params, use_tqdm=False)[0].outputs[0]
    assert time.process_time() - began < 4
    assert answer.finish_reason == "error"
    assert answer.error.startswith("no token is possible: the answer cannot go on in its form")
    assert 5 < len(answer.token_ids) < 60


def test_contradictions_are_told(wild: LLM) -> None:
    assert "ignore_eos" in refusal(wild, {"choice": ["a"]}, ignore_eos=True)
    text = refusal(wild, {"choice": ["a"]}, extra_args={"guided": {"regex": "a"}})
    assert "Give one" in text
    with pytest.raises(UserError, match="Did you mean 'regex'"):
        wild.generate(["x"], SamplingParams(extra_args={"guided": {"regx": "a"}}))


def test_without_a_tokenizer_there_is_no_form(tmp_path: Path) -> None:
    params = SamplingParams(structured_outputs={"choice": ["a"]})
    with (
        start(save_tiny(tmp_path, tokenizer=False, eos=256)) as llm,
        pytest.raises(UserError, match="a form needs a tokenizer"),
    ):
        llm.generate([{"prompt_token_ids": [1]}], params)


def test_a_sampler_that_holds_no_form_is_not_asked(byte_checkpoint: Path) -> None:
    from plugins.sampling.default import DefaultSampler

    class Plain(Sampler):
        """Takes the default one's work, and says nothing of forms."""

        def __call__(self, logits: Any, rows: Any) -> Any:
            options = DefaultSampler.Options()
            return DefaultSampler(options, self.limits)(logits, rows)

    before = registries.snapshot()
    registries.samplers.register("plain-for-forms", Plain)
    try:
        with start(byte_checkpoint, sampler="plain-for-forms", plugins=[]) as llm:
            assert "plain-for-forms" in refusal(llm, {"choice": ["a"]})
    finally:
        registries.restore(before)


def test_closing_the_engine_leaves_no_process(byte_checkpoint: Path) -> None:
    with start(byte_checkpoint) as llm:
        llm.generate(["x"], SamplingParams(structured_outputs={"choice": ["a"]}), use_tqdm=False)
        processor = llm.engine.sampler.chain.processors["guided"]
        (child,) = [processor._gate._process.pid]
        assert Path(f"/proc/{child}").exists()
    assert not Path(f"/proc/{child}").exists()


def test_the_trial_ends_with_whoever_asked() -> None:
    program = (
        "from plugins.guided.form import Form; from plugins.guided.gate import Gate; import os\n"
        "gate = Gate(1.0); gate.reason(Form('regex', 'a'))\n"
        "print(gate._process.pid, flush=True); os._exit(1)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=os.getcwd()
    )
    child = int(ran.stdout)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}").exists()


def test_a_gate_goes_on_after_a_loss() -> None:
    gate = Gate(5.0)
    try:
        good = Form("regex", "a")
        assert gate.reason(good) is None
        gate._process.kill()
        assert "Simplify" in gate.reason(good)
        assert gate.reason(good) is None
    finally:
        gate.close()
        gate.close()


def test_without_the_package_a_request_is_told_so(
    byte_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.registry.installed", lambda name: name != "llguidance")
    with start(byte_checkpoint) as llm:
        text = refusal(llm, {"choice": ["a"]})
        assert "needs llguidance, which is not installed" in text
        llm.generate(["x"], SamplingParams(max_tokens=2), use_tqdm=False)
