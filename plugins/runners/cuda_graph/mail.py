"""How captured steps get their news and give their ids away without a copy: memory of the host.

A graph's addresses never change, so all steps read and write one ring of slots. Which slot is a
step's turn, the device counts by itself and the host counts along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from core.landed import Landed

if TYPE_CHECKING:
    from core.types import Decodes, Ints

SLOTS = 8  # of the ring; two or three steps are under way at a time


class Mail:
    """The ring, for steps of up to `most` requests.

    A step reads column i of its `size` requests at `news[slot, i * size]` and writes its ids to
    `ids[slot]`; `turn` is [the slot of the next step, the slot of the one that runs].
    """

    def __init__(self, most: int, nobody: int, device: torch.device) -> None:
        pinned: Any = {"dtype": torch.int32, "pin_memory": device.type == "cuda"}
        self.news = torch.zeros(SLOTS, 3 * most, **pinned)
        self.ids = torch.zeros(SLOTS, most, **pinned)
        self.turn = torch.zeros(2, dtype=torch.int32, device=device)
        self._news: Ints = self.news.numpy()
        self._padding = np.array([[nobody], [0], [-1]], np.int32)
        self._landed: list[Landed | None] = [None] * SLOTS
        self._slot = 0
        self._certain = False  # whether the host knows whose turn it is on the device

    def post(self, decodes: Decodes, size: int) -> None:
        """Write a step's columns, padded to `size` requests, where its graph will read them.

        `sent` follows. Where it does not, because Ctrl-C or an error came in between, the device
        may have taken that turn or not, and the next step begins to count anew.
        """
        if not self._certain:
            self._begin_anew()
        self._certain = False
        if (before := self._landed[self._slot]) is not None:
            before.keep()
            self._landed[self._slot] = None
        count = len(decodes.rows)
        news = self._news[self._slot, : 3 * size].reshape(3, size)
        news[0, :count] = decodes.rows
        news[1, :count] = decodes.context_lens
        news[2, :count] = decodes.pages
        news[:, count:] = self._padding

    def sent(self, count: int) -> Landed:
        """Where the ids of the step that was started last will be, [count]."""
        landed = Landed(self.ids[self._slot, :count])
        self._landed[self._slot] = landed
        self._slot = (self._slot + 1) % SLOTS
        self._certain = True
        return landed

    def rest(self, size: int) -> None:
        """Wait until nothing is under way, and leave nothing but padding to be read.

        What runs then, in order to be captured, may take turns that nobody counts.
        """
        self._certain = False
        self._begin_anew()
        self._news[:, : 3 * size].reshape(SLOTS, 3, size)[:] = self._padding

    def _begin_anew(self) -> None:
        if self.turn.is_cuda:
            torch.cuda.synchronize(self.turn.device)  # a step that was not sent has no event
        for landed in self._landed:
            if landed is not None:
                landed.keep()
        self._landed = [None] * SLOTS
        self.turn.zero_()
        self._slot = 0
