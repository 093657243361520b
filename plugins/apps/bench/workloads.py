"""Workloads of token ids: the same name gives the same ids on any machine and for any engine.

A name is a kind and its numbers, joined by colons; numbers left out take their defaults:

    nanobench:seed:n:longest_in:longest_out        n requests of 100 to longest_in tokens
    decode:batch:tokens_in:tokens_out:seed         equal requests, started together
    prefill:n:length:seed                          one output token each
    shared_prefix:n:prefix:suffix:out:seed:groups  prompts that begin alike
    mixed:n:rate:seed:long_percent                 arrivals at random, long prompts among short
    uniform:n:in_from:in_to:out_from:out_to:seed   any lengths between two bounds

Every request has a fixed number of output tokens (ends of text are ignored), ids come from 0 to
10000, and `digest` hashes it all: two engines whose results carry one digest did the same work.
`nanobench` draws as nano-vllm's `bench.py` does; seed 0 is that script's own case.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from core.errors import UserError

LARGEST_ID = 10_000
TEMPERATURE = 0.6
MOST_TOKENS = 100_000_000  # of a workload, so that a slip of the pen does not fill the memory
LEAST_RATE = 1e-6  # requests a second

STANDARD = (
    *(f"nanobench:{seed}" for seed in (0, 1, 2)),
    *(f"decode:{batch}:128:256:{seed}" for batch in (1, 8, 64) for seed in (11, 12)),
    *(f"prefill:64:2048:{seed}" for seed in (21, 22)),
)
"""The set that published figures of Plait come from."""


@dataclass(frozen=True)
class Item:
    """One request: its prompt, the tokens to generate, and when it arrives."""

    prompt: list[int]
    output: int
    arrival: float = 0.0  # seconds after the start; 0: it is already waiting


@dataclass(frozen=True)
class Workload:
    """Requests under a name."""

    name: str
    items: list[Item]
    shared: int = 0  # prompt tokens that a perfect prefix cache need not compute

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(len(item.prompt) for item in self.items)

    @property
    def output_tokens(self) -> int:
        """Tokens that all requests generate together."""
        return sum(item.output for item in self.items)

    @property
    def longest(self) -> int:
        """The most tokens that one request holds, prompt and output."""
        return max(len(item.prompt) + item.output for item in self.items)

    @property
    def arrives(self) -> bool:
        """Whether requests arrive over time instead of all at the start."""
        return any(item.arrival for item in self.items)

    def digest(self) -> str:
        """Twelve hexadecimal digits over every length, arrival and id."""
        digest = hashlib.sha256()
        for item in self.items:
            head = [len(item.prompt), item.output, round(item.arrival * 1e6)]
            size = "i" if max(head) < 2**31 else "q"  # half an hour in microseconds needs more
            digest.update(array(size, head + item.prompt).tobytes())
        return digest.hexdigest()[:12]


def workload(name: str) -> Workload:
    """The workload called `name`. UserError for an unknown kind, or numbers that make none."""
    kind, *numbers = name.split(":")
    if kind not in KINDS:
        raise UserError(f"no workload is called {name!r}. Kinds: {', '.join(KINDS)}.")
    try:
        return KINDS[kind](*_values(kind, numbers))
    except ValueError as error:
        form = next(line.split()[0] for line in (__doc__ or "").splitlines() if f" {kind}:" in line)
        raise UserError(f"workload {name!r}, of the form {form}, cannot be: {error}.") from None


def workloads(names: Iterable[str]) -> list[Workload]:
    """The workloads called `names`; "standard" stands for the standard set. UserError if none."""
    made = [
        workload(name)
        for given in names
        for name in (STANDARD if given == "standard" else (given,))
    ]
    if not made:
        raise UserError(f"no workload is named. Name some, such as {STANDARD[0]}, or standard.")
    return made


def nanobench(
    seed: int = 0, n: int = 256, longest_in: int = 1024, longest_out: int = 1024
) -> Workload:
    sizes = (
        ""
        if (n, longest_in, longest_out) == (256, 1024, 1024)
        else f":{n}:{longest_in}:{longest_out}"
    )
    items = _between(Random(seed), n, (100, longest_in), (100, longest_out))
    return Workload(f"nanobench:{seed}{sizes}", items)


def decode(batch: int, tokens_in: int = 128, tokens_out: int = 256, seed: int = 11) -> Workload:
    draw = Random(seed * 100 + batch)
    items = _between(draw, batch, (tokens_in, tokens_in), (tokens_out, tokens_out))
    return Workload(f"decode:{batch}:{tokens_in}:{tokens_out}:{seed}", items)


def prefill(n: int = 64, length: int = 2048, seed: int = 21) -> Workload:
    items = _between(Random(seed), n, (length, length), (1, 1))
    return Workload(f"prefill:{n}:{length}:{seed}", items)


def shared_prefix(
    n: int = 64,
    prefix: int = 2048,
    suffix: int = 128,
    out: int = 64,
    seed: int = 31,
    groups: int = 1,
) -> Workload:
    if min(prefix, suffix) < 0:
        raise ValueError("a prompt cannot have a part of less than no tokens")
    _check(n, (prefix + suffix, prefix + suffix), (out, out))
    if not 1 <= groups <= n:
        raise ValueError(f"{n} requests cannot be {groups} groups")
    draw = Random(seed)
    beginnings = [_ids(draw, prefix) for _ in range(groups)]
    items = [Item(beginnings[i % groups] + _ids(draw, suffix), out) for i in range(n)]
    name = f"shared_prefix:{n}:{prefix}:{suffix}:{out}:{seed}:{groups}"
    return Workload(name, items, shared=(n - groups) * prefix)


def mixed(n: int = 128, rate: float = 16, seed: int = 41, long_percent: int = 20) -> Workload:
    """Arrivals at `rate` a second; long prompts have short answers."""
    _check(n, (64, 3072), (16, 256))
    if not LEAST_RATE <= rate < math.inf:
        raise ValueError(f"{rate} requests a second do not come; {LEAST_RATE:f} is the least")
    if not 0 <= long_percent <= 100:
        raise ValueError(f"{long_percent} percent is no part of the requests")
    draw, arrival, items = Random(seed), 0.0, []
    for _ in range(n):
        arrival += draw.expovariate(rate)
        long = draw.randrange(100) < long_percent
        tokens_in = draw.randint(*((2048, 3072) if long else (64, 512)))
        tokens_out = draw.randint(*((16, 64) if long else (64, 256)))
        items.append(Item(_ids(draw, tokens_in), tokens_out, arrival))
    shown = str(rate).removesuffix(".0")
    return Workload(f"mixed:{n}:{shown}:{seed}:{long_percent}", items)


def uniform(
    n: int = 64,
    in_from: int = 16,
    in_to: int = 128,
    out_from: int = 16,
    out_to: int = 256,
    seed: int = 51,
) -> Workload:
    items = _between(Random(seed), n, (in_from, in_to), (out_from, out_to))
    return Workload(f"uniform:{n}:{in_from}:{in_to}:{out_from}:{out_to}:{seed}", items)


KINDS: dict[str, Callable[..., Workload]] = {
    kind.__name__: kind for kind in (nanobench, decode, prefill, shared_prefix, mixed, uniform)
}


def _values(kind: str, texts: Sequence[str]) -> list[float]:
    """The numbers of a name. ValueError for what is none, and where too few or too many are."""
    names = inspect.signature(KINDS[kind])
    try:
        names.bind(*texts)
    except TypeError as error:
        raise ValueError(error) from None
    return [_value(name, text) for name, text in zip(names.parameters, texts, strict=False)]


def _value(name: str, text: str) -> float:
    try:
        return int(text)
    except ValueError:
        if name == "rate":
            return float(text)
        raise ValueError(f"{name} is {text!r:.50}, and must be a whole number") from None


def _check(n: int, tokens_in: tuple[int, int], tokens_out: tuple[int, int]) -> None:
    """ValueError unless there can be `n` requests, each pair being the least and most tokens."""
    if n < 1:
        raise ValueError("it has no requests")
    for what, (least, most) in (("prompts", tokens_in), ("answers", tokens_out)):
        if not 1 <= least <= most:
            raise ValueError(f"it has no {what} of {least} to {most} tokens")
    if n * (tokens_in[1] + tokens_out[1]) > MOST_TOKENS:
        raise ValueError(f"it would have more than {MOST_TOKENS:,} tokens")


def _ids(draw: Random, n: int) -> list[int]:
    return [draw.randint(0, LARGEST_ID) for _ in range(n)]


def _between(
    draw: Random, n: int, tokens_in: tuple[int, int], tokens_out: tuple[int, int]
) -> list[Item]:
    _check(n, tokens_in, tokens_out)
    # all prompts first, each length just before its ids, then all output lengths
    prompts = [_ids(draw, draw.randint(*tokens_in)) for _ in range(n)]
    return [Item(prompt, draw.randint(*tokens_out)) for prompt in prompts]
