"""The body of a request: read within bounds, as JSON."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.reading import parse


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body. ApiError: 400, 408, 413 or 415."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        said = f"it is {kind[:100]!r}" if kind else "there is none"
        raise ApiError(
            f"The Content-Type must be application/json; {said}.",
            status=415,
            code="unsupported_media_type",
        )
    options = request.app.state.options
    most, seconds = options.max_body, options.client_timeout
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    try:
        async with asyncio.timeout(seconds):
            data = bytearray()
            async for chunk in request.stream():
                data += chunk
                if len(data) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise ApiError(
            f"The body did not arrive within {seconds:g} seconds.",
            status=408,
            code="request_timeout",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise ApiError("The client has gone.", status=400) from None  # nobody reads it
    return parse(bytes(data))


def _too_large(most: int) -> ApiError:
    # the rest of the body is not worth reading
    return ApiError(
        f"The body is larger than {most} bytes, the most that this server reads.",
        status=413,
        code="request_too_large",
        headers={"Connection": "close"},
    )
