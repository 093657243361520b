"""The published OpenAPI document is valid, and no request that is made from it makes a 500.

    PLAIT_SCHEMATHESIS_CASES=700 python -m pytest -s --timeout 1800 THIS_FILE

makes so many requests of each kind, more than 5,000 in all, to the real engine, and says how many.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from plugins.serve.protocol.document import document
from tests.plugins.serve.conftest import CONFIG, WORDS
from tests.plugins.serve.fake_engine import FakeEngine
from tests.plugins.serve.running import launched, serving

MANY = os.environ.get("PLAIT_SCHEMATHESIS_CASES")
CASES = int(MANY or 40)  # for each operation that takes a body, right and wrong ones
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


MADE: Counter[str] = Counter()


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[Any]:
    """The document as it is published by a server, which runs."""
    engine = FakeEngine(lambda ids, params, index: ids[:5])
    short = ("model.max_length=48", "run.log_level=error")
    with launched(str(CONFIG), *WORDS, *short) if MANY else serving(engine, folder) as running:
        yield schemathesis.openapi.from_url(running.url + "/openapi.json")
        print(f"\n{MADE.total()} requests: {dict(MADE)}")
        assert running.http.get("/health").status_code == 200


def test_every_schema_is_a_json_schema() -> None:
    schemas = document("0")["components"]["schemas"]
    assert len(schemas) > 30
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema)


def test_every_reference_leads_somewhere() -> None:
    found = document("0")

    def references(value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    names = found["components"]["schemas"]
    for reference in set(references(found)):
        assert reference.removeprefix("#/components/schemas/") in names


OPERATIONS = [
    "GET /v1/models",
    "GET /v1/models/{id}",
    "POST /v1/completions",
    "POST /v1/chat/completions",
    "POST /tokenize",
    "POST /detokenize",
    "GET /health",
    "GET /version",
]


def test_the_operations_are_these() -> None:
    paths = document("0")["paths"]
    assert [f"{m.upper()} {path}" for path, methods in paths.items() for m in methods] == OPERATIONS


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "ab"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ab"}]}),
    ],
)
def test_events_of_a_stream_are_as_the_document_says(api: Any, path: str, asked: Any) -> None:
    case = api[path]["POST"].Case(body=asked | {"stream": True, "max_tokens": 3})
    answer = case.call_and_validate(checks=CHECKS)
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_made_from_the_document(api: Any, name: str, mode: str) -> None:
    method, path = name.split()
    operation = api[path][method]
    takes_anything = method == "GET"
    if takes_anything and mode == "negative":
        pytest.skip("there is nothing in it that could be wrong")
    strategy = operation.as_strategy(
        generation_mode=getattr(schemathesis.GenerationMode, mode.upper())
    )
    checks = [*CHECKS, negative_data_rejection] if mode == "negative" else CHECKS

    @hypothesis.settings(
        max_examples=5 if takes_anything else CASES,
        deadline=None,
        derandomize=not MANY,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def holds(case: Any) -> None:
        MADE[f"{name}, {mode}"] += 1
        case.call_and_validate(checks=checks, timeout=20)

    holds()
