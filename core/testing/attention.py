"""A step of attention over a paged cache, and what comes of it in float64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from core.interfaces import AttentionBackend
from core.testing.numbers import assert_close, bits
from core.types import AttentionMetadata, AttentionShape, KVLayer, Limits

GARBAGE = (1 << 30, -7)  # page numbers behind a request's last page, which nobody may look at
SPARE = 3  # pages of nobody


@dataclass
class AttentionCase:
    """Requests as (tokens in the cache before the step, new tokens), and all that a step needs.

    As in an engine, requests with one new token come first, and the new keys are in the cache
    already. Slots that nobody wrote hold NaN. Pages are in random order.
    """

    requests: Sequence[tuple[int, int]]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    scale: float = 0.3
    page_size: int = 16
    window: int | None = None
    layout: str = "tokens"
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None  # None: as dtype
    device: str = "cpu"
    adjacent: bool = False  # a request's pages follow one another
    strided: bool = False  # q, k and v are views into one projection, as a model makes them
    joint: bool = False  # keys and values are slices of one tensor
    wide: int = 0  # columns of the page table beyond the longest request
    seed: int = 0

    @classmethod
    def of(
        cls, backend: type[AttentionBackend], requests: Sequence[tuple[int, int]], **changes: object
    ) -> AttentionCase:
        """A case in the memory order, page size and finest type that a backend accepts.

        When it accepts no type, the case is one that `rejects` gives reasons for.
        """
        page_size = backend.best_page_size or next(iter(backend.page_sizes), 16)
        fields = {"page_size": page_size, **changes}
        case = cls(requests, layout=backend.layout, **fields)  # type: ignore[arg-type]
        if "dtype" not in changes:
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                if not backend.rejects(replace(case, dtype=dtype).shape):
                    return replace(case, dtype=dtype)
        return case

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.scale,
            page_size=self.page_size,
            window=self.window,
            dtype=self.dtype,
            cache_dtype=self.cache_dtype or self.dtype,
            device=self.device.partition(":")[0],
        )

    def __post_init__(self) -> None:
        self.requests = sorted(self.requests, key=lambda request: request[1] != 1)
        self.counts = [new for _, new in self.requests]
        self.lengths = [old + new for old, new in self.requests]
        pages = [-(-length // self.page_size) for length in self.lengths]
        order = list(range(sum(pages) + SPARE))
        if not self.adjacent:
            random.Random(self.seed).shuffle(order)
        self.tables = [[order.pop() for _ in range(count)][::-1] for count in pages]
        self.pages = sum(pages) + SPARE
        made = torch.Generator().manual_seed(self.seed)

        def draw(tokens: int, heads: int, dtype: torch.dtype) -> Tensor:
            return torch.randn(tokens, heads, self.head_dim, generator=made).to(dtype)

        stored = self.cache_dtype or self.dtype
        self.keys = [draw(n, self.kv_heads, self.dtype).to(stored) for n in self.lengths]
        self.values = [draw(n, self.kv_heads, self.dtype).to(stored) for n in self.lengths]
        self.q = draw(sum(self.counts), self.heads, self.dtype)

    def slot(self, request: int, position: int) -> int:
        """page * page_size + offset of a token."""
        page = self.tables[request][position // self.page_size]
        return page * self.page_size + position % self.page_size

    @cached_property
    def cache(self) -> KVLayer:
        """[pages, page_size, KV, D] twice, in the memory order of `layout`; NaN where unwritten."""
        size = [self.pages, self.page_size, self.kv_heads, self.head_dim]
        if self.layout == "heads":
            size = [size[0], size[2], size[1], size[3]]
        made = torch.full((2, *size), torch.nan, dtype=self.keys[0].dtype, device=self.device)
        if self.joint:
            made = made.transpose(0, 1).contiguous().transpose(0, 1)
        k, v = (x.transpose(1, 2) if self.layout == "heads" else x for x in made)
        for request, (keys, values) in enumerate(zip(self.keys, self.values, strict=True)):
            slots = torch.tensor([self.slot(request, p) for p in range(len(keys))])
            at = (slots // self.page_size).to(k.device), (slots % self.page_size).to(k.device)
            k[at], v[at] = keys.to(k.device), values.to(v.device)
        return KVLayer(k, v)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, H, D], and the k and v [T, KV, D] of the step's tokens."""
        new = [
            torch.cat([x[-n:] for x, n in zip(all_, self.counts, strict=True)]).to(self.dtype)
            for all_ in (self.keys, self.values)
        ]
        q, k, v = (x.to(self.device) for x in (self.q, *new))
        if self.strided:
            packed = torch.cat((q, k, v), 1)
            q, k, v = packed.split((self.heads, self.kv_heads, self.kv_heads), 1)
        return q, k, v

    def meta(self) -> AttentionMetadata:
        """Metadata as a worker makes it, with nothing planned."""
        widest = max(map(len, self.tables)) + self.wide
        rows = [
            [*table, *(GARBAGE[i % 2] for i in range(widest - len(table)))] for table in self.tables
        ]
        starts = [sum(self.counts[:i]) for i in range(len(self.counts) + 1)]
        slots = [
            self.slot(b, position)
            for b, (old, new) in enumerate(self.requests)
            for position in range(old, old + new)
        ]

        def tensor(values: object, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        return AttentionMetadata(
            query_start=tensor(starts),
            context_len=tensor(self.lengths),
            page_table=tensor(rows),
            slots=tensor(slots, torch.int64),
            max_query=max(self.counts),
            max_context=max(self.lengths),
            decodes=self.counts.count(1),
            query_lens=list(self.counts),
            context_lens=list(self.lengths),
        )

    def expected(self) -> Tensor:
        """Softmax of the scaled scores of what each token sees, times their values [T, H, D]."""
        outputs = []
        queries = self.q.double().split(self.counts)
        for (old, new), q, keys, values in zip(
            self.requests, queries, self.keys, self.values, strict=True
        ):
            group = self.heads // self.kv_heads
            k, v = (x.double().repeat_interleave(group, 1) for x in (keys, values))
            scores = self.scale * torch.einsum("nhd,lhd->hnl", q, k)
            position, seen = torch.arange(old, old + new)[:, None], torch.arange(old + new)
            hidden = seen > position
            if self.window is not None:
                hidden |= seen <= position - self.window
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            outputs.append(torch.einsum("hnl,lhd->nhd", weights, v))
        return torch.cat(outputs)

    @torch.inference_mode()
    def run(self, backend: AttentionBackend) -> Tensor:
        """The backend's answer [T, H, D]. AssertionError if it writes where it must not."""
        meta, given = self.meta(), self.meta()
        backend.plan(meta)
        out = self.forward(backend, meta)
        for name in (field.name for field in fields(meta) if field.name != "private"):
            ours, before = getattr(meta, name), getattr(given, name)
            same = torch.equal(ours, before) if isinstance(before, Tensor) else ours == before
            assert same, f"meta.{name} has changed, by which keys are stored or others plan"
        return out

    def limits(self, requests: int) -> Limits:
        """The sizes of an engine in which this step, and so many requests, are allowed."""
        return Limits(
            max_num_seqs=requests,
            max_num_batched_tokens=max(requests, sum(self.counts)),
            max_length=max(self.lengths) + 8,
            page_size=self.page_size,
            pages=self.pages,
            vocab_size=100,
        )

    def captured(self, size: int) -> AttentionMetadata:
        """Metadata of a captured step of `size` requests, of which this step's decode.

        Tensors are this step's, and padded; the host's fields are what was known at the capture.
        """
        meta, rows = self.meta(), len(self.requests)
        assert self.counts == [1] * rows, "a step that only decodes is meant"
        more, longest = size - rows, self.limits(size).max_length

        def padded(x: Tensor, value: int) -> Tensor:
            return torch.cat((x, x.new_full((more, *x.shape[1:]), value)))

        return replace(
            meta,
            query_start=torch.arange(size + 1, dtype=torch.int32, device=self.device),
            context_len=padded(meta.context_len, 0),
            page_table=padded(meta.page_table, 0),
            slots=padded(meta.slots, -1),
            max_context=longest,
            decodes=size,
            query_lens=[1] * size,
            context_lens=[longest] * size,
        )

    @torch.inference_mode()
    def forward(
        self, backend: AttentionBackend, meta: AttentionMetadata, padding: int = 0
    ) -> Tensor:
        """The same after `plan`; behind the step's tokens there may be others, as padding."""
        q, k, v = self.inputs()
        if padding:
            q, k, v = (torch.cat((x, x[:1].expand(padding, -1, -1))) for x in (q, k, v))
        given = {"q": q, "k": k, "v": v, "cache.k": self.cache.k, "cache.v": self.cache.v}
        before = {name: bits(x).clone() for name, x in given.items()}
        out = backend.forward(q, k, v, self.cache, meta)
        for name, x in given.items():
            assert torch.equal(bits(x), before[name]), f"forward has changed {name}"
        return out[: len(out) - padding]

    def into(self, backend: AttentionBackend) -> Tensor:
        """What `forward_into` leaves in a part of a larger tensor, and nowhere else."""
        meta, (q, k, v) = self.meta(), self.inputs()
        backend.plan(meta)
        whole = torch.full((len(q) + 2, *q.shape[1:]), torch.nan, dtype=q.dtype, device=q.device)
        backend.forward_into(q, k, v, self.cache, meta, whole[1:-1])
        assert whole[[0, -1]].isnan().all(), "forward_into writes beside `out`"
        return whole[1:-1]

    def check(self, backend: type[AttentionBackend]) -> None:
        """A new instance of `backend` computes attention, and writes nowhere else."""
        found = self.run(backend(self.shape, backend.Options()))
        assert_close(found, self.expected(), self.dtype)
