"""The body of a request: read within bounds, as JSON."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from plugins.serve.protocol.errors import ApiError
from plugins.serve.protocol.reading import parse

SMALL = 64 * 1024  # bytes of a body that is always read on
LARGE_ONES = 64
"""As many bodies of `max_body` bytes may be on their way at once, or more that are smaller."""


class Room:
    """How much of bodies is in memory before they are whole, and how much may be.

    Without it every connection could leave half of a largest body here.
    """

    def __init__(self, max_body: int) -> None:
        self.most, self.held = LARGE_ONES * max_body, 0

    def take(self, more: int, data: bytearray) -> None:
        """`more` bytes of a body came, which is `data` by now. ApiError: it has to go."""
        self.held += more
        if self.held > self.most and len(data) > SMALL:
            raise ApiError(
                "Too many large requests are on their way. Try again later.",
                status=503,
                code="too_many_bodies",
                headers={"Connection": "close", "Retry-After": "1"},
            )


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body. ApiError: 400, 408, 413, 415 or 503."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        said = f"it is {kind[:100]!r}" if kind else "there is none"
        raise ApiError(
            f"The Content-Type must be application/json; {said}.",
            status=415,
            code="unsupported_media_type",
        )
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(
            f"The body is sent with Content-Encoding {coding[:100]!r}, which this server does not "
            "read. Send it plain, without that header.",
            status=415,
            code="unsupported_media_type",
        )
    options, room = request.app.state.options, request.app.state.room
    most, seconds = options.max_body, options.client_timeout
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                data += chunk
                room.take(len(chunk), data)
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
    finally:
        room.held -= len(data)
    return parse(bytes(data))


def _too_large(most: int) -> ApiError:
    # the rest of the body is not worth reading
    return ApiError(
        f"The body is larger than {most} bytes, the most that this server reads.",
        status=413,
        code="request_too_large",
        headers={"Connection": "close"},
    )
