"""A Qwen3 put together by hand: weights copied by name, one cache, batches of any requests.

No loader, scheduler, worker or runner takes part, so that a test of the model is only that.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from core.interfaces import AttentionBackend
from core.layers import Attention, allocate_cache, bind
from core.types import AttentionMetadata, Batch, Limits
from models.qwen3.config import Qwen3Config
from models.qwen3.model import Qwen3ForCausalLM
from plugins.attention.sdpa import Sdpa
from plugins.kernels.torch import TorchKernels

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def fused_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """transformers' weights under the names of the model here."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        for fused, parts in FUSED.items():
            if parts[0] in name:
                stacked = [state[name.replace(parts[0], part)] for part in parts]
                found[name.replace(parts[0], fused)] = torch.cat(stacked)
        if not any(part in name for parts in FUSED.values() for part in parts):
            found[name] = value
    return found


@dataclass
class ByHand:
    """The model of a transformers model, over a cache whose unwritten slots are NaN."""

    reference: nn.Module
    page_size: int = 4
    pages: int = 96
    max_length: int | None = None
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"
    cache_dtype: torch.dtype = torch.float32
    attention: type[AttentionBackend] = Sdpa
    pack_from: int | None = None
    seed: int = 0
    tables: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device, self.cache_dtype = torch.device(self.device), self.dtype
        raw = self.reference.config.to_dict()
        self.config = Qwen3Config.from_json(raw, max_length=self.max_length)
        with torch.device("meta"):
            self.model = Qwen3ForCausalLM(self.config)
        weights = fused_weights(self.reference.state_dict())
        weights = {k: v.to(self.device, self.dtype) for k, v in weights.items()}
        self.model.load_state_dict(weights, assign=True)
        self.model.requires_grad_(False)
        if self.config.tie_word_embeddings:
            self.model.lm_head.weight = self.model.model.embed_tokens.weight
        layers = [m for m in self.model.modules() if isinstance(m, Attention)]
        limits = Limits(
            max_num_seqs=64,
            max_num_batched_tokens=512,
            max_length=self.config.longest,
            page_size=self.page_size,
            pages=self.pages,
            vocab_size=self.config.vocab_size,
        )
        self.caches = allocate_cache(layers, self.attention, limits, self.dtype, self.device)
        for layer in self.caches:
            layer.k.fill_(torch.nan)
            layer.v.fill_(torch.nan)
        self.kernels = TorchKernels(TorchKernels.Options(pack_from=self.pack_from))
        self.backends = bind(
            self.model, self.kernels, self.attention, self.attention.Options(), self.caches, self
        )
        self.free = list(range(self.pages))
        random.Random(self.seed).shuffle(self.free)

    @torch.inference_mode()
    def step(self, work: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Compute the next tokens of each request -> their logits [tokens, V]."""
        batch = self.batch(work)
        for backend in self.backends:
            backend.plan(batch.attention)
        logits = self.model.logits(self.model(batch))
        return dict(zip(work, logits.split([len(ids) for ids in work.values()]), strict=True))

    def batch(self, work: Mapping[str, Sequence[int]]) -> Batch:
        starts = [self.lengths.get(name, 0) for name in work]
        counts = [len(ids) for ids in work.values()]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        positions = [p for s, e in zip(starts, ends, strict=True) for p in range(s, e)]
        slots = []
        for name, start, end in zip(work, starts, ends, strict=True):
            table = self.tables.setdefault(name, [])
            while len(table) * self.page_size < end:
                table.append(self.free.pop())
            size = self.page_size
            slots += [table[p // size] * size + p % size for p in range(start, end)]
            self.lengths[name] = end
        widest = max(len(self.tables[name]) for name in work)
        garbage = 1 << 30  # what lies past a request's last page must not be looked at
        rows = [self.tables[name] for name in work]
        padded = [row + [garbage] * (widest - len(row)) for row in rows]
        query_start = [sum(counts[:i]) for i in range(len(counts) + 1)]

        def tensor(values: Any, dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        return Batch(
            tokens=tensor([t for ids in work.values() for t in ids], torch.int64),
            positions=tensor(positions, torch.int64),
            attention=AttentionMetadata(
                query_start=tensor(query_start, torch.int32),
                context_len=tensor(ends, torch.int32),
                page_table=tensor(padded, torch.int32),
                slots=tensor(slots, torch.int64),
                max_query=max(counts),
                max_context=max(ends),
                decodes=0,
                query_lens=counts,
                context_lens=ends,
            ),
            sample_index=tensor(list(range(sum(counts))), torch.int64),
            rows=None,  # type: ignore[arg-type]
        )


@torch.inference_mode()
def reference_logits(model: transformers.Qwen3ForCausalLM, ids: Sequence[int]) -> Tensor:
    """transformers' logits of a whole sequence [tokens, V]."""
    logits: Tensor = model(torch.tensor([list(ids)], device=model.device)).logits[0]
    return logits
