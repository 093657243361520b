"""Text in and out: prompts become token ids, token ids become text, chunk by chunk."""

from __future__ import annotations

from core.text.detokenize import Detokenizer
from core.text.files import has_tokenizer
from core.text.interface import TokenizerLike
from core.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer", "TokenizerLike", "has_tokenizer"]
