"""Llama as plain modules, written as if there were one device.

Names are those of transformers' modeling_llama.py, except that q_proj, k_proj and v_proj are one
`qkv_proj`, and gate_proj and up_proj one `gate_up_proj`; the plan says how they are filled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from core.layers import Attention, GatedActivation, Linear, RMSNorm, Rotary

if TYPE_CHECKING:
    from core.types import Batch
    from plait_llama.config import LlamaConfig


class LlamaAttention(nn.Module):
    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        heads, kv_heads, size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        bias = config.attention_bias
        self.qkv_proj = Linear(config.hidden_size, (heads + 2 * kv_heads) * size, bias=bias)
        self.attention = Attention(heads, kv_heads, size, size**-0.5, layer=layer)
        self.o_proj = Linear(heads * size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor, rope: Tensor, batch: Batch) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        return self.o_proj(self.attention(self.qkv_proj(x), None, None, rope, batch))


class LlamaMLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(hidden, 2 * inner, bias=bias)
        self.activation = GatedActivation()
        self.down_proj = Linear(inner, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        return self.down_proj(self.activation(self.gate_up_proj(x)))


class LlamaDecoderLayer(nn.Module):
    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, residual: Tensor | None, rope: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(x, residual), both [T, hidden], whose sum enters the layer -> the same for the next."""
        if residual is None:
            residual, x = x, self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, rope, batch)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x), residual


class LlamaModel(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            LlamaDecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config.rope)

    def forward(self, batch: Batch) -> Tensor:
        x, residual = self.embed_tokens(batch.tokens), None
        rope = self.rotary()
        for layer in self.layers:
            x, residual = layer(x, residual, rope, batch)
        return self.norm(x, residual)[0]


class LlamaForCausalLM(nn.Module):
    """`model(batch) -> [T, hidden]` after the last norm; `model.logits(hidden) -> [S, V]`."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.model = LlamaModel(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, batch: Batch) -> Tensor:
        return self.model(batch)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)
