"""The OpenAPI document of the server, made from the structs that requests are checked with."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import msgspec

from plugins.serve.protocol.chat import ChatRequest, TextPart
from plugins.serve.protocol.chat_answers import ChatChunk, ChatCompletion
from plugins.serve.protocol.completions import Completion, CompletionRequest
from plugins.serve.protocol.errors import ErrorAnswer
from plugins.serve.protocol.models import Model, ModelList, Version
from plugins.serve.protocol.tokens import DetokenizeRequest, Text, TokenizeRequest, Tokens

ERRORS = {
    400: "The request is wrong; the message says how.",
    401: "The API key is missing or wrong.",
    403: "The request is for a server of another name.",
    404: "There is no such model, or nothing at this path.",
    405: "The path has no such method.",
    408: "The request did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    429: "Too many requests are waiting; see Retry-After.",
    500: "A fault of the server.",
    503: "The engine has stopped, or too many connections are open.",
}


class Operation(NamedTuple):
    """What one path answers."""

    path: str
    summary: str
    answer: type | None
    body: type | None = None
    event: type | None = None  # of a stream


OPERATIONS = (
    Operation("/v1/models", "The model that is served", ModelList),
    Operation("/v1/models/{id}", "The model by its name", Model),
    Operation("/v1/completions", "Continue texts", Completion, CompletionRequest, Completion),
    Operation(
        "/v1/chat/completions", "Go on with a conversation", ChatCompletion, ChatRequest, ChatChunk
    ),
    Operation("/tokenize", "Token ids of a text or a chat", Tokens, TokenizeRequest),
    Operation("/detokenize", "The text of token ids", Text, DetokenizeRequest),
    Operation("/health", "200 while the engine runs", None),
    Operation("/version", "The version of Plait", Version),
)


@cache
def document(version: str) -> dict[str, Any]:
    """OpenAPI 3.1. `version`: of Plait."""
    structs = {t for o in OPERATIONS for t in (o.answer, o.body, o.event) if t is not None}
    ordered = sorted({*structs, TextPart, ErrorAnswer}, key=lambda struct: struct.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Plait",
            "version": version,
            "description": "A language model behind OpenAI's protocol.",
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
        "paths": {operation.path: _path(operation) for operation in OPERATIONS},
    }


def _path(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": operation.path.strip("/").replace("/", "_").replace("{id}", "id"),
        "responses": _responses(operation),
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.body)}
    if "{id}" in operation.path:
        described["parameters"] = [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return {"get" if operation.body is None else "post": described}


def _responses(operation: Operation) -> dict[str, Any]:
    success: dict[str, Any] = {"description": operation.summary}
    if operation.answer is not None:
        success["content"] = _json(operation.answer)
    if operation.event is not None:
        success["content"]["text/event-stream"] = {"schema": _event(operation.event)}
    errors = {
        str(status): {"description": text, "content": _json(ErrorAnswer)}
        for status, text in ERRORS.items()
    }
    if operation.path == "/health":
        errors["503"] = {"description": "The engine has stopped."}
    return {"200": success, **errors}


def _event(struct: type) -> dict[str, Any]:
    """One event of a stream; a document has no way to say that there are several."""
    told = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": _json(struct)["application/json"]["schema"],
    }
    data = {
        "anyOf": [{"const": "[DONE]"}, told],
        "description": f"A {struct.__name__}; [DONE] in the last event. An error in the middle is "
        "an ErrorAnswer, and the end.",
    }
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _json(struct: type) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{struct.__name__}"}
    return {"application/json": {"schema": reference}}
