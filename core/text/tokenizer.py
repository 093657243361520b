"""The tokenizer of a checkpoint: text to ids, ids to text, chats to prompts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.text.chat import choose_template, render_chat
from core.text.files import read_tokenizer
from core.text.streams import Pieces
from core.text.unicode import whole_text


class Tokenizer:
    """A `tokenizers.Tokenizer` with the special tokens and chat templates that belong to it.

    It is an ordinary class: `Tokenizer.open` reads a checkpoint, the constructor takes what is
    already in memory. `core.text.TokenizerLike` lists what the engine needs of it.
    """

    def __init__(
        self,
        raw: Any,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        source: str = "this tokenizer",
    ) -> None:
        self.raw = raw  # tokenizers.Tokenizer
        self.special_tokens = dict(special_tokens or {})  # {"eos_token": "<|im_end|>", ...}
        self.chat_templates = dict(chat_templates or {})  # by name; "default" is the ordinary one
        self.source = source
        self.lets_others_run = False  # other threads, while it encodes a text
        added = raw.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(number for number, token in added.items() if token.special)
        self._bytes: dict[int, bytes | None] = {}
        self._pieces: dict[bool, Pieces] = {}

    @classmethod
    def open(cls, path: str | Path) -> Tokenizer:
        """Read the tokenizer of the checkpoint in directory `path`.

        Raises:
            UserError: there is none, it is broken, or it needs code from the checkpoint.
        """
        files = read_tokenizer(path)
        return cls(
            files.raw,
            special_tokens=files.special_tokens,
            chat_templates=files.chat_templates,
            source=str(path),
        )

    @cached_property
    def vocab_size(self) -> int:
        """Tokens that have text, added ones included."""
        return int(self.raw.get_vocab_size(with_added_tokens=True))

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """The id of `eos_token`, if the tokenizer names one. Checkpoints may have more ends of text
        in generation_config.json."""
        token = self.special_tokens.get("eos_token")
        number = self.raw.token_to_id(token) if token else None
        return frozenset() if number is None else frozenset({int(number)})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; with the tokens that the model wants around it (a BOS, say) if asked.

        Raises:
            UserError: `text` is no string, or holds half a character.
        """
        whole_text(text, "the text to encode")
        if self.lets_others_run:  # `encode` holds Python's lock all the time, this does not
            many = self.raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return list(many[0].ids)
        ids: list[int] = self.raw.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of all `ids` together. Ids without text, such as those of a padded vocabulary, add
        nothing; bytes that are no character become U+FFFD.

        Raises:
            UserError: an id that is no 32-bit unsigned number.
        """
        try:
            text: str = self.raw.decode(ids, skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as error:
            raise UserError(f"ids to decode must be token ids (whole numbers): {error}.") from None
        return text

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool | str = False,
        chat_template: str | None = None,
        **template_kwargs: Any,
    ) -> tuple[str, list[int]]:
        """The prompt of a chat, as text and as ids.

        The template writes every special token itself, so none is added when encoding. `tools` are
        JSON schemas; `chat_template` is Jinja source or the name of one of the checkpoint's
        templates; `template_kwargs` reach the template (`enable_thinking=False`). With
        `continue_final_message` the prompt ends inside the last message.

        Raises:
            UserError: no template, wrong messages, or a template that fails, with the index of the
                message.
        """
        template = choose_template(self.chat_templates, chat_template, bool(tools), self.source)
        text = render_chat(
            template,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables={**self.special_tokens, **template_kwargs},
        )
        return text, self.encode(text, add_special_tokens=False)

    def id_to_token(self, token: int) -> str | None:
        """The token as the vocabulary spells it ("Ġworld"); None for an id without text."""
        spelled: str | None = self.raw.id_to_token(token)
        return spelled

    def token_text(self, token: int) -> str:
        """What `token` adds to a text in which it is not the first; U+FFFD for part of a character.

        Special tokens are spelled out, an id without text gives "".
        """
        spelled = self.id_to_token(token)
        if spelled is None:
            return ""
        if token in self.added_ids:
            return spelled
        if self.byte_level:
            return (self.token_bytes(token) or b"").decode("utf-8", "replace")
        before = self.decode([self._ordinary_token], skip_special_tokens=False)
        both = self.decode([self._ordinary_token, token], skip_special_tokens=False)
        return both[len(before) :]

    def token_bytes(self, token: int) -> bytes | None:
        """The bytes that `token` adds to a text; None for an id without text."""
        if token not in self._bytes:
            self._bytes[token] = self._find_bytes(token)
        return self._bytes[token]

    def _find_bytes(self, token: int) -> bytes | None:
        spelled = self.id_to_token(token)
        if spelled is None:
            return None
        if self.byte_level:
            # A token with any other character stands for itself; so `tokenizers` decodes it.
            data = [BYTE_OF.get(character) for character in spelled]
            return spelled.encode() if None in data else bytes(data)  # type: ignore[arg-type]
        if token in self.byte_fallback_ids:
            return bytes([int(spelled[3:5], 16)])
        return self.token_text(token).encode()

    def pieces(self, skip_special_tokens: bool) -> Pieces | None:
        """Per id what it adds to the text, for byte-level vocabularies; None for others."""
        if not self.byte_level:
            return None
        if skip_special_tokens not in self._pieces:
            skipped = self.special_ids if skip_special_tokens else frozenset()
            self._pieces[skip_special_tokens] = Pieces(self.token_bytes, skipped)
        return self._pieces[skip_special_tokens]

    @cached_property
    def byte_level(self) -> bool:
        """Whether text is the tokens' bytes, joined: as in Qwen, Llama 3 and GPT-2."""
        return (
            bool(self._decoders)
            and self._decoders[0] == "ByteLevel"
            and (set(self._decoders[1:]) <= {"Fuse"})
        )

    @cached_property
    def byte_fallback_ids(self) -> frozenset[int]:
        """Ids of <0x00> to <0xFF>, where the decoder reads runs of them as UTF-8."""
        if "ByteFallback" not in self._decoders:
            return frozenset()
        numbers = (self.raw.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(number for number in numbers if number is not None)

    @cached_property
    def _decoders(self) -> list[str]:
        if self.raw.decoder is None:
            return []
        return _steps(json.loads(self.raw.decoder.__getstate__()))

    @cached_property
    def _ordinary_token(self) -> int:
        """Some token of plain text, to stand before another one."""
        special = self.added_ids | self.byte_fallback_ids
        for token in range(self.vocab_size):
            if token not in special and self.decode([token], skip_special_tokens=False).strip():
                return token
        raise UserError(f"{self.source}: its vocabulary has no token of plain text.")


def _steps(decoder: dict[str, Any]) -> list[str]:
    if decoder["type"] != "Sequence":
        return [str(decoder["type"])]
    return [name for step in decoder["decoders"] for name in _steps(step)]


def _bytes_by_character() -> dict[str, int]:
    """The alphabet of byte-level vocabularies: printable Latin-1 stands for itself, the other bytes
    for the characters from U+0100 on. Source: GPT-2, `bytes_to_unicode` in encoder.py."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    table = {chr(byte): byte for byte in itself}
    return table | {chr(0x100 + number): byte for number, byte in enumerate(others)}


BYTE_OF = _bytes_by_character()
