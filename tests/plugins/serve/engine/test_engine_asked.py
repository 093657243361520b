"""What is asked about requests may last: the end of an engine does not wait for it."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

from core import SamplingParams
from plugins.serve.engine.client import EngineClient
from tests.plugins.serve.engine.started import (
    Started,
    answer,
    configuration,
    failing,
    gone,
    ids_of,
)

HERE = Path(__file__).parent
PLUGINS = [str(HERE / "breaking_scheduler.py"), str(HERE / "endless_sampler.py")]
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)


def test_an_engine_that_breaks_while_a_request_is_asked_about_is_known_to_be_gone(
    tiny_served: Path,
) -> None:
    async def ask(client: EngineClient) -> tuple[list[str], float, bool]:
        endless = client.submit([1, 2], SamplingParams(max_tokens=7))
        pieces = await answer(client, [1, 2], SHORT)  # so the one before is being asked about
        assert len(ids_of(pieces[0])) == 3
        began = time.monotonic()
        sentences = await asyncio.gather(failing(endless), failing(client.submit([1] * 13, SHORT)))
        return sentences, time.monotonic() - began, client.alive

    words = ("scheduler=breaking", "sampler=endless")
    with closing(Started(configuration(tiny_served, *words, plugins=PLUGINS))) as started:
        sentences, seconds, alive = started.run(ask)
        assert "thirteen tokens" in sentences[0]
        assert seconds < 3
        assert not alive
        assert gone(started.pid, 5)
