"""Samplers that do one wish of a request wrongly."""

from __future__ import annotations

import copy
import math

import torch

from core.registry import samplers
from core.sampling.params import SamplingParams
from plugins.sampling.default import DefaultSampler
from plugins.sampling.masks import LogitBias, MinTokens, entries
from plugins.sampling.penalties import Penalties


class Changed(DefaultSampler):
    """Samples requests whose parameters were changed first."""

    def __init__(self, options, limits):
        super().__init__(options, limits)
        self.graphable = False

    def change(self, params: SamplingParams) -> None: ...

    def __call__(self, logits, rows):
        given = [admission.params for admission in rows.admissions]
        table = rows.table
        for admission in rows.admissions:
            admission.params = copy.copy(admission.params)
            self.change(admission.params)
        table.admit(rows.admissions)
        found = super().__call__(logits, table.select(rows.rows, rows.ends))
        found.errors, found.logprobs = dict(found.errors or {}), dict(found.logprobs or {})
        for admission, params in zip(rows.admissions, given, strict=True):
            admission.params = params
        table.admit(rows.admissions)
        return found


def changed(name: str, **values: object) -> None:
    def change(self, params):
        for key, value in values.items():
            setattr(params, key, value)

    samplers.register(name, type(name, (Changed,), {"change": change, "__module__": __name__}))


changed("no-top-k", top_k=0)
changed("no-top-p", top_p=1.0)
changed("no-min-p", min_p=0.0)
changed("no-bias", logit_bias=None)
changed("no-presence-penalty", presence_penalty=0.0)
changed("no-repetition-penalty", repetition_penalty=1.0)
changed("no-min-tokens", min_tokens=0)
changed("no-allowed-tokens", allowed_token_ids=None)
changed("no-bad-words", bad_words=None, bad_words_token_ids=[])
changed("no-logprobs", logprobs=None)


@samplers.register("temperature-squared")
class TemperatureSquared(Changed):
    def change(self, params):
        params.temperature = params.temperature**2


@samplers.register("penalties-mixed-up")
class PenaltiesMixedUp(Changed):
    def change(self, params):
        params.presence_penalty, params.frequency_penalty = (
            params.frequency_penalty,
            params.presence_penalty,
        )


class Replaced(DefaultSampler):
    """With one of its processors replaced."""

    old: type
    new: type

    def __init__(self, options, limits):
        super().__init__(options, limits)
        self.processors = [
            self.new(self.new.Options()) if type(p) is self.old else p for p in self.processors
        ]


class Divided(Penalties):
    def __call__(self, logits, rows):
        repetition, history = rows.column("repetition_penalty")[:, None], rows.history()
        before = logits.gather(1, history.tokens)
        found = super().__call__(logits, rows)
        x = found.gather(1, history.tokens)
        return found.scatter_(1, history.tokens, torch.where(before < 0, before / repetition, x))


@samplers.register("negative-logits-divided")
class NegativeLogitsDivided(Replaced):
    """repetition_penalty makes a token that is unlikely likelier."""

    old, new = Penalties, Divided


class Remembered(Penalties):
    def __call__(self, logits, rows):
        history = rows.remember((Remembered, "history"), rows.history)
        counts = torch.zeros_like(logits).scatter_add_(1, history.tokens, history.output.float())
        known = torch.zeros_like(logits).scatter_(1, history.tokens, 1.0) > 0
        repetition = rows.column("repetition_penalty")[:, None]
        x = torch.where(logits > 0, logits / repetition, logits * repetition)
        x = torch.where(known, x, logits) - rows.column("frequency_penalty")[:, None] * counts
        return x - rows.column("presence_penalty")[:, None] * (counts > 0)


@samplers.register("history-of-the-first-step")
class HistoryOfTheFirstStep(Replaced):
    old, new = Penalties, Remembered


class Forbidden(MinTokens):
    def __call__(self, logits, rows):
        row, token, _ = entries(rows, [sorted(a.stop_ids) for a in rows.admissions])
        logits[row, token] = -math.inf
        return logits


@samplers.register("min-tokens-for-ever")
class MinTokensForEver(Replaced):
    old, new = MinTokens, Forbidden


class Hundreds(LogitBias):
    def __call__(self, logits, rows):
        row, token, bias = entries(rows, [p.logit_bias or {} for p in rows.params])
        logits[row, token] += 100 * bias.sign()
        return logits


@samplers.register("sign-of-the-bias-alone")
class SignOfTheBiasAlone(Replaced):
    old, new = LogitBias, Hundreds


@samplers.register("no-logprobs-of-all")
class NoLogprobsOfAll(DefaultSampler):
    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        told = {s: x for s, x in (found.logprobs or {}).items() if rows.params[s].logprobs >= 0}
        found.logprobs = told
        return found


@samplers.register("temperature-before-bias")
class TemperatureBeforeBias(DefaultSampler):
    def _process(self, x, rows, blamed):
        warm = rows.temperature.masked_fill(rows.temperature == 0, 1.0)[:, None]
        return super()._process(x / warm, rows, blamed) * warm


@samplers.register("forms-promised")
class FormsPromised(DefaultSampler):
    """Takes requests for answers in a form, and leaves it at that."""

    def _process(self, x, rows, blamed):
        for processor in self.processors:
            part = rows.where(processor.wants)
            if len(part):
                x = part.put(x, processor(part.take(x), part))
        return x
