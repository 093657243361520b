"""Paths of OpenAI's interface that this server does not serve: each says so by name."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plugins.serve.protocol.errors import ApiError

REASONS = {
    "/v1/embeddings": "This model writes text; it has no embeddings to give.",
    "/v1/responses": "Use /v1/chat/completions.",
    "/v1/moderations": "",
    "/v1/images/generations": "",
    "/v1/images/edits": "",
    "/v1/audio/speech": "",
    "/v1/audio/transcriptions": "",
    "/v1/audio/translations": "",
    "/v1/rerank": "",
    "/v1/score": "Use /v1/completions with echo, logprobs and max_tokens 0.",
    "/v1/files": "",
    "/v1/batches": "",
    "/v1/fine_tuning/jobs": "",
    "/v1/assistants": "",
}


async def refused(request: Request) -> Response:
    """404, with the reason."""
    path = request.url.path
    raise ApiError(
        f"{path} is not served. {REASONS[path]}".rstrip(), status=404, code="not_supported"
    )


ROUTES = [Route(path, refused, methods=["GET", "POST"]) for path in REASONS]
