"""`/v1/completions`: texts are continued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plugins.serve.endpoints.bodies import read_json
from plugins.serve.endpoints.completion_writer import CompletionWriter, Wishes
from plugins.serve.endpoints.exchange import Exchange, PromptWork
from plugins.serve.endpoints.frames import Frames, encode
from plugins.serve.endpoints.serving import Serving
from plugins.serve.protocol.completions import USUAL_TOKENS, Completion, CompletionRequest
from plugins.serve.protocol.reading import read
from plugins.serve.protocol.sampling import (
    check_prompts,
    check_stream,
    refused,
    sampling_params,
)
from plugins.serve.protocol.structured import wanted_form
from plugins.serve.protocol.usage import Usage, usage


async def completions(request: Request) -> Response | Exchange:
    """The prompts are read and checked here, and answered by what is returned."""
    arrived = time.monotonic()
    serving: Serving = request.app.state.serving
    asked = read(await read_json(request), CompletionRequest)
    serving.check_model(asked.model)
    asked.check()
    check_stream(asked)
    priority = serving.check_priority(asked.priority)
    decided = _decided(asked, serving.defaults)
    form = wanted_form(asked)
    params = sampling_params(asked, serving.defaults, form, **decided)
    given = asked.prompts()
    check_prompts(params, len(given))
    serving.client.check_room(len(given) * params.n)
    special = asked.add_special_tokens is not False
    tokenizer = serving.prompts.tokenizer if serving.prompts.has_tokenizer else None
    options = asked.stream_options
    wishes = Wishes(
        params=params,
        stream=bool(asked.stream),
        logprobs=asked.logprobs,
        prompt_logprobs=asked.prompt_logprobs is not None,
        ids=bool(asked.return_token_ids),
        only_prompt=_only_prompt(asked),
        usage=bool(options and options.continuous_usage_stats),
    )
    tells_usage = bool(options and options.include_usage)
    frames = Frames("text_completion", "cmpl-", serving.info.model, tells_usage=tells_usage)
    works: list[PromptWork] = []
    for place, prompt in enumerate(given):
        which = f"prompt[{place}]" if len(given) > 1 else None
        await asyncio.sleep(0)  # others have their turns between many prompts
        if isinstance(prompt, str):
            ids = await serving.prompts.encode(prompt, special, which)
        else:
            ids = prompt
        serving.check_length(ids, "prompt", which)
        if ids is prompt:
            serving.check_ids(ids, "prompt", which)
        echoed = await _echoed(serving, asked, prompt, ids)
        first = len(works) * params.n
        writers = [
            CompletionWriter(frames, first + number, number, ids, echoed, tokenizer, wishes)
            for number in range(params.n)
        ]
        works.append(PromptWork(ids, writers))

    def total() -> Usage:
        return usage(
            sum(len(work.ids) for work in works),
            0 if wishes.only_prompt else sum(work.completion_tokens for work in works),
            sum(work.writers[0].answer.cached for work in works),
        )

    def whole() -> bytes:
        choices = [writer.whole() for work in works for writer in work.writers]  # type: ignore[attr-defined]
        return encode(
            Completion(
                id=frames.id,
                created=frames.created,
                model=frames.model,
                choices=choices,
                usage=total(),
            )
        )

    return Exchange(
        serving,
        works,
        params,
        stream=wishes.stream,
        first=lambda: b"",
        last=lambda: frames.event(b"", total()) if tells_usage else b"",
        whole=whole,
        priority=priority,
        salt=asked.cache_salt,
        max_tokens=asked.max_tokens,
        arrived=arrived,
        refusal=partial(refused, form=form, prompt="prompt"),
    )


def _only_prompt(asked: CompletionRequest) -> bool:
    """With `echo`, max_tokens 0 asks for the prompt and its log probabilities alone."""
    return bool(asked.echo) and asked.max_tokens == 0


def _decided(asked: CompletionRequest, defaults: Mapping[str, Any]) -> dict[str, Any]:
    decided: dict[str, Any] = {}
    if asked.max_tokens is None and defaults.get("max_tokens") is None:
        least = asked.min_tokens or defaults.get("min_tokens") or 0
        decided["max_tokens"] = max(USUAL_TOKENS, least)
    if asked.logprobs is not None:
        decided["logprobs"] = asked.logprobs
        if asked.echo:
            decided["prompt_logprobs"] = max(asked.logprobs, asked.prompt_logprobs or 0)
    if _only_prompt(asked):
        decided |= {"max_tokens": 1, "min_tokens": 0}
    return decided


async def _echoed(
    serving: Serving, asked: CompletionRequest, prompt: str | list[int], ids: list[int]
) -> str | None:
    """The text of a prompt, where it is wanted."""
    if not asked.echo:
        return None
    return prompt if isinstance(prompt, str) else await serving.prompts.decode(ids)


ROUTES = [Route("/v1/completions", completions, methods=["POST"])]
