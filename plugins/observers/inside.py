"""The observer: answers for requests and collects in the engine, puts hooks on layers in a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from core.interfaces import Observer
from core.setup import dtype_of
from plugins.observers.anatomy import Anatomy
from plugins.observers.collected import Rows, maps, states
from plugins.observers.sight import Sight
from plugins.observers.wishes import Wish, wish

if TYPE_CHECKING:
    from torch import nn

    from core.config import Config
    from core.parallel import Communicator
    from core.sampling.params import SamplingParams
    from core.setup import Setup
    from core.types import Batch, Request, Watched

T = TypeVar("T")


class Inside(Observer):
    """Hidden states and attention probabilities, as transformers numbers and computes them.

    hidden_states: 0 is what enters the first layer, i what enters layer i, and the last, one more
    than there are layers, what leaves the norm behind them. attentions: those of layer i.
    """

    name = "observers"
    extra_args = ("hidden_states", "attentions")

    def __init__(self, config: Config, setup: Setup) -> None:
        self._dtype, self._hidden = dtype_of(config, setup), setup.model_config.hidden_size
        with torch.device("meta"):
            whole = Anatomy(setup.architecture.model(setup.model_config))
        self._heads = [attention.heads for attention in whole.attentions]
        self._held: dict[Request, dict[tuple[str, int], Rows]] = {}

    def _count(self, key: str) -> int:
        return len(self._heads) + (key == "hidden_states")

    def _wishes(self, params: SamplingParams) -> dict[str, Wish]:
        asked = params.extra_args or {}
        return {
            key: wish(key, asked[key], self._count(key))
            for key in self.extra_args
            if asked.get(key) is not None
        }

    # in the engine

    def accepts(self, params: SamplingParams) -> list[str]:
        reasons = []
        for key in self.extra_args:
            if (asked := (params.extra_args or {}).get(key)) is not None:
                try:
                    wish(key, asked, self._count(key))
                except ValueError as error:
                    reasons.append(str(error))
        return reasons

    def size(self, params: SamplingParams, prompt: int, limit: int) -> int:
        total = 0
        for key, wanted in self._wishes(params).items():
            span = wanted.span(prompt, limit - 1)  # the last token is not computed
            if key == "hidden_states":
                each = self._hidden * self._dtype.itemsize * len(wanted.layers)
            else:
                each = 4 * span.stop * sum(self._heads[i] for i in wanted.layers.values())
            total += len(span) * each
        return total

    def needs_prompt(self, params: SamplingParams) -> bool:
        return any(w.positions in ("all", "prompt") for w in self._wishes(params).values())

    def take(self, request: Request, start: int, seen: Any) -> None:
        held = self._held.setdefault(request, {})
        for key, layer, at, rows in seen:
            held.setdefault((key, layer), Rows()).add(at, rows)

    def finish(self, request: Request) -> Mapping[str, Any]:
        held = self._held.pop(request, {})
        # a step that was planned ahead may have computed more than the answer kept
        end = max(len(request.prompt), len(request) - 1)
        found: dict[str, dict[int, torch.Tensor]] = {}
        for key, wanted in self._wishes(request.params).items():
            span = wanted.span(len(request.prompt), end)
            found[key] = {}
            for asked, layer in wanted.layers.items():
                pieces = held.get((key, layer), Rows()).between(span.start, span.stop)
                if key == "hidden_states":
                    found[key][asked] = states(pieces, self._hidden, self._dtype)
                else:
                    found[key][asked] = maps(pieces, self._heads[layer])
        return found

    # in each rank

    def prepare(self, model: nn.Module, comm: Communicator) -> None:
        self._anatomy, self._comm = Anatomy(model), comm
        heads = [attention.heads for attention in self._anatomy.attentions]
        device = next(model.parameters()).device
        everyone = comm.gather_all(torch.tensor(heads, device=device))
        self._heads_of_ranks = [shares.tolist() for shares in everyone]

    def looks(self, watched: Watched) -> bool:
        stop = watched.start + watched.count
        return any(
            span.start < stop and watched.start < span.stop
            for wanted in self._wishes(watched.params).values()
            if wanted.layers
            for span in [wanted.span(watched.prompt_length, stop)]
        )

    def observe(
        self, step: Callable[[], T], batch: Batch, watched: Sequence[Watched]
    ) -> tuple[T, Mapping[int, Any]]:
        sight = Sight(self._anatomy, self._heads_of_ranks, self._comm, batch)
        for each in watched:
            for key, wanted in self._wishes(each.params).items():
                sight.want(key, wanted, each)
        with sight.open():
            result = step()
        return result, sight.seen()
