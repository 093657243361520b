"""What the server counts and times, under the names that dashboards for vLLM ask for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from plugins.serve.distribution import (
    ANSWERS,
    FIRST_TOKEN_SECONDS,
    MOST_HELD,
    REQUEST_SECONDS,
    TOKEN_SECONDS,
    Distribution,
    lengths,
)
from plugins.serve.engine.submission import Refused

ENDS = ("stop", "length", "abort", "error")

GAUGES = {
    "num_requests_running": "Answers that are being generated.",
    "num_requests_waiting": "Answers that wait for a place in a step.",
    "kv_cache_usage_perc": "Share of the cache's pages that running requests hold, 0 to 1.",
}
OLDER_NAMES = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
}
"""What vLLM called them before 0.11; dashboards in use ask for either."""
COUNTERS = {
    "prefix_cache_queries": "Prompt tokens that were looked for in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens that the prefix cache had.",
    "num_preemptions": "Times that a running answer had to give its pages back.",
}


class News(Protocol):
    """What of a piece of an answer is counted."""

    index: int
    ids: list[int]
    waited: float
    finish: str | None


class Meter(Collector):
    """Counters and times of all requests of one server. For one event loop."""

    def __init__(self, model: str, max_length: int, page_size: int | None = None) -> None:
        """`model`: the label `model_name`. `max_length`: the most tokens of a request."""
        self._labels = {"model_name": model, "engine": "0"}
        self._page_size = page_size
        self._statistics: Mapping[str, int] | None = None
        self.prompt_tokens = self.generation_tokens = 0
        self.ended = dict.fromkeys(ENDS, 0)

        def times(name: str, help: str) -> Distribution:
            return Distribution(f"vllm:{name}_seconds", help, REQUEST_SECONDS)

        def sizes(name: str, help: str) -> Distribution:
            return Distribution(f"vllm:{name}", help, lengths(max_length))

        self.first = Distribution(
            "vllm:time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            FIRST_TOKEN_SECONDS,
        )
        self.gap = Distribution(
            "vllm:inter_token_latency_seconds", "Time between two tokens.", TOKEN_SECONDS
        )
        self.per_token = Distribution(
            "vllm:request_time_per_output_token_seconds",
            "Time of a token after the first, averaged over an answer.",
            TOKEN_SECONDS,
        )
        self.whole = times("e2e_request_latency", "Time from a request's arrival to its end.")
        self.queue = times("request_queue_time", "Time that a request waited to be computed.")
        self.prefill = times("request_prefill_time", "Time from there to the first token.")
        self.decode = times("request_decode_time", "Time from the first token to the last.")
        self.inference = times("request_inference_time", "Both together.")
        self.prompt = sizes("request_prompt_tokens", "Tokens of a prompt.")
        self.generated = sizes("request_generation_tokens", "Tokens of an answer.")
        self.longest = sizes(
            "request_max_num_generation_tokens", "Tokens of the longest of a prompt's answers."
        )
        self.asked = sizes("request_params_max_tokens", "max_tokens, where a request says it.")
        self.answers = Distribution("vllm:request_params_n", "Answers asked for.", ANSWERS)

        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)  # memory, processor time, open files

    def arrived(
        self, prompt: int, *, n: int = 1, max_tokens: int | None = None, at: float | None = None
    ) -> Reading:
        """A prompt of so many tokens was handed to the engine; report its news to what this gives.

        `at`: time.monotonic() when the request reached the server, else now.
        """
        return Reading(self, prompt, n, max_tokens, time.monotonic() if at is None else at)

    def gauges(self, statistics: Mapping[str, int] | None) -> None:
        """The engine's counters as of now. None: it is gone, and so are its gauges."""
        self._statistics = statistics

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are checked when they are collected."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every metric with its value of now."""
        yield from self._from_engine()
        yield self._counter("prompt_tokens", "Tokens of all prompts.", self.prompt_tokens)
        yield self._counter(
            "generation_tokens", "Tokens of all answers, as they come.", self.generation_tokens
        )
        ends = CounterMetricFamily(
            "vllm:request_success",
            "Answers that ended, by why.",
            labels=[*self._labels, "finished_reason"],
        )
        for reason, count in self.ended.items():
            ends.add_metric([*self._labels.values(), reason], count)
        yield ends
        for value in vars(self).values():
            if isinstance(value, Distribution):
                yield from _also_as_before(value.family(self._labels))

    def _from_engine(self) -> Iterator[Metric]:
        found = self._statistics
        if found is None:
            return
        total = found["pages_total"]
        values = (found["running"], found["waiting"], found["pages_owned"] / max(total, 1))
        for (name, help), value in zip(GAUGES.items(), values, strict=True):
            yield from _also_as_before(self._gauge(name, help, value, {}))
        counts = (found["prefix_queries"], found["prefix_hits"], found["preemptions"])
        for (name, help), count in zip(COUNTERS.items(), counts, strict=True):
            yield self._counter(name, help, count)
        about = {"num_gpu_blocks": str(total)}
        if self._page_size is not None:
            about["block_size"] = str(self._page_size)
        yield self._gauge("cache_config_info", "How the cache is divided; always 1.", 1, about)

    def _gauge(self, name: str, help: str, value: float, more: dict[str, str]) -> Metric:
        labels = self._labels | more
        family = GaugeMetricFamily(f"vllm:{name}", help, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", help, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family


def _also_as_before(family: Metric) -> Iterator[Metric]:
    yield family
    older = OLDER_NAMES.get(family.name.removeprefix("vllm:"))
    if older is not None:
        same = Metric(f"vllm:{older}", family.documentation, family.type)
        for sample in family.samples:
            suffix = sample.name.removeprefix(family.name)
            same.add_sample(same.name + suffix, sample.labels, sample.value)
        yield same


class Reading:
    """The times of one prompt's answers. Use it as a context manager: what is open then is counted
    as aborted."""

    __slots__ = (
        *("_arrival", "_counted", "_counts", "_first", "_last", "_max_tokens", "_meter", "_open"),
        *("_prompt", "_waited"),
    )

    def __init__(
        self, meter: Meter, prompt: int, n: int, max_tokens: int | None, arrival: float
    ) -> None:
        self._meter, self._prompt, self._arrival = meter, prompt, arrival
        self._first = [0.0] * n  # 0: no token yet
        self._last = [0.0] * n
        self._counts = [0] * n
        self._open = set(range(n))
        self._waited: float | None = None
        self._max_tokens = max_tokens
        self._counted = False

    def _count(self) -> None:
        """The request runs: what the engine refuses is in no counter."""
        if not self._counted:
            self._counted = True
            meter = self._meter
            meter.prompt_tokens += self._prompt
            meter.answers.add(len(self._counts))
            if self._max_tokens is not None:
                meter.asked.add(self._max_tokens)

    def take(self, piece: News) -> None:
        """News of one answer: `started`, `tokens` and `finished` as it needs them."""
        if piece.waited:
            self.started(piece.waited)
        if count := len(piece.ids):
            self.tokens(piece.index, count)
        if piece.finish is not None:
            self.finished(piece.index, piece.finish)

    def started(self, waited: float) -> None:
        """The engine began to compute the prompt `waited` seconds after it arrived."""
        if self._waited is None:
            self._waited = waited
            self._meter.queue.add(waited)

    def tokens(self, index: int, count: int) -> None:
        """So many new tokens of one answer, now; those of one step share the time before it."""
        now, last = time.monotonic(), self._last[index]
        self._last[index] = now
        self._counts[index] += count
        meter = self._meter
        meter.generation_tokens += count
        if not last:
            self._count()
            self._first[index] = now
            meter.first.add(now - self._arrival)
            count -= 1
            last = now
        held = meter.gap.held
        if count == 1:
            held.append(now - last)
        elif count:
            held += [(now - last) / count] * count
        if len(held) > MOST_HELD:
            meter.gap.settle()

    def finished(self, index: int, reason: str) -> None:
        """One answer has ended by "stop", "length", "abort" or "error"."""
        if index not in self._open:
            return
        self._open.discard(index)
        self._count()
        now, meter = time.monotonic(), self._meter
        meter.ended[reason if reason in ENDS else "error"] += 1
        first, last, count = self._first[index], self._last[index], self._counts[index]
        meter.whole.add(now - self._arrival)
        meter.prompt.add(self._prompt)
        meter.generated.add(count)
        if not self._open:
            meter.longest.add(max(self._counts))
        if first:
            meter.decode.add(last - first)
            if count > 1:
                meter.per_token.add((last - first) / (count - 1))
            if self._waited is not None:
                start = self._arrival + self._waited
                meter.prefill.add(first - start)
                meter.inference.add(last - start)

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Refused):
            return
        for index in sorted(self._open):
            self.finished(index, "abort")
