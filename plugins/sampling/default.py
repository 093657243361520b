"""The default sampler: everything that SamplingParams asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from core.errors import UserError
from core.interfaces import LogitsProcessor, Sampled, Sampler
from core.sampling import columns, logprobs
from core.sampling.deferred import Deferred
from core.sampling.outcome import errors
from core.sampling.static_rows import StaticRows
from plugins.sampling.bad_words import BadWords
from plugins.sampling.chain import Chain
from plugins.sampling.guide import USUAL, Guide
from plugins.sampling.masks import AllowedTokens, LogitBias, MinTokens
from plugins.sampling.penalties import Penalties
from plugins.sampling.truncation import floors

if TYPE_CHECKING:
    from torch import Tensor

    from core.config import Config
    from core.sampling.params import SamplingParams
    from core.sampling.rows import SampleRows
    from core.setup import Setup
    from core.types import Limits, TokenLogprobs

BUILT_IN = (AllowedTokens, BadWords, MinTokens, LogitBias, Penalties)


class DefaultSampler(Sampler):
    """Processes the logits of the rows that ask for it, then draws with Gumbel noise.

    The order is vLLM's: log probabilities are those of the model's own logits; allowed tokens, bad
    words, min_tokens, bias and penalties change the logits; then come the further processors that
    the option names, and last the one for structured outputs. A greedy row takes the largest logit,
    of equal ones that with the lowest id. The other rows divide by the temperature, cut off by
    min_p, top_k and top_p, and draw.

    Every row costs what it asks for, whatever its neighbours ask for.
    """

    @dataclass
    class Options(Sampler.Options):
        processors: list[Any] = field(
            default_factory=list,
            metadata={
                "help": "further logits processors, in order: names, or {use: name, option: value}"
            },
        )

        structured: Any = field(
            default=USUAL,
            metadata={
                "help": "the logits processor that holds answers to structured_outputs, made "
                "when a request asks: a name, or {use: name, option: value}"
            },
        )

        def __post_init__(self) -> None:
            # a mistake is found when the configuration is read, not when the model is loaded
            Guide(self.structured, Chain(self.processors, BUILT_IN)).check()

    graphable = graphable_truncation = shards = True
    structured = True

    def __init__(self, options: Options, limits: Limits) -> None:
        super().__init__(options, limits)
        self.chain = Chain(options.processors, BUILT_IN)
        self.guide = Guide(options.structured, self.chain)
        # one that is asked about every row may do what no graph can hold
        self.graphable = self.shards = not self.chain.asks_all
        self.processors: list[LogitsProcessor] = [cls(cls.Options()) for cls in BUILT_IN]

    def accepts(self, params: SamplingParams) -> list[str]:
        try:
            self.guide.fetch([params])
        except UserError as error:
            return [f"structured_outputs: {error}"]
        return self.chain.accepts(params)

    def prepare(self, config: Config, setup: Setup) -> None:
        self.guide.prepare(config, setup)

    def slow(self, params: SamplingParams) -> bool:
        return self.guide.slow(params)

    def close(self) -> None:
        for processor in self.chain.processors.values():
            processor.close()

    def __call__(self, logits: Tensor, rows: SampleRows) -> Sampled:
        """logits [S, V] of any float dtype, left as they are."""
        if isinstance(rows, StaticRows):  # captured: of all that follows only this may be asked
            return Sampled(rows.draw(logits, _floor(logits, rows)))
        blamed: dict[int, str] = {}
        if rows.needs & columns.HOST:
            rows.remember((DefaultSampler, "guide"), lambda: self.guide.fetch(rows.params))
        ids, value = self._sample(logits, rows, blamed)
        lost: dict[int, str] = {}
        if blamed:
            lost = {s: blamed[row] for s, row in enumerate(rows.rows.tolist()) if row in blamed}
            value[torch.tensor([*lost], device=value.device)] = math.nan
        ids = ids.masked_fill(~value.isfinite(), 0)
        return Sampled(ids, _logprobs(logits, ids, value, rows), errors(value, lost))

    def _sample(
        self, logits: Tensor, rows: SampleRows, blamed: dict[int, str]
    ) -> tuple[Tensor, Tensor]:
        """Ids [S] and the logits of those [S]. `blamed`, by row: what went wrong on the way."""
        if rows.plain and not self.chain.asks_all:
            return _choose(logits, rows)
        changed, others = self._split(rows)
        if not len(changed):
            return _choose(logits, rows)
        x = self._process(changed.take(logits).to(torch.float32, copy=True), changed, blamed)
        ids, value = _choose(x, changed)
        if not len(others):
            return ids, value
        other_ids, other_value = _choose(others.take(logits), others)
        return (
            others.put(changed.put(ids.new_empty(len(rows)), ids), other_ids),
            others.put(changed.put(value.new_empty(len(rows)), value), other_value),
        )

    def _split(self, rows: SampleRows) -> tuple[SampleRows, SampleRows]:
        """The rows whose logits a processor changes, and the others."""

        def marks() -> tuple[list[int], list[int]]:
            asked = rows.table.needs[rows.rows] & (columns.PENALTY | columns.OTHER) != 0
            asked[self.chain.concerns(rows)] = True
            return np.flatnonzero(asked).tolist(), np.flatnonzero(~asked).tolist()

        changed, others = rows.remember((DefaultSampler, "changed"), marks)
        return rows.subset(changed), rows.subset(others)

    def _process(self, x: Tensor, rows: SampleRows, blamed: dict[int, str]) -> Tensor:
        for processor in self.processors:
            part = rows.where(processor.wants)
            if len(part):
                x = part.put(x, processor(part.take(x), part))
        return self.chain(x, rows, blamed.__setitem__)


def _choose(logits: Tensor, rows: SampleRows) -> tuple[Tensor, Tensor]:
    """Ids [N], and the logits of those, which are finite where the row has a possible token."""
    return rows.drawn(logits, _floor(logits, rows))


def _floor(logits: Tensor, rows: SampleRows) -> Tensor | None:
    """The smallest logit that each row may draw [N], float32; None if each may draw any."""
    if not rows.needs & columns.TRUNCATION:
        return None
    if (kernels := rows.table.kernels) is not None:
        return kernels.floors(logits, rows.table.columns, rows.index)
    part = rows.needing(columns.TRUNCATION)
    floor = torch.full((len(rows),), -math.inf, device=logits.device)
    return part.put(floor, floors(part.take(logits).float(), part))


def _logprobs(
    logits: Tensor, ids: Tensor, value: Tensor, rows: SampleRows
) -> Deferred[list[TokenLogprobs]] | None:
    """By s, of the raw logits [S, V], for the rows that asked and have a token."""
    if not rows.needs & columns.LOGPROBS:
        return None
    places = [s for s, params in enumerate(rows.params) if params.logprobs is not None]
    counts = [rows.params[s].logprobs or 0 for s in places]
    part = rows.subset(places)
    chosen = part.take(ids)
    found = logprobs.scores(part.take(logits), chosen, -1 if min(counts) < 0 else max(counts))

    def make(host: list[Tensor]) -> dict[int, list[TokenLogprobs]]:
        listed = logprobs.listed(host[1], logprobs.Scores(*host[2:]), counts)
        good = host[0].isfinite().tolist()
        return {s: [entry] for s, entry in zip(places, listed, strict=True) if good[s]}

    return Deferred([value, chosen, *found], make)
