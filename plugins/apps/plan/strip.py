"""The strip: a forward pass from left to right as one picture, every shape placed in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plugins.apps.plan.drawing import LETTER, PILE, Picture
from plugins.apps.plan.flow import Stage, Step
from plugins.apps.plan.names import pieces
from plugins.apps.plan.rehearsal import Collective

if TYPE_CHECKING:
    from plugins.apps.plan.content import Content

MARGIN, GAP = 14.0, 8.0
TITLE = 38.0
MEANING = (86.0, 19.0)  # width and height of a colour with its meaning
LINE = 13.0  # of text
NAME = 11  # letters in a line of a name, where the name can be broken
NARROWEST, BAND = 54.0, 32.0  # a step, a collective
FRAME = 10.0  # around layers
WEAVE = 400.0  # width of a fused parameter, labels included


@dataclass(frozen=True)
class Placed:
    """A step: its middle, its name in lines, and its tensors with their corners."""

    step: Step
    x: float  # of the middle
    name: tuple[str, ...]
    tensors: tuple[tuple[float, float, Picture], ...]


@dataclass(frozen=True)
class Band:
    """A collective."""

    x: float
    send: Collective
    sampled: bool


@dataclass(frozen=True)
class Frame:
    """Around the steps of layers that are alike."""

    x: float
    width: float
    label: str


@dataclass(frozen=True)
class Strip:
    """All of it; heights are from below title and legend."""

    width: float
    top: float  # of names
    weights: tuple[float, float]  # between which tensors and collectives stand
    bottom: float  # of what is written below
    steps: tuple[Placed, ...]
    bands: tuple[Band, ...]
    frames: tuple[Frame, ...]

    def meaning_at(self, number: int) -> tuple[float, float]:
        """Where an entry of the legend stands, from the top of the picture."""
        columns = max(1, int((self.width - 2 * MARGIN) // MEANING[0]))
        row, column = divmod(number, columns)
        return MARGIN + column * MEANING[0], TITLE + row * MEANING[1]

    def weave_at(self, number: int) -> tuple[float, float]:
        """The left edge of a fused parameter in its row, and the number of the row."""
        columns = max(1, int((self.width - 2 * MARGIN) // WEAVE))
        row, column = divmod(number, columns)
        return MARGIN + column * (self.width - 2 * MARGIN) / columns, row


def strip(plan: Content) -> Strip:
    """Place every step that has weights, is handed some, or sends something."""
    stages = [(stage, [step for step in stage.steps if _shown(step)]) for stage in plan.flow.stages]
    lines = max((len(_lines(s.own)) for _, steps in stages for s in steps), default=1)
    top = 2 * LINE
    weights = top + (lines + 1) * LINE, top + (lines + 1) * LINE + plan.flow_height
    placed: list[Placed] = []
    bands: list[Band] = []
    frames: list[Frame] = []
    x = MARGIN
    for stage, steps in stages:
        start = x
        x += FRAME * bool(stage.label)
        for step in steps:
            for send in step.sends:
                if send.before:
                    bands.append(Band(x, send, step.sampled))
                    x += BAND + GAP
            pile = plan.small(step.tensors)
            width = _width(step, pile)
            middle = x + width / 2
            placed.append(Placed(step, middle, _lines(step.own), _piled(pile, middle, weights)))
            x += width + GAP
            for send in step.sends:
                if not send.before:
                    bands.append(Band(x, send, step.sampled))
                    x += BAND + GAP
        if stage.label:
            x += FRAME - GAP
            frames.append(Frame(start, x - start, _label(stage)))
            x += GAP
    written = max((len(set(p.step.strategies)) for p in placed), default=1)
    bottom = weights[1] + (written + 2) * LINE + 14
    return Strip(
        max(x - GAP + MARGIN, WEAVE + 2 * MARGIN), top, weights, bottom,
        tuple(placed), tuple(bands), tuple(frames),
    )  # fmt: skip


def _shown(step: Step) -> bool:
    return bool(step.tensors or step.uses or step.sends)


def _label(stage: Stage) -> str:
    return f"{stage.label}, {stage.count} times" if stage.count > 1 else stage.label


def _lines(name: str) -> tuple[str, ...]:
    """A name in lines of about `NAME` letters, broken where its words end."""
    lines = [""]
    for piece in pieces(name):
        if lines[-1] and len(lines[-1]) + len(piece) > NAME:
            lines.append("")
        lines[-1] += piece
    return tuple(lines)


def _width(step: Step, pile: Sequence[Picture]) -> float:
    letters = max(map(len, (*_lines(step.own), *step.strategies)))
    return max(NARROWEST, letters * LETTER, *(picture.width for picture in pile), 0.0)


def _piled(
    pile: Sequence[Picture], middle: float, weights: tuple[float, float]
) -> tuple[tuple[float, float, Picture], ...]:
    """Tensors one below the other, around the middle of the height that there is."""
    height = sum(picture.height + PILE for picture in pile) - PILE
    y = (weights[0] + weights[1] - height) / 2
    found = []
    for picture in pile:
        found.append((middle - picture.width / 2, y, picture))
        y += picture.height + PILE
    return tuple(found)
