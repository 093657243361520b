"""The logits processor: makes every token impossible that would leave the form of the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from core.errors import Mistakes, UserError
from core.interfaces import LogitsProcessor
from plugins.guided.followed import Followed
from plugins.guided.form import KEY, asks, form_of
from plugins.guided.gate import Gate
from plugins.guided.grammars import Grammars

if TYPE_CHECKING:
    from torch import Tensor

    from core.config import Config
    from core.sampling.params import SamplingParams
    from core.sampling.rows import SampleRows
    from core.setup import Setup


class Guided(LogitsProcessor):
    """Runs last, so that all other wishes choose among what the form leaves.

    Each rank follows every answer by itself, from the ids that all of them know: that takes
    microseconds, and no message. While it looks at the ids of the step before, the model of this
    one is computing, so an engine with requests like these overlaps its steps as any other.
    """

    @dataclass
    class Options(LogitsProcessor.Options):
        cache: int = field(default=256, metadata={"help": "forms that are kept ready"})
        longest: int = field(
            default=2**16, metadata={"help": "most characters of a schema or a grammar"}
        )
        seconds: float = field(
            default=1.0, metadata={"help": "most computing time that reading one may take"}
        )
        preload: bool = field(
            default=False,
            metadata={"help": "read the vocabulary at the start, not with the first request"},
        )

        def __post_init__(self) -> None:
            mistakes = Mistakes()
            for name in ("cache", "longest", "seconds"):
                if not getattr(self, name) > 0:
                    mistakes.add(f"{name} must be more than 0, and is {getattr(self, name)}.")
            mistakes.tell()

    only_asked = True
    extra_args = (KEY,)
    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._gate = Gate(options.seconds)
        self._grammars: Grammars | None = None
        self._followed: dict[int, Followed] = {}  # by row

    def prepare(self, config: Config, setup: Setup) -> None:
        made = Grammars(config, setup, self.options.cache, self.options.longest)
        self._grammars = setup.shared.setdefault((Guided, "grammars"), made)
        if self.options.preload:
            _ = self._grammars.vocabulary

    def close(self) -> None:
        self._gate.close()

    def wants(self, params: SamplingParams) -> bool:
        return asks(params)

    def slow(self, params: SamplingParams) -> bool:
        if not asks(params) or self._grammars is None:
            return False
        try:
            return not self._grammars.knows(form_of(params))
        except UserError:
            return False  # it is refused at once

    def accepts(self, params: SamplingParams) -> list[str]:
        if not asks(params):
            return []
        if self._grammars is None:
            return ["answers in a given form need an engine."]
        found = []
        where = "" if params.structured_outputs is None else "structured_outputs: "
        if params.ignore_eos:
            found.append("ignore_eos would leave an answer in a given form without an end.")
        try:
            form = form_of(params)
            if reason := self._grammars.reason(form, self._gate):
                kind = "schema" if form.kind == "json" else form.kind
                found.append(f"{where}this {kind} cannot be served: {reason}")
        except UserError as error:
            found.append(f"{where}{error}")
        return [sentence.replace("\n", " ") for sentence in found]

    def __call__(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """logits [N, V], changed in place."""
        words = np.full((len(rows), -(-logits.shape[1] // 32)), -1, np.int32)
        for s, followed in enumerate(self._answers(rows)):
            output = rows.output(s)
            followed.follow(output)
            if not followed.ended:
                followed.fill(words[s], output)
        return forbid(logits, rows.table.send(words))

    def _answers(self, rows: SampleRows) -> list[Followed]:
        """[N], kept from step to step."""

        def find() -> list[Followed]:
            for row in [r for r, f in self._followed.items() if rows.table.admissions[r]
                        is not f.admission]:  # fmt: skip
                del self._followed[row]
            return [self._answer(row, rows.table.admissions[row]) for row in rows.rows.tolist()]

        found: list[Followed] = rows.remember((Guided, "answers"), find)
        return found

    def _answer(self, row: int, admission: Any) -> Followed:
        assert self._grammars is not None
        if row not in self._followed:
            self._followed[row] = Followed(admission, form_of(admission.params), self._grammars)
        return self._followed[row]


def forbid(logits: Tensor, words: Tensor) -> Tensor:
    """-inf where the bit of a token is not set: logits [N, V] in place, words [N, V / 32] int32."""
    places = torch.arange(8, dtype=torch.uint8, device=words.device)
    bits = (words.view(torch.uint8)[:, :, None] >> places) & 1  # [N, V / 8, 8]
    return logits.masked_fill_(bits.flatten(1)[:, : logits.shape[1]] == 0, -math.inf)
