"""A headless Chromium for tests of the page; they are skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("playwright.sync_api")

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
PATIENCE = 20_000  # ms


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser process; it is gone after the block."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, complaints: list[str]) -> Iterator[Page]:
    """A page of a fresh profile, 1,400 pixels wide. What it complains of is left in the list."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()

    def heard(message: ConsoleMessage) -> None:
        status = "Failed to load resource" in message.text  # tests of errors ask for it
        if message.type in ("error", "warning") and not status:
            complaints.append(message.text)

    page.on("console", heard)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url)
    yield page
    context.close()


def ask(page: Page, text: str) -> None:
    """Write a message and send it."""
    page.fill("#message", text)
    page.press("#message", "Enter")


def answered(page: Page) -> None:
    """Wait until the answer has ended, well or not."""
    expect(page.locator("#send")).to_be_visible()
    expect(page.locator(".answer.live")).to_have_count(0)
