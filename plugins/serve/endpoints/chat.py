"""`/v1/chat/completions`: conversations go on."""

from __future__ import annotations

import time
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plugins.serve.endpoints.bodies import read_json
from plugins.serve.endpoints.chat_forms import chat_form
from plugins.serve.endpoints.chat_prompts import chat_prompt
from plugins.serve.endpoints.chat_writer import ChatWishes, ChatWriter
from plugins.serve.endpoints.exchange import Exchange, PromptWork
from plugins.serve.endpoints.frames import Frames, encode
from plugins.serve.endpoints.serving import Serving
from plugins.serve.protocol.chat import ChatRequest
from plugins.serve.protocol.chat_answers import ChatCompletion
from plugins.serve.protocol.reading import read
from plugins.serve.protocol.sampling import check_stream, refused, sampling_params
from plugins.serve.protocol.usage import Usage, usage
from plugins.serve.text.scores import as_vllm


async def chat(request: Request) -> Response | Exchange:
    """The conversation is read and checked here, and answered by what is returned."""
    arrived = time.monotonic()
    serving: Serving = request.app.state.serving
    raw = await read_json(request)
    asked = read(raw, ChatRequest)
    serving.check_model(asked.model)
    asked.check()
    check_stream(asked)
    priority = serving.check_priority(asked.priority)
    form = chat_form(serving, asked)
    params = sampling_params(asked, serving.defaults, form, **asked.decided())
    serving.client.check_room(params.n)
    prompt, reading = await chat_prompt(serving, asked, raw, formed=form is not None)
    options = asked.stream_options
    wishes = ChatWishes(
        params=params,
        reading=reading,
        stream=bool(asked.stream),
        prompt_logprobs=asked.prompt_logprobs is not None,
        ids=bool(asked.return_token_ids),
        usage=bool(options and options.continuous_usage_stats),
    )
    tells_usage = bool(options and options.include_usage)
    kind = "chat.completion.chunk" if wishes.stream else "chat.completion"
    frames = Frames(kind, "chatcmpl-", serving.info.model, tells_usage=tells_usage)
    writers = [
        ChatWriter(frames, index, prompt.ids, serving.prompts.tokenizer, wishes)
        for index in range(params.n)
    ]
    work = PromptWork(prompt.ids, writers)

    def total() -> Usage:
        return usage(len(work.ids), work.completion_tokens, writers[0].answer.cached)

    def whole() -> bytes:
        answer = ChatCompletion(
            id=frames.id,
            created=frames.created,
            model=frames.model,
            choices=[writer.whole() for writer in writers],
            usage=total(),
        )
        if wishes.ids:
            answer.prompt_token_ids = prompt.ids
        if wishes.prompt_logprobs and writers[0].prompt_scores is not None:
            answer.prompt_logprobs = as_vllm(writers[0].prompt_scores)
        return encode(answer)

    return Exchange(
        serving,
        [work],
        params,
        stream=wishes.stream,
        first=lambda: b"".join(writer.begin() for writer in writers),
        last=lambda: frames.event(b"", total()) if tells_usage else b"",
        whole=whole,
        priority=priority,
        salt=asked.cache_salt,
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        arrived=arrived,
        refusal=partial(refused, form=form, prompt="messages"),
    )


ROUTES = [Route("/v1/chat/completions", chat, methods=["POST"])]
