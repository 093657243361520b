"""SamplingParams: vLLM's defaults, values that are accepted, and mistakes that are named."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys

import numpy as np
import pytest

from core.errors import UserError
from core.sampling.params import SamplingParams

VLLM = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": None,
    "stop_token_ids": None,
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "detokenize": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
}


def mistakes(**values: object) -> list[str]:
    with pytest.raises(UserError) as caught:
        SamplingParams(**values)
    return str(caught.value).splitlines()


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert {name: getattr(params, name) for name in VLLM} == VLLM
    assert params.extra_args == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0), ("n", -1), ("n", 1.0), ("n", True), ("n", "1"), ("n", 20000), ("n", None),
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
        ("temperature", "warm"), ("temperature", None), ("temperature", True),
        ("temperature", 10**400),
        ("top_p", 0), ("top_p", 1.1), ("top_p", float("nan")),
        ("top_k", -2), ("top_k", 2**31), ("top_k", 20.0), ("top_k", True),
        ("min_p", -0.1), ("min_p", 1.5),
        ("seed", 2**64), ("seed", -(2**63) - 1), ("seed", 1.5), ("seed", True),
        ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("frequency_penalty", 3),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", float("inf")),
        ("stop", ""), ("stop", ["a", ""]), ("stop", 3), ("stop", [3]), ("stop", b"x"),
        ("stop", "\ud800"), ("stop", {"a": 1}),
        ("stop_token_ids", [-1]), ("stop_token_ids", [True]), ("stop_token_ids", "12"),
        ("stop_token_ids", [2**31]), ("stop_token_ids", 5), ("stop_token_ids", {1: 2}),
        ("ignore_eos", 1), ("ignore_eos", None), ("detokenize", "no"),
        ("max_tokens", 0), ("max_tokens", -3), ("max_tokens", 1.0), ("max_tokens", True),
        ("min_tokens", -1), ("min_tokens", None),
        ("logprobs", -2), ("logprobs", True), ("prompt_logprobs", 1.0),
        ("logit_bias", [1]), ("logit_bias", {-1: 1.0}), ("logit_bias", {1: float("inf")}),
        ("logit_bias", {"x": 1.0}), ("logit_bias", {1: "x"}), ("logit_bias", {1.5: 1.0}),
        ("bad_words", [" "]), ("bad_words", [1]), ("bad_words", ""),
        ("allowed_token_ids", []), ("allowed_token_ids", [-1]), ("allowed_token_ids", 7),
        ("extra_args", [1]), ("extra_args", {1: 2}),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_line_that_begins_with_its_name(name: str, value: object) -> None:
    (line,) = mistakes(**{name: value})
    assert line.startswith(f"{name} is ")


def test_all_mistakes_are_named_at_once() -> None:
    lines = mistakes(temperatur=0.5, n=0, top_p=2, stop="")
    assert len(lines) == 4
    assert "Did you mean 'temperature'?" in lines[0]


def test_an_unknown_name_without_a_near_one_points_to_extra_args() -> None:
    (line,) = mistakes(guided_grammar="x")
    assert "guided_grammar" in line
    assert "extra_args" in line


def test_positions_are_refused() -> None:
    with pytest.raises(UserError, match="keywords only"):
        SamplingParams(0.6)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"n": 2, "temperature": 0}, "n"),
        ({"n": 2, "temperature": 1e-6}, "n"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stop": "x", "detokenize": False}, "stop"),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    values: dict[str, object], name: str
) -> None:
    (line,) = mistakes(**values)
    assert line.startswith(f"{name} is ")


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("n", np.int64(3), 3),
        ("temperature", np.float32(0.5), 0.5),
        ("temperature", 2, 2.0),
        ("top_k", -1, 0),
        ("top_k", np.int32(20), 20),
        ("seed", -1, None),
        ("seed", -5, -5),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("stop", "\n", ["\n"]),
        ("stop", ("a", " "), ["a", " "]),
        ("stop", [], []),
        ("stop_token_ids", np.array([3, 4]), [3, 4]),
        ("stop_token_ids", range(2), [0, 1]),
        ("max_tokens", None, None),
        ("logprobs", -1, -1),
        ("logprobs", 0, 0),
        ("logit_bias", {"7": 1, np.int64(8): np.float64(-100)}, {7: 1.0, 8: -100.0}),
        ("allowed_token_ids", [1, 1], [1, 1]),
        ("extra_args", None, {}),
    ],
)
def test_accepted_values_become_plain_python(name: str, given: object, kept: object) -> None:
    found = getattr(SamplingParams(**{name: given}), name)
    assert found == kept
    assert type(found) is type(kept)


def test_tiny_temperatures_are_greedy_as_in_vllm() -> None:
    assert SamplingParams(temperature=9e-6).greedy
    assert not SamplingParams(temperature=1e-5).greedy


def test_repr_shows_what_differs_from_the_defaults_and_can_be_read_back() -> None:
    params = SamplingParams(temperature=0.6, top_p=1.0, stop="a", logit_bias={3: 1.5})
    assert repr(params) == "SamplingParams(temperature=0.6, stop=['a'], logit_bias={3: 1.5})"
    assert eval(repr(params)) == params
    assert repr(SamplingParams()) == "SamplingParams()"


def test_copies_are_equal_and_independent() -> None:
    params = SamplingParams(temperature=0.6, top_p=1.0, extra_args={"a": [1]})
    for other in (pickle.loads(pickle.dumps(params)), copy.deepcopy(params), params.clone()):
        assert other == params
        assert other.given == params.given
        other.extra_args["a"].append(2)
        other.n = 5
    assert params == SamplingParams(temperature=0.6, extra_args={"a": [1]})


def test_dataclasses_replace_checks_the_new_value() -> None:
    assert dataclasses.replace(SamplingParams(seed=3), top_k=5) == SamplingParams(seed=3, top_k=5)
    with pytest.raises(UserError, match="top_k is -5"):
        dataclasses.replace(SamplingParams(), top_k=-5)


def test_torch_is_not_imported() -> None:
    code = "import sys, core.sampling.params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
