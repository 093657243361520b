"""The runtime of Plait: registries, parallel plans, the paged cache and the step loop.

Public here: `LLM` and `SamplingParams`, the interface in Python; plugins import from the modules.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from core.visible import visible_record

if TYPE_CHECKING:
    from core.errors import EngineDead, UserError
    from core.llm import LLM
    from core.outputs import CompletionOutput, RequestOutput
    from core.prompts import TextPrompt, TokensPrompt
    from core.sampling.params import SamplingParams
    from core.sampling.structured import StructuredOutputsParams

logging.getLogger("plait").addFilter(visible_record)

__version__ = "0.1.0"

_HOMES = {
    "LLM": "core.llm",
    "SamplingParams": "core.sampling.params",
    "StructuredOutputsParams": "core.sampling.structured",
    "RequestOutput": "core.outputs",
    "CompletionOutput": "core.outputs",
    "TextPrompt": "core.prompts",
    "TokensPrompt": "core.prompts",
    "UserError": "core.errors",
    "EngineDead": "core.errors",
}

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineDead",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "UserError",
]


def __getattr__(name: str) -> Any:
    # on first use: `import core` must not import torch
    if name not in _HOMES:
        raise AttributeError(f"module 'core' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
