"""Rows for a sampler without a worker: parameters, and the tokens that each request has so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows, SamplingTable
from core.types import Admission, Limits

MAX_LENGTH = 64


def limits(vocab_size: int) -> Limits:
    return Limits(
        max_num_seqs=64,
        max_num_batched_tokens=64,
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
    device: str = "cpu",
) -> SampleRows:
    """The rows of these requests, at the end of what each has, or at `positions`.

    A request without a seed gets its number, as the engine would draw one.
    """
    count = len(params)
    prompts = prompts or [[0]] * count
    outputs = outputs or [[]] * count
    table = SamplingTable(count + 2, vocab_size, MAX_LENGTH, device)
    # row numbers that are neither sorted nor dense
    rows = np.array([(s + 2) % (count + 2) for s in range(count)][::-1], np.int32)
    known = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
    for row, tokens in zip(rows, known, strict=True):
        table.history[int(row), : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    table.admit(
        [
            Admission(
                row=int(row),
                request_id=f"request-{s}",
                tokens=np.array(known[s], np.int32),
                prompt_length=len(prompts[s]),
                params=params[s],
                seed=s if params[s].seed is None else params[s].seed,
                stop_ids=frozenset(stop_ids),
            )
            for s, row in enumerate(rows)
        ]
    )
    ends = [len(tokens) for tokens in known] if positions is None else positions
    return table.select(rows, np.array(ends, np.int32))
