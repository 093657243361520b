"""Whom a broken engine blames, when several ranks end and their reports come in any order."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from plugins.executors import ranks as module
from plugins.executors.ranks import Ranks

KILLED, ENDED = -9, 1


class Told:
    """Two ranks without processes: what they say, and how they end, is up to the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.theirs: dict[int, Connection] = {}
        self.codes = {1: ENDED, 2: ENDED}

        def start(ranks: Any, rank: int, threads: int) -> None:
            ours, theirs = socket.socketpair()
            self.theirs[rank] = Connection(theirs.detach())
            ranks._connections[rank] = Connection(ours.detach())
            ranks._processes[rank] = SimpleNamespace(
                pid=100 + rank, wait=lambda _=None: self.codes[rank]
            )
            ranks._replies[rank] = SimpleNamespace(put=lambda message: None)

        monkeypatch.setattr(Ranks, "_start", start)
        monkeypatch.setattr(module, "GRACE", 1.0)
        self.ranks = Ranks(3, 1)

    def say(self, rank: int, word: str, text: str) -> None:
        self.theirs[rank].send((word, False, text))

    def end(self, rank: int, code: int = ENDED) -> None:
        self.codes[rank] = code
        self.theirs[rank].close()

    def blamed(self) -> str:
        deadline = time.monotonic() + 5
        while self.ranks.failure is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return str(self.ranks.failure)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    told = Told(monkeypatch)
    yield told
    for connection in told.theirs.values():
        connection.close()
    told.ranks._reader.join(5)
    told.ranks.close()


def test_a_killed_rank_is_blamed_though_its_neighbour_speaks_first(told: Told) -> None:
    told.say(1, "lost", "Connection reset by peer")
    told.end(1)
    time.sleep(0.1)
    told.end(2, KILLED)
    assert told.blamed().startswith("rank 2 (process 102) was killed by SIGKILL")


def test_a_rank_that_failed_is_blamed_though_its_neighbour_speaks_first(told: Told) -> None:
    told.say(1, "lost", "Connection reset by peer")
    told.end(1)
    time.sleep(0.1)
    told.say(2, "failed", "a fault of its own")
    assert told.blamed() == "rank 2 failed:\na fault of its own"


def test_where_no_other_rank_speaks_what_is_known_is_told_in_time(told: Told) -> None:
    told.say(1, "lost", "Connection reset by peer")
    told.end(1)
    assert told.blamed() == "rank 1 failed:\nConnection reset by peer"


def test_where_all_ranks_were_lost_the_first_is_told_at_once(told: Told) -> None:
    for rank in (1, 2):
        told.say(rank, "lost", "Connection reset by peer")
        told.end(rank)
    assert told.blamed() == "rank 1 failed:\nConnection reset by peer"
