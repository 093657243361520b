"""The ring through which captured steps get their news and give their ids away."""

from __future__ import annotations

import numpy as np
import torch

from core.landed import Landed
from core.types import Decodes
from plugins.runners.cuda_graph.mail import SLOTS, Mail


def step(*rows: int) -> Decodes:
    column = np.array(rows, np.int32)
    return Decodes(column, column + 10, column + 20, None)  # type: ignore[arg-type]


def test_a_step_finds_its_columns_padded_to_its_size() -> None:
    mail = Mail(6, nobody=9, device=torch.device("cpu"))
    mail.rest(4)
    mail.post(step(3, 1), 4)
    assert mail.news[0, :12].tolist() == [3, 1, 9, 9, 13, 11, 0, 0, 23, 21, -1, -1]
    mail.sent(2)
    mail.post(step(5), 1)
    assert mail.news[1, :3].tolist() == [5, 15, 25]
    assert mail.news[0, :2].tolist() == [3, 1]


def test_ids_that_nobody_has_read_are_kept_when_their_slot_is_used_again() -> None:
    mail = Mail(2, nobody=9, device=torch.device("cpu"))
    mail.rest(2)
    under_way: list[Landed] = []
    for number in range(2 * SLOTS):
        mail.post(step(0, 1), 2)
        mail.ids[number % SLOTS] = torch.tensor([number, -number])  # the device does that
        under_way.append(mail.sent(2))
    assert [one.keep().tolist() for one in under_way] == [[n, -n] for n in range(2 * SLOTS)]


def test_after_a_rest_there_is_nothing_but_padding() -> None:
    mail = Mail(3, nobody=9, device=torch.device("cpu"))
    mail.post(step(1, 2), 3)
    mail.sent(2)
    mail.rest(3)
    assert mail.news[:, :9].tolist() == [[9, 9, 9, 0, 0, 0, -1, -1, -1]] * SLOTS
    assert mail.turn.tolist() == [0, 0]
