"""The engine as the server's event loop knows it: submit, follow, cancel, ask, close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.sampling.params import SamplingParams
from plugins.serve.engine.messages import EngineInfo, Piece
from plugins.serve.engine.submission import Busy, Refused, Submission

if TYPE_CHECKING:
    from core.config import Config

__all__ = ["Busy", "EngineClient", "EngineInfo", "Piece", "Refused", "Submission"]


class EngineClient:
    """Starts the engine's process, hands it requests, and brings their pieces. For one event loop.

    `info` is there once `start` has returned.
    """

    info: EngineInfo
    alive: bool

    def __init__(self, config: Config, *, name: str, queue: int = 1024) -> None:
        """`name`: of the model, for requests. `queue`: most answers that wait for their first
        token; more are turned away."""
        self.config, self.name, self.queue = config, name, queue

    async def start(self) -> None:
        """Start the engine and wait until it is ready. UserError or EngineDead when it is not."""
        raise NotImplementedError

    async def close(self, drain: float = 0.0) -> None:
        """Let what runs end within `drain` seconds, then end the process. May be repeated."""
        raise NotImplementedError

    def submit(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: str | None = None,
    ) -> Submission:
        """Hand a prompt of token ids to the engine; follow the answer with `async for`.

        Raises Busy, and EngineDead. The engine's refusal comes where the first piece was due, or
        from `Submission.accepted`. `priority`: lower runs first. `salt`: requests with different
        ones share no cached pages.
        """
        raise NotImplementedError

    async def statistics(self) -> dict[str, int]:
        """The counters of `core.engine.Engine.statistics`. EngineDead when it is gone."""
        raise NotImplementedError
