"""The page in a real browser: what it asks the server, and what a reader sees of the answer."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("playwright.sync_api")

from playwright.sync_api import Error, Page, expect

from tests.plugins.serve.browsing import answered, ask, needs_chromium
from tests.plugins.serve.scripted_page import browser, complaints, page, script
from tests.plugins.serve.scripted_server import Script, said

__all__ = ["browser", "complaints", "page", "script"]

pytestmark = needs_chromium


def test_a_question_is_answered_piece_by_piece(page: Page, script: Script) -> None:
    script.events = [said("Once "), said("upon a time."), said(finish="stop")]
    script.events[-1]["usage"] = {
        "prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8},
    }  # fmt: skip
    expect(page.locator("#model")).to_have_text("tiny")
    ask(page, "A story!")
    answered(page)
    expect(page.locator(".question .words")).to_have_text("A story!")
    expect(page.locator(".answer .words")).to_have_text("Once upon a time.")
    expect(page.locator(".facts")).to_contain_text("5 tokens")
    expect(page.locator(".facts")).to_contain_text("8 of 9 prompt tokens from the cache")
    (body,) = script.asked
    assert body["model"] == "some/tiny"
    assert body["messages"] == [{"role": "user", "content": "A story!"}]
    assert body["stream"] is True
    assert "temperature" not in body
    ask(page, "Go on.")
    answered(page)
    assert [m["role"] for m in script.asked[1]["messages"]] == ["user", "assistant", "user"]


def test_a_stream_may_be_cut_anywhere(page: Page, script: Script) -> None:
    script.events = [said("Grüße – 🧶"), said("\nzweite Zeile"), said(finish="stop")]
    script.raw = lambda data: [
        b": a comment\r\n\r\n",
        *(bytes([byte]) for byte in data.replace(b"\n", b"\r\n")),
    ]
    ask(page, "Hallo")
    answered(page)
    expect(page.locator(".answer .words")).to_have_text("Grüße – 🧶\nzweite Zeile")


def test_text_of_a_model_is_never_markup(page: Page, script: Script) -> None:
    evil = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
    script.events = [
        said(evil, reasoning_content=evil),
        said(f"\n\n```html\n{evil}\n```\n\n- {evil}"), said(finish="stop"),
    ]  # fmt: skip
    ask(page, evil)
    answered(page)
    assert page.locator("#turns img, #turns script").count() == 0
    assert page.locator(".question .words").inner_text() == evil
    assert evil in page.locator(".answer .words").inner_text()
    assert "hacked" not in page.title()


def test_nothing_but_the_server_itself_is_allowed(page: Page, complaints: list[str]) -> None:
    told = page.request.get(page.url).headers["content-security-policy"]
    policy = dict(part.strip().split(" ", 1) for part in told.split(";"))
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in told
    assert {policy[k] for k in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert "http" not in page.locator("head").inner_html()
    with pytest.raises(Error, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>markup</b>'")
    assert "TrustedHTML" in complaints.pop()


def test_stop_ends_the_stream_and_keeps_the_text(page: Page, script: Script) -> None:
    script.events, script.endless, script.done = [said("word ")], True, False
    ask(page, "Go!")
    expect(page.locator(".answer .words")).to_contain_text("word word")
    page.keyboard.press("Escape")
    answered(page)
    expect(page.locator(".note")).to_have_text("Stopped.")
    assert script.left.wait(10)
    script.events, script.endless, script.done = [said("fine", finish="stop")], False, True
    ask(page, "And now?")
    answered(page)
    expect(page.locator(".answer .words").last).to_have_text("fine")
    assert script.asked[1]["messages"][1]["content"].startswith("word ")


@pytest.mark.parametrize("button", ["Stop", "New conversation"])
def test_a_button_ends_the_stream_as_well(page: Page, script: Script, button: str) -> None:
    script.events, script.endless, script.done = [said("word ")], True, False
    ask(page, "Go!")
    expect(page.locator(".answer .words")).to_contain_text("word word")
    page.get_by_role("button", name=button).click()
    answered(page)
    assert script.left.wait(10)
    expect(page.locator(".answer")).to_have_count(1 if button == "Stop" else 0)
    expect(page.locator("#welcome")).to_be_visible(visible=button != "Stop")
    expect(page.locator("#message")).to_be_focused()


def test_thinking_is_folded(page: Page, script: Script) -> None:
    script.events = [said(reasoning_content="Hmm, well."), said("Yes."), said(finish="stop")]
    ask(page, "Is it?")
    answered(page)
    expect(page.locator(".answer summary")).to_contain_text("Thought for")
    expect(page.locator(".thoughts")).to_be_hidden()
    page.locator(".answer summary").click()
    expect(page.locator(".thoughts")).to_have_text("Hmm, well.")
    assert script.asked[0]["chat_template_kwargs"] == {"enable_thinking": True}
    page.locator("#thinking").uncheck()
    ask(page, "Sure?")
    answered(page)
    assert script.asked[1]["chat_template_kwargs"] == {"enable_thinking": False}
    assert script.asked[1]["messages"][1] == {"role": "assistant", "content": "Yes."}


def test_controls_become_fields_of_the_request(page: Page, script: Script) -> None:
    page.fill("#system", "Be brief.")
    wanted = {"temperature": 0.3, "top_p": 0.9, "top_k": 40, "min_p": 0.05}
    wanted |= {"max_tokens": 12, "seed": 7}
    for name, value in wanted.items():
        page.fill(f"#{name}", str(value))
    ask(page, "Hi")
    answered(page)
    body = script.asked[0]
    assert {name: body[name] for name in wanted} == wanted
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    page.fill("#temperature", "9")
    ask(page, "Hotter")
    expect(page.locator("#temperature")).to_be_focused()
    page.reload()
    expect(page.locator("#seed")).to_have_value("7")
    page.click("#reset")
    ask(page, "Hi again")
    answered(page)
    assert not set(wanted) & set(script.asked[-1])
    assert len(script.asked) == 2


def test_a_question_can_be_edited_and_an_answer_made_again(page: Page, script: Script) -> None:
    for text in ("one", "two"):
        ask(page, text)
        answered(page)
    page.locator(".question").first.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit your message").fill("another one")
    page.keyboard.press("Enter")
    expect(page.locator(".question")).to_have_count(1)
    answered(page)
    page.get_by_role("button", name="Answer again").click()
    answered(page)
    asked = [[m["content"] for m in body["messages"]] for body in script.asked]
    assert asked[2:] == [["another one"], ["another one"]]
    expect(page.locator(".answer")).to_have_count(1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"error": (400, "temperature is 9.", {})}, "temperature is 9."),
        ({"error": (429, "Full.", {"Retry-After": "3"})}, "Try again in 3 seconds."),
        ({"error": (503, "Dead.", {}), "code": "engine_stopped"}, "The engine is gone."),
        (
            {"error": (503, "Many.", {"Retry-After": "1"})},
            "The server cannot answer now. Many. Try",
        ),
        ({"error": (503, "It stops.", {}), "code": "stopping"}, "cannot answer now. It stops."),
        (
            {"error": (403, "Not the name 'x'.", {}), "code": "host_not_allowed"},
            "Not the name 'x'.",
        ),
        ({"events": [said("half"), {"error": {"message": "It broke."}}]}, "It broke."),
        ({"events": [said("half")], "done": False}, "broke off"),
    ],
)
def test_what_goes_wrong_is_said_in_words(
    page: Page, script: Script, answer: dict[str, Any], words: str
) -> None:
    vars(script).update(answer)
    ask(page, "Hi")
    answered(page)
    told = page.get_by_role("alert")
    expect(told).to_contain_text(words)
    if script.code != "engine_stopped":
        expect(told).not_to_contain_text("engine is gone")
    expect(told).not_to_contain_text("key")
    expect(page.locator("#key")).not_to_be_focused()


def test_the_key_is_asked_for_and_kept_for_the_tab(page: Page, script: Script) -> None:
    script.key = "secret"
    ask(page, "Hi")
    expect(page.get_by_role("alert")).to_contain_text("asks for an API key")
    expect(page.locator("#key")).to_be_focused()
    page.fill("#key", "secret")
    page.get_by_role("button", name="Answer again").click()
    answered(page)
    expect(page.locator(".answer .words")).to_have_text("Hello.")
    assert page.evaluate("JSON.stringify(localStorage) + document.cookie") == "{}"
    assert page.evaluate("Object.values(sessionStorage)").count("secret") == 1


def test_markdown_is_shown_as_what_it_means(page: Page, script: Script) -> None:
    script.events = [said(
        "# Boats\n\nA **big** one, `code` and *care*:\n1. first\n   - inner\n2. second\n\n"
        "```python\na = 1\n\nb = 2\n```\n> said\n"
    ), said(finish="stop")]  # fmt: skip
    ask(page, "Hi")
    answered(page)
    words = page.locator(".answer .words")
    expect(words.locator("h3")).to_have_text("Boats")
    expect(words.locator("strong")).to_have_text("big")
    expect(words.locator("em")).to_have_text("care")
    expect(words.locator("ol > li > ul > li")).to_have_text("inner")
    expect(words.locator("ol > li")).to_have_count(2)
    assert words.locator("pre code").inner_text() == "a = 1\n\nb = 2"
    expect(words.locator("blockquote")).to_have_text("said")


def test_the_meters_tell_what_the_server_does(page: Page) -> None:
    expect(page.locator("#running")).to_have_text("0")
    expect(page.locator("#cache")).to_have_text("0.0%")
    expect(page.locator("#rate")).to_have_text("0.0")


@pytest.mark.parametrize(("width", "height"), [(400, 800), (1400, 900)])
def test_it_fits_and_can_be_used_by_keyboard_alone(
    page: Page, script: Script, width: int, height: int
) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.reload()
    script.events = [said("x" * 300), said(f"\n\n```\n{'y' * 300}\n```"), said(finish="stop")]
    page.keyboard.type("Long ones")  # the field has the focus
    page.keyboard.press("Enter")
    answered(page)
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= width
    names = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        names.add(page.evaluate("document.activeElement.ariaLabel || document.activeElement.id"))
    assert {"Copy", "Answer again", "Settings", "New conversation"} <= names
    page.locator("#show-settings").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(wide) <= width
    nameless = page.locator("button").evaluate_all(
        "all => all.filter(b => !(b.ariaLabel || b.textContent.trim())).length"
    )
    assert nameless == 0


def test_it_is_dark_where_the_reader_likes_it_dark(page: Page) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(paper)
    assert light != dark
    page.click("#theme")
    assert page.evaluate(paper) == light
