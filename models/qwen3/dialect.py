"""The tags of Qwen3: what it thinks, and the tools that it calls (in the style of Hermes)."""

from __future__ import annotations

from core.interfaces import Dialect

dialect = Dialect(
    thinking=("<think>", "</think>"),
    thinking_switch="enable_thinking",
    tool_call=("<tool_call>", "</tool_call>"),
)
