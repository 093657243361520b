"""The Python interface: `LLM(...)` and its generate, chat and stream, in vLLM's dialect."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from core.deliveries import Deliveries, Stream
from core.dialect import arguments, check_call, not_offered
from core.engine import Engine
from core.errors import UserError
from core.progress import progress_bar
from core.prompts import Encoded, encoded, listed, with_token_ids
from core.sampling.params import SamplingParams
from core.text import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from core.config import Config
    from core.outputs import RequestOutput
    from core.prompts import Prompt
    from core.text import TokenizerLike

Message = Mapping[str, Any]
TEMPLATE = (
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template",
    "chat_template_kwargs",
)


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
        self._deliveries = Deliveries(self.engine)
        self._defaults = SamplingParams.from_defaults(self.engine.setup.checkpoint.generation)
        # for scripts that never close, or `del llm` to make room for another
        self._end = weakref.finalize(self, _close, self.engine, os.getpid())
        self._tokenizer: Any = None

    def __getattr__(self, name: str) -> Any:
        raise not_offered(self, name)

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

    def get_tokenizer(self) -> Any:
        """The tokenizer as transformers opens its folder, to be used, and changed, as one likes.

        `engine.tokenizer`, which the engine uses, is another object; it is returned where there is
        no such folder, as a plugin or a single file gave it. UserError when there is none.
        """
        ours = self._own_tokenizer()
        if not isinstance(ours, Tokenizer) or not os.path.isdir(ours.source):
            return ours
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(ours.source, trust_remote_code=False)
        return self._tokenizer

    def _own_tokenizer(self) -> TokenizerLike:
        if self.engine.tokenizer is None:
            raise UserError(
                f"{self.config.model.path} holds no tokenizer. Give prompts as token ids, "
                "or set model.tokenizer."
            )
        return self.engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses when no parameters are given: the model's own defaults."""
        return self._defaults.clone()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prompts that no running request uses. -> True, as in vLLM."""
        self._deliveries.settle()
        self.engine.reset_prefix_cache()
        return True

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | bool | None = None,
        use_tqdm: Any = True,
        *,
        priority: Sequence[int] | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """Answer prompts, each a string, token ids, or {"prompt": ...} / {"prompt_token_ids": ...}.

        One `SamplingParams` for all, a list with one each, or None for the model's defaults. All
        are checked before any starts: UserError names each prompt that cannot run.
        `prompt_token_ids` is the older way to give ids, beside prompts or without; a bool in its
        place is `use_tqdm`, the third parameter of nano-vLLM. `priority`: lower runs first.
        -> the outputs in the order of the prompts.
        """
        if isinstance(prompt_token_ids, bool):
            prompt_token_ids, use_tqdm = None, prompt_token_ids
        known = ("prompts", "sampling_params", "prompt_token_ids", "use_tqdm", "priority")
        check_call("generate", others, known)
        if prompt_token_ids is None:
            asked = listed(prompts)
        else:
            asked = with_token_ids(prompts, prompt_token_ids)
        read = [self._read(prompt) for prompt in asked]
        return self._finish(read, self._params(sampling_params, len(read)), use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Any = True,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        `template`: add_generation_prompt, continue_final_message, tools, chat_template,
        chat_template_kwargs={"enable_thinking": False, ...}.
        """
        several = isinstance(messages, Sequence) and not isinstance(messages, str)
        several = several and bool(messages) and not isinstance(messages[0], Mapping)
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

    def _stream(self, prompt: Encoded, params: SamplingParams) -> Iterator[RequestOutput]:
        text, ids, salt = prompt
        id = self.engine.add(ids, params, text=text, salt=salt, live=True)
        return Stream(self._deliveries, id, self)

    def _finish(
        self,
        prompts: list[Encoded],
        params: list[SamplingParams],
        show: Any,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        wrong = []
        for index, ((_, ids, _), asked) in enumerate(zip(prompts, params, strict=True)):
            try:
                self.engine.admissible(ids, asked)
            except UserError as error:
                wrong += [f"prompt {index}: {line}" for line in str(error).splitlines()]
        if wrong:
            raise UserError("\n".join(wrong))
        priorities = [0] * len(prompts) if priority is None else priority
        if not isinstance(priorities, Sequence) or len(priorities) != len(prompts):
            raise UserError(f"priority must be a list of {len(prompts)} numbers, one a prompt.")
        if not all(isinstance(number, int) for number in priorities):
            raise UserError(f"priorities are whole numbers, not {list(priorities)!r:.200}.")
        if any(priorities) and not self.engine.scheduler.reads_priority:
            raise UserError(
                f"the scheduler {self.config.scheduler.use!r} does not look at priorities. Leave "
                'them out, or make the engine with scheduling_policy="priority".'
            )
        done: dict[str, RequestOutput] = {}
        box: deque[RequestOutput] = deque()
        ids_: list[str] = []
        with ExitStack() as cleanup:
            for prompt, asked, urgency in zip(prompts, params, priorities, strict=True):
                text, ids, salt = prompt
                id = self.engine.add(
                    ids, asked, text=text, priority=urgency, salt=salt, checked=True
                )
                ids_.append(id)
                # an interrupted call leaves nothing running behind
                cleanup.callback(self._deliveries.forget, id)
                self._deliveries.expect(id, box)
            with progress_bar(len(prompts), "generating", bool(show)) as bar:
                while len(done) < len(ids_):
                    if not self.engine.busy:
                        self.engine.check_alive()
                        lost = ", ".join(id for id in ids_ if id not in done)
                        raise UserError(f"requests {lost} were aborted while generate ran.")
                    self._deliveries.step()
                    while box:
                        output = box.popleft()
                        done[output.request_id] = output
                        bar.advance(sum(len(o.token_ids) for o in output.outputs))
        return [done[id] for id in ids_]

    def _read(self, prompt: Prompt) -> Encoded:
        return encoded(prompt, lambda text: self._own_tokenizer().encode(text))

    def _render(self, messages: Sequence[Message], template: Mapping[str, Any]) -> Encoded:
        check_call("chat", {k: v for k, v in template.items() if k not in TEMPLATE}, TEMPLATE)
        options = {k: v for k, v in template.items() if k in TEMPLATE}
        variables = options.pop("chat_template_kwargs", None) or {}
        if not isinstance(variables, Mapping):
            raise UserError(f"chat_template_kwargs must be a mapping, not {variables!r}.")
        options.update(variables)
        return Encoded(*self._own_tokenizer().chat(messages, **options))

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if given is None:
            return [self._defaults] * count
        if isinstance(given, SamplingParams):
            return [given] * count
        each = list(given) if isinstance(given, Iterable) else [given]
        if len(each) != count or not all(isinstance(p, SamplingParams) for p in each):
            got = len(each) if isinstance(given, list | tuple) else type(given).__name__
            raise UserError(
                f"{count} prompts need one SamplingParams, or a list of {count} of them, not {got}."
            )
        return each


def _close(engine: Engine, process: int) -> None:
    # a forked child has the object, too, but not the engine's processes
    if os.getpid() == process:
        engine.close()
