"""`/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plugins.serve.endpoints.bodies import read_json
from plugins.serve.endpoints.frames import encode
from plugins.serve.endpoints.serving import Serving
from plugins.serve.protocol.chat import for_template
from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.reading import read
from plugins.serve.protocol.tokens import DetokenizeRequest, Text, TokenizeRequest, Tokens

TIMES = 8  # as many ids as a request may hold become text at once


async def tokenize(request: Request) -> Response:
    """The token ids of a prompt or a chat."""
    serving: Serving = request.app.state.serving
    raw = await read_json(request)
    asked = read(raw, TokenizeRequest)
    serving.check_model(asked.model)
    if (asked.prompt is None) == (asked.messages is None):
        raise ApiError("Give either prompt or messages.", param="prompt", code="invalid_value")
    if asked.prompt is not None:
        special = asked.add_special_tokens is not False
        ids = await serving.prompts.encode(asked.prompt, special)
    else:
        chat = await serving.prompts.chat(
            for_template(raw["messages"]),
            tools=raw.get("tools"),
            add_generation_prompt=asked.add_generation_prompt,
            continue_final_message=bool(asked.continue_final_message),
            variables=asked.chat_template_kwargs or {},
        )
        ids = chat.ids
    found = Tokens(len(ids), serving.info.max_length, ids)
    if asked.return_token_strs:
        found.token_strs = [serving.prompts.tokenizer.token_text(token) for token in ids]
    return Response(encode(found), media_type="application/json")


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    serving: Serving = request.app.state.serving
    asked = read(await read_json(request), DetokenizeRequest)
    serving.check_model(asked.model)
    if len(asked.tokens) > (most := TIMES * serving.info.max_length):
        raise ApiError(
            f"tokens holds {len(asked.tokens)} ids: at most {most} are allowed, {TIMES} times as "
            "many as a request may hold.",
            param="tokens",
            code="invalid_value",
        )
    serving.check_ids(asked.tokens, "tokens")
    text = await serving.prompts.decode(asked.tokens)
    return Response(encode(Text(text)), media_type="application/json")


ROUTES = [
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
]
