"""An engine that does nothing but hand out ids: what remains of a server's time is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from core.sampling.params import SamplingParams
from plugins.serve.engine.messages import EngineInfo, Piece
from plugins.serve.engine.submission import Submission


class FastEngine:
    """One id for every open answer a step; the next step begins when all were taken."""

    def __init__(self, ids: Sequence[int], vocab_size: int, pause: float = 0.0) -> None:
        self.info = EngineInfo("tiny", 100_000, vocab_size, [], False, {}, "0", {})
        self.alive = True
        self.steps = 0
        self._ids, self._pause = list(ids), pause
        self._open: list[tuple[Submission, int]] = []
        self._task: asyncio.Task[None] | None = None

    def submit(self, ids: Sequence[int], params: SamplingParams, **_: Any) -> Submission:
        submission = Submission(0, 1, lambda *_: None)
        submission.accept()
        assert params.max_tokens is not None
        self._open.append((submission, params.max_tokens))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return submission

    async def statistics(self) -> dict[str, int]:
        return {}

    async def _run(self) -> None:
        ids = self._ids
        while self._open:
            self.steps += 1
            token, still = ids[self.steps % len(ids)], []
            for submission, left in self._open:
                if submission.open:
                    submission.deliver(Piece(0, [token], finish=None if left > 1 else "length"))
                    if left > 1:
                        still.append((submission, left - 1))
            self._open = still
            await asyncio.sleep(self._pause)
        self._task = None
