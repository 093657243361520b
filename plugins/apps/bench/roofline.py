"""The least time that a workload can take on a machine, from the sizes of the model.

A decode step reads every matrix once and all cached keys and values once, and multiplies:

    step = max(weight bytes / bandwidth, product flops / peak)
         + max(cache bytes / bandwidth, attention flops / peak)

A prompt pass is bound by its products or by one read of the weights. Activations, norms,
sampling, collectives, launch gaps and host time count nothing, so no engine gets below this; what
share of it an engine reaches says how much there is left to gain. Ranks divide everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from plugins.apps.bench.workloads import Workload


@dataclass(frozen=True)
class Machine:
    """What one device was measured to do."""

    bandwidth: float  # bytes a second
    peak: float  # floating point operations a second, in the matrices' type


@dataclass(frozen=True)
class ModelSize:
    """What a step reads and computes. Counts are elements of the whole model, not of a rank."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    matrices: int  # of all layers; the embedding is a look-up and does not count
    output: int  # the matrix that turns hidden states into logits
    weight_bytes: int = 2  # of one element
    cache_bytes: int = 2
    ranks: int = 1

    @property
    def cache_token(self) -> int:
        """Bytes of keys and values that one token adds."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.cache_bytes


@dataclass(frozen=True)
class Floor:
    """Seconds that a workload takes at least."""

    prompts: float
    outputs: float

    @property
    def total(self) -> float:
        """Prompts and outputs together."""
        return self.prompts + self.outputs


def decode_step(size: ModelSize, machine: Machine, batch: int, context: int) -> float:
    """Seconds of one step of `batch` requests that hold `context` cached tokens in all."""
    read = (size.matrices + size.output) * size.weight_bytes
    products = 2 * (size.matrices + size.output) * batch
    cache = (context + batch) * size.cache_token
    attention = _attention(size, context)
    weights_time = max(read / machine.bandwidth, products / machine.peak)
    cache_time = max(cache / machine.bandwidth, attention / machine.peak)
    return (weights_time + cache_time) / size.ranks


def prompt_pass(
    size: ModelSize, machine: Machine, lengths: Iterable[int], cached: int = 0
) -> float:
    """Seconds for prompts of these lengths, of whose tokens `cached` need not be computed."""
    lengths = list(lengths)
    tokens = sum(lengths)
    share = 1 - cached / tokens
    pairs = sum(n * (n + 1) / 2 for n in lengths)
    products = 2 * (size.matrices * tokens * share + size.output * len(lengths))
    flops = products + _attention(size, pairs * share)
    read = (size.matrices + size.output) * size.weight_bytes
    return max(flops / machine.peak, read / machine.bandwidth) / size.ranks


def floor(size: ModelSize, machine: Machine, work: Workload, at_once: int | None = None) -> Floor:
    """The floor of a workload, at most `at_once` requests running. Arrival times are ignored."""
    prompts = prompt_pass(size, machine, (len(i.prompt) for i in work.items), work.shared)
    waiting = [(len(item.prompt), item.output) for item in reversed(work.items)]
    running: list[tuple[int, int]] = []  # cached tokens, tokens to come
    outputs = 0.0
    while waiting or running:
        while waiting and (at_once is None or len(running) < at_once):
            length, output = waiting.pop()
            running.append((length + 1, output - 1))  # its prompt pass gives the first token
        running = [(length, left) for length, left in running if left]
        if running:
            context = sum(length for length, _ in running)
            outputs += decode_step(size, machine, len(running), context)
            running = [(length + 1, left - 1) for length, left in running]
    return Floor(prompts, outputs)


def _attention(size: ModelSize, pairs: float) -> float:
    """Flops of attention over so many (query, key) pairs."""
    return 4 * size.layers * size.heads * size.head_dim * pairs
