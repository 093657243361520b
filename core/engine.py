"""The step loop: requests in, plans to the workers, text out. Knows no tensor and no model."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from core import registry
from core.errors import EngineDead, Mistakes, UserError
from core.generation import Generation
from core.plugins.blame import brief
from core.setup import read_setup
from core.startup import announce
from core.types import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.config import Config
    from core.interfaces import Executor, Pending, Sampler, Scheduler
    from core.outputs import RequestOutput
    from core.sampling.params import SamplingParams
    from core.text import TokenizerLike
    from core.types import Limits, StepOutput, StepPlan

log = logging.getLogger("plait")

DEPTH = 1  # steps that may be in flight while the next one is planned


class Launched(NamedTuple):
    plan: StepPlan
    pending: Pending
    at: float


class Engine:
    """Runs requests step by step. Step N + 1 is planned and launched before N's ids are known.

    Not thread-safe: one thread adds, steps and aborts.
    """

    def __init__(self, config: Config) -> None:
        from core.plugins import acting

        began = time.monotonic()
        self.config = config
        self.hooks = acting(config)
        self.hooks.configure(config=config)
        mistakes = Mistakes()
        with mistakes.noted():
            self.setup = read_setup(config)
        with mistakes.noted():
            self.tokenizer: TokenizerLike | None = open_tokenizer(config)
        mistakes.tell()
        self.executor: Executor = registry.executors.get(config.executor.use)(
            config.executor.options, config
        )
        try:
            self.limits: Limits = self.executor.start(self.setup)
            self.scheduler: Scheduler = registry.schedulers.get(config.scheduler.use)(
                config.scheduler.options, self.limits
            )
            # asked whether it accepts a request; the one that samples lives in the worker
            self.sampler: Sampler = registry.samplers.get(config.sampler.use)(
                config.sampler.options, self.limits
            )
            self.eos_ids = frozenset(
                self.setup.checkpoint.eos_ids()
                | (self.tokenizer.eos_ids if self.tokenizer else set())
            )
            self._generations: dict[str, Generation] = {}
            self._owner: dict[Request, Generation] = {}
            self._flight: deque[Launched] = deque()
            self._random = random.Random(config.model.seed)
            self._count = 0
            self._dead: EngineDead | None = None
            self._closed = False
            announce(self, time.monotonic() - began)
            self.hooks.engine_started(engine=self)
        except BaseException:
            self.executor.shutdown()
            raise

    # requests

    def admissible(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """UserError with every reason why this prompt cannot be run with these parameters."""
        from core.admission import reasons

        if found := reasons(self, prompt, params):
            raise UserError("\n".join(found))

    def add(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        id: str | None = None,
        text: str | None = None,
        priority: int = 0,
        salt: str | None = None,
        live: bool = False,
    ) -> str:
        """Queue a prompt of token ids; returns the request's id.

        `text` is what the ids were made from, for the output. `live`: make text at every step.
        UserError, and nothing is queued, when the request cannot be run.
        """
        if self._closed or self._dead:
            raise self._dead or EngineDead("this engine was closed. Make a new one.")
        self.admissible(prompt, params)
        self._count += 1
        id = str(self._count - 1) if id is None else id
        if id in self._generations:
            raise UserError(f"request {id!r} is still running. Give each request its own id.")
        seed = params.seed if params.seed is not None else self._random.getrandbits(63)
        stops = frozenset(params.stop_token_ids or ())
        stops |= frozenset() if params.ignore_eos else self.eos_ids
        room = self.limits.max_length if params.max_tokens is None else params.max_tokens
        requests = [
            Request(
                id=id if params.n == 1 else f"{id}/{index}",
                prompt=list(prompt),
                params=params,
                seed=(seed + index) & (2**64 - 1),
                stop_ids=stops,
                limit=min(len(prompt) + room, self.limits.max_length),
                priority=priority,
                arrival=time.monotonic(),
                salt=salt,
            )
            for index in range(params.n)
        ]
        generation = Generation(id, text, list(prompt), params, requests, self.tokenizer, live=live)
        for request in requests:
            self.scheduler.add(request)
            self._owner[request] = generation
        self._generations[id] = generation
        return id

    def abort(self, id: str) -> RequestOutput | None:
        """End a request wherever it is. -> what it had so far; None when it is not running."""
        generation = self._generations.get(id)
        if generation is None:
            return None
        for request in generation.requests:
            if request.finish_reason is None:
                self.scheduler.finish(request, "abort")
            generation.take(request, None)
        return self._retire(generation)

    @property
    def busy(self) -> bool:
        """Whether a further `step` has something to do."""
        return bool(self._generations) or bool(self._flight)

    # steps

    def step(self) -> list[RequestOutput]:
        """Launch the next step, and take in one that is finished, if any must or can be.

        -> the requests that finished, and those with news among the `live` ones.
        EngineDead when a worker is gone; all requests are lost then.
        """
        if self._dead:
            raise self._dead
        try:
            plan = self.scheduler.plan() if self._generations else None
            if plan is not None:
                launched = Launched(plan, self.executor.submit(plan), time.monotonic())
                self._flight.append(launched)
            outputs: list[RequestOutput] = []
            while self._flight and (
                plan is None or len(self._flight) > DEPTH or self._flight[0].pending.done()
            ):
                outputs += self._take(self._flight.popleft())
                if plan is None:
                    break
            return outputs
        except EngineDead as error:
            self._dead = error
            self._generations.clear()
            self._owner.clear()
            self._flight.clear()
            self.executor.shutdown()
            raise

    def _take(self, launched: Launched) -> list[RequestOutput]:
        try:
            output = launched.pending.result()
        except EngineDead:
            raise
        except Exception as error:
            return self._fail(launched.plan, error)
        news = self.scheduler.update(launched.plan, output)
        self.hooks.step_done(
            plan=launched.plan, output=output, seconds=time.monotonic() - launched.at
        )
        return self._report(launched.plan, output, news)

    def _report(
        self, plan: StepPlan, output: StepOutput, news: Sequence[Request]
    ) -> list[RequestOutput]:
        logprobs = {}
        if output.logprobs:
            sampled = [r for r, wanted in zip(plan.requests, plan.sample, strict=True) if wanted]
            logprobs = {sampled[s]: found for s, found in output.logprobs.items()}
        for b, positions in output.prompt_logprobs.items():
            request = plan.requests[b]
            if (owner := self._owner.get(request)) and owner.requests[0] is request:
                owner.take_prompt_logprobs(int(plan.starts[b]) + 1, positions)
        changed: dict[str, Generation] = {}
        for request in news:
            generation = self._owner.get(request)
            if generation is None or generation.waits_for_end(request):
                continue
            stop = generation.take(request, logprobs.get(request))
            if stop is not None and request.finish_reason is None:
                self.scheduler.finish(request, "stop")
            if stop is not None and request.finish_reason is not None:
                request.finish_reason, request.stop_reason = "stop", stop
            if generation.live or generation.finished:
                changed[generation.id] = generation
        return [self._retire(g) if g.finished else g.output() for g in changed.values()]

    def _retire(self, generation: Generation) -> RequestOutput:
        del self._generations[generation.id]
        for request in generation.requests:
            del self._owner[request]
        output = generation.output()
        for request in generation.requests:
            self.hooks.request_done(request=request, output=output)
        return output

    def _fail(self, plan: StepPlan, error: Exception) -> list[RequestOutput]:
        """A step went wrong on a worker that lives on: its requests end, the engine does not."""
        log.error("step %d failed; its requests end with an error", plan.number, exc_info=error)
        finished = []
        self.scheduler.drop(plan.requests)
        for request in plan.requests:
            if request.finish_reason is None:
                self.scheduler.finish(request, "error")
                request.error = f"the step that computed this request failed. {brief(error)}"
            generation = self._owner.get(request)
            if generation is not None and generation.finished:
                generation.take(request, None)
                finished.append(self._retire(generation))
        return finished

    # everything else

    def statistics(self) -> dict[str, int]:
        """The scheduler's counters."""
        return self.scheduler.statistics()

    def reset_prefix_cache(self) -> None:
        """Forget all cached pages that no running request uses."""
        self.scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Abort what runs and free everything. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._generations.clear()
        self._owner.clear()
        self._flight.clear()
        self.executor.shutdown()
        self.hooks.engine_stopped(engine=self)


def open_tokenizer(config: Config) -> TokenizerLike | None:
    """The tokenizer of the configuration: a plugin's, or one in the Hugging Face layout.

    None when the checkpoint has none: prompts must then be token ids.
    """
    from core.plugins import offer
    from core.text import Tokenizer, has_tokenizer

    name = config.model.tokenizer
    from core.checkpoint import find

    path = find(config.model.path) if name is None else find(name, "model.tokenizer")
    found: TokenizerLike | None = offer("open_tokenizer", path=path)
    if found is not None:
        return found
    if name is None and not has_tokenizer(path):
        log.info("%s holds no tokenizer: prompts must be token ids", path)
        return None
    return Tokenizer.open(path)
