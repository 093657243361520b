"""Errors as answers of HTTP."""

from __future__ import annotations

from starlette.responses import Response

from plugins.serve.protocol.errors import ApiError


def answer(error: ApiError) -> Response:
    """OpenAI's error object, with its status and headers."""
    return Response(error.body(), error.status, error.headers, "application/json")
