"""Random requests in random engines: each gets what it gets alone, and no page is lost.

PLAIT_FUZZ_SECONDS says for how long; PLAIT_FUZZ_SEED where to begin.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from core import LLM, CompletionOutput, SamplingParams, UserError
from tests.tiny import END_THINK, IM_END, THINK, save_tiny

SECONDS = float(os.environ.get("PLAIT_FUZZ_SECONDS", "5"))
FIRST = int(os.environ.get("PLAIT_FUZZ_SEED", "0"))
VOCAB = 301
STEMS = (b"The wind and the sun", b"\xf0\x9f\x98\x80 caf\xc3\xa9", b"aaaaaaaaaaaaaaaaaaaaaaaa")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"), eos=[IM_END, 65])


@pytest.fixture(scope="module")
def quiet(checkpoint: Path, device: str):
    """One request at a time, whole pages, nothing cached: the oracle."""
    cache = {"page_size": 32, "pages": 8, "prefix": False}
    with LLM(checkpoint, device=device, dtype="float32", max_num_seqs=1, cache=cache) as llm:
        yield llm


def draw_prompt(rng: random.Random) -> list[int]:
    stem = list(rng.choice(STEMS))[: rng.randint(0, 24)]
    tail = [rng.randrange(VOCAB) for _ in range(rng.choice((0, 1, 1, 3, 8, 30)))]
    return stem + tail or [rng.randrange(VOCAB)]


def draw_params(rng: random.Random) -> SamplingParams:
    """A seed in any case, so that the same request again gives the same answer."""

    def sometimes(name: str, share: float, *values: Any) -> None:
        if rng.random() < share:
            given[name] = rng.choice(values)

    def ids(count: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(count)]

    given: dict[str, Any] = {
        "seed": rng.getrandbits(32),
        "max_tokens": rng.randint(1, 20),
        "temperature": rng.choice((0.0, 0.0, 0.3, 1.0, 5.0)),
    }
    if given["temperature"]:
        sometimes("n", 0.2, 2, 3)
    sometimes("top_k", 0.3, 1, 2, 7, 400)
    sometimes("top_p", 0.3, 1e-6, 0.5, 0.9, 1.0)
    sometimes("min_p", 0.2, 0.01, 0.5, 1.0)
    sometimes("presence_penalty", 0.15, -2.0, 0.7, 2.0)
    sometimes("frequency_penalty", 0.15, -2.0, 0.7, 2.0)
    sometimes("repetition_penalty", 0.15, 0.1, 1.3, 50.0)
    sometimes("ignore_eos", 0.5, True)
    sometimes("stop", 0.3, "a", ["\n", "e "], "\ufffd", ["x", "yz", "</think>"])
    sometimes("stop_token_ids", 0.2, ids(1), ids(20), [THINK, END_THINK])
    sometimes("min_tokens", 0.2, 0, 1, given["max_tokens"])
    sometimes("logprobs", 0.3, 0, 1, 5, -1)
    sometimes("prompt_logprobs", 0.15, 0, 2)
    sometimes("logit_bias", 0.2, {t: rng.uniform(-100, 100) for t in ids(3)})
    sometimes("bad_words", 0.15, ["e"], ["ab", "\u00e9"])
    sometimes("allowed_token_ids", 0.1, ids(1), ids(40), [IM_END], [65, 66])
    sometimes("include_stop_str_in_output", 0.3, True)
    sometimes("skip_special_tokens", 0.3, False)
    if "stop" not in given:
        sometimes("detokenize", 0.1, False)
    return SamplingParams(**given)


def draw_engine(rng: random.Random) -> dict[str, Any]:
    page = rng.choice((1, 2, 3, 4, 16, 64))
    return {
        "max_num_seqs": rng.choice((1, 2, 5, 16)),
        "max_num_batched_tokens": rng.choice((1, 7, 16, 64, 2048)),
        "cache": {
            "page_size": page,
            "pages": -(-rng.choice((80, 120, 400)) // page),
            "prefix": rng.random() < 0.8,
            "check": True,
        },
        "scheduler": {
            "use": rng.choice(("fcfs", "priority")),
            "max_chunk": rng.choice((0, 0, 3)),
            "watermark": rng.choice((0.0, 0.01, 0.3)),
        },
        "executor": {"overlap": rng.choice(("off", "on"))},
    }


def same(found: CompletionOutput, alone: CompletionOutput) -> bool:
    plain = ("token_ids", "text", "finish_reason", "stop_reason", "error")
    if any(getattr(found, name) != getattr(alone, name) for name in plain):
        return False
    if (found.logprobs is None) != (alone.logprobs is None):
        return False
    for one, other in zip(found.logprobs or (), alone.logprobs or (), strict=True):
        for token in one.keys() & other.keys():  # of near ties either may be among the best
            if one[token].logprob != pytest.approx(other[token].logprob, abs=1e-3):
                return False
    return True


def admissible(llm: LLM, prompt: list[int], params: SamplingParams) -> bool:
    try:
        llm.engine.admissible(prompt, params)
    except UserError:
        return False
    return True


def one_round(seed: int, checkpoint: Path, device: str, quiet: LLM, count: int = 24) -> None:
    rng = random.Random(seed)
    settings = draw_engine(rng)
    asked = [(draw_prompt(rng), draw_params(rng)) for _ in range(count)]
    asked += [asked[rng.randrange(count)] for _ in range(count // 4)]  # some come twice
    with LLM(checkpoint, device=device, dtype="float32", **settings) as llm:
        fits = [(prompt, params) for prompt, params in asked if admissible(llm, prompt, params)]
        priority = None
        if settings["scheduler"]["use"] == "priority":
            priority = [rng.randint(-2, 2) for _ in fits]
        prompts, params = [p for p, _ in fits], [q for _, q in fits]
        found = llm.generate(prompts, params, use_tqdm=False, priority=priority)
        for prompt, asked_for, whole in list(zip(prompts, params, found, strict=True))[:3]:
            pieces = list(llm.stream(prompt, asked_for))
            for one in whole.outputs:
                text = "".join(piece.outputs[one.index].delta for piece in pieces)
                assert text == one.text, f"seed {seed}\n{asked_for}\n{prompt}"
        numbers = llm.engine.statistics()
        assert (numbers["running"], numbers["waiting"], numbers["pages_owned"]) == (0, 0, 0)
    longest = llm.engine.limits.max_length
    for (prompt, params), output in zip(fits, found, strict=True):
        if len(prompt) + (params.max_tokens or 0) > longest:
            continue  # ends earlier than alone, as it must
        (alone,) = quiet.generate(prompt, params, use_tqdm=False)
        for one, other in zip(output.outputs, alone.outputs, strict=True):
            assert same(one, other), f"seed {seed}\n{params}\n{prompt}\n{one}\n{other}"


def test_random_requests_in_random_engines(checkpoint, device, quiet):
    end = time.monotonic() + SECONDS
    for seed in range(FIRST, FIRST + 100_000):
        one_round(seed, checkpoint, device, quiet)
        if time.monotonic() > end:
            break
