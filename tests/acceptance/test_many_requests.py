"""Many requests at once, of all kinds, get what each would get alone from the plain parts.

On a CPU a few short ones; with `--on cuda` two thousand of 1 to 8,000 tokens, on the fast parts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import LLM, SamplingParams
from tests.tiny import save_tiny

TIE = 2e-3  # of two logits in float32: sums in another order may choose the other token
PAGE = 16


@dataclass
class Asked:
    prompt: list[int]
    params: SamplingParams
    patience: int | None  # tokens after which the caller goes away

    def solo(self) -> SamplingParams:
        params = self.params.clone()
        params.logprobs = 2
        return params


def requests(count: int, longest: int, seed: int) -> list[Asked]:
    """A third begin like others, a tenth are given up, some are sampled and some are greedy."""
    pick = random.Random(seed)
    bodies = [[pick.randrange(301) for _ in range(longest // 2)] for _ in range(5)]
    made = []
    for number in range(count):
        size = round(longest ** pick.random())
        prompt = [pick.randrange(301) for _ in range(size)]
        if pick.random() < 0.3:
            body = pick.choice(bodies)
            prompt = body[: pick.randrange(1, len(body))] + prompt[: longest // 2]
        wishes: dict[str, Any] = pick.choice(
            [
                {"temperature": 0},
                {"temperature": 0.7},
                {"temperature": 1.0, "top_k": 12, "top_p": 0.9},
                {"temperature": 0.8, "min_p": 0.1},
                {"temperature": 0, "repetition_penalty": 1.2},
            ]
        )
        most = pick.randrange(1, 25)
        patience = pick.randrange(1, most + 1) if pick.random() < 0.1 else None
        params = SamplingParams(seed=number, max_tokens=most, ignore_eos=True, **wishes)
        made.append(Asked(prompt, params, patience))
    return made


def together(llm: LLM, asked: list[Asked], at_once: int) -> list[list[int]]:
    """All of them, a new one as soon as one has ended."""
    engine, ids, done = llm.engine, {}, {}
    waiting = list(enumerate(asked))[::-1]
    while waiting or engine.busy:
        while waiting and len(ids) - len(done) < at_once:
            number, one = waiting.pop()
            ids[engine.add(one.prompt, one.params, live=one.patience is not None)] = number
        for output in engine.step():
            number, tokens = ids[output.request_id], output.outputs[0].token_ids
            if number in done:  # what was under way when its caller went away
                continue
            patience = asked[number].patience
            if patience is not None and len(tokens) >= patience and not output.finished:
                # None: it has ended by itself, and its last news come behind these
                output = engine.abort(output.request_id) or output
            if output.finished:
                assert output.outputs[0].finish_reason in ("length", "abort")
                done[number] = list(output.outputs[0].token_ids)
    return [done[number] for number in range(len(asked))]


def test_many_requests_at_once_get_what_each_gets_alone(device: str, tmp_path: Path) -> None:
    gpu = device.startswith("cuda")
    count, longest, at_once = (2000, 8000, 96) if gpu else (60, 160, 12)
    asked = requests(count, longest, seed=5)
    path = save_tiny(tmp_path, max_position_embeddings=2 * longest)
    common: dict[str, Any] = {"device": device, "dtype": "float32", "max_model_len": 2 * longest}
    tokens, pages = (8192, 5 * longest // PAGE) if gpu else (48, 3 * longest // PAGE)
    fast: dict[str, Any] = {
        "cache": {"page_size": PAGE, "pages": pages, "check": not gpu},
        "scheduler": {
            "use": "fcfs",
            "max_num_seqs": at_once,
            "max_num_batched_tokens": tokens,
            "watermark": 0,  # so that requests take each other's pages
        },
    }
    with LLM(path, **common, **fast) as llm:
        found = together(llm, asked, at_once)
        counted = llm.engine.statistics()
    assert counted["preemptions"] > 0
    assert counted["prefix_hits"] > 0
    assert counted["pages_owned"] == 0
    plain = {"attention": "sdpa", "kernels": "torch", "runner": "eager"}
    with LLM(path, **common, **plain, enable_prefix_caching=False, max_num_seqs=256) as llm:
        outputs = llm.generate(
            [one.prompt for one in asked], [one.solo() for one in asked], use_tqdm=False
        )
    ties = 0
    for one, ours, output in zip(asked, found, outputs, strict=True):
        theirs = list(output.outputs[0].token_ids)
        if one.patience is None:
            assert len(ours) == len(theirs)
        else:
            assert len(ours) >= min(one.patience, len(theirs))
        where = next(
            (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None
        )
        if where is not None:
            ties += 1
            assert close(output.outputs[0].logprobs[where], one.params), one
    assert ties <= count // 50


def close(position: Any, params: SamplingParams) -> bool:
    """Whether float32 could have chosen another token there."""
    if params.temperature > 0 or params.repetition_penalty != 1:
        return True  # these are only counted: log probabilities are those of the logits alone
    best, second = sorted((entry.logprob for entry in position.values()), reverse=True)[:2]
    return bool(best - second < TIE)
