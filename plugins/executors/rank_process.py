"""The program of ranks 1 and up: load a share of the model, then run the plans of rank 0."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from core.errors import UserError
from core.plugins.blame import account
from core.visible import visible

HOST = "127.0.0.1"  # all ranks are on this machine


@dataclass
class Assignment:
    """What rank 0 tells a rank first."""

    config: Any
    size: int
    port: int  # of rank 0's store, chosen by the system


def main(descriptor: int, rank: int) -> int:
    """Serve until rank 0 says stop, goes away, or something fails. -> exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # they are the engine's: a service sends them to all of its processes at once, and answers
        # get time to end. Not SIG_IGN, which whatever a plugin starts would inherit
        signal.signal(number, lambda *_: None)
    connection = Connection(descriptor)
    logging.getLogger("plait").setLevel(logging.ERROR)  # rank 0 says it
    _end_with_parent()
    try:
        _serve(connection, rank)
    except EOFError:
        return 0  # rank 0 is gone, and with it whoever wanted a report
    except BaseException as error:
        by_user = isinstance(error, UserError)
        text = str(error) if by_user else account(error)
        try:
            connection.send(("lost" if _lost(error) else "failed", by_user, text))
        except OSError:
            print(visible(traceback.format_exc()), file=sys.stderr)
        return 1
    return 0


def _serve(connection: Connection, rank: int) -> None:
    assignment: Assignment = pickle.loads(connection.recv_bytes())
    from torch.distributed import TCPStore

    from core.parallel import connect
    from core.setup import device_of, read_setup
    from core.worker import Worker
    from core.worker.wire import decode

    config = assignment.config
    setup = read_setup(config)
    store = TCPStore(HOST, assignment.port, is_master=False)
    connection.send(("here",))
    comm = connect(store, rank, assignment.size, device_of(config, rank), address=HOST)
    worker = Worker(config, setup, rank, comm)
    worker.load()
    connection.send(("loaded", worker.affordable()))
    worker.prepare(pickle.loads(connection.recv_bytes()))
    connection.send(("ready",))
    expected = None
    while data := connection.recv_bytes():
        plan = decode(data)
        assert expected is None or plan.number == expected, (plan.number, expected)
        expected = plan.number + 1
        worker.launch(plan)
    worker.close()
    comm.close()


def _lost(error: BaseException) -> bool:
    """Whether this rank failed because another one did."""
    from core.parallel import RankLost

    return isinstance(error, RankLost)


def _end_with_parent() -> None:
    """A rank that waits in a collective cannot see its connection close: watch the parent."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, name="plait parent watch", daemon=True).start()


if __name__ == "__main__":
    if status := main(int(sys.argv[1]), int(sys.argv[2])):
        sys.stderr.flush()
        # Threads of the communication library still wait for others, and would be torn down while
        # they run. Memory of a device goes with the process.
        os._exit(status)
