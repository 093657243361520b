"""The rows that a step samples: what their requests ask for, their tokens and their noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch

from core.sampling import columns, noise
from core.sampling.shards import Shard

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from core.sampling.params import SamplingParams
    from core.sampling.table import SamplingTable
    from core.types import Admission, Ints


class History(NamedTuple):
    """The tokens of N rows, padded to the longest, on the device."""

    tokens: Tensor  # [N, L] int64; where not `known`, the row's first token
    known: Tensor  # [N, L] bool: part of the prompt or the output so far
    output: Tensor  # [N, L] bool: part of the output so far


class SampleRows:
    """The S requests that a step samples: what they ask for, their tokens and their noise.

    Row s belongs to row s of the logits. Tensors are on the worker's device; asking for one costs
    a small copy or gather the first time, so a step pays for what it uses.
    """

    def __init__(
        self,
        table: SamplingTable,
        rows: Ints,
        ends: NDArray[np.integer[Any]],
        memo: dict[Any, Any],
        at: Tensor | None = None,
    ) -> None:
        """`ends`: positions on the host. `memo`: facts that hold as long as the rows stay the same.
        `at`: where these rows stand among those that they were taken from; None: all of them.
        """
        self.table, self.rows, self.ends, self.memo, self.at = table, rows, ends, memo, at
        self.picks: NDArray[np.int64] | None = None  # what `at` says, on the host
        self.shard: Shard | None = None  # of which the logits are; None: of the whole vocabulary
        self._positions: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def remember(self, key: Any, make: Callable[[], Any]) -> Any:
        """`make()`, called again only when the rows have changed.

        A key must be like nobody else's: a tuple that begins with your class, say.
        """
        try:
            return self.memo[key]
        except KeyError:
            return self.memo.setdefault(key, make())

    # on the host

    @property
    def needs(self) -> int:
        """Bits of `core.sampling.columns`: what at least one row needs."""
        needs: int = self.remember(
            "needs", lambda: int(np.bitwise_or.reduce(self.table.needs[self.rows], initial=0))
        )
        return needs

    @property
    def plain(self) -> bool:
        """Whether temperature is all that any row asks for."""
        return not self.needs & ~columns.RANDOM

    @property
    def all_greedy(self) -> bool:
        return not self.needs & columns.RANDOM

    @property
    def admissions(self) -> list[Admission]:
        """[S] with the request's id, prompt length, seed and stop ids."""
        admissions: list[Admission] = self.remember(
            "admissions", lambda: [self.table.admissions[row] for row in self.rows.tolist()]
        )
        return admissions

    @property
    def params(self) -> list[SamplingParams]:
        params: list[SamplingParams] = self.remember(
            "params", lambda: [admission.params for admission in self.admissions]
        )
        return params

    def output(self, s: int) -> Sequence[int]:
        """The ids sampled for row s so far, not to be changed. Its request must have `extra_args`
        or `structured_outputs`. Waits for the step before, while the model of this one runs."""
        return self.table.echo.output(int(self.rows[s]))

    # on the device

    @property
    def index(self) -> Tensor:
        """[S] int64, the row of each request in the worker's tables."""
        index: Tensor = self.remember(
            "index", lambda: self.table.send(self.rows.astype(np.int64, copy=False))
        )
        return index

    @property
    def positions(self) -> Tensor:
        """[S] int64, the place in its sequence that the sampled token will take."""
        if self._positions is None:
            self._positions = self.table.send(self.ends.astype(np.int64, copy=False))
        return self._positions

    def column(self, name: str) -> Tensor:
        """[S] float32 or int32: a column of `core.sampling.columns`, such as "top_p"."""
        column = self._packed[:, columns.COLUMN[name]]
        return column.view(torch.float32) if name in columns.FLOATS else column

    @property
    def _packed(self) -> Tensor:
        packed: Tensor = self.remember(
            "columns", lambda: self.table.columns.index_select(0, self.index)
        )
        return packed

    @property
    def temperature(self) -> Tensor:
        """[S] float32; 0 where the row is greedy."""
        return self.column("temperature")

    @property
    def prompt_lengths(self) -> Tensor:
        """[S] int32."""
        return self.column("prompt_length")

    @property
    def keys(self) -> Tensor:
        """[S, 2] int32: the noise of each row at its position (`core.sampling.noise`)."""
        first = columns.COLUMN["stream0"]
        return noise.keys(self._packed[:, first : first + 2], self.positions)

    def extra(self, name: str, default: float) -> Tensor:
        """[S] float32: `extra_args[name]` of each request, or the default."""
        extra: Tensor = self.remember(
            ("extra", name, default),
            lambda: self.table.send(
                np.array([(p.extra_args or {}).get(name, default) for p in self.params], np.float32)
            ),
        )
        return extra

    def tokens(self, s: int) -> Tensor:
        """[positions[s]] int32: every token of one row, prompt and output so far."""
        return self.table.history[int(self.rows[s]), : int(self.ends[s])]

    def history(self, part: slice = slice(None)) -> History:
        """Every token of every row, or of a part of them, padded to the longest."""
        longest = int(self.ends[part].max(initial=0))
        tokens = self.table.history[:, :longest].index_select(0, self.index[part]).long()
        place = torch.arange(longest, device=tokens.device)
        known = place < self.positions[part, None]
        output = known & (place >= self.prompt_lengths[part, None])
        return History(torch.where(known, tokens, tokens[:, :1]), known, output)

    def parts(self, most: int = 1 << 23) -> list[slice]:
        """Rows that follow one another, in parts whose `history` has `most` places at most, or in
        single ones: what one long row takes, another thousand would take as well."""
        count = max(1, most // max(1, int(self.ends.max(initial=0))))
        return [slice(first, first + count) for first in range(0, len(self), count)]

    # a part of the rows

    def where(self, wanted: Callable[[SamplingParams], bool]) -> SampleRows:
        """The rows whose parameters are `wanted`, perhaps none (false), perhaps all.

        `wanted` is asked when the rows change. Pass the same function each step, such as a method.
        """
        return self._part(
            ("where", wanted), lambda: [s for s, p in enumerate(self.params) if wanted(p)]
        )

    def needing(self, bits: int) -> SampleRows:
        """The rows that need any of these bits."""
        return self._part(
            ("needing", bits), lambda: np.flatnonzero(self.table.needs[self.rows] & bits)
        )

    def sparing(self, bits: int) -> SampleRows:
        """The rows that need none of these bits."""
        return self._part(
            ("sparing", bits), lambda: np.flatnonzero(self.table.needs[self.rows] & bits == 0)
        )

    def subset(self, picks: Sequence[int]) -> SampleRows:
        """These of the rows."""
        return self._part(("subset", *picks), lambda: picks)

    def _part(self, key: Any, pick: Callable[[], Sequence[int] | NDArray[np.intp]]) -> SampleRows:
        def make() -> tuple[NDArray[np.int64], Tensor, dict[Any, Any]] | None:
            picks = np.asarray(pick(), np.int64)
            if np.array_equal(picks, np.arange(len(self))):
                return None
            return picks, self.table.send(picks), {}

        if (part := self.remember(key, make)) is None:
            return SampleRows(self.table, self.rows, self.ends, self.memo).on(self.shard)
        picks, at, memo = part
        found = SampleRows(self.table, self.rows[picks], self.ends[picks], memo, at)
        found.picks = picks
        return found.on(self.shard)

    def on(self, shard: Shard | None) -> Self:
        """The same rows, whose logits are those of a part of the vocabulary."""
        if shard is self.shard:
            return self
        rows = copy(self)
        rows.shard = shard
        return rows

    def take(self, logits: Tensor) -> Tensor:
        """The logits of a subset from those of all: a copy, or `logits` itself if it is all."""
        return logits if self.at is None else logits.index_select(0, self.at)

    def put(self, logits: Tensor, changed: Tensor) -> Tensor:
        """Write a subset's logits back among all, in place. -> the logits of all."""
        return changed if self.at is None else logits.index_copy_(0, self.at, changed)

    # the outcome

    def draw(self, logits: Tensor, floor: Tensor | None = None) -> Tensor:
        """[S] int64: a token a row from softmax(logits / temperature), the argmax where greedy.

        logits [S, V] of any float dtype; floor [S]: logits below it are not drawn. Ties go to the
        lowest id. The same request, position and logits always give the same token. Where logits
        are a shard's, [S, chunk], it is -1 for rows without a possible token, or with NaN.
        """
        if self.shard is not None:
            return self.shard.draw(logits, self, floor)[0]
        if (kernels := self.table.kernels) is not None:
            return kernels.draw(logits, self.table.columns, self.index, self.positions, floor)
        if self.all_greedy:
            return noise.argmax(logits)
        return noise.draw(logits, self.temperature, self.keys, floor)

    def drawn(self, logits: Tensor, floor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`draw`, and the logit [S] of each token, float32, or what stands for it where logits are
        a shard's: it is finite if the row has a possible token and no NaN."""
        if self.shard is None:
            ids = self.draw(logits, floor)
            return ids, logits.gather(1, ids[:, None])[:, 0].float()
        ids, score = self.shard.draw(logits, self, floor)
        return ids, score.masked_fill(score == math.inf, math.nan)

    def record(self, ids: Tensor) -> None:
        """Append the sampled ids [S] to the rows' tokens; one below 0, which is none, as a 0.

        The next step may be on its way already, and looks up the embedding of what stands there.
        """
        self.table.history[self.index, self.positions] = ids.clamp(min=0).to(torch.int32)
        if self.needs & columns.HOST:
            self.table.echo.send(self.rows, ids)
