"""The step loop: requests in, plans to the workers, text out. Knows no tensor and no model."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from core import registry
from core.admission import reasons
from core.errors import EngineDead, UserError
from core.generation import Generation, TokensOnly, logprobs_of, prompt_logprobs_of, sequences
from core.meanwhile import awaited
from core.observing import Observers
from core.plugins.blame import brief
from core.setup import end_ids, make_sampler
from core.startup import announce, checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.config import Config
    from core.generation import Follower
    from core.interfaces import Executor, Pending, Sampler, Scheduler
    from core.outputs import RequestOutput
    from core.sampling.params import SamplingParams
    from core.types import Limits, Request, StepOutput, StepPlan, TokenLogprobs

log = logging.getLogger("plait")

DEPTH = 1  # steps that may be in flight while the next one is planned


class Launched(NamedTuple):
    plan: StepPlan
    pending: Pending
    at: float


class Engine:
    """Runs requests step by step. Step N + 1 is planned and launched before N's ids are known.

    Set `on_step` to follow the ids of each step as they are: no text is made then, and no stop
    string heeded.

    Not thread-safe: one thread adds, steps and aborts.
    """

    def __init__(self, config: Config) -> None:
        from core.plugins import acting

        began = time.monotonic()
        self.config = config
        self.hooks = acting(config)
        self.hooks.configure(config=config)
        self.setup, self.tokenizer = checked(config)
        self.observers = Observers(config, self.setup)
        executor = registry.executors.get(config.executor.use)
        self.executor: Executor = executor(config.executor.options, config)
        try:
            self.limits: Limits = self.executor.start(self.setup)
            scheduler = registry.schedulers.get(config.scheduler.use)
            self.scheduler: Scheduler = scheduler(config.scheduler.options, self.limits)
            self.sampler: Sampler = make_sampler(config, self.setup, self.limits)
            self.eos_ids = end_ids(self.setup, self.tokenizer, self.limits)
            self._generations: dict[str, Generation] = {}
            self._owner: dict[Request, Generation] = {}
            self._flight: deque[Launched] = deque()
            self._random = random.Random(config.model.seed)
            self._dead: EngineDead | None = None
            self.on_step: Follower | None = None
            self._count, self._closed, self._freed = 0, False, False
            announce(self, time.monotonic() - began)
            self.hooks.engine_started(engine=self)
        except BaseException:
            self.executor.shutdown()
            raise

    def admissible(self, prompt: Sequence[int], params: SamplingParams) -> None:
        """UserError with every reason why this prompt cannot be run with these parameters."""
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
        checked: bool = False,
    ) -> str:
        """Queue a prompt of token ids; returns the request's id. UserError if it is inadmissible.

        `text` is what the ids were made from, for the output. `live`: make text at every step.
        `checked`: `admissible` was asked, which for many prompts takes as long as a step.
        """
        self.check_alive()
        if not checked:
            self.admissible(prompt, params)
        self._count += 1
        id = str(self._count - 1) if id is None else id
        if id in self._generations:
            raise UserError(f"request {id!r} is still running. Give each request its own id.")
        requests = sequences(
            id,
            prompt,
            params,
            seed=params.seed if params.seed is not None else self._random.getrandbits(63),
            eos_ids=self.eos_ids,
            limits=self.limits,
            priority=priority,
            salt=salt,
            reads_cache=not self.observers.need_prompt(params),
        )
        kind = TokensOnly if self.on_step else Generation
        generation = kind(id, text, list(prompt), params, requests, self.tokenizer, live=live)
        with ExitStack() as undo:
            for request in requests:
                self.scheduler.add(request)
                undo.callback(self.scheduler.finish, request, "abort")
            undo.pop_all()
        self._owner |= dict.fromkeys(requests, generation)
        self._generations[id] = generation
        return id

    def abort(self, id: str, index: int | None = None) -> RequestOutput | None:
        """End a request or one of its answers. -> what it had; None: not there, or others go on."""
        generation = self._generations.get(id)
        if generation is None:
            return None
        for request in generation.requests if index is None else [generation.requests[index]]:
            if request.finish_reason is None:
                self.scheduler.finish(request, "abort")
            self._look(generation, request, None)
        return self._retire(generation) if generation.finished else None

    def runs(self, id: str) -> bool:
        """Whether a request was added and has not ended."""
        return id in self._generations

    @property
    def busy(self) -> bool:
        """Whether a further `step` has something to do."""
        return bool(self._generations) or bool(self._flight)

    def step(self) -> list[RequestOutput]:
        """Launch the next step, and take in one that is finished, if any must or can be.

        -> the requests that finished, and those with news among the `live` ones.
        EngineDead when a worker is gone; all requests are lost then.
        """
        self.check_alive()
        try:
            plan = self.scheduler.plan() if self._generations else None
            if plan is not None:
                self._flight.append(self._launch(plan))
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

    def _launch(self, plan: StepPlan) -> Launched:
        at = time.monotonic()  # before: on a CPU, `submit` computes the step
        try:
            return Launched(plan, self.executor.submit(plan), at)
        except EngineDead:
            raise
        except BaseException:
            self.scheduler.drop(plan.requests)  # interrupted: whoever goes on computes it anew
            raise

    def _take(self, launched: Launched) -> list[RequestOutput]:
        try:
            output = awaited(launched.pending, self._generations, launched.plan.number)
        except EngineDead:
            raise
        except Exception as error:
            return self._fail(launched.plan, error)
        except BaseException:  # as in `_launch`
            self.scheduler.drop(launched.plan.requests)
            raise
        news = self.scheduler.update(launched.plan, output)
        self.observers.take(launched.plan, output, self._owner)
        seconds = time.monotonic() - launched.at
        self.hooks.step_done(plan=launched.plan, output=output, seconds=seconds)
        return self._report(launched.plan, output, news)

    def _report(
        self, plan: StepPlan, output: StepOutput, news: Sequence[Request]
    ) -> list[RequestOutput]:
        if self.on_step:
            self.on_step(plan, output, news)
        logprobs = logprobs_of(plan, output)
        for request, first, positions in prompt_logprobs_of(plan, output):
            if (owner := self._owner.get(request)) and owner.requests[0] is request:
                owner.take_prompt_logprobs(first, positions)
        changed: dict[str, Generation] = {}
        for request in news:
            generation = self._owner.get(request)
            if generation is None or generation.waits_for_end(request):
                continue
            stop = self._look(generation, request, logprobs.get(request))
            if stop is not None and request.finish_reason is None:
                self.scheduler.finish(request, "stop")
            if stop is not None and request.finish_reason is not None:
                request.finish_reason, request.stop_reason = "stop", stop
            if generation.live or generation.finished:
                changed[generation.id] = generation
        return [self._retire(g) if g.finished else g.output() for g in changed.values()]

    def _look(
        self, generation: Generation, request: Request, logprobs: list[TokenLogprobs] | None
    ) -> str | None:
        """`Generation.take`. What goes wrong there, in a tokenizer say, ends this request alone."""
        try:
            return generation.take(request, logprobs)
        except Exception as error:
            log.error("request %s cannot be turned into text", request.id, exc_info=error)
            self.scheduler.finish(request, "error")
            generation.give_up(request)
            request.finish_reason = "error"
            request.error = f"its tokens could not be turned into text. {brief(error)}"
            return None

    def _retire(self, generation: Generation) -> RequestOutput:
        del self._generations[generation.id]
        for request in generation.requests:
            del self._owner[request]
            self.observers.finish(request)
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
            if generation is None:
                continue
            self._look(generation, request, None)
            if generation.finished:
                finished.append(self._retire(generation))
        if self.on_step:
            self.on_step(plan, None, plan.requests)
        return finished

    def check_alive(self) -> None:
        """EngineDead when a worker is gone or the engine was closed."""
        if self._dead:
            raise self._dead
        if self._closed:
            raise EngineDead("this engine was closed. Make a new one.")

    def statistics(self) -> dict[str, int]:
        """The scheduler's counters."""
        return self.scheduler.statistics()

    def reset_prefix_cache(self) -> None:
        """Forget all cached pages that no running request uses."""
        self.scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Abort what runs and free everything. May be called again: after Ctrl-C it goes on."""
        if self._freed:
            return
        self._closed = True
        self._generations.clear()
        self._owner.clear()
        self._flight.clear()
        try:
            self.sampler.close()
        finally:
            self.executor.shutdown()
            self._freed = True
            self.hooks.engine_stopped(engine=self)
