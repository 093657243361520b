"""The Python interface: `LLM(...)` and its generate, chat and stream, in vLLM's dialect."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from core.engine import Engine
from core.errors import UserError
from core.progress import progress_bar
from core.sampling.params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from core.config import Config
    from core.outputs import RequestOutput
    from core.text import TokenizerLike

log = logging.getLogger("plait")

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]


class LLM:
    """A model, ready to answer. Use it as a context manager, or `close` it, to free everything.

    >>> with LLM("Qwen/Qwen3-0.6B", tensor_parallel_size=2) as llm:
    ...     print(llm.generate("The capital of France is")[0].outputs[0].text)
    """

    def __init__(self, model: str | Path, **settings: Any) -> None:
        """`settings`: vLLM's names (`tensor_parallel_size`, `max_model_len`, `enforce_eager`,
        `dtype`, `seed`, ...), and every section of the YAML file (`cache={...}`,
        `sampler="min-p"`). UserError lists every one that is unknown or wrong.
        """
        from core.dialect import arguments
        from core.settings import from_arguments

        self._start(from_arguments(arguments({"model": model, **settings})))

    @classmethod
    def from_config(cls, path: str | Path, *words: str) -> LLM:
        """An engine from a YAML file and `key=value` words, as on the command line."""
        from core.settings import load

        return cls.open(load(path, words))

    @classmethod
    def open(cls, config: Config) -> LLM:
        """An engine from a finished configuration."""
        llm = cls.__new__(cls)
        llm._start(config)
        return llm

    def _start(self, config: Config) -> None:
        self.config = config
        self.engine = Engine(config)
        self._defaults = SamplingParams.from_defaults(self.engine.setup.checkpoint.generation)

    def close(self) -> None:
        """Abort what runs, end every worker, free the memory. May be called again."""
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get_tokenizer(self) -> TokenizerLike:
        """The tokenizer. UserError when the checkpoint has none."""
        if self.engine.tokenizer is None:
            raise UserError(
                f"{self.config.model.path} holds no tokenizer. Give prompts as token ids, "
                "or set model.tokenizer."
            )
        return self.engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses when no parameters are given: the model's own defaults."""
        return self._defaults.clone()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, each a string, token ids, or {"prompt": ...} / {"prompt_token_ids": ...}.

        One `SamplingParams` for all, a list with one each, or None for the model's defaults. All
        are checked before any starts: UserError names each prompt that cannot run.
        -> the outputs in the order of the prompts.
        """
        listed = _prompts(prompts)
        return self._finish(
            [self._read(p) for p in listed],
            self._params(sampling_params, len(listed)),
            use_tqdm,
            priority,
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        `template`: add_generation_prompt, continue_final_message, tools, chat_template,
        chat_template_kwargs={"enable_thinking": False, ...}.
        """
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: list[Any] = list(messages) if several else [messages]
        read = [self._render(conversation, template) for conversation in conversations]
        return self._finish(read, self._params(sampling_params, len(read)), use_tqdm, None)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer one prompt piece by piece: outputs with the text so far and the new `delta`.

        The request is checked at once, and aborted when the iterator is closed early.
        """
        return self._stream(self._read(prompt), self._params(sampling_params, 1)[0])

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        **template: Any,
    ) -> Iterator[RequestOutput]:
        """`stream` for a conversation; `template` as in `chat`."""
        return self._stream(self._render(messages, template), self._params(sampling_params, 1)[0])

    def _stream(
        self, prompt: tuple[str | None, list[int]], params: SamplingParams
    ) -> Iterator[RequestOutput]:
        text, ids = prompt
        id = self.engine.add(ids, params, text=text, live=True)

        def pieces() -> Iterator[RequestOutput]:
            try:
                while True:
                    for output in self.engine.step():
                        if output.request_id == id:
                            yield output
                            if output.finished:
                                return
            finally:
                self.engine.abort(id)

        return pieces()

    def _finish(
        self,
        prompts: list[tuple[str | None, list[int]]],
        params: list[SamplingParams],
        show: bool,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        wrong = []
        for index, ((_, ids), asked) in enumerate(zip(prompts, params, strict=True)):
            try:
                self.engine.admissible(ids, asked)
            except UserError as error:
                wrong += [f"prompt {index}: {line}" for line in str(error).splitlines()]
        if wrong:
            raise UserError("\n".join(wrong))
        priorities = priority or [0] * len(prompts)
        if len(priorities) != len(prompts):
            raise UserError(f"{len(priorities)} priorities for {len(prompts)} prompts.")
        done: dict[str, RequestOutput] = {}
        ids_: list[str] = []
        try:
            for (text, ids), asked, urgency in zip(prompts, params, priorities, strict=True):
                ids_.append(self.engine.add(ids, asked, text=text, priority=urgency))
            wanted = set(ids_)
            with progress_bar(len(prompts), "generating", show) as bar:
                while len(done) < len(wanted):
                    for output in self.engine.step():
                        if output.finished and output.request_id in wanted:
                            done[output.request_id] = output
                            bar.advance(sum(len(o.token_ids) for o in output.outputs))
        finally:
            # an interrupted call leaves nothing running behind
            for id in ids_:
                if id not in done:
                    self.engine.abort(id)
        return [done[id] for id in ids_]

    def _read(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            if prompt.get("prompt_token_ids") is not None:
                return prompt.get("prompt"), _ids(prompt["prompt_token_ids"])
            if not isinstance(prompt.get("prompt"), str):
                raise UserError(
                    "a prompt given as a mapping needs 'prompt' (a string) or "
                    f"'prompt_token_ids'; this one has {', '.join(map(repr, prompt)) or 'nothing'}."
                )
            prompt = prompt["prompt"]
        if isinstance(prompt, str):
            return prompt, self.get_tokenizer().encode(prompt)
        return None, _ids(prompt)

    def _render(
        self, messages: Sequence[Message], template: Mapping[str, Any]
    ) -> tuple[str | None, list[int]]:
        options = dict(template)
        options.update(options.pop("chat_template_kwargs", None) or {})
        text, ids = self.get_tokenizer().chat(messages, **options)
        return text, ids

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if given is None:
            return [self._defaults] * count
        if isinstance(given, SamplingParams):
            return [given] * count
        listed = list(given)
        if len(listed) != count or not all(isinstance(p, SamplingParams) for p in listed):
            raise UserError(
                f"{count} prompts need one SamplingParams, or a list of {count}; "
                f"got {len(listed)} values."
            )
        return listed


def _prompts(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise UserError(f"prompts must be strings or token ids, not {type(prompts).__name__}.")
    listed = list(prompts)
    if listed and not isinstance(listed[0], str | Mapping | Sequence):
        return [listed]
    return listed


def _ids(ids: Any) -> list[int]:
    if hasattr(ids, "tolist"):
        ids = ids.tolist()
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise UserError(f"token ids must be a list of whole numbers, not {type(ids).__name__}.")
    return list(ids)
