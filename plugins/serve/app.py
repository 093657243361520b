"""`run: serve`: an engine in a process of its own, and HTTP in this one."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from core.errors import Mistakes
from core.interfaces import App

if TYPE_CHECKING:
    from core.config import Config

NAME = re.compile(r"\*|(\*\.)?[^\s*/:\[\]]+")  # a host's, or all below one, or any


class Serve(App):
    """Answers HTTP requests until it is told to stop."""

    @dataclass
    class Options:
        host: str = field(
            default="127.0.0.1",
            metadata={"help": "address to listen on; 0.0.0.0: whoever can reach this machine"},
        )
        port: int = field(default=8000, metadata={"help": "port to listen on; 0: any free one"})
        name: str | None = field(
            default=None,
            metadata={"help": "what requests call the model; null: as model.path does"},
        )
        api_key_env: str | None = field(
            default=None,
            metadata={
                "help": "name of the environment variable with the key that requests must bring; "
                "null: none is asked for"
            },
        )
        cors: list[str] = field(
            default_factory=list,
            metadata={
                "help": "origins whose pages may call the server from a browser, such as "
                "http://localhost:3000; '*': all"
            },
        )
        hosts: list[str] | None = field(
            default=None,
            metadata={
                "help": "names that requests may call the server by, such as llm.example.org "
                "behind a proxy that passes it on ('*.example.org': all below it, '*': any); null: "
                "localhost where run.host is this machine alone and no key is asked for, else any"
            },
        )
        client_timeout: float = field(
            default=60.0,
            metadata={
                "help": "seconds that a client may take to send its headers, to send its body, and "
                "to take any of what it is sent"
            },
        )
        max_body: int = field(
            default=16 * 2**20, metadata={"help": "largest body of a request, in bytes"}
        )
        max_connections: int = field(
            default=4096, metadata={"help": "most connections at the same time"}
        )
        queue: int = field(
            default=1024,
            metadata={
                "help": "most answers that wait for their first token; further requests get 429, "
                "and one that asks for more gets 400"
            },
        )
        drain: float = field(
            default=30.0,
            metadata={"help": "seconds that answers get to end after SIGTERM or Ctrl-C"},
        )
        log_level: Literal["debug", "info", "warning", "error"] = field(
            default="info", metadata={"help": "what the server's log holds; never prompts or keys"}
        )
        access_log: bool = field(
            default=False,
            metadata={
                "help": "a line for each request in the log, at the level info: address, method, "
                "path, status and seconds; nothing of what was said"
            },
        )

        def __post_init__(self) -> None:
            mistakes = Mistakes()
            if not 0 <= self.port <= 65535:
                mistakes.add(f"port must lie in 0 to 65535, and is {self.port}.")
            for name in ("max_body", "max_connections", "queue"):
                if (value := getattr(self, name)) < 1:
                    mistakes.add(f"{name} must be 1 or more, and is {value}.")
            if not 0 < self.client_timeout < float("inf"):
                mistakes.add(
                    "client_timeout must be a number of seconds above 0, and is "
                    f"{self.client_timeout}."
                )
            for name in self.hosts or ():
                if not NAME.fullmatch(name):
                    mistakes.add(
                        f"hosts holds {name!r}. Give names alone, without http:// and port, such "
                        "as llm.example.org."
                    )
            if not 0 <= self.drain < float("inf"):
                mistakes.add(f"drain must be a number of seconds, and is {self.drain}.")
            mistakes.tell()

    options: Options  # type: ignore[assignment]  # the app's own

    def run(self, config: Config) -> int:
        from plugins.serve.keys import key_from
        from plugins.serve.listening import take_address
        from plugins.serve.running import serve

        options = self.options
        logging.getLogger("plait").setLevel(options.log_level.upper())
        key_from(options.api_key_env)
        name = options.name or model_name(config.model.path)
        with (
            take_address(options.host, options.port) as listener,
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            return runner.run(serve(config, options, listener, name))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: half the cost of each event that is sent."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def model_name(path: str) -> str:
    """What requests call a model that nobody named: as on the hub, or as its folder is called."""
    return Path(path).resolve().name if Path(path).exists() else path
