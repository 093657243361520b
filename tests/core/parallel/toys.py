"""A plain model in Qwen3's shape (without rotation), and an implementation of it from outside.

`reference` reads checkpoint tensors by their own names and knows nothing of plans, so it sees a
wrong order of packed parts, which comparing N ranks with one cannot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.errors import UserError
from core.parallel import ParallelPlan, even, gqa, vocab


@dataclass(frozen=True)
class Config:
    vocab_size: int = 101
    hidden_size: int = 32
    intermediate_size: int = 52
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 8
    attention_bias: bool = True
    mlp_bias: bool = False
    tie_word_embeddings: bool = False


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = (
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
        )
        width = (self.heads + 2 * self.kv_heads) * c.head_dim
        self.qkv_proj = nn.Linear(c.hidden_size, width, bias=c.attention_bias)
        self.o_proj = nn.Linear(self.heads * c.head_dim, c.hidden_size, bias=c.attention_bias)
        self.q_norm, self.k_norm = RMSNorm(c.head_dim), RMSNorm(c.head_dim)

    def forward(self, x: Tensor) -> Tensor:
        q_size, kv_size = self.heads * self.head_dim, self.kv_heads * self.head_dim
        q, k, v = self.qkv_proj(x).split([q_size, kv_size, kv_size], -1)
        q = self.q_norm(q.view(-1, self.heads, self.head_dim))
        k = self.k_norm(k.view(-1, self.kv_heads, self.head_dim))
        return self.o_proj(attend(q, k, v.view(-1, self.kv_heads, self.head_dim)))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of [T, H, D] over [T, KV, D] -> [T, H * D]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(0, 1).reshape(y.shape[1], -1)


class MLP(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(c.hidden_size, 2 * c.intermediate_size, bias=c.mlp_bias)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=c.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(c), MLP(c)
        self.input_layernorm = RMSNorm(c.hidden_size)
        self.post_attention_layernorm = RMSNorm(c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = RMSNorm(c.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Toy(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.model = Body(c)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.model(ids))


AXES = {
    "q|kv": gqa(q="num_attention_heads", kv="num_key_value_heads", unit="head_dim"),
    "mlp": even("intermediate_size"),
    "vocab": vocab("vocab_size"),
}
GATE_UP = "model.layers.*.mlp.gate_up_proj"
NORMS = "**.{q_norm,k_norm,input_layernorm,post_attention_layernorm,norm}"
PLAN: dict[str, Any] = {
    "model.embed_tokens": "vocab",
    "model.layers.*.self_attn.qkv_proj": {
        "q_proj": "colwise:q",
        "k_proj": "colwise:kv",
        "v_proj": "colwise:kv",
    },
    "model.layers.*.self_attn.o_proj": "rowwise:q",
    GATE_UP: {"gate_proj": "colwise:mlp", "up_proj": "colwise:mlp"},
    "model.layers.*.mlp.down_proj": "rowwise:mlp",
    NORMS: "replicate",
    "lm_head": "vocab_head",
}


def toy(**changes: Any) -> SimpleNamespace:
    """The model family, with other axes, plan, ignore or rename if given."""
    family = {"model": Toy, "axes": AXES, "plan": PLAN, "ignore": (), "rename": {}}
    return SimpleNamespace(**(family | changes))


def toy_plan(tensor: int = 1, config: Config | None = None, **options: Any) -> ParallelPlan:
    """The toy's plan; replicated matrices are allowed unless the test says otherwise."""
    options.setdefault("replicate_limit", 1.0)
    return ParallelPlan.build(toy(), config or Config(), tensor, **options)


def mistakes(tensor: int = 2, config: Config | None = None, **family: Any) -> list[str]:
    """The lines of the error that a family, or a config, gives."""
    options = {k: family.pop(k) for k in ("overrides", "replicate_limit") if k in family}
    options.setdefault("replicate_limit", 1.0)
    with pytest.raises(UserError) as caught:
        ParallelPlan.build(toy(**family), config or Config(), tensor, **options)
    return str(caught.value).splitlines()


def reference(c: Config, w: Mapping[str, Tensor], ids: Tensor) -> Tensor:
    """Logits [T, V] from checkpoint tensors, q, k, v, gate and up apart."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), w[f"{name}.weight"], 1e-6)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(c.num_hidden_layers):
        at = f"model.layers.{i}"
        y = norm(x, f"{at}.input_layernorm")
        heads = [
            linear(y, f"{at}.self_attn.{name}").view(len(ids), -1, c.head_dim)
            for name in ("q_proj", "k_proj", "v_proj")
        ]
        q, k = norm(heads[0], f"{at}.self_attn.q_norm"), norm(heads[1], f"{at}.self_attn.k_norm")
        x = x + linear(attend(q, k, heads[2]), f"{at}.self_attn.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm")
        y = F.silu(linear(y, f"{at}.mlp.gate_proj")) * linear(y, f"{at}.mlp.up_proj")
        x = x + linear(y, f"{at}.mlp.down_proj")
    head = "model.embed_tokens" if c.tie_word_embeddings else "lm_head"
    return linear(norm(x, "model.norm"), head)


def checkpoint(c: Config, seed: int = 0) -> dict[str, Tensor]:
    """Random float64 tensors under the names and shapes that Hugging Face writes."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values / shape[-1] ** 0.5

    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    hidden, inner = c.hidden_size, c.intermediate_size
    w = {"model.embed_tokens.weight": random(c.vocab_size, hidden)}
    w["model.norm.weight"] = 1 + random(hidden)
    if not c.tie_word_embeddings:
        w["lm_head.weight"] = random(c.vocab_size, hidden)
    linears = {
        "self_attn.q_proj": (q, hidden, c.attention_bias),
        "self_attn.k_proj": (kv, hidden, c.attention_bias),
        "self_attn.v_proj": (kv, hidden, c.attention_bias),
        "self_attn.o_proj": (hidden, q, c.attention_bias),
        "mlp.gate_proj": (inner, hidden, c.mlp_bias),
        "mlp.up_proj": (inner, hidden, c.mlp_bias),
        "mlp.down_proj": (hidden, inner, c.mlp_bias),
    }
    norms = {
        "self_attn.q_norm": c.head_dim,
        "self_attn.k_norm": c.head_dim,
        "input_layernorm": hidden,
        "post_attention_layernorm": hidden,
    }
    for i in range(c.num_hidden_layers):
        for name, (rows, columns, bias) in linears.items():
            w[f"model.layers.{i}.{name}.weight"] = random(rows, columns)
            if bias:
                w[f"model.layers.{i}.{name}.bias"] = random(rows)
        for name, size in norms.items():
            w[f"model.layers.{i}.{name}.weight"] = 1 + random(size)
    return w


def changed(c: Config, **fields: Any) -> Config:
    return dataclasses.replace(c, **fields)
