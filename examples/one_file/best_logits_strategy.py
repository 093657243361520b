"""A sharding strategy: ranks exchange their best logits instead of all of them.

    python -m core.run examples/one_file/best_logits_strategy.yaml

The YAML file beside this one names it for the head. `vocab_head`, which this replaces, gathers
V logits a row. Here each rank shows `keep` values with their ids: with 32 of them, for Qwen3 on two
ranks, that is less than 1/400 of the bytes. All other logits become -inf. The likeliest tokens are
exact, so greedy answers and any top_k up to `keep` stay as they are; log probabilities do not.
"""

from dataclasses import dataclass

import torch
from torch import nn

from core.parallel import Guard, Sharding
from core.registry import sharding


class ExchangeBest(Guard):
    """Goes before the head's own class, so `super().forward` is its matrix product."""

    collectives = 2

    def bind(self, comm, cuts, options):
        super().bind(comm, cuts, options)
        (cut,) = cuts  # one part: where the vocabulary is cut
        self._chunk, self._size = cut.local[comm.rank], cut.size
        self._real = sum(stop - start for start, stop in cut.spans[comm.rank])
        self._keep = min(options.keep, self._chunk)

    def forward(self, x):
        """x [S, hidden], the same on all ranks -> logits [S, V], the same on all ranks."""
        local = super().forward(x)  # [S, chunk]; the last rank's may end in padding
        local[:, self._real :] = -torch.inf
        values, ids = local.topk(self._keep)
        values = self._comm.all_gather(values)  # [S, ranks * keep]
        ids = self._comm.all_gather(ids + self._comm.rank * self._chunk)
        whole = local.new_full((len(x), self._comm.size * self._chunk), -torch.inf)
        return whole.scatter_(1, ids, values)[:, : self._size]


@sharding.register("best_logits", summary="logits cut by the vocabulary, the best exchanged")
class BestLogits(Sharding):
    default_axis = "vocab"

    @dataclass(frozen=True)
    class Options:
        keep: int = 64  # logits that each rank shows the others

    @property
    def dims(self):
        return {"out": self.axis}  # rows of the weight follow the axis

    @property
    def guard(self):
        return ExchangeBest

    def accepts(self, module):
        if self.options.keep < 1:
            return f"keep is {self.options.keep}, and at least one logit must be shown."
        return None if isinstance(module, nn.Linear) else "It cuts nn.Linear only."
