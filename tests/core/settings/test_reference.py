"""The reference of settings: complete, and the same in the code and in the documentation."""

from __future__ import annotations

import re

import pytest

from core import explain, plugins
from core.config import COMPONENTS
from core.registry import registries
from core.settings import load
from core.settings.files import packaged
from core.settings.sections import sections, settable
from tests.thirdparty.installed import ROOT
from tools.configuration_reference import MARK, PAGE


@pytest.fixture(scope="module")
def blocks() -> dict[str, str]:
    """The generated part of the page by heading."""
    text = PAGE.read_text().partition(MARK)[2]
    return {part.partition("\n")[0]: part.rstrip() for part in re.split(r"^#+ ", text, flags=re.M)}


def test_every_setting_says_what_it_means() -> None:
    plugins.load()
    classes = list(sections().values())
    for attribute in COMPONENTS.values():
        found = [explain.options(entry) for entry in registries.all()[attribute].entries()]
        classes += [cls for cls in found if isinstance(cls, type)]
    silent = [
        f"{cls.__module__}.{cls.__qualname__}.{field.name}"
        for cls in classes
        for field in settable(cls)
        if not field.metadata.get("help")
    ]
    assert silent == []


def test_the_page_has_every_table_as_it_is_made(blocks: dict[str, str]) -> None:
    plugins.load()
    for part in re.split(r"^#+ ", explain.reference(), flags=re.M)[1:]:
        heading = part.partition("\n")[0]
        # a component that cannot be imported here has no table here
        if "| key |" in part or (heading.startswith("`") and ":" not in heading):
            assert blocks.get(heading) == part.rstrip(), (
                f"docs/configuration.md differs at {heading}: "
                "run python -m tools.configuration_reference"
            )


def test_the_page_names_every_built_in_component(blocks: dict[str, str]) -> None:
    plugins.load()
    for section, attribute in COMPONENTS.items():
        for entry in registries.all()[attribute].entries():
            if entry.provider.source != "built in":
                continue  # what another test has loaded
            assert f"`{section}: {entry.name}`" in blocks


def test_the_example_of_the_guide_works(write, isolated) -> None:
    guide = ROOT.joinpath("docs/plugins.md").read_text()
    example = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0]
    write("shortest.py", example)
    plugins.load(["./shortest.py"], strict=True)
    assert registries.schedulers.get("shortest").__name__ == "Shortest"


def test_the_guide_lists_every_registry_with_its_base() -> None:
    guide = ROOT.joinpath("docs/plugins.md").read_text()
    for name, registry in registries.all().items():
        assert f"| `{name}` |" in guide
        (row,) = [line for line in guide.splitlines() if line.startswith(f"| `{name}` |")]
        assert registry.base is not None
        assert f".{registry.base.partition(':')[2]}`" in row


@pytest.mark.parametrize("name", packaged())
def test_every_configuration_that_ships_is_valid(name: str) -> None:
    assert load(name, ["model.device=cpu"]).model.path
