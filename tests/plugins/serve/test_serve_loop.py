"""A long prompt, a heavy template or a large answer of one client does not hold up another's."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.plugins.serve.running import Running


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_a_long_prompt_does_not_stop_the_loop(fake: Running, path: str) -> None:
    text = "All is well with the world, and nothing has to be said. " * 30_000
    fields: Any = {"prompt": text}  # 1,700,000 characters
    if path.startswith("/v1/chat"):
        fields = {"messages": [{"role": "user", "content": text}]}
    fake.app.state.serving.prompts._max_length = 10**9  # so that it is not refused unread
    took: list[float] = []

    def ask() -> None:
        start = time.monotonic()
        fake.post(path, fields)
        took.append(time.monotonic() - start)

    asking = threading.Thread(target=ask)
    pauses = []
    try:
        asking.start()
        while asking.is_alive():
            start = time.monotonic()
            fake.http.get("/health")
            pauses.append(time.monotonic() - start)
    finally:
        asking.join()
        fake.app.state.serving.prompts._max_length = 256
    # where the prompt were encoded on the loop, the longest pause would be nearly all of it
    assert len(pauses) > 4
    assert max(pauses) < 0.5 * took[0] + 0.05
