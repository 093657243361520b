"""Log probabilities of prompts, for the requests that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from core.sampling.deferred import Deferred
from core.sampling.logprobs import Scores, listed, prompt_scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from core.types import Admission, Ints, StepPlan, TokenLogprobs
    from core.worker.staging import Staging

    Listed = list[TokenLogprobs]

PART = 1024  # tokens whose logits are made at once: those of a whole step may take gigabytes


class PromptLogprobs:
    """Knows which rows want them, and makes them of the hidden states of a step."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._wanted: dict[int, tuple[int, Ints]] = {}  # by row: how many of the best; the prompt

    def admit(self, admissions: Sequence[Admission]) -> None:
        for admission in admissions:
            if admission.params.prompt_logprobs is not None:
                prompt = admission.tokens[: admission.prompt_length]
                self._wanted[admission.row] = (admission.params.prompt_logprobs, prompt)

    def release(self, rows: Ints) -> None:
        if self._wanted:
            for row in rows.tolist():
                self._wanted.pop(row, None)

    def asked(self, plan: StepPlan) -> bool:
        """Whether `of_step` will read hidden states of more than sampled tokens."""
        return next(self._of_plan(plan), None) is not None

    def _of_plan(self, plan: StepPlan) -> Iterator[tuple[int, int, int, Ints]]:
        """Of each request that wants them in this step: b, how many of the best, the place of its
        first token in the step, and the prompt tokens that follow its tokens."""
        if not self._wanted:
            return
        firsts = np.cumsum(plan.counts) - plan.counts
        for b, row in enumerate(plan.rows.tolist()):
            if row in self._wanted:
                count, prompt = self._wanted[row]
                next_one = int(plan.starts[b]) + 1
                targets = prompt[next_one : next_one + int(plan.counts[b])]
                if len(targets):
                    yield b, count, int(firsts[b]), targets

    def of_step(
        self, plan: StepPlan, hidden: Tensor, to_logits: Callable[[Tensor], Tensor]
    ) -> Mapping[int, Listed]:
        """By b, for the prompt tokens that follow the tokens of this step. hidden [T, hidden]: of
        all tokens if the step was `asked` about.

        On CUDA they are on their way to the host when this returns.
        """
        tensors: list[Tensor] = []
        places: list[tuple[int, int]] = []  # b, and how many of the best
        for b, count, first, targets in self._of_plan(plan):
            (tokens,) = self._staging.send(targets.astype(np.int64))
            parts = [
                prompt_scores(to_logits(some), ids, count)
                for some, ids in zip(
                    hidden[first : first + len(targets)].split(PART),
                    tokens.split(PART),
                    strict=True,
                )
            ]
            tensors += [tokens, *map(torch.cat, zip(*parts, strict=True))]
            places.append((b, count))
        if not places:
            return {}

        def make(host: list[Tensor]) -> dict[int, Listed]:
            size = 1 + len(Scores._fields)
            found = {}
            for i, (b, count) in enumerate(places):
                tokens, *columns = host[i * size : (i + 1) * size]
                found[b] = listed(tokens, Scores(*columns), [count] * len(tokens))
            return found

        return Deferred(tensors, make)
