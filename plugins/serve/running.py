"""One life of the server: start the engine, answer until a signal comes, let answers end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn

from core.errors import EngineDead
from core.visible import say
from plugins.serve.engine.client import EngineClient
from plugins.serve.http import build, uvicorn_settings
from plugins.serve.listening import beyond, open_address, url

if TYPE_CHECKING:
    from core.config import Config
    from plugins.serve.app import Serve

log = logging.getLogger("plait")

LAST_WORDS = 2.0  # seconds that streams get to say that they end early


class Signals:
    """SIGTERM and SIGINT: the first one asks for an end, the second one for an immediate one."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        self.number = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._come, number)

    def _come(self, number: int) -> None:
        (self.second if self.first.is_set() else self.first).set()
        self.number = self.number or number


class Server(uvicorn.Server):
    """Signals are ours, and it says where it is once it listens."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def cut(self) -> None:
        """End what goes on. That it was cancelled is nothing for the log."""
        logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()


async def serve(config: Config, options: Serve.Options, listener: socket.socket, name: str) -> int:
    """-> exit status: 0 after SIGTERM or Ctrl-C; 1 when the engine had stopped before."""
    signals = Signals()
    secrets = [options.api_key_env] if options.api_key_env else []
    client = EngineClient(config, name=name, queue=options.queue, secrets=secrets)
    try:
        if not await _before(signals.first, client.start()):
            return 128 + signals.number
        app = build(config, client, options)
        gc.collect()
        gc.freeze()  # looking through all modules once more would stop every stream for 0.2 s
        open_address(listener)
        settings: dict[str, Any] = {"log_config": None, "log_level": "error", "lifespan": "off"}
        server = Server(uvicorn.Config(app, **(settings | uvicorn_settings(options))))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            say(f"{name} is served at {url(listener)}{beyond(listener)}")
        await _before(signals.first, asyncio.shield(serving))
        return await _stop(server, serving, client, signals, options.drain)
    finally:
        await client.close(grace=0.0 if signals.second.is_set() else 5.0)


async def _stop(
    server: Server,
    serving: asyncio.Task[None],
    client: EngineClient,
    signals: Signals,
    drain: float,
) -> int:
    """No new connections; answers get `drain` seconds to end. A second signal ends them at once."""
    died = not client.alive
    server.should_exit = True  # closes the listening socket
    if (going := len(server.server_state.tasks)) and not died:
        some = "1 request" if going == 1 else f"{going} requests"
        say(f"stopping: {some} may end within {drain:g} s; a second signal cuts off at once")
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_before(signals.second, asyncio.shield(serving)), drain)
    if not serving.done() and not signals.second.is_set():
        log.warning("answers are cut off: they had not ended after run.drain, %g s", drain)
        await client.close()  # every stream hears of it
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_before(signals.second, asyncio.shield(serving)), LAST_WORDS)
    if not serving.done():
        if signals.second.is_set() and (going := len(server.server_state.tasks)):
            log.warning("stopped at once: requests that were cut off: %d", going)
        server.cut()
        await asyncio.sleep(0.05)  # so that what is cancelled can clean up
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    return 1 if died else 128 + signals.number if signals.second.is_set() else 0


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


async def _before(event: asyncio.Event, work: Awaitable[Any]) -> bool:
    """Whether `work` ends before the event. If not, it is cancelled. Raises what it raises."""
    working, waiting = asyncio.ensure_future(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not working.done():
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError, EngineDead):
                await working
    if working.cancelled():
        return False
    working.result()
    return True
