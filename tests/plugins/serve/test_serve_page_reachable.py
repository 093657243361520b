"""The page for those who hear it, see little contrast, or have a keyboard and a narrow window."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("playwright.sync_api")

from playwright.sync_api import Page, expect

from tests.plugins.serve.browsing import answered, ask, needs_chromium
from tests.plugins.serve.scripted_page import browser, complaints, page, script
from tests.plugins.serve.scripted_server import Script, said

__all__ = ["browser", "complaints", "page", "script"]

pytestmark = needs_chromium

# WCAG 2's contrast of two colours of the page, as the eye gets them
CONTRAST = """([selector, pseudo, property, behind]) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const style = getComputedStyle(document.querySelector(selector), pseudo || undefined);
  const back = getComputedStyle(document.querySelector(behind)).backgroundColor;
  const seen = (layers) => {
    for (const [colour, opacity] of layers) {
      canvas.globalAlpha = opacity;
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    const linear = [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)].map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const two = [seen([[back, 1]]), seen([[back, 1], [style[property], Number(style.opacity)]])];
  return (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
}"""


def test_an_answer_that_was_stopped_is_not_told_to_be_complete(page: Page, script: Script) -> None:
    status = page.get_by_role("status")
    ask(page, "Hi")
    answered(page)
    expect(status).to_have_text("The answer is complete.")
    script.events, script.endless, script.done = [said("word ")], True, False
    ask(page, "Go!")
    expect(page.locator(".answer .words").last).to_contain_text("word word")
    page.keyboard.press("Escape")
    answered(page)
    expect(status).to_have_text("Stopped.")


def test_what_an_earlier_answer_ends_with_is_not_told_of_the_one_that_runs(
    page: Page, script: Script
) -> None:
    script.events, script.endless, script.done = [said("word ")], True, False
    ask(page, "Go!")
    page.keyboard.press("Escape")
    answered(page)
    ask(page, "And again!")
    expect(page.locator(".answer .words").last).to_contain_text("word word")
    page.locator(".answer").first.get_by_role("button", name="Answer again").click()
    expect(page.locator(".answer")).to_have_count(1)
    expect(page.locator(".answer .words")).to_contain_text("word word")
    expect(page.get_by_role("status")).to_have_text("The model answers.")
    page.keyboard.press("Escape")
    answered(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("selector", "pseudo", "property", "behind", "least"),
    [
        ("#message", "::placeholder", "color", ".field", 4.5),
        ("#system", "::placeholder", "color", "#system", 4.5),
        ("#thinking", "", "backgroundColor", "aside", 3.0),
    ],
)
def test_there_is_contrast_enough(
    page: Page, scheme: str, selector: str, pseudo: str, property: str, behind: str, least: float
) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.locator("#thinking").uncheck()
    assert page.evaluate(CONTRAST, [selector, pseudo, property, behind]) >= least


def focused(page: Page) -> str:
    found: str = page.evaluate("document.activeElement.id")
    return found


def within(page: Page) -> bool:
    found: bool = page.evaluate(
        "document.querySelector('#settings').contains(document.activeElement)"
    )
    return found


@pytest.mark.parametrize("closing", ["the button", "Escape"])
def test_what_the_settings_lie_over_cannot_be_reached(page: Page, closing: str) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.reload()
    page.locator("#show-settings").focus()
    page.keyboard.press("Enter")
    assert focused(page) == "hide-settings"
    for _ in range(15):
        page.keyboard.press("Tab")
        assert within(page) or focused(page) == ""  # or the browser's own controls
    page.locator("#hide-settings").focus()
    page.keyboard.press("Enter" if closing == "the button" else "Escape")
    expect(page.locator("#settings")).to_be_hidden()
    assert focused(page) == "show-settings"
    ask(page, "Hi")
    answered(page)


def test_a_window_that_gets_wide_or_narrow_covers_or_uncovers(page: Page) -> None:
    page.locator("#message").focus()
    page.set_viewport_size({"width": 400, "height": 800})
    expect(page.locator("#hide-settings")).to_be_focused()
    expect(page.locator("#composer")).to_have_js_property("inert", True)
    page.set_viewport_size({"width": 1400, "height": 800})
    expect(page.locator("#composer")).to_have_js_property("inert", False)
    page.locator("#message").focus()
    assert focused(page) == "message"
