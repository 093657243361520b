"""The processes of ranks 1 and up: started, spoken to over private sockets, watched, ended."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from core.children import command, module_path
from core.errors import EngineDead, UserError
from core.plugins.blame import account

T = TypeVar("T")

PROGRAM = "plugins.executors.rank_process"
GRACE = 5.0  # seconds that a rank gets to report, or to end by itself


class Ranks:
    """The further ranks of one engine. A thread reads what they say and notices when one is gone.

    Messages to a rank are bytes of any length. Messages from a rank are pickled tuples:
    ("here",), ("loaded", pages), ("ready",), or ("failed", is_user_error, text), after which it
    ends. It says "lost" in place of "failed" when what failed is a collective with a rank that has
    gone: then the other one is to blame, of which nothing may have been heard yet.
    """

    def __init__(self, size: int, threads: int) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._connections: dict[int, Connection] = {}
        self._replies: dict[int, queue.Queue[tuple[Any, ...] | None]] = {}
        self._closing = self._served = False
        self.failure: Exception | None = None
        self._reported: set[int] = set()  # ranks that have said why they end
        self._lost: Exception | None = None  # what is told if nobody tells more until `_lost_by`
        self._lost_by = 0.0
        self.on_failure: Callable[[], None] = lambda: None  # called by the thread that notices
        try:
            for rank in range(1, size):
                self._start(rank, threads)
        except BaseException:
            self.close()
            raise
        self._reader = threading.Thread(target=self._read, name="plait ranks", daemon=True)
        self._reader.start()

    def _start(self, rank: int, threads: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # not multiprocessing's spawn: that would import the caller's main script again
            process = subprocess.Popen(
                command(PROGRAM, str(theirs.fileno()), str(rank)),
                pass_fds=[theirs.fileno()],
                env={
                    **os.environ,
                    "PYTHONPATH": module_path(),
                    "OMP_NUM_THREADS": str(threads),
                },
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the engine's to handle
            )
        self._processes[rank] = process
        self._connections[rank] = Connection(ours.detach())
        self._replies[rank] = queue.Queue()

    def _read(self) -> None:
        open_ = {connection: rank for rank, connection in self._connections.items()}
        while open_:
            patience = None if self._lost is None else max(self._lost_by - time.monotonic(), 0.0)
            found = wait(list(open_), patience)
            if not found and self._lost is not None:
                self.fail(self._lost)
                self._lost = None
            for ready in found:
                rank = open_[ready]  # type: ignore[index]
                try:
                    message = ready.recv()  # type: ignore[union-attr]
                except (EOFError, OSError):
                    del open_[ready]  # type: ignore[arg-type]
                    self._replies[rank].put(None)
                    if not (self._closing or self.failure or rank in self._reported):
                        self.fail(EngineDead(self._obituary(rank)))
                    continue
                if message[0] in ("failed", "lost"):
                    self._told(rank, *message)
                self._replies[rank].put(message)
        if self._lost is not None:
            self.fail(self._lost)

    def _told(self, rank: int, word: str, by_user: bool, text: str) -> None:
        self._reported.add(rank)
        kind = UserError if by_user and not self._served else EngineDead
        error = kind(text if by_user else f"rank {rank} failed:\n{text}")
        if word == "failed":
            self.fail(error)
        elif self._lost is None:
            self._lost, self._lost_by = error, time.monotonic() + GRACE / 2

    def fail(self, error: Exception) -> None:
        """From now on nothing works: this is what everybody is told. The first one counts."""
        if self.failure is None:
            self.failure = error
            self.on_failure()

    def _obituary(self, rank: int) -> str:
        process = self._processes[rank]
        try:
            code = process.wait(GRACE)
        except subprocess.TimeoutExpired:
            return f"rank {rank} (process {process.pid}) closed its connection."
        if code < 0:
            name = signal.Signals(-code).name
            hint = (
                " If nobody did that on purpose, the system may have run out of memory."
                if name == "SIGKILL"
                else ""
            )
            return f"rank {rank} (process {process.pid}) was killed by {name}.{hint}"
        return f"rank {rank} (process {process.pid}) ended with exit status {code}."

    def send(self, data: bytes) -> None:
        """The same bytes to every rank. EngineDead when one is gone."""
        self.check()
        for connection in self._connections.values():
            try:
                connection.send_bytes(data)
            except OSError:
                self.explain(None)

    def collect(self, kind: str) -> list[tuple[Any, ...]]:
        """One message of this kind from every rank. Raises what a rank reports instead."""
        replies = []
        for replies_of in self._replies.values():
            message: tuple[Any, ...] | None = None
            while message is None:
                self.check()  # another rank may be the one that broke
                with suppress(queue.Empty):
                    message = replies_of.get(timeout=0.1)
                    if message is None:
                        self.explain(None)
            if message[0] != kind:
                self.explain(None)
            replies.append(message)
        self._served = kind == "ready"
        return replies

    def unless_one_fails(self, action: Callable[[], T]) -> T:
        """What `action` returns; when a rank fails meanwhile, that is raised, and nobody waits.

        For C code that waits for the ranks and hears neither of their end nor of Ctrl-C. What is
        not waited for stays in its thread until it gives up by itself.
        """
        done: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

        def act() -> None:
            try:
                done.put((action(), None))
            except Exception as error:
                done.put((None, error))

        threading.Thread(target=act, name="plait rank 0 waits", daemon=True).start()
        while True:
            self.check()
            with suppress(queue.Empty):
                result, error = done.get(timeout=0.05)
                if error is not None:
                    raise error
                return result  # type: ignore[return-value]

    def check(self) -> None:
        """Raise when a rank has failed."""
        if self.failure is not None:
            raise self.failure

    def explain(self, error: BaseException | None) -> None:
        """Raise the reason why a step broke: a rank's own report if there is one in time."""
        deadline = time.monotonic() + GRACE
        while self.failure is None and time.monotonic() < deadline:
            time.sleep(0.02)
        told = "a rank no longer answers." if error is None else f"rank 0 failed:\n{account(error)}"
        self.fail(EngineDead(told))
        assert self.failure is not None
        raise self.failure from error

    def close(self) -> None:
        """End every rank, by request, then by force. Leaves no process behind."""
        self._closing = True
        for connection in self._connections.values():
            with suppress(OSError):  # it may be gone already
                connection.send_bytes(b"")
        # one that is still loading does not listen
        deadline = time.monotonic() + (GRACE if self._served and not self.failure else 0.5)
        for process in self._processes.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for connection in self._connections.values():
            connection.close()
