"""A model of how ranks send words to each other: no order of events may break it.

What the kernels of `plugins/kernels/triton/sums` do, word by word, on a machine that delivers
writes whenever and in whatever order it likes. Random schedules look for a read of what is not yet
there or no longer, a word that is lost, and a state in which nobody can go on. Designs that save
too much are broken on purpose, and must be caught.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

EMPTY = None
Place = tuple[Any, ...]


class Broken(Exception):
    """A word was not what it should be, or nobody can go on."""


@dataclass
class Design:
    """The protocol, and what may be left out of it."""

    places: int = 2  # in turn
    clears: bool = True  # what was read
    waits: bool = True  # until a word is there
    ends: bool = True  # a kernel begins when all writes of the one before are done


@dataclass
class Machine:
    """The memory of all ranks, and writes that are under way."""

    ranks: int
    choose: random.Random
    memory: dict[tuple[int, Place], Any] = field(default_factory=dict)
    under_way: dict[int, list[tuple[int, Place, Any]]] = field(default_factory=dict)

    def write(self, by: int, rank: int, place: Place, word: Any) -> None:
        self.under_way.setdefault(by, []).append((rank, place, word))

    def read(self, rank: int, place: Place) -> Any:
        for to, at, word in self.under_way.get(rank, []):  # a thread sees its own writes
            if (to, at) == (rank, place):
                return word
        return self.memory.get((rank, place), EMPTY)

    def deliver(self, by: int, which: int) -> None:
        rank, place, word = self.under_way[by].pop(which)
        if word is not EMPTY and self.memory.get((rank, place), EMPTY) is not EMPTY:
            raise Broken(f"rank {by} overwrites what rank {rank} has not read")
        self.memory[rank, place] = word

    def can_deliver(self, by: int) -> list[int]:
        """Writes of one rank to one place stay in order; all others may overtake each other."""
        seen, found = set(), []
        for which, (rank, place, _) in enumerate(self.under_way.get(by, [])):
            if (rank, place) not in seen:
                found.append(which)
            seen.add((rank, place))
        return found


def one_shot(
    machine: Machine, design: Design, rank: int, call: int, sizes: list[int], turns: dict[Any, int]
) -> list[Iterator[None]]:
    """The programs of a call; each has as many words as `sizes` says."""

    def program(block: int, words: int) -> Iterator[None]:
        parity = turns.get(block, 0) % design.places
        for other in range(machine.ranks):
            for word in range(words):
                if other != rank:
                    place = block, parity, rank, word
                    machine.write(rank, other, place, (call, block, rank, word))
                    yield
        for source in range(machine.ranks):
            for word in range(words):
                if source != rank:
                    place = block, parity, source, word
                    while design.waits and machine.read(rank, place) is EMPTY:
                        yield
                    if machine.read(rank, place) != (call, block, source, word):
                        raise Broken(f"rank {rank} reads {machine.read(rank, place)}")
                    yield
                    if design.clears:
                        machine.write(rank, rank, place, EMPTY)
        turns[block] = turns.get(block, 0) + 1

    return [program(block, words) for block, words in enumerate(sizes)]


def two_shot(
    machine: Machine, design: Design, rank: int, call: int, sizes: list[int], turns: dict[Any, int]
) -> list[Iterator[None]]:
    """Parts go to who adds them up, and sums come back, to a place of their own."""

    def program(block: int, words: int) -> Iterator[None]:
        parity = turns.get(block, 0) % design.places
        for kind in ("part", "sum"):
            for other in range(machine.ranks):
                for word in range(words):
                    if other != rank:
                        place = block, parity, rank, kind, word
                        machine.write(rank, other, place, (call, kind, rank, word))
                        yield
            for source in range(machine.ranks):
                for word in range(words):
                    if source != rank:
                        place = block, parity, source, kind, word
                        while design.waits and machine.read(rank, place) is EMPTY:
                            yield
                        if machine.read(rank, place) != (call, kind, source, word):
                            raise Broken(f"rank {rank} reads {machine.read(rank, place)}")
                        if design.clears:
                            machine.write(rank, rank, place, EMPTY)
                        yield
        turns[block] = turns.get(block, 0) + 1

    return [program(block, words) for block, words in enumerate(sizes)]


def rank_runs(
    machine: Machine, design: Design, rank: int, calls: list[tuple[Any, list[int]]]
) -> Iterator[None]:
    """One call after the other."""
    turns: dict[Any, int] = {}
    for number, (kernel, sizes) in enumerate(calls):
        programs = kernel(machine, design, rank, number, sizes, turns)
        while programs:
            one = machine.choose.choice(programs)
            try:
                next(one)
            except StopIteration:
                programs.remove(one)
            yield
        while design.ends and machine.under_way.get(rank):
            yield


def run(seed: int, ranks: int, calls: list[tuple[Any, list[int]]], design: Design) -> None:
    """Let ranks and deliveries take turns at random, some more often. Raises Broken."""
    choose = random.Random(seed)
    machine = Machine(ranks, choose)
    runs = {rank: rank_runs(machine, design, rank, calls) for rank in range(ranks)}
    weights = [choose.choice((1, 1, 5, 40)) for _ in range(2 * ranks)]
    idle, patience = 0, 4000
    while runs or any(machine.under_way.values()):
        who = choose.choices(range(2 * ranks), weights)[0]
        before = sum(map(len, machine.under_way.values())), len(machine.memory), len(runs)
        if who < ranks:
            if who in runs:
                try:
                    next(runs[who])
                except StopIteration:
                    del runs[who]
        elif free := machine.can_deliver(who - ranks):
            machine.deliver(who - ranks, choose.choice(free))
        after = sum(map(len, machine.under_way.values())), len(machine.memory), len(runs)
        idle = idle + 1 if after == before else 0
        if idle > patience:
            raise Broken("nobody can go on")
    left = {k for k, word in machine.memory.items() if word is not EMPTY}
    if left:
        raise Broken(f"nobody has read {left}")


SIZES = st.lists(st.integers(1, 2), min_size=1, max_size=3)
CALLS = st.lists(st.tuples(st.sampled_from([one_shot, two_shot]), SIZES), min_size=1, max_size=6)


@settings(max_examples=120)
@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 4), calls=CALLS)
def test_no_order_of_events_breaks_it(
    seed: int, ranks: int, calls: list[tuple[Any, list[int]]]
) -> None:
    run(seed, ranks, calls, Design())


@pytest.mark.parametrize(
    "design",
    [Design(places=1), Design(clears=False), Design(waits=False), Design(ends=False)],
    ids=["one place", "nothing is cleared", "no wait", "kernels overlap"],
)
def test_what_saves_too_much_is_caught(design: Design) -> None:
    calls = [(one_shot, [1, 1]), (one_shot, [1]), (one_shot, [2, 1]), (one_shot, [1, 2])] * 2

    def broken() -> bool:
        for seed in range(600):
            try:
                run(seed, 2, calls, design)
            except Broken:
                return True
        return False

    assert broken()
