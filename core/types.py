"""The values that pass between the rooms of one step, from a request to its sampled ids.

Letters in shape comments, here and everywhere:
  T tokens of a step      B requests of a step       S rows whose logits are sampled (S <= B)
  R request rows of a worker (`max_num_seqs`)        P pages of the longest request of a step
  H query heads           KV key/value heads         D size of a head        V vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from core.layers import Attention
    from core.sampling.params import SamplingParams
    from core.sampling.rows import SampleRows

    Ints = NDArray[np.int32]
    # (layer, q [T, H, D], k and v [T, KV, D]) -> [T, H, D], in place of the layer's backend
    Apart = Callable[[Attention, Tensor, Tensor, Tensor], Tensor]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way through the engine. `n` samples of a prompt are `n` requests.

    The first block is fixed when the request is made. The second belongs to the scheduler: nobody
    else writes it. The last says how it ended; the engine adds stop strings and failures to it.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    seed: int = 0  # 64 bits: `params.seed`, or drawn by the engine
    stop_ids: frozenset[int] = frozenset()  # ends of text and `stop_token_ids`, as one set
    limit: int = 0  # the most tokens it may hold, prompt and output together
    priority: int = 0  # lower runs first
    arrival: float = 0.0  # time.monotonic()
    salt: str | None = None  # requests with different salts never share cached pages
    reads_cache: bool = True  # whether it may begin with cached pages, whose tokens nobody computes

    output: list[int] = field(default_factory=list)
    row: int = -1  # the row that it occupies on every worker; -1: none
    pages: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose keys and values are in the cache, or will be when
    #                    the steps already planned have run
    cached: int = 0  # of those, how many the prefix cache gave when it was first admitted
    started: float = 0.0  # time.monotonic() when it was first admitted
    preemptions: int = 0

    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop id or stop string that ended it
    error: str | None = None  # the sentence behind finish_reason "error"
    extras: dict[str, Any] = field(default_factory=dict)  # what observers have for its caller

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)


@dataclass(slots=True)
class Admission:
    """What every worker learns, once, about a request that takes a row."""

    row: int
    request_id: str
    tokens: Ints  # prompt, and the output so far when it comes back from preemption
    prompt_length: int
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]


@dataclass(slots=True)
class StepPlan:
    """What one step computes: {request: number of tokens}, as columns, and the news of the rows.

    Every worker holds, for each row, its tokens and its page table; sampled ids are written there
    on the device. So a plan names no token of a running request. Entry b of the columns [B] is one
    request; rows with `counts == 1` come first.
    """

    number: int
    rows: Ints  # [B] row of each request
    starts: Ints  # [B] tokens already in the cache
    counts: Ints  # [B] tokens to compute now, at least one
    sample: Ints  # [B] 1: these tokens reach the end of what is known, so sample the next one
    page_starts: Ints  # [B] pages that the row's table held before
    page_counts: Ints  # [B] pages appended to it now
    pages: Ints  # [sum(page_counts)] their numbers
    released: Ints  # rows that are free again; released before `admitted` is applied
    admitted: list[Admission] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)  # [B]; stays on the host


@dataclass(slots=True)
class TokenLogprobs:
    """Log probabilities at one position: the chosen token, its rank, and the best few."""

    token: int
    logprob: float
    rank: int  # 1 = the most likely
    top_ids: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)


@dataclass(slots=True)
class StepOutput:
    """What came of a plan. Entry s belongs to the s-th request of the plan with `sample == 1`."""

    number: int
    ids: Ints  # [sum(counts)], or [S] when `counts` is None
    counts: Ints | None = None  # [S] ids a request got; None: one each. Speculation gives several
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)  # by s
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)  # by b
    errors: dict[int, str] = field(default_factory=dict)  # by b: why this request cannot go on
    extras: dict[str, Mapping[int, Any]] = field(default_factory=dict)  # by observer, by b


class KVLayer(NamedTuple):
    """The paged cache of one layer. Address it by strides: memory order is the backend's choice."""

    k: Tensor  # [pages, page_size, KV, D]
    v: Tensor  # [pages, page_size, KV, D]


@dataclass(slots=True)
class AttentionMetadata:
    """Where one step's tokens are. Keys and values of all T tokens are stored before attention.

    A runner that replays graphs keeps one static copy of every tensor field. The host's fields
    are exact in an eager step and upper bounds (or empty) in a captured one.
    """

    query_start: Tensor  # [B + 1] int32, query b is tokens [query_start[b], query_start[b + 1])
    context_len: Tensor  # [B] int32, tokens that request b attends to, this step's included
    page_table: Tensor  # [B, P] int32; entries past a request's last page are arbitrary
    slots: Tensor  # [T] int64, page * page_size + offset: where this step's keys go; -1: nowhere
    max_query: int
    max_context: int
    decodes: int  # the first so many requests have a single query token
    query_lens: list[int] = field(default_factory=list)  # [B]
    context_lens: list[int] = field(default_factory=list)  # [B]
    private: Any = None  # what the backend's `plan` leaves for its `forward`


@dataclass(slots=True)
class Batch:
    """One step as tensors on the worker's device."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: AttentionMetadata
    sample_index: Tensor  # [S] int64, which of the T tokens give logits
    rows: SampleRows  # the S requests that are sampled
    wanted: Tensor | None = None  # [W] int64, the tokens whose hidden states are read, None: all.
    #                               These are the sampled ones, or any if none is
    captured: bool = False  # by a runner: nobody looks into the model, so values in it may wait
    apart: Apart | None = None  # of a runner that captures only what lies between attentions


@dataclass(slots=True)
class Decodes:
    """A step in which each request computes one token and samples the next, still on the host."""

    rows: Ints  # [B] row of each request
    context_lens: Ints  # [B] tokens that it attends to, this step's included
    pages: Ints  # [B] the page that this step's token is the first of, -1 when it has its page
    sampled: SampleRows  # the same requests


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """What a step computes of one request that asks for an observer."""

    b: int  # which request of the step
    first: int  # its first token among the T of the step
    count: int  # its tokens in this step
    start: int  # position of the first one
    prompt_length: int
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes that one engine is built for; all are final before the first request."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_length: int
    page_size: int
    pages: int
    vocab_size: int  # of the whole model, not of a rank
    prefix_cache: bool = True
    check: bool = False  # verify the page invariants after every step


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What an attention backend is asked to do, for one layer on one rank."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    page_size: int
    window: int | None = None  # a token sees this many tokens, itself included
    dtype: torch.dtype | None = None
    cache_dtype: torch.dtype | None = None
    device: str = "cpu"  # "cpu" or "cuda"
