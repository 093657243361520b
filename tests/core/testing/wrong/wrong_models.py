"""Models with one fault each. Each reads checkpoints of its own name."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from plait_llama.architecture import Llama

from core.registry import models
from models.qwen3.architecture import Qwen3
from models.qwen3.model import Qwen3Attention, Qwen3ForCausalLM


class Renamed(Qwen3):
    """Qwen3 under another name."""

    @classmethod
    def config(cls, raw, **more):
        return super().config({**raw, "architectures": ["Qwen3ForCausalLM"]}, **more)


def changed(name: str, change):
    """A model whose modules `change` has changed."""

    def model(cls, config):
        made = Qwen3ForCausalLM(config)
        change(made, config)
        return made

    fields = {"model": classmethod(model), "__module__": __name__}
    models.register(name, type(name, (Renamed,), fields))


def attentions(model) -> list[Qwen3Attention]:
    return [layer.self_attn for layer in model.model.layers]


def scaled(module, factor: float) -> None:
    forward = module.forward
    module.forward = lambda *given: forward(*given) * factor


def norms_swapped(model, config):
    for attention in attentions(model):
        inner = attention.attention.forward
        attention.attention.forward = lambda x, q, k, *rest, inner=inner: inner(x, k, q, *rest)


def positions_restart(model, config):
    inner = model.model.forward

    def forward(batch):
        starts = batch.attention.query_start[:-1].long()
        counts = torch.tensor(batch.attention.query_lens)
        batch.positions = torch.arange(len(batch.positions)) - starts.repeat_interleave(counts)
        return inner(batch)

    model.model.forward = forward


def neighbours_mixed(model, config):
    """Normalises over the tokens of a step."""
    inner = model.model.forward
    model.model.forward = lambda batch: (x := inner(batch)) - 1e-2 * x.mean(0, keepdim=True)


changed("NormsSwapped", norms_swapped)
changed("PositionsRestart", positions_restart)
changed("NeighboursMixed", neighbours_mixed)
changed("LayerForgotten", lambda model, config: model.model.layers.__delitem__(-1))
changed(
    "GlobalNumberOfHeads",
    lambda model, config: [scaled(a, config.num_attention_heads / 6) for a in attentions(model)],
)


@models.register("KeysBeforeQueries")
class KeysBeforeQueries(Renamed):
    plan: ClassVar = {
        **Qwen3.plan,
        "model.layers.*.self_attn.qkv_proj": {
            "k_proj": "colwise:kv",
            "q_proj": "colwise:q",
            "v_proj": "colwise:kv",
        },
    }


@models.register("OtherEps")
class OtherEps(Renamed):
    @classmethod
    def config(cls, raw, **more):
        return replace(super().config(raw, **more), rms_norm_eps=1e-1)


@models.register("UnknownKeysIgnored")
class UnknownKeysIgnored(Renamed):
    @classmethod
    def config(cls, raw, *, ignore=(), **more):
        known = {key: value for key, value in raw.items() if not key.startswith("gain")}
        return super().config(known, ignore=ignore, **more)


@models.register("MistralForCausalLM")
class WindowIgnored(Llama):
    """What transformers makes of this name, without sliding_window."""

    @classmethod
    def config(cls, raw, **more):
        kept = {key: value for key, value in raw.items() if key != "sliding_window"}
        llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        return super().config(kept | llama, **more)
