"""How a model of a GGUF file chats: its templates, in the file's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY = "tokenizer.chat_template"


def chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Jinja templates by name; the ordinary one is "default"."""
    found = {"default": metadata[KEY]} if KEY in metadata else {}
    for key, value in metadata.items():
        if key.startswith(f"{KEY}."):
            found[key.removeprefix(f"{KEY}.")] = value
    return found
