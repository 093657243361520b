"""OpenAI's error object, and the exception that becomes one."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""The `type` of an error by its HTTP status; "invalid_request_error" for every other one."""


class ErrorObject(msgspec.Struct, forbid_unknown_fields=True):
    """What went wrong."""

    message: str  # a sentence for each mistake, one a line
    type: str
    param: str | None  # the field of the request that is wrong
    code: str | None


class ErrorAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """The body of every answer that is no success, and of an error in the middle of a stream."""

    error: ErrorObject


class ApiError(Exception):
    """An answer that is no success. Whoever serves the request turns it into HTTP."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """JSON, as OpenAI's clients read it."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return msgspec.json.encode(
            ErrorAnswer(ErrorObject(self.message, kind, self.param, self.code))
        )
