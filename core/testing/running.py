"""A runner to compare others with, and engines that run with either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from core.interfaces import Runner, Sampled, Step
from core.llm import LLM
from core.outputs import RequestOutput
from core.registry import registries
from core.sampling.params import SamplingParams
from core.testing.ranks import attention_for
from core.types import Batch, Limits

PLAIN = "plain runner of the conformance kit"


class PlainRunner(Runner):
    """The three stages of a step, one after the other."""

    def prepare(self, step: Step, limits: Limits) -> None:
        self.step = step

    @torch.inference_mode()
    def run(self, batch: Batch) -> tuple[Tensor, Sampled]:
        hidden = self.step.forward(batch)
        if len(batch.sample_index) == 0:
            return hidden, Sampled(ids=batch.sample_index)
        return hidden, self.step.sample(self.step.logits(hidden, batch), batch)


@contextmanager
def plain_runner() -> Iterator[str]:
    """PlainRunner under the name that the block gets; it is forgotten afterwards."""
    before = registries.snapshot()
    registries.runners.register(PLAIN, PlainRunner)
    try:
        yield PLAIN
    finally:
        registries.restore(before)


def engine(path: Path, runner: str, device: str, **settings: Any) -> LLM:
    """An engine in float32 with few rows; `pages` are pages of 4 tokens, or as many tokens."""
    attention, size = attention_for(device)
    pages = -(-4 * settings.pop("pages", 96) // size)
    options: dict[str, Any] = {
        "dtype": "float32",
        "device": device,
        "attention": attention,
        "runner": runner,
        "cache": {"page_size": size, "pages": max(pages, 2), "check": True},
        "scheduler": {
            "use": "fcfs",
            "max_num_seqs": 6,
            "max_num_batched_tokens": settings.pop("budget", 48),
        },
    }
    return LLM(path, **(options | settings))


def answers(
    llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> list[RequestOutput]:
    """The outputs, without a progress bar."""
    return llm.generate([list(ids) for ids in prompts], list(params), use_tqdm=False)


def assert_same(found: Sequence[RequestOutput], expected: Sequence[RequestOutput]) -> None:
    """Equal tokens and reasons, and equal log probabilities of prompts and answers."""
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for one, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert one.token_ids == other.token_ids, f"prompt {number} gets other tokens"
            assert one.finish_reason == other.finish_reason, f"prompt {number}"
            assert bool(one.error) == bool(other.error), f"prompt {number}"
        mine, wanted = told(ours), told(theirs)
        assert [key for key, _ in mine] == [key for key, _ in wanted], f"prompt {number}"
        for (key, value), (_, right) in zip(mine, wanted, strict=True):
            assert abs(value - right) < 1e-3, f"prompt {number}: {key}: {value}, not {right}"


def told(output: RequestOutput) -> list[tuple[tuple[str, int, int], float]]:
    """((where, position, token), log probability) of all that an output tells of them."""
    listed: dict[str, Sequence[Any]] = {"prompt": output.prompt_logprobs or ()}
    for one in output.outputs:
        listed[f"answer {one.index}"] = one.logprobs or ()
    return [
        ((where, at, token), found.logprob)
        for where, positions in listed.items()
        for at, position in enumerate(positions)
        for token, found in sorted((position or {}).items())
    ]
