"""What one rank sees in one step: hooks on layers, and what they keep, on its way to the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from core.landed import to_host
from core.parallel.groups import rows_of
from core.sampling.deferred import Deferred
from plugins.observers.anatomy import Anatomy, entering
from plugins.observers.probabilities import rotated_queries, tiles

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from core.parallel import Communicator
    from core.types import Batch, Watched
    from plugins.observers.wishes import Wish


class Span(NamedTuple):
    """Tokens of one request that are looked at in this step."""

    b: int
    first: int  # among the tokens of the step
    start: int  # position of that one
    count: int


class Piece(NamedTuple):
    """Rows of one layer, by position."""

    key: str
    layer: int
    start: int
    rows: Tensor  # [positions, ...], on the host or on its way there


class Sight:
    """Made for one step. Only rank 0 keeps what is seen; attention heads come from all ranks."""

    def __init__(
        self,
        anatomy: Anatomy,
        heads: Sequence[Sequence[int]],
        comm: Communicator,
        batch: Batch,
    ) -> None:
        """`heads`: query heads by rank, by layer."""
        self._anatomy, self._heads, self._comm, self._batch = anatomy, heads, comm, batch
        self._spans: dict[tuple[str, int], list[Span]] = {}
        self._pieces: defaultdict[int, list[Piece]] = defaultdict(list)

    def want(self, key: str, wish: Wish, watched: Watched) -> None:
        """Look at what this step computes of what a request wants to see."""
        wanted = wish.span(watched.prompt_length, watched.start + watched.count)
        start = max(wanted.start, watched.start)
        if start < wanted.stop:
            first, count = watched.first + start - watched.start, wanted.stop - start
            for layer in sorted(set(wish.layers.values())):
                spans = self._spans.setdefault((key, layer), [])
                spans.append(Span(watched.b, first, start, count))

    @contextmanager
    def open(self) -> Iterator[None]:
        """Everything that the model computes inside the block is seen."""
        look = {"hidden_states": self._states, "attentions": self._attention}
        with ExitStack() as hooks:
            for (key, layer), spans in self._spans.items():
                for handle in look[key](layer, spans):
                    hooks.callback(handle.remove)
            yield

    def seen(self) -> Deferred[list[Piece]]:
        """By b, once the step is over."""
        # what comes later on the same stream is over when all copies before it are
        last = torch.zeros(1, device=self._batch.tokens.device)
        return Deferred([last], lambda _: self._pieces)

    def _states(self, layer: int, spans: list[Span]) -> list[RemovableHandle]:
        """Hidden states that enter a layer or, after the last, leave the norm behind it."""
        index = self._index(spans)
        counts = [span.count for span in spans]

        def before(module: Any, arguments: tuple[Any, ...]) -> None:
            rows = self._entering(layer, arguments, index)
            if rows is not None:
                parts = to_host(rows).split(counts)
                for span, part in zip(spans, parts, strict=True):
                    self._keep(span.b, Piece("hidden_states", layer, span.start, part))

        if layer < len(self._anatomy.layers):
            return [self._anatomy.layers[layer].register_forward_pre_hook(before)]
        model = self._anatomy.model
        return [model.register_forward_hook(lambda module, _, hidden: before(module, (hidden,)))]

    def _entering(self, layer: int, arguments: tuple[Any, ...], index: Tensor) -> Tensor | None:
        """The rows of hidden states at `index` among the step's tokens, on rank 0."""
        comm, tokens, own = self._comm, len(self._batch.tokens), len(arguments[0])
        scattered = self._anatomy.scattered
        if layer not in scattered:  # once: all ranks find out alike, in the same step
            held = comm.gather_all(torch.tensor([own], device=index.device))
            scattered[layer] = any(int(count) != tokens for count in held)
        if not scattered[layer]:
            return entering(arguments, index) if comm.rank == 0 else None
        shares = [rows_of(tokens, comm.size, rank) for rank in range(comm.size)]
        sizes = [stop - start for start, stop in shares]
        whole = comm.gather(entering(arguments, None), sizes, dim=0)
        return None if whole is None else whole.index_select(0, index)

    def _attention(self, layer: int, spans: list[Span]) -> list[RemovableHandle]:
        """Attention probabilities of a layer."""
        module, index = self._anatomy.attentions[layer], self._index(spans)
        counts = [span.count for span in spans]
        queries: list[Tensor] = []

        def before(_: Any, arguments: tuple[Any, ...]) -> None:
            # now, because attention may write to its inputs
            queries.append(rotated_queries(module, arguments, index))

        def after(_: Any, arguments: Any, out: Any) -> None:
            for span, q in zip(spans, queries.pop().split(counts), strict=True):
                for start, some in tiles(module, q, self._batch, span.b, span.start):
                    whole = self._of_all_ranks(some, layer)
                    if whole is not None:
                        rows = to_host(whole.transpose(0, 1))  # [queries, H, keys]
                        self._keep(span.b, Piece("attentions", layer, start, rows))

        return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]

    def _of_all_ranks(self, some: Tensor, layer: int) -> Tensor | None:
        """[H of this rank, ...] -> [H, ...] on rank 0: the ranks' heads, one after the other."""
        if self._comm.size == 1:
            return some
        return self._comm.gather(some, [heads[layer] for heads in self._heads], dim=0)

    def _index(self, spans: list[Span]) -> Tensor:
        ranges = [torch.arange(span.first, span.first + span.count) for span in spans]
        return torch.cat(ranges).to(self._batch.tokens.device)

    def _keep(self, b: int, piece: Piece) -> None:
        self._pieces[b].append(piece)
