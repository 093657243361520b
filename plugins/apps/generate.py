"""`run: generate`: completes one prompt as a stream, or many prompts as a batch."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import Mistakes, UserError
from core.interfaces import App
from core.visible import visible
from plugins.apps.answers_file import write_answers
from plugins.apps.output_files import check_outputs
from plugins.apps.parameters import with_settings
from plugins.apps.prompts_file import read_prompts
from plugins.apps.terminal import dim, interactive, one_interrupt, printable, text_from_input

if TYPE_CHECKING:
    from core.config import Config
    from core.llm import LLM
    from core.outputs import RequestOutput

MAX_TOKENS = 256  # of an answer, when the settings do not say
SCORES = ("logprobs", "prompt_logprobs")  # parameters whose results only a file has room for
STOPPED = 130  # what a shell reports for a program that Ctrl-C ended


class Generate(App):
    """Completes prompts: one as it is made, many with a progress bar."""

    @dataclass
    class Options:
        prompt: str | None = field(
            default=None, metadata={"help": "the text to complete; - reads all of standard input"}
        )
        prompts_file: str | None = field(
            default=None,
            metadata={"help": "file with a prompt on each line, plain or as JSON {prompt: ...}"},
        )
        chat: bool = field(
            default=False, metadata={"help": "ask each prompt as a message of a chat"}
        )
        chat_template: dict[str, Any] = field(
            default_factory=dict,
            metadata={"help": "variables for the chat template, such as enable_thinking"},
        )
        params: dict[str, Any] = field(
            default_factory=dict,
            metadata={
                "help": "sampling parameters, such as temperature, top_p, n; max_tokens is 256"
            },
        )
        out: str | None = field(
            default=None,
            metadata={
                "help": "JSON lines file for the answers instead of the screen; takes the log "
                "probabilities that params.logprobs and params.prompt_logprobs ask for, too"
            },
        )

    options: Options

    def run(self, config: Config) -> int:
        from core import LLM

        self.check()
        prompts = self.prompts()
        with LLM.open(config) as llm:
            return self.complete(llm, prompts)

    def check(self) -> None:
        """UserError with all options that would come to nothing, before anything is computed."""
        options, mistakes = self.options, Mistakes()
        with mistakes.noted():
            check_outputs(out=options.out)
        if _same(options.prompts_file, options.out):
            mistakes.add(f"run.out must be another file than run.prompts_file, {options.out}.")
        asked = [name for name in SCORES if options.params.get(name) is not None]
        if asked and options.out is None:
            mistakes.add(
                f"run.params: {' and '.join(asked)} would be shown nowhere. Set run.out to a file "
                "for them, or leave them out."
            )
        mistakes.tell()

    def prompts(self) -> list[str | list[int]]:
        """What to complete: the texts, or lists of ids from a JSON file. UserError if nothing."""
        options = self.options
        if (options.prompt is None) == (options.prompts_file is None):
            raise UserError(
                "nothing to generate from, or too much: set one of run.prompt and run.prompts_file."
            )
        if options.prompts_file is not None:
            return read_prompts(Path(options.prompts_file))
        if options.prompt == "-":
            with text_from_input():
                return [sys.stdin.read()]
        return [options.prompt or ""]

    def complete(self, llm: LLM, prompts: list[str | list[int]]) -> int:
        """Answer the prompts on the screen or into `out`. -> exit status."""
        options = self.options
        params = with_settings(
            llm.get_default_sampling_params(), {"max_tokens": MAX_TOKENS} | options.params
        )
        template = {"chat_template_kwargs": options.chat_template}
        if len(prompts) == 1 and options.out is None and params.n == 1:
            shown = dim(str(prompts[0]), sys.stdout) if interactive(sys.stdout) else ""
            print(shown, end="\n" if shown and options.chat else "", flush=True)
            if options.chat:
                return _show(llm.stream_chat(_conversation(prompts[0]), params, **template))
            return _show(llm.stream(prompts[0], params))
        if options.chat:
            outputs = llm.chat([_conversation(p) for p in prompts], params, **template)
        else:
            outputs = llm.generate(prompts, params)
        if options.out is None:
            _print_all(prompts, outputs)
        else:
            write_answers(options.out, outputs)
            print(f"{len(outputs)} answers written to {options.out}", file=sys.stderr)
        return _report_errors(outputs)


def _same(source: str | None, target: str | None) -> bool:
    files = [path for path in (source, target) if path is not None and os.path.isfile(path)]
    return len(files) == 2 and os.path.samefile(*files)


def _conversation(prompt: str | list[int]) -> list[dict[str, str]]:
    if not isinstance(prompt, str):
        raise UserError("run.chat: a chat needs text; a prompt of token ids cannot be a message.")
    return [{"role": "user", "content": prompt}]


def _show(answer: Iterator[RequestOutput]) -> int:
    """Print an answer as it grows, and how fast it came. -> exit status."""
    start, last = time.monotonic(), None
    with one_interrupt() as interrupt, closing(answer):
        for last in answer:
            print(printable(last.outputs[0].delta, sys.stdout), end="", flush=True)
            if interrupt:
                break
    print(flush=True)
    if last is None:
        return 0
    tokens, seconds = len(last.outputs[0].token_ids), time.monotonic() - start
    speed = f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} a second"
    print(dim(speed, sys.stderr), file=sys.stderr)
    return STOPPED if interrupt else _report_errors([last])


def _print_all(prompts: list[str | list[int]], outputs: list[RequestOutput]) -> None:
    for prompt, output in zip(prompts, outputs, strict=True):
        print(f"Prompt: {printable(str(prompt), sys.stdout)}")
        for answer in output.outputs:
            label = "Answer" if len(output.outputs) == 1 else f"Answer {answer.index + 1}"
            print(f"{label}: {printable(answer.text, sys.stdout)}")
        print()


def _report_errors(outputs: list[RequestOutput]) -> int:
    """Name every request that ended by an error, each error once. -> 1 if there was one, else 0."""
    failed: dict[str, dict[str, None]] = {}
    for output in outputs:
        for answer in output.outputs:
            if answer.finish_reason == "error":
                failed.setdefault(answer.error or "", {})[output.request_id] = None
    for error, ids in failed.items():
        few = ", ".join([*list(ids)[:8], *(["..."] if len(ids) > 8 else [])])
        print(f"request{'s' if len(ids) > 1 else ''} {few}: {visible(error)}", file=sys.stderr)
    return 1 if failed else 0
