"""Rows for a sampler without a worker, wishes of all kinds, and how often a token must be drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.interfaces import Sampled, Sampler
from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.sampling.table import SamplingTable
from core.types import Admission, Limits

MAX_LENGTH = 64
SIZE = 301  # tokens of the vocabulary
REJECT = 5.0  # standard deviations; all seeds are fixed

GREEDY = SamplingParams(temperature=0)
BAD_WORD = SamplingParams(temperature=0, bad_words=["x"])
BAD_WORD.bad_words_token_ids = [[5], [6, 7]]
WISHES = [  # of one step
    GREEDY,
    SamplingParams(seed=1),
    SamplingParams(temperature=0.3, seed=2),
    SamplingParams(temperature=5.0, seed=3),
    SamplingParams(top_k=4, seed=4),
    SamplingParams(top_p=0.7, seed=5),
    SamplingParams(min_p=0.05, seed=6),
    SamplingParams(temperature=0.6, top_k=20, top_p=0.95, min_p=0.01, seed=7),
    SamplingParams(temperature=0, presence_penalty=2.0),
    SamplingParams(frequency_penalty=2.0, seed=8),
    SamplingParams(temperature=0, repetition_penalty=3.0),
    SamplingParams(temperature=0, logit_bias={17: 100}),
    SamplingParams(logit_bias={18: -100}, seed=9),
    SamplingParams(temperature=0, allowed_token_ids=[250, 251]),
    SamplingParams(min_tokens=9, seed=10),
    BAD_WORD,
    SamplingParams(temperature=0, logprobs=3),
    SamplingParams(logprobs=0, top_k=2, seed=11),
]


def limits(vocab_size: int, rows: int = 64) -> Limits:
    """The sizes of a small engine, for a model with so many tokens."""
    return Limits(
        max_num_seqs=rows,
        max_num_batched_tokens=rows,
        max_length=MAX_LENGTH,
        page_size=4,
        pages=8,
        vocab_size=vocab_size,
    )


def make_rows(
    params: Sequence[SamplingParams],
    vocab_size: int,
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    outputs: Sequence[Sequence[int]] | None = None,
    positions: Sequence[int] | None = None,
    stop_ids: Sequence[int] = (),
    seeds: Sequence[int] | None = None,
    spare: int = 2,
    device: str = "cpu",
) -> SampleRows:
    """The rows of these requests, at the end of what each has, or at `positions`.

    A request without a seed gets its number, or that of `seeds`, as the engine would draw one.
    `spare`: rows of the worker that nobody has; another number puts requests into other rows.
    """
    count = len(params)
    prompts = prompts or [[0]] * count
    outputs = outputs or [[]] * count
    table = SamplingTable(count + spare, vocab_size, MAX_LENGTH, device)
    # row numbers that are neither sorted nor dense
    rows = np.array([(s + spare) % (count + spare) for s in range(count)][::-1], np.int32)
    known = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
    for row, tokens in zip(rows, known, strict=True):
        table.history[int(row), : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    drawn = range(count) if seeds is None else seeds
    table.admit(
        [
            Admission(
                row=int(row),
                request_id=f"request-{s}",
                tokens=np.array(known[s], np.int32),
                prompt_length=len(prompts[s]),
                params=params[s],
                seed=drawn[s] if params[s].seed is None else params[s].seed or 0,
                stop_ids=frozenset(stop_ids),
            )
            for s, row in enumerate(rows)
        ]
    )
    ends = [len(tokens) for tokens in known] if positions is None else positions
    return table.select(rows, np.array(ends, np.int32))


def shares(logits: Tensor, params: SamplingParams) -> Tensor:
    """The probability of each token [V] float64: temperature, then min_p, top_k, top_p.

    Each cut looks at what the one before has left, as in vLLM. Logits must not tie.
    """
    share = (logits.double() / params.temperature).softmax(-1)
    if params.min_p:
        share = _only(share, share >= params.min_p * share.max())
    if params.top_k > 0:
        share = _only(share, share >= share.topk(min(params.top_k, len(share))).values[-1])
    if params.top_p < 1:
        falling, order = share.sort(descending=True)
        before = falling.cumsum(-1) - falling
        share = _only(share, torch.zeros_like(share, dtype=torch.bool).index_put_(
            (order,), before < params.top_p
        ))  # fmt: skip
    return share


def _only(share: Tensor, kept: Tensor) -> Tensor:
    kept_share = torch.where(kept, share, 0)
    return kept_share / kept_share.sum()


def assert_drawn(counts: Tensor, share: Tensor) -> None:
    """Counts [V] of independent draws follow shares [V]: chi-square, rare tokens as one."""
    total = float(counts.sum())
    assert not counts[share == 0].any(), "a token was drawn that cannot be"
    wanted = share * total
    rare = wanted < 5
    found = torch.cat((counts[~rare].double(), counts[rare].sum()[None].double()))
    wanted = torch.cat((wanted[~rare], wanted[rare].sum()[None]))
    found, wanted = found[wanted > 0], wanted[wanted > 0]
    chi, freedom = float(((found - wanted) ** 2 / wanted).sum()), len(wanted) - 1
    if freedom:
        off = (chi - freedom) / math.sqrt(2 * freedom)
        assert abs(off) < REJECT, f"{off:.1f} standard deviations from the distribution asked for"


def made(sampler: type[Sampler], size: int = SIZE, rows: int = 64) -> Sampler:
    """An instance with default options, for steps of so many rows."""
    return sampler(sampler.Options(), limits(size, rows))


def refusals(sampler: type[Sampler], *wishes: SamplingParams) -> list[str]:
    """Why the sampler does not take these requests."""
    return [reason for wish in wishes for reason in made(sampler).accepts(wish)]


def accepted(sampler: type[Sampler]) -> list[SamplingParams]:
    """Those of WISHES that it takes."""
    return [wish for wish in WISHES if not made(sampler).accepts(wish)]


def normal(rows: int, device: str = "cpu", seed: int = 0, size: int = SIZE) -> Tensor:
    """Logits [rows, size]."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, size, generator=generator) * 3).to(device)


def rows_of(
    params: Sequence[SamplingParams],
    device: str = "cpu",
    at: Sequence[int] | None = None,
    **more: Any,
) -> SampleRows:
    """Request s has the prompt [s, 7] and has written [s, s, 2 s]; its seed is s if it has none."""
    at = list(range(len(params))) if at is None else at
    return make_rows(
        params, SIZE, prompts=[[s, 7] for s in at], outputs=[[s, s, 2 * s] for s in at],
        stop_ids=[0, 1], seeds=at, device=device, **more,
    )  # fmt: skip


@torch.inference_mode()
def sampled(sampler: type[Sampler] | Sampler, logits: Tensor, rows: SampleRows) -> Sampled:
    """What an instance, or a new one, answers; the caller's logits stay as they are."""
    instance = sampler if isinstance(sampler, Sampler) else made(sampler, logits.shape[1])
    found = instance(logits.clone(), rows)
    assert found.ids.shape == (len(rows),)
    assert not found.ids.is_floating_point()
    assert not found.ids.is_complex()
    assert found.ids.dtype != torch.bool
    assert found.ids.device == logits.device
    whole = found.ids.cpu().long()
    lost = [s for s, token in enumerate(whole.tolist()) if not 0 <= token < logits.shape[1]]
    unsaid = set(lost) - set(found.errors or {}) if lost else set()
    assert not unsaid, f"no token of rows {sorted(unsaid)}, and no error says why"
    return found


def ids(sampler: type[Sampler] | Sampler, logits: Tensor, rows: SampleRows) -> list[int]:
    """The sampled tokens; AssertionError if a row has none."""
    found = sampled(sampler, logits, rows)
    assert not found.errors, dict(found.errors or {})
    listed: list[int] = found.ids.tolist()
    return listed
