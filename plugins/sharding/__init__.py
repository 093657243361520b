"""Registers the built-in sharding strategies and partitioners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries

STRATEGIES = (
    ("colwise", "linear:Colwise", "outputs cut by an axis"),
    ("rowwise", "linear:Rowwise", "inputs cut by an axis, partial sums reduced"),
    ("vocab", "vocabulary:Vocab", "embedding rows cut, padded, foreign ids masked"),
    ("vocab_head", "vocabulary:VocabHead", "logits cut by the vocabulary, then gathered"),
    ("packed", "packed:Packed", "several checkpoint modules in one, each cut its own way"),
    ("expert", "experts:Expert", "stacked experts dealt out to ranks"),
    ("replicate", "replicate:Replicate", "the whole weight on every rank"),
)
PARTITIONS = (
    ("even", "Even", "contiguous shards of whole units, as equal as can be"),
    ("gqa", "Gqa", "query heads together with the key/value heads that they use"),
    ("vocab", "Vocab", "equal chunks, padding behind the last row"),
    ("experts", "Experts", "experts in order, round robin, or by an explicit map"),
)


@hookimpl
def register(registries: Registries) -> None:
    for name, target, summary in STRATEGIES:
        registries.sharding.register(name, f"plugins.sharding.{target}", summary=summary)
    for name, target, summary in PARTITIONS:
        registries.partitions.register(
            name, f"plugins.sharding.partitions:{target}", summary=summary
        )
