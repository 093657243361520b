"""One caller's prompt on its way: its `n` sequences, their text so far, their output."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from core.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, logprob_dict
from core.text import Detokenizer
from core.text.unicode import whole_text
from core.types import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.sampling.params import SamplingParams
    from core.text import TokenizerLike
    from core.types import Limits, StepOutput, StepPlan, TokenLogprobs

Follower = Callable[["StepPlan", "StepOutput | None", "Sequence[Request]"], None]
"""What `Engine.on_step` may be: gets each step that was taken in, before anything else is made of
it: its plan, its output (None: it failed), and the requests that got ids or ended by it."""

FEW = 8  # ids that are not worth a visit


class Answer:
    """The text of one sequence, made as its ids arrive, or at the end if nobody needs it before."""

    def __init__(
        self, index: int, request: Request, tokenizer: TokenizerLike | None, live: bool
    ) -> None:
        params = request.params
        self.index, self.request, self._tokenizer = index, request, tokenizer
        self.logprobs: list[dict[int, Logprob]] | None = [] if params.logprobs is not None else None
        self.cumulative = 0.0
        self.text, self._shown = "", 0
        self._taken = 0  # ids that were looked at
        self._closed = False
        self.failure: Exception | None = None  # of the tokenizer, when nobody was listening
        self._live = live or bool(params.stop)
        self._words: Detokenizer | None = None
        if tokenizer is not None and params.detokenize:
            self._words = Detokenizer(
                tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
                stop=params.stop or (),
                include_stop_str_in_output=params.include_stop_str_in_output,
                prompt_ids=request.prompt,
            )

    def take(self, logprobs: list[TokenLogprobs] | None) -> str | None:
        """Look at what is new in the request. -> the stop string that now ends it, if one does."""
        if logprobs and self.logprobs is not None:
            text = self._tokenizer.token_text if self._tokenizer else None
            for position in logprobs:
                self.logprobs.append(logprob_dict(position, text))
                self.cumulative += position.logprob
        words = self._words
        if words is None or self._closed:
            return None
        if self.failure is not None:
            raise self.failure
        request = self.request
        ended = request.finish_reason is not None
        if not (self._live or ended):
            return None
        ids = request.output
        last = len(ids)
        if ended and isinstance(request.stop_reason, int):
            # the id that ended the answer is not a part of its text
            last -= not request.params.include_stop_str_in_output
        # up to min_tokens no stop string counts
        free = max(min(request.params.min_tokens, last), self._taken)
        pieces = [
            words.push(ids[self._taken : free], check_stop=False),
            words.push(ids[free:last]),
        ]
        self._taken = max(self._taken, last)
        if words.stopped is not None:
            del ids[words.consumed :]
            if self.logprobs is not None:
                del self.logprobs[words.consumed :]
        if words.stopped is not None or ended:
            pieces.append(words.finish())
            self._closed = True
        self.text += "".join(pieces)
        return words.stopped

    def advance(self) -> None:
        """Make text of what is known of an answer whose text is wanted at the end alone."""
        ids = self.request.output
        if len(ids) - self._taken < FEW or self._words is None or self._closed or self._live:
            return
        if self.request.finish_reason is None:  # so the last id does not end it, and is text
            self.text += self._words.push(ids[self._taken :])
            self._taken = len(ids)

    def give_up(self) -> None:
        """No more text: the tokenizer has failed."""
        self._closed = True

    def completion(self) -> CompletionOutput:
        request = self.request
        reason: int | str | None = request.stop_reason
        if isinstance(reason, int) and reason not in (request.params.stop_token_ids or ()):
            reason = None  # the model's own end of text, not one that the caller named
        delta, self._shown = self.text[self._shown :], len(self.text)
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=list(request.output),
            cumulative_logprob=self.cumulative if self.logprobs is not None else None,
            logprobs=None if self.logprobs is None else [*self.logprobs],
            finish_reason=request.finish_reason,
            stop_reason=reason,
            delta=delta,
            error=request.error,
            extras=request.extras,
        )


class Generation:
    """One prompt, its `n` requests and what they have answered."""

    def __init__(
        self,
        id: str,
        prompt: str | None,
        prompt_ids: list[int],
        params: SamplingParams,
        requests: list[Request],
        tokenizer: TokenizerLike | None,
        *,
        live: bool,
    ) -> None:
        """`live`: the caller wants text after every step, not only at the end."""
        self.id, self.prompt, self.prompt_ids, self.params = id, prompt, prompt_ids, params
        self.requests, self.live = requests, live
        self._tokenizer = tokenizer
        self.answers = [Answer(i, r, tokenizer, live) for i, r in enumerate(requests)]
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = (
            [None] if params.prompt_logprobs is not None else None
        )
        self.metrics = RequestMetrics(arrival_time=requests[0].arrival)

    def take(self, request: Request, logprobs: list[TokenLogprobs] | None) -> str | None:
        """News of one of the requests. -> a stop string that now ends it, if one does."""
        now = time.monotonic()
        if request.output and self.metrics.first_token_time is None:
            self.metrics.first_token_time = now
        self.metrics.last_token_time = now
        return self.answers[self.requests.index(request)].take(logprobs)

    def give_up(self, request: Request) -> None:
        """Make no more text of one of the requests."""
        self.answers[self.requests.index(request)].give_up()

    def take_prompt_logprobs(self, first: int, positions: list[TokenLogprobs]) -> None:
        """Log probabilities of prompt tokens from position `first` on. Preemption repeats some."""
        if self.prompt_logprobs is not None:
            text = self._tokenizer.token_text if self._tokenizer else None
            self.prompt_logprobs[first:] = [logprob_dict(p, text) for p in positions]

    def waits_for_end(self, request: Request) -> bool:
        """Whether nothing of this request needs a look before it has ended."""
        return (
            request.finish_reason is None
            and not self.live
            and not self.params.stop
            and self.params.logprobs is None
            and self.metrics.first_token_time is not None
        )

    def advance(self) -> None:
        """Make text that is not asked for yet. What goes wrong is told when it is asked for."""
        for answer in self.answers:
            try:
                answer.advance()
            except Exception as error:
                answer.failure = error

    @property
    def finished(self) -> bool:
        return all(request.finish_reason is not None for request in self.requests)

    def output(self) -> RequestOutput:
        finished = self.finished
        if finished and self.metrics.finished_time is None:
            self.metrics.finished_time = time.monotonic()
        self.metrics.preemptions = sum(request.preemptions for request in self.requests)
        return RequestOutput(
            request_id=self.id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=[answer.completion() for answer in self.answers],
            finished=finished,
            prompt_logprobs=None if self.prompt_logprobs is None else [*self.prompt_logprobs],
            num_cached_tokens=self.requests[0].cached,
            metrics=replace(self.metrics),
        )


class TokensOnly(Generation):
    """One whose text somebody else makes of the ids that he follows: here it has none."""

    def take(self, request: Request, logprobs: list[TokenLogprobs] | None) -> str | None:
        return None

    def take_prompt_logprobs(self, first: int, positions: list[TokenLogprobs]) -> None:
        return None

    def advance(self) -> None:
        return None

    def waits_for_end(self, request: Request) -> bool:
        return request.finish_reason is None


def logprobs_of(plan: StepPlan, output: StepOutput) -> dict[Request, list[TokenLogprobs]]:
    """What a step reports of the ids that it sampled, by request."""
    if not output.logprobs:
        return {}
    sampled = [r for r, wanted in zip(plan.requests, plan.sample, strict=True) if wanted]
    return {sampled[s]: found for s, found in output.logprobs.items()}


def prompt_logprobs_of(
    plan: StepPlan, output: StepOutput
) -> list[tuple[Request, int, list[TokenLogprobs]]]:
    """What a step reports of prompts: request, position of the first token, an entry a token."""
    return [
        (plan.requests[b], int(plan.starts[b]) + 1, positions)
        for b, positions in output.prompt_logprobs.items()
    ]


def stop_ids(params: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """The ids that end a request; `eos_ids` are the model's own."""
    stops = frozenset(params.stop_token_ids or ())
    return stops if params.ignore_eos else stops | eos_ids


def most_tokens(prompt: Sequence[int], params: SamplingParams, limits: Limits) -> int:
    """How many tokens a request may hold, prompt and output together."""
    room = limits.max_length if params.max_tokens is None else params.max_tokens
    return min(len(prompt) + room, limits.max_length)


def answer_id(id: str, index: int, n: int) -> str:
    """What the request is called that makes one of the `n` answers."""
    return id if n == 1 else f"{id}/{index}"


def sequences(
    id: str,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    eos_ids: frozenset[int],
    limits: Limits,
    priority: int = 0,
    salt: str | None = None,
    reads_cache: bool = True,
) -> list[Request]:
    """The `n` requests of a prompt. Each has its own seed; `eos_ids` are the model's own ends."""
    if salt is not None:
        whole_text(salt, "cache_salt")
    return [
        Request(
            id=answer_id(id, index, params.n),
            prompt=list(prompt),
            params=params,
            seed=(seed + index) & (2**64 - 1),
            stop_ids=stop_ids(params, eos_ids),
            limit=most_tokens(prompt, params, limits),
            priority=priority,
            arrival=time.monotonic(),
            salt=salt,
            reads_cache=reads_cache,
        )
        for index in range(params.n)
    ]
