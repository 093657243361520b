"""How many answers wait for their first token, and when to come back if they are too many."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from plugins.serve.engine.submission import Busy, Refused

LOOK_BACK = 256  # latest first tokens from which the pace is taken
SOONEST, LATEST = 1.0, 60.0  # seconds


class Waiting:
    """The answers without a token, by number: at most so many of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._numbers: set[int] = set()
        self._left: deque[float] = deque(maxlen=LOOK_BACK)  # when one stopped to wait

    def __len__(self) -> int:
        return len(self._numbers)

    def check(self, count: int) -> None:
        """Raises Busy when so many more are too many, and Refused when they always would be."""
        if count > self.most:
            raise Refused(
                [
                    f"the request asks for {count} answers, and no more than {self.most} can wait "
                    "in this server. Split it."
                ]
            )
        if len(self) + count > self.most:
            raise Busy(self.seconds())

    def enter(self, numbers: Iterable[int]) -> None:
        """These wait from now on."""
        self._numbers.update(numbers)

    def leave(self, number: int) -> None:
        """This one has a token, or has ended."""
        if number in self._numbers:
            self._numbers.discard(number)
            self._left.append(time.monotonic())

    def seconds(self) -> float:
        """When all that wait now will have had their turn, if they go on as lately."""
        if len(self._left) < 2:
            return SOONEST
        pace = (time.monotonic() - self._left[0]) / (len(self._left) - 1)
        return min(max(len(self) * pace, SOONEST), LATEST)
