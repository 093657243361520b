"""Prompts and chats become token ids, beside the event loop: a long one must not stop streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from core.errors import UserError
from core.text import Tokenizer, TokenizerLike
from plugins.serve.protocol.errors import ApiError

THREADS = 2
SHORT = 2000  # characters that take less time than a change of threads
OURS = frozenset(
    {
        "messages", "conversations", "conversation", "tools", "chat_template", "tokenize",
        "add_generation_prompt", "continue_final_message", "return_assistant_tokens_mask",
    }
)  # fmt: skip
"""Names that a template gets from the request's own fields, or that rendering it needs."""
MESSAGE = 50  # characters that a message, and a tool, count as beside their own

Value = TypeVar("Value")


class ChatPrompt(NamedTuple):
    """The prompt of a chat."""

    text: str
    ids: list[int]


class PromptReader:
    """What the model's tokenizer makes of prompts. `close` ends its threads."""

    def __init__(self, tokenizer: TokenizerLike | None, max_length: int) -> None:
        """`max_length`: the most tokens of a request."""
        self._tokenizer, self._max_length = tokenizer, max_length
        if isinstance(tokenizer, Tokenizer):
            tokenizer.lets_others_run = True
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="prompts")
        self._longest: int | None = None  # characters of the longest token

    @property
    def tokenizer(self) -> TokenizerLike:
        """ApiError when the model has none."""
        if self._tokenizer is None:
            raise ApiError(
                "This model has no tokenizer: prompts must be token ids.", code="invalid_value"
            )
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is text at all."""
        return self._tokenizer is not None

    async def encode(
        self, text: str, add_special_tokens: bool = True, which: str | None = None
    ) -> list[int]:
        """Token ids of a text. ApiError for half a character, or far more text than fits.

        `which`: the name of one of several prompts.
        """
        tokenizer = self.tokenizer

        def encode() -> list[int]:
            self._check_length(len(text), "prompt", which or "The prompt")
            return tokenizer.encode(text, add_special_tokens)

        return await self._run(encode, "prompt", len(text))

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        begun: str = "",
    ) -> ChatPrompt:
        """The prompt of a chat through the model's template; `begun` is how the answer begins.

        ApiError for what the template does not accept.
        """
        tokenizer, variables = self.tokenizer, variables or {}
        size = sum(_size(message) for message in messages) + sum(map(_size, tools or ()))
        if taken := sorted(OURS & variables.keys()):
            raise ApiError(
                f"chat_template_kwargs cannot hold {', '.join(taken)}: the server sets it itself.",
                param="chat_template_kwargs",
                code="invalid_value",
            )

        def render() -> ChatPrompt:
            self._check_length(size, "messages", "The chat")
            text, ids = tokenizer.chat(
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **variables,
            )
            if begun:
                text += begun
                ids = tokenizer.encode(text, add_special_tokens=False)
            return ChatPrompt(text, ids)

        return await self._run(render, "messages", size)

    async def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens included."""
        tokenizer = self.tokenizer

        def decode() -> str:
            return tokenizer.decode(ids, skip_special_tokens=False)

        return await self._run(decode, "tokens", len(ids))

    def warm_up(self) -> None:
        """Import and compile what the first chat needs, before there is anybody to wait for it."""
        if self._tokenizer is not None:
            with suppress(UserError):  # there is no template
                self._tokenizer.chat([{"role": "user", "content": "Hello"}])

    def close(self) -> None:
        """End the threads, once what they do is done."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], Value], field: str, size: int) -> Value:
        try:
            if size <= SHORT:
                return work()
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except UserError as error:
            raise ApiError(str(error), param=field, code="invalid_value") from error

    def _check_length(self, characters: int, field: str, name: str) -> None:
        """Refuse what cannot fit before minutes are spent on counting its tokens."""
        if characters <= 8 * self._max_length:
            return
        if self._longest is None:
            texts = map(self.tokenizer.token_text, range(self.tokenizer.vocab_size))
            self._longest = max(map(len, texts), default=1)
        least = characters // max(self._longest, 1)
        if least >= self._max_length:
            raise ApiError(
                f"{name} has {characters} characters, so at least {least} tokens, and a "
                f"request may hold {self._max_length} with at least one for the answer. Shorten "
                "it.",
                param=field,
                code="context_length_exceeded",
            )


def _size(value: Any) -> int:
    """About how many characters a template has to deal with."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping | list | tuple):
        return 0
    return MESSAGE + sum(map(_size, inner))
