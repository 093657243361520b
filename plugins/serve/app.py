"""`run: serve`: an engine in a process of its own, and HTTP in this one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from core.interfaces import App

if TYPE_CHECKING:
    from core.config import Config


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
        max_body: int = field(
            default=16 * 2**20, metadata={"help": "largest body of a request, in bytes"}
        )
        max_connections: int = field(
            default=4096, metadata={"help": "most connections at the same time"}
        )
        queue: int = field(
            default=1024,
            metadata={
                "help": "most answers that wait for their first token; further requests get 429"
            },
        )
        drain: float = field(
            default=30.0,
            metadata={"help": "seconds that answers get to end after SIGTERM or Ctrl-C"},
        )
        log_level: Literal["debug", "info", "warning", "error"] = field(
            default="info", metadata={"help": "what the server's log holds; never prompts or keys"}
        )

    options: Options

    def run(self, config: Config) -> int:
        raise NotImplementedError
