"""Schedulers with one fault each."""

from __future__ import annotations

import random

import numpy as np

from core.registry import schedulers
from core.scheduling.prefix import PrefixKeys
from plugins.scheduling.fcfs import FirstComeFirstServed


@schedulers.register("over-budget")
class OverBudget(FirstComeFirstServed):
    def __init__(self, options, limits):
        super().__init__(options, limits)
        self.budget += 1


@schedulers.register("starves-the-unimportant")
class StarvesTheUnimportant(FirstComeFirstServed):
    def add(self, request):
        if request.priority < 2:
            super().add(request)
        else:
            self._ages[request] = -1

    def has_work(self):
        return bool(self._ages)

    def _check(self):
        return None

    def _watch(self):
        return None


@schedulers.register("salts-ignored")
class SaltsIgnored(FirstComeFirstServed):
    def __init__(self, options, limits):
        super().__init__(options, limits)
        place = self.placement
        place._keys_of = lambda request: place._keys.setdefault(
            request, PrefixKeys(None, place.page_size)
        )


@schedulers.register("keeps-over-run-ids")
class KeepsOverRunIds(FirstComeFirstServed):
    def update(self, plan, output):
        ended = [r for r in plan.requests if r.finish_reason == "length"]
        news = super().update(plan, output)
        for request in ended:
            request.output.append(0)
        return news


@schedulers.register("stop-ids-ignored")
class StopIdsIgnored(FirstComeFirstServed):
    def update(self, plan, output):
        kept = [(r, r.stop_ids) for r in plan.requests]
        for request, _ in kept:
            request.stop_ids = frozenset()
        news = super().update(plan, output)
        for request, ids in kept:
            request.stop_ids = ids
        return news


@schedulers.register("errors-ignored")
class ErrorsIgnored(FirstComeFirstServed):
    def update(self, plan, output):
        output.errors.clear()
        return super().update(plan, output)


@schedulers.register("failures-ignored")
class FailuresIgnored(FirstComeFirstServed):
    """Pages of a step that failed stay in the prefix cache."""

    def drop(self, requests):
        return None


@schedulers.register("one-buffer-for-all-plans")
class OneBufferForAllPlans(FirstComeFirstServed):
    def plan(self):
        made = super().plan()
        if made is not None:
            if not hasattr(self, "_buffer"):
                self._buffer = np.zeros(64, np.int32)
            self._buffer[: len(made.starts)] = made.starts
            made.starts = self._buffer[: len(made.starts)]
        return made


@schedulers.register("order-by-chance")
class OrderByChance(FirstComeFirstServed):
    def order(self, request):
        return random.random()


@schedulers.register("many-tokens-first")
class ManyTokensFirst(FirstComeFirstServed):
    def plan(self):
        made = super().plan()
        if made is not None and not made.admitted and not len(made.pages):
            order = np.arange(len(made.rows))[::-1].copy()
            for name in ("rows", "starts", "counts", "sample", "page_starts", "page_counts"):
                setattr(made, name, getattr(made, name)[order])
            made.requests[:] = [made.requests[i] for i in order]
        return made


@schedulers.register("prompts-from-the-cache")
class PromptsFromTheCache(FirstComeFirstServed):
    """Even those whose log probabilities somebody wants to know."""

    def add(self, request):
        self._wishes = getattr(self, "_wishes", {})
        if request.params.prompt_logprobs is not None:
            self._wishes[request.id] = request.params
            request.params = request.params.clone()
            request.params.prompt_logprobs = None
        super().add(request)

    def _retire(self, request):
        request.params = self._wishes.get(request.id, request.params)
        super()._retire(request)


@schedulers.register("rows-never-released")
class RowsNeverReleased(FirstComeFirstServed):
    def plan(self):
        made = super().plan()
        if made is not None:
            made.released = made.released[:0]
        return made


@schedulers.register("aborts-forgotten")
class AbortsForgotten(FirstComeFirstServed):
    def finish(self, request, reason):
        if reason != "abort":
            super().finish(request, reason)


@schedulers.register("lookups-uncounted")
class LookupsUncounted(FirstComeFirstServed):
    def statistics(self):
        numbers = super().statistics()
        del numbers["prefix_queries"]
        return numbers


@schedulers.register("everybody-reads-the-cache")
class EverybodyReadsTheCache(FirstComeFirstServed):
    """Also those whose hidden states somebody wants to see."""

    def add(self, request):
        request.reads_cache = True
        super().add(request)


@schedulers.register("never-started")
class NeverStarted(FirstComeFirstServed):
    def plan(self):
        made = super().plan()
        for request in made.requests if made else ():
            request.started = 0.0
        return made


@schedulers.register("errors-without-a-sentence")
class ErrorsWithoutASentence(FirstComeFirstServed):
    def update(self, plan, output):
        news = super().update(plan, output)
        for request in news:
            request.error = None
        return news
