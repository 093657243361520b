"""The page of a plan: whole, safe, readable without colours or pictures, and alone in one file."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import tomllib
import xml.etree.ElementTree as ElementTree
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import core.plugins
from core.parallel import ParallelPlan
from core.run import main
from plugins.apps.plan.colours import colours
from plugins.apps.plan.content import Content, content
from plugins.apps.plan.page import render
from tests.core.parallel.toys import Config, toy
from tests.plugins.apps.test_plan_flow import call

ROOT = Path(__file__).resolve().parents[3]
TOY = str(ROOT / "configs" / "toy-tp2.yaml")
PICTURE = ROOT / "docs" / "pictures" / "toy-plan.svg"
TEMPLATES = ["page.html.jinja", "picture.svg.jinja"]
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "wbr", "br"}


@pytest.fixture(scope="module", autouse=True)
def _plugins() -> None:
    core.plugins.load()


def shown(tensor: int = 2, config: Config | None = None, **family: Any) -> Content:
    plan = ParallelPlan.build(toy(**family), config or Config(), tensor, replicate_limit=1.0)
    return content(
        "toy", plan, plan.expected_index(), torch.float32,
        facts={"model": "a toy"}, cache=(64,) * tensor, forward=call,
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the shipped toy on four ranks, of which two share each key/value head."""
    path = tmp_path_factory.mktemp("page") / "toy.html"
    assert main([TOY, "parallel.tensor=4", f"run.html={path}"]) == 0
    return path


class Reader(HTMLParser):
    """Keeps tags with their attributes, and fails where one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tags = Reader(text).tags

    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "use"}
    assert not [a for _, attrs in tags for a in attrs if a.startswith("on") or a in ("href", "src")]
    assert re.findall(r"url\((?!#)|@import|https?:", text) == []
    policy = next(attrs["content"] for _, attrs in tags if attrs.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


@pytest.mark.parametrize("tensor", [1, 2, 4, 7])
def test_every_colour_that_is_used_is_there(tensor: int) -> None:
    text = render("page.html.jinja", shown(tensor, Config(num_attention_heads=8)))
    used = {
        word
        for tag, attrs in Reader(text).tags
        if tag in ("rect", "path")
        for word in (attrs.get("class") or "").split()
    }
    painted = {word for word in used if re.fullmatch(r"r\d+|s[\d-]+|every|constant", word)}

    assert {f"r{rank}" for rank in range(tensor)} <= painted
    for word in painted:
        assert f".{word} {{ fill: " in text
        assert re.fullmatch(r"r\d+", word) or f'<pattern id="{word}"' in text
    assert len(set(re.findall(r"--r\d+(?=: )", text))) == tensor


def test_every_picture_has_a_name_and_every_region_a_tooltip(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    for tag, attrs in Reader(text).tags:
        if tag == "svg":
            assert attrs.get("aria-label") or attrs.get("aria-hidden") == "true"
    regions = re.findall(r'<rect class="tile [^>]*>(.*?)</rect>', text)
    assert regions
    assert all(re.fullmatch(r"<title>.+</title>", inside) for inside in regions)
    assert (
        "<title>ranks 0 to 1: rows 0 to 1, columns 0 to 7, "
        "0.5 of model.layers.0-1.self_attn.k_proj.weight</title>" in text
    )


def plain(text: str) -> str:
    """A page's text, without tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", text))


@pytest.mark.parametrize("tensor", [1, 3])
def test_the_tables_say_what_the_text_output_says(
    tensor: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "toy.html"
    assert main([TOY, f"parallel.tensor={tensor}", f"run.html={path}"]) == 0
    printed = capsys.readouterr().out
    text = plain(path.read_text(encoding="utf-8"))

    *tables, footer = printed.rstrip().split("\n\n")
    assert len(tables) == tensor
    for line in footer.splitlines():
        assert f"{line[:32].strip()}{line[32:]}" in text
    for table in tables:
        for line in table.splitlines()[1:]:
            name, shape, source, region, read = re.split(r"\s{2,}", line)
            shape = " × ".join(re.findall(r"\d+", shape))
            assert name + shape + source + region + read in text


def test_all_collectives_are_in_a_table(page: Path) -> None:
    text = plain(page.read_text(encoding="utf-8"))

    for row in (
        "model.embed_tokensall-reduce after itvocab:vocab32 B1",
        "self_attn.o_projlayers 0 to 1all-reduce after itrowwise:q32 B2",
        "mlp.down_projlayers 0 to 1all-reduce after itrowwise:mlp32 B2",
        "lm_headall-gather after itvocab_head:vocab256 B1",
    ):
        assert row in text


def test_one_rank_sends_nothing_and_copies_nothing() -> None:
    text = render("page.html.jinja", shown(1))

    assert "Collectives of a forward pass" not in text
    assert "copied to" not in text
    assert 'class="tile every"' not in text


@pytest.mark.parametrize("template", TEMPLATES)
def test_names_from_a_checkpoint_are_only_text(template: str) -> None:
    evil = '</title></style><script>alert("1")</script>\x1b[2J\u202e&'
    text = render(template, shown(rename={f"{evil}.": "model."}))

    assert "<script" not in text
    assert "&lt;script&gt;alert(&#34;1&#34;)" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\x1b[2J\u202e&amp;" in text
    if template.endswith(".svg.jinja"):
        ElementTree.fromstring(text)
    else:
        Reader(text)


@pytest.mark.parametrize("tensor", [1, 2, 4, 7])
def test_everything_of_the_picture_is_inside_it(tensor: int) -> None:
    root = ElementTree.fromstring(render("picture.svg.jinja", shown(tensor)))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])

    def inside(element: ElementTree.Element, x: float, y: float) -> None:
        moved = re.match(r"translate\(([\d.-]+) ([\d.-]+)\)", element.get("transform", ""))
        if moved:
            x, y = x + float(moved[1]), y + float(moved[2])
        if element.tag in (f"{SVG}rect", f"{SVG}text"):
            left, top = x + float(element.get("x", 0)), y + float(element.get("y", 0))
            assert left >= 0
            assert top >= 0
            assert left + float(element.get("width", 0)) <= width + 0.02
            assert top + float(element.get("height", 0)) <= height + 0.02
        for child in element:
            if child.tag != f"{SVG}defs":
                inside(child, x, y)

    inside(root, 0, 0)


def test_the_picture_of_the_readme_is_what_the_command_draws_now(tmp_path: Path) -> None:
    """After a change: python -m core.run configs/toy-tp2.yaml run.svg=docs/pictures/toy-plan.svg"""
    path = tmp_path / "toy.svg"
    assert main([TOY, f"run.svg={path}"]) == 0

    assert path.read_text(encoding="utf-8") == PICTURE.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["html", "svg", "json"])
def test_a_place_that_cannot_be_written_is_told(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([TOY, f"run.{option}={tmp_path / 'nowhere' / 'toy'}"]) == 2

    assert re.match(rf"run\.{option}: .*toy cannot be written", capsys.readouterr().err)


def test_templates_go_into_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["plugins"]

    found = list((ROOT / "plugins").rglob("*.jinja"))
    assert found
    for path in found:
        name = path.relative_to(ROOT / "plugins").as_posix()
        assert any(fnmatch(name, pattern.removeprefix("**/")) for pattern in patterns), name


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_letters_can_be_read_on_the_colours_of_all_ranks() -> None:
    for colour in colours(40):
        assert 1.05 / (luminance(colour.light) + 0.05) >= 4.5
        assert (luminance(colour.dark) + 0.05) / (luminance("#101318") + 0.05) >= 7


def test_neighbouring_ranks_have_different_colours() -> None:
    for made in (colours(32), colours(9)):
        assert len({c.light for c in made}) == len({c.dark for c in made}) == len(made)


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MEASURE = """<iframe id=f src="{page}" style="width:{width}px;height:900px;border:0"></iframe>
<script>f.onload = () => {{ const e = f.contentDocument.documentElement
e.querySelectorAll("details").forEach(found => found.open = true)
document.body.append("measured " + [e.scrollWidth, e.clientWidth].join(" ")) }}</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_sticks_out_at_the_side(width: int, page: Path, tmp_path: Path) -> None:
    frame = tmp_path / "frame.html"
    frame.write_text(MEASURE.format(page=page.as_uri(), width=width))
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
        "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=2000", frame.as_uri(),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("Chromium does not answer")
    found = re.search(r"measured (\d+) (\d+)<", done.stdout)
    if found is None:
        pytest.skip(f"Chromium does not work here: {done.stderr[-200:]}")

    needed, there = map(int, found.groups())
    assert needed == there <= width
