"""The page on a server that answers as a test says. Tests import these fixtures by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api")

from playwright.sync_api import Browser, Page

from tests.plugins.serve.browsing import chromium, opened
from tests.plugins.serve.scripted_server import Script, listening

__all__ = ["browser", "complaints", "page", "script"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser wrote on its console, and what the page threw."""
    return []


@pytest.fixture
def page(browser: Browser, script: Script, complaints: list[str]) -> Iterator[Page]:
    """The page, just opened. Complaints that are left fail the test."""
    with listening(script.app) as url, opened(browser, url, complaints) as page:
        yield page
    assert not complaints
