"""Runners with one fault each, most of them faults of captured steps."""

from __future__ import annotations

import torch

from core.interfaces import Sampled
from core.registry import runners
from plugins.runners.eager import Eager


@runners.register("token-before")
class TokenBefore(Eager):
    """Logits of the token before the last one, where there is one."""

    def run(self, batch):
        batch.sample_index, batch.wanted = (batch.sample_index - 1).clamp(min=0), None
        return super().run(batch)


@runners.register("first-positions")
class FirstPositions(Eager):
    """A captured step whose positions are not copied."""

    def run(self, batch):
        self.kept = getattr(self, "kept", {})
        batch.positions = self.kept.setdefault(len(batch.positions), batch.positions)
        return super().run(batch)


@runners.register("last-ids")
class LastIds(Eager):
    """Hands out a buffer of ids that the next step writes to."""

    def run(self, batch):
        hidden, found = super().run(batch)
        if not hasattr(self, "buffer"):
            self.buffer = torch.zeros(64, dtype=torch.int64)
        late = self.buffer[: len(found.ids)].clone()
        self.buffer[: len(found.ids)] = found.ids
        return hidden, Sampled(late, found.logprobs, found.errors)


@runners.register("everybody-is-greedy")
class EverybodyIsGreedy(Eager):
    def run(self, batch):
        hidden = self.step.forward(batch)
        ids = self.step.logits(hidden, batch).argmax(-1)
        batch.rows.record(ids)
        return hidden, Sampled(ids)


@runners.register("history-forgotten")
class HistoryForgotten(Eager):
    """Samples, and does not tell the rows."""

    def run(self, batch):
        kept = batch.rows.table.history.clone()
        found = super().run(batch)
        batch.rows.table.history.copy_(kept)
        return found


@runners.register("hidden-states-padded")
class HiddenStatesPadded(Eager):
    """Hidden states in the order of a buffer with a row before them."""

    def run(self, batch):
        hidden, found = super().run(batch)
        return torch.cat((hidden[:1], hidden))[: len(hidden)], found


@runners.register("mixed-steps-unsampled")
class MixedStepsUnsampled(Eager):
    def run(self, batch):
        if batch.attention.decodes and len(batch.sample_index) < batch.attention.decodes + 1:
            return super().run(batch)
        hidden = self.step.forward(batch)
        if not batch.attention.decodes:
            return hidden, self.step.sample(self.step.logits(hidden, batch), batch)
        wrong = self.step.logits(hidden, batch).roll(1, 0)
        return hidden, self.step.sample(wrong, batch)


@runners.register("errors-lost")
class ErrorsLost(Eager):
    def run(self, batch):
        hidden, found = super().run(batch)
        return hidden, Sampled(found.ids, found.logprobs)


@runners.register("first-6-requests-alone")
class FirstRequestsAlone(Eager):
    """As many as the buffer of ids has room for."""

    def run(self, batch):
        hidden, found = super().run(batch)
        found.ids[6:] = 0
        return hidden, found


@runners.register("first-48-tokens-alone")
class FirstTokensAlone(Eager):
    """As many as the buffer of hidden states has room for."""

    def run(self, batch):
        hidden, found = super().run(batch)
        return hidden.index_fill(0, torch.arange(48, max(48, len(hidden))), 0.0), found
