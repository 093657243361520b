"""Qwen3 as plain modules, written as if there were one device.

Names are those of transformers' modeling_qwen3.py, except that q_proj, k_proj and v_proj are one
`qkv_proj`, and gate_proj and up_proj one `gate_up_proj`; the plan says how they are filled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from core.layers import Attention, GatedActivation, Linear, RMSNorm, Rotary

if TYPE_CHECKING:
    from core.types import Batch
    from models.qwen3.config import Qwen3Config


class Qwen3Attention(nn.Module):
    def __init__(self, config: Qwen3Config, layer: int) -> None:
        super().__init__()
        heads, kv_heads, size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        bias = config.attention_bias
        self.qkv_proj = Linear(config.hidden_size, (heads + 2 * kv_heads) * size, bias=bias)
        self.q_norm = RMSNorm(size, config.rms_norm_eps)
        self.k_norm = RMSNorm(size, config.rms_norm_eps)
        self.attention = Attention(
            heads, kv_heads, size, size**-0.5, window=config.windows[layer], layer=layer
        )
        self.o_proj = Linear(heads * size, config.hidden_size, bias=bias)

    def forward(self, x: Tensor, rope: Tensor, batch: Batch, only: Tensor | None) -> Tensor:
        """x [T, hidden] -> [T, hidden], or [W, hidden] of the tokens `only`."""
        qkv = self.qkv_proj(x)
        out = self.attention(qkv, self.q_norm, self.k_norm, rope, batch)
        return self.o_proj(out if only is None else out[only])


class Qwen3MLP(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.gate_up_proj = Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.activation = GatedActivation()
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden]."""
        return self.down_proj(self.activation(self.gate_up_proj(x)))


class Qwen3DecoderLayer(nn.Module):
    def __init__(self, config: Qwen3Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Qwen3Attention(config, layer)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rope: Tensor,
        batch: Batch,
        only: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(x, residual), both [T, hidden], whose sum enters the layer -> the same for the next.

        `only` [W]: keys and values are those of all tokens, what is returned that of these.
        """
        if residual is None:
            residual, x = x, self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, rope, batch, only)
        if only is not None:
            residual = residual[only]
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x), residual


class Qwen3Model(nn.Module):
    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Qwen3DecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config.rope)

    def forward(self, batch: Batch) -> Tensor:
        x, residual = self.embed_tokens(batch.tokens), None
        rope = self.rotary()
        *others, last = self.layers
        for layer in others:
            x, residual = layer(x, residual, rope, batch)
        x, residual = last(x, residual, rope, batch, batch.wanted)
        return self.norm(x, residual)[0]


class Qwen3ForCausalLM(nn.Module):
    """`model(batch) -> [T, hidden]` after the last norm, or [W, hidden] of `batch.wanted`, if it is
    not None; `model.logits(hidden) -> [S, V]`."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.model = Qwen3Model(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, batch: Batch) -> Tensor:
        return self.model(batch)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)
