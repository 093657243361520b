"""The page on a real server: the tiny model answers, and the meters follow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("playwright.sync_api")

import httpx
from playwright.sync_api import Page, expect

from tests.plugins.serve.browsing import answered, ask, chromium, needs_chromium, opened
from tests.plugins.serve.running import Launched

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def url(server: Launched) -> str:
    return server.url


@pytest.fixture
def page(url: str) -> Iterator[Page]:
    complaints: list[str] = []
    with chromium() as browser, opened(browser, url, complaints) as page:
        yield page
    assert not complaints


def test_the_page_shows_what_the_api_answers(page: Page, url: str) -> None:
    expect(page.locator("#model")).to_have_text("tiny")
    page.fill("#temperature", "0")
    page.fill("#max_tokens", "40")
    page.locator("#thinking").uncheck()
    ask(page, "What is the capital of Italy?")
    answered(page)
    message = {"role": "user", "content": "What is the capital of Italy?"}
    body = {"messages": [message], "temperature": 0, "max_tokens": 40}
    body["chat_template_kwargs"] = {"enable_thinking": False}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    expect(page.locator(".answer .words")).to_have_text(answer["choices"][0]["message"]["content"])
    tokens = answer["usage"]["completion_tokens"]
    expect(page.locator(".facts")).to_contain_text(f"{tokens} tokens")
    page.fill("#max_tokens", "5000")
    ask(page, "And of France?")
    answered(page)
    expect(page.locator(".answer")).to_have_count(2)
    expect(page.locator("#cache")).to_contain_text("%")
