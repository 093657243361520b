"""Sharding strategies: between the cut layers each rank keeps its share of the tokens, not all.

    python -m core.run examples/one_file/sequence_parallel.yaml

The YAML file beside this one gives Qwen3 the plan. A rowwise layer ends with a reduce-scatter over
the tokens in place of an all-reduce, and a colwise layer begins with an all-gather: residuals and
norms in between take 1/N of the memory and the work on N ranks. Ranks send as much as before.
Source: Korthikanti et al. 2022, arXiv 2205.05198.

Any number of tokens works: the first ranks have one more than the others, or the last ones none.
Only the embedding sees how many there are in all. It notes that for the guards behind it.
"""

import torch
from torch import nn

from core.parallel import Guard, Sharding
from core.parallel.groups import rows_of
from core.registry import sharding

TOTAL = "sequence_parallel.tokens"  # of the present step, among what a rank's guards share


class Tokens(Guard):
    """From a share of the tokens to all of them, and back."""

    def all_of(self, x):
        """A rank's own tokens [t, N] -> those of all ranks [T, N]."""
        ranks = range(self._comm.size)
        if (total := self._shared.get(TOTAL)) is not None:
            ends = [rows_of(total, self._comm.size, rank) for rank in ranks]
            sizes = [stop - start for start, stop in ends]
        else:  # a layer without an embedding before it, as in a test: the ranks must ask each other
            counts = self._comm.gather_all(torch.tensor([len(x)], device=x.device))
            sizes = torch.cat(counts).tolist()
        return self._comm.all_gather(x, sizes, dim=0)

    def own_of(self, x):
        """Partial sums of all tokens [T, N] -> the sums of the rank's own [t, N]."""
        return self._comm.reduce_scatter(x)


class Lookup(Tokens):
    """Each rank looks up the ids that it holds; a rank keeps the sum of its own tokens."""

    def bind(self, comm, cuts, options):
        super().bind(comm, cuts, options)
        spans = cuts[0].spans[comm.rank]
        self._first, self._stop = spans[0] if spans else (0, 0)

    def forward(self, ids):
        self._shared[TOTAL] = len(ids)
        mine = (ids >= self._first) & (ids < self._stop)
        rows = super().forward(torch.where(mine, ids - self._first, 0))
        return self.own_of(torch.where(mine[:, None], rows, 0))


class GatherBefore(Tokens):
    def forward(self, x):
        return super().forward(self.all_of(x))


class ScatterAfter(Tokens):
    def forward(self, x):
        return self.own_of(super().forward(x))


class GatherAfter(Tokens):
    """For the last norm, which returns its residual, too; nobody reads that."""

    def forward(self, *inputs):
        found = super().forward(*inputs)
        if isinstance(found, tuple):
            return self.all_of(found[0]), *found[1:]
        return self.all_of(found)


@sharding.register("seq_vocab", summary="as vocab; each rank keeps its own tokens")
class SeqVocab(Sharding):
    default_axis = "vocab"
    guard = Lookup

    @property
    def dims(self):
        return {"out": self.axis}

    def accepts(self, module):
        return None if isinstance(module, nn.Embedding) else "It cuts nn.Embedding only."

    def layout(self):
        return "R", "T"


@sharding.register("seq_colwise", summary="as colwise, of the tokens of all ranks")
class SeqColwise(Sharding):
    guard = GatherBefore

    @property
    def dims(self):
        return {"out": self.axis}

    def accepts(self, module):
        return None if isinstance(module, nn.Linear) else "It cuts nn.Linear only."

    def layout(self):
        return "T", f"S:{self.axis}"


@sharding.register("seq_rowwise", summary="as rowwise; each rank keeps its own tokens")
class SeqRowwise(SeqColwise):
    guard = ScatterAfter

    @property
    def dims(self):
        return {"in": self.axis}

    def owner(self, role):
        return 0 if role == "bias" else None  # a bias must be in the sum once

    def layout(self):
        return f"S:{self.axis}", "T"


@sharding.register("seq_gather", summary="a whole layer on each rank's tokens, then all tokens")
class SeqGather(Sharding):
    takes_axis = False
    guard = GatherAfter

    def layout(self):
        return "T", "R"
