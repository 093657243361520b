"""`run: batch`: which file of requests becomes which file of answers, and what is told of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import EngineDead, UserError
from core.interfaces import App
from core.progress import progress_bar
from core.visible import say

if TYPE_CHECKING:
    from core.config import Config
    from plugins.serve.batch.answers import Answers
    from plugins.serve.batch.ids import Ids
    from plugins.serve.batch.running import Counts

STOPPED = 130  # what a shell reports for a program that Ctrl-C ended
AHEAD = 2  # requests under way for each that the engine computes at a time: none must wait for us


class Batch(App):
    """Answers a file of requests in OpenAI's batch format. Run again, it goes on where it was."""

    @dataclass
    class Options:
        input: str | None = field(
            default=None, metadata={"help": "JSON lines file of requests, as OpenAI's batches have"}
        )
        output: str | None = field(
            default=None,
            metadata={"help": "JSON lines file for the answers; what is there is kept"},
        )
        name: str | None = field(
            default=None,
            metadata={"help": "what requests call the model; null: as model.path does"},
        )
        at_once: int | None = field(
            default=None,
            metadata={"help": "requests under way; null: twice scheduler.max_num_seqs"},
        )

    options: Options  # type: ignore[assignment]  # the app's own

    def run(self, config: Config) -> int:
        from plugins.serve.batch.answers import Answers
        from plugins.serve.batch.requests import survey
        from plugins.serve.batch.running import Counts

        source, target = self._files()
        asked = survey(source)
        counts = Counts()
        with Answers(target) as answers:
            done = answers.done()
            if strange := done.outside(asked):
                raise UserError(
                    f"run.output: {target} has {strange} answers to requests that {source} does "
                    "not have. Choose another file."
                )
            left = asked.outside(done)  # an answer may stand there more than once
            say(f"{len(asked)} requests, {len(asked) - left} answered before")
            if left:
                status = self._answer(config, answers, done, left, counts)
                if status:
                    return status
            failed = f", {counts.failed} of them with an error" if counts.failed else ""
            made = counts.well + counts.failed
            added = "1 answer was" if made == 1 else f"{made} answers were"
            say(f"{added} added to {target}{failed}")
        return 0

    def _files(self) -> tuple[Path, Path]:
        options = self.options
        if options.input is None or options.output is None:
            raise UserError("run.input and run.output name the files of requests and answers.")
        source, target = Path(options.input), Path(options.output)
        if target.exists() and source.exists() and source.samefile(target):
            raise UserError(f"run.output must be another file than run.input, {source}.")
        if options.at_once is not None and options.at_once < 1:
            raise UserError(f"run.at_once must be 1 or more, not {options.at_once}.")
        return source, target

    def _answer(
        self, config: Config, answers: Answers, done: Ids, left: int, counts: Counts
    ) -> int:
        """Answer what is left. -> exit status; 0 when all of it is answered."""
        from plugins.serve.app import loop_factory

        try:
            with (
                progress_bar(left, "answering", True) as bar,
                asyncio.Runner(loop_factory=loop_factory()) as runner,
            ):
                runner.run(self._work(config, answers, done, left, counts, bar.advance))
        except KeyboardInterrupt:
            say(f"stopped; {answers.count} answers are in {answers.path}, run again to go on")
            return STOPPED
        except EngineDead as error:
            raise EngineDead(
                f"{error}\n{answers.count} answers are in {answers.path}; run again to go on."
            ) from None
        return 0

    async def _work(
        self,
        config: Config,
        answers: Answers,
        done: Ids,
        left: int,
        counts: Counts,
        progress: Callable[[int], None],
    ) -> None:
        from plugins.serve.app import Serve, model_name
        from plugins.serve.batch.requests import read
        from plugins.serve.batch.running import run
        from plugins.serve.engine.client import EngineClient
        from plugins.serve.http import build

        name = self.options.name or model_name(config.model.path)
        client = EngineClient(config, name=name, queue=sys.maxsize)
        try:
            await client.start()
            app = build(config, client, Serve.Options())
            at_once = self.options.at_once or AHEAD * client.info.limits["max_num_seqs"]
            assert self.options.input is not None
            try:
                await run(
                    app,
                    client,
                    read(Path(self.options.input), done),
                    answers,
                    at_once=min(at_once, left),
                    counts=counts,
                    progress=progress,
                )
            finally:
                app.state.serving.prompts.close()
        finally:
            await client.close(grace=5.0)
