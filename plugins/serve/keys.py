"""The API key: who may ask."""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING

from core.errors import UserError
from plugins.serve.error_answers import answer
from plugins.serve.protocol.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = frozenset({"/", "/health", "/metrics", "/version", "/openapi.json"})
"""Paths that tell nothing of prompts and cost nothing; so do the files of the page."""


def key_from(variable: str | None) -> str | None:
    """The key in an environment variable; None when none is asked for.

    UserError when the variable is not set, or empty: a server that was to be closed must not be
    open.
    """
    if variable is None:
        return None
    found = os.environ.get(variable)
    key = (found or "").strip()
    if not key:
        state = "not set" if found is None else "empty"
        raise UserError(
            f"run.api_key_env: the environment variable {variable} is {state}, so there is no key "
            "to ask for. Set it, or leave run.api_key_env out."
        )
    return key


class KeyCheck:
    """Answers 401 to requests without the key, `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not (_open(scope["path"]) or self._allowed(scope)):
            error = ApiError(
                "The API key is missing or wrong. Send it as Authorization: Bearer KEY.",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await answer(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
        # compared in full, so that the time tells nothing
        return hmac.compare_digest(key.strip(), self._key) and scheme.lower() == b"bearer"


def _open(path: str) -> bool:
    return path in OPEN or path.startswith("/page/")
