"""A Qwen3 with random weights in the middle of decoding: what tools measure, without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from core.fusing import Fusing, value_of
from core.layers import Attention, allocate_cache, bind
from core.parallel import allocate
from core.types import AttentionMetadata, Batch, Limits
from models.qwen3.config import Qwen3Config
from models.qwen3.model import Qwen3ForCausalLM
from plugins.attention.triton.backend import TritonAttention
from plugins.kernels.triton.kernels import TritonKernels

SIZES = Path(__file__).parent.parent / "models" / "qwen3" / "sizes"
PAGE = 256


class DecodeStep:
    """All layers and the head of a step in which every request computes one token."""

    def __init__(
        self,
        name: str,
        device: str = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        layers: int | None = None,
        ranks: int = 1,
    ) -> None:
        """`name`: such as 0.6B; `layers`: fewer than it has; `ranks`: the share of one of so many.

        On the device meta, launches can be recorded and nothing runs.
        """
        raw = json.loads((SIZES / f"Qwen3-{name}" / "config.json").read_text())
        if layers is not None:
            raw |= {"num_hidden_layers": layers, "max_window_layers": layers}
        for key in (
            "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"
        ):  # fmt: skip
            raw[key] //= ranks
        self.config = Qwen3Config.from_json(raw, max_length=4096)
        self.name, self.device, self.dtype = name, torch.device(device), dtype
        with torch.device("meta"):
            self.model = Qwen3ForCausalLM(self.config).to(dtype)
        if self.config.tie_word_embeddings:
            self.model.lm_head.weight = self.model.model.embed_tokens.weight
        if device != "meta":
            allocate(self.model, device, dtype)
            made = torch.Generator(device).manual_seed(0)
            for weight in self.model.parameters():
                if weight.dim() == 1:
                    weight.data.uniform_(0.5, 1.5, generator=made)
                else:
                    weight.data.normal_(0, weight.shape[1] ** -0.5, generator=made)
        self.model.requires_grad_(False)
        self.kernels = TritonKernels(TritonKernels.Options())
        self.fusing = Fusing()

    def weights(self) -> dict[str, list[Tensor]]:
        """The weights of each kind of product, layer by layer."""
        layers = self.model.model.layers
        return {
            "qkv": [x.self_attn.qkv_proj.weight for x in layers],
            "o": [x.self_attn.o_proj.weight for x in layers],
            "gate_up": [x.mlp.gate_up_proj.weight for x in layers],
            "down": [x.mlp.down_proj.weight for x in layers],
            "head": [self.model.lm_head.weight],
        }

    def at(self, requests: int, context: int) -> Callable[[], Tensor]:
        """The step of so many requests of so many tokens each -> a function -> its logits."""
        device = self.device
        pages = -(-context // PAGE)
        limits = Limits(requests, requests, 4096, PAGE, requests * pages, self.config.vocab_size)
        layers = [m for m in self.model.modules() if isinstance(m, Attention)]
        caches = allocate_cache(layers, TritonAttention, limits, self.dtype, device)
        if device.type != "meta":
            for cache in caches:
                cache.k.normal_()
                cache.v.normal_()
        worker = SimpleNamespace(
            page_size=PAGE,
            dtype=self.dtype,
            cache_dtype=self.dtype,
            device=device,
        )
        options = TritonAttention.Options(prompts="triton")
        self.backends = bind(
            self.model, self.kernels, TritonAttention, options, caches, worker, 4096, self.fusing
        )
        table = torch.arange(requests * pages, dtype=torch.int32, device=device)
        where = table.view(requests, pages)
        last = torch.full((requests,), context - 1, device=device)
        batch = Batch(
            tokens=torch.arange(requests, device=device),
            positions=last,
            attention=AttentionMetadata(
                query_start=torch.arange(requests + 1, dtype=torch.int32, device=device),
                context_len=(last + 1).int(),
                page_table=where,
                slots=where[:, -1].long() * PAGE + last % PAGE,
                max_query=1,
                max_context=context,
                decodes=requests,
                query_lens=[1] * requests,
                context_lens=[context] * requests,
            ),
            sample_index=torch.arange(requests, device=device),
            rows=None,  # type: ignore[arg-type]
            captured=True,
        )

        def run() -> Tensor:
            batch.attention.private = None
            for backend in self.backends:
                backend.plan(batch.attention)
            with self.fusing.allowed(True):
                return value_of(self.model.logits(self.model(batch)))

        return run
