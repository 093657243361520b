"""A detokenizer that keeps what it has sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.text import Detokenizer


class Collected(Detokenizer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sent: list[str] = []

    @property
    def text(self) -> str:
        """All that `push` and `finish` have returned."""
        return "".join(self._sent)

    def push(self, ids: Sequence[int], check_stop: bool = True) -> str:
        self._sent.append(super().push(ids, check_stop))
        return self._sent[-1]

    def finish(self) -> str:
        self._sent.append(super().finish())
        return self._sent[-1]
