"""The default sampler, and the logits processors that it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.registry import Registries


@hookimpl
def register(registries: Registries) -> None:
    registries.samplers.register(
        "default",
        "plugins.sampling.default:DefaultSampler",
        summary="everything that SamplingParams asks for, and further logits processors",
    )
    processors = registries.processors
    processors.register(
        "allowed-tokens",
        "plugins.sampling.masks:AllowedTokens",
        summary="only the tokens of allowed_token_ids",
    )
    processors.register(
        "bad-words",
        "plugins.sampling.bad_words:BadWords",
        summary="never the last token of a text in bad_words after the rest of it",
    )
    processors.register(
        "min-tokens",
        "plugins.sampling.masks:MinTokens",
        summary="no end of text before min_tokens",
    )
    processors.register(
        "logit-bias",
        "plugins.sampling.masks:LogitBias",
        summary="adds logit_bias",
    )
    processors.register(
        "penalties",
        "plugins.sampling.penalties:Penalties",
        summary="repetition, frequency and presence penalty",
    )
