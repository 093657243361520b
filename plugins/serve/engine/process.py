"""The program of the engine's process: `python -m plugins.serve.engine.process DESCRIPTOR`."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from core import __version__
from core.errors import EngineDead, UserError
from core.plugins.blame import account, brief
from plugins.serve.engine.frames import Frames
from plugins.serve.engine.link import Gone, Link
from plugins.serve.engine.messages import EngineInfo, Failed, Ready

if TYPE_CHECKING:
    from core.engine import Engine

log = logging.getLogger("plait")


@dataclass
class Orders:
    """What the server says first."""

    config: Any  # core.config.Config: unpickling it loads its plugins
    name: str  # of the model, for requests
    log_level: int


def main(descriptor: int) -> int:
    """Serve until the server closes its end, or something fails. -> exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # they are the server's: a group of processes may get them all at once. Not SIG_IGN, which
        # the processes of ranks would inherit
        signal.signal(number, lambda *_: None)
    _end_with_parent()
    connection = socket.socket(fileno=descriptor)
    try:
        if (orders := _orders(connection)) is None:
            return 0
        logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
        log.setLevel(orders.log_level)
    except Exception as error:
        return _fail(Link(connection), error, ready=False)
    link, ready, status = Link(connection), False, 0
    engine: Engine | None = None
    try:
        from core.engine import Engine
        from plugins.serve.engine.service import Service

        engine = Engine(orders.config)
        link.put(Ready(_info(engine, orders.name)))
        link.flush()
        ready = True
        gc.collect()
        gc.freeze()  # what lives as long as the process need not be looked at again
        Service(engine, link).run()
    except Gone:
        pass
    except BaseException as error:
        status = _fail(link, error, ready=ready)
    if engine is not None:
        engine.close()  # behind the news of its end, because it may wait for others
    return status


def _fail(link: Link, error: BaseException, *, ready: bool) -> int:
    by_user = isinstance(error, UserError) and not ready
    if ready:
        log.error("the engine has stopped", exc_info=error)
        text = _sentence(error)
    else:
        text = str(error) if by_user else account(error)
    with suppress(Gone):  # nobody is left to hear it
        link.put(Failed(by_user, text))
        link.flush()
    link.end()
    return 1


def _orders(connection: socket.socket) -> Orders | None:
    frames = Frames()
    while data := connection.recv(2**16):
        for message in frames.feed(data):
            orders: Orders = pickle.loads(message)  # from the parent's own end of a private socket
            return orders
    return None


def _sentence(error: BaseException) -> str:
    """What clients may hear; the log has the rest."""
    first = str(error).partition("\n")[0].rstrip(":.")
    known = isinstance(error, EngineDead | UserError)
    return f"{first if known else brief(error).rstrip('.')}."


def _info(engine: Any, name: str) -> EngineInfo:
    limits = engine.limits
    return EngineInfo(
        model=name,
        max_length=limits.max_length,
        vocab_size=limits.vocab_size,
        eos_ids=sorted(engine.eos_ids),
        reads_priority=engine.scheduler.reads_priority,
        defaults=dict(engine.setup.checkpoint.generation),
        version=__version__,
        limits=asdict(limits),
    )


def _end_with_parent() -> None:
    """The standard input is a pipe whose other end is the server's: it ends when the server does,
    however that happens, and even if this process is within a step."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="plait parent watch", daemon=True).start()


if __name__ == "__main__":
    if status := main(int(sys.argv[1])):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # threads that ask about requests may take for ever
