"""How Qwen3 is cut: its axes, the rule of each module, and what its checkpoints hold unread."""

from __future__ import annotations

from core.parallel import even, gqa, vocab

ALIGNED = 16  # matrix products are slow on shards whose rows begin between 32-byte boundaries

axes = {
    "q|kv": gqa(q="num_attention_heads", kv="num_key_value_heads", unit="head_dim"),
    "mlp": even("intermediate_size", align=ALIGNED),
    "vocab": vocab("vocab_size", unit=ALIGNED),
}

plan = {
    "model.embed_tokens": "vocab",
    "model.layers.*.self_attn.qkv_proj": {
        "q_proj": "colwise:q",
        "k_proj": "colwise:kv",
        "v_proj": "colwise:kv",
    },
    "model.layers.*.self_attn.o_proj": "rowwise:q",
    "model.layers.*.mlp.gate_up_proj": {"gate_proj": "colwise:mlp", "up_proj": "colwise:mlp"},
    "model.layers.*.mlp.down_proj": "rowwise:mlp",
    "**.{q_norm,k_norm,input_layernorm,post_attention_layernorm}": "replicate",
    "model.norm": "replicate",
    "lm_head": "vocab_head",
}

ignore = ("**.rotary_emb.inv_freq",)
