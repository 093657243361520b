"""A pytest plugin: which components failed which test; a component that has failed rests."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from core.registry import samplers
from core.testing.plugin import KINDS

failed: dict[str, str] = {}
passed: dict[str, int] = defaultdict(int)


def subject(item: pytest.Item) -> str:
    params = item.callspec.params
    return next(params[kind.subject] for kind in KINDS if kind.subject in params)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if subject(item) in failed:
        pytest.skip("it has failed already")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = (yield).get_result()
    name = subject(item)
    if report.failed and name not in failed:
        failed[name] = f"{item.nodeid}: {report.longreprtext[-300:]}"
        # but the next one, which pytest has looked up already
        at, items = item.session.items.index(item) + 2, item.session.items
        items[at:] = [other for other in items[at:] if subject(other) != name]
    elif report.when == "call" and report.passed:
        passed[name] += 1


def pytest_sessionfinish() -> None:
    Path(os.environ["VERDICTS"]).write_text(json.dumps({"failed": failed, "passed": passed}))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Samplers that do one wish wrongly pass the tests of all else, which come last for them."""
    items.sort(
        key=lambda item: (
            item.path.name == "test_sampler_contract.py"
            and samplers.entry(subject(item)).provider.plugin == "wrong_wishes"
        )
    )
