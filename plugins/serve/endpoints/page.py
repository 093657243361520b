"""`/`: a page to talk with the model, and the few files that it is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parents[1] / "page"
TYPES = {
    "index.html": "text/html",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    "main.js": "text/javascript",
    "api.js": "text/javascript",
    "markdown.js": "text/javascript",
    "meters.js": "text/javascript",
    "settings.js": "text/javascript",
    "turn.js": "text/javascript",
}
HEADERS = {
    # Nothing from elsewhere, nothing inline, nobody's frame; requests to this server only.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@cache
def _content(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return Response(_content(name), media_type=TYPES[name], headers=HEADERS)

    return answer


ROUTES = [
    Route("/", _file("index.html")),
    *(Route(f"/page/{name}", _file(name)) for name in TYPES if name != "index.html"),
]
"""A route for each file: no part of a request ever becomes a path."""
