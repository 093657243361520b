"""The reference of what others may import: current, complete, everything explained."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module

import pytest

from core import hooks
from core.importing import load_path
from core.registry import Registry, registries
from tools.make_reference import PAGE, documented, interface_classes, interfaces, page
from tools.public_names import CHAPTERS, imported, listed
from tools.source_docs import Definition, arguments, define, markdown, signature

HOOKS = [*hooks.OFFERING, *hooks.ACTING]
CLASSES = {cls.__name__: cls for _, _, cls in interface_classes()}
METHODS = [
    pytest.param(cls, method, id=f"{cls.__name__}.{method.name}")
    for cls in CLASSES.values()
    for method in define(cls).methods()
]
RETURNS = re.compile(
    r"->|[Rr]eturn|Whether|Reasons|Counters|\b[Nn]one\b|^(The|A|One|Elements|Every|How|What) ", re.M
)
"""How a docstring says what comes back."""


def undescribed(text: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """What a signature has that neither this text nor the type's own entry explains."""
    missing = [
        name
        for name, type_ in arguments(function).items()
        if not re.search(rf"\b{name}\b", text) and not set(re.findall(r"\w+", type_)) & documented()
    ]
    returns = ast.unparse(function.returns) if function.returns else "None"
    return missing + ["what it returns"] * (returns != "None" and not RETURNS.search(text))


@pytest.fixture(scope="module")
def made() -> str:
    return page()


def test_the_page_is_what_the_docstrings_say(made: str) -> None:
    assert PAGE.read_text() == made, "run python -m tools.make_reference"


def test_every_link_within_the_page_leads_to_a_heading(made: str) -> None:
    anchors = set()
    for title in re.findall(r"^##+ (.+)$", made, flags=re.M):
        anchor = re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        found = re.escape(anchor)
        anchors.add(f"{anchor}-{n}" if (n := sum(bool(re.fullmatch(rf"{found}(-\d)?", a))
                                                 for a in anchors)) else anchor)  # fmt: skip
    assert set(re.findall(r"\]\(#([^)]+)\)", made)) <= anchors
    assert "](#=" not in made


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_says_what_it_is_given_what_it_returns_and_what_errors_do(name: str) -> None:
    found = define(getattr(hooks, name))
    assert undescribed(found.text, found.function) == []
    assert RETURNS.search(found.text) or found.name == "register"
    assert "\nErrors: " in found.text


@pytest.mark.parametrize(("cls", "method"), METHODS)
def test_a_method_of_an_interface_is_explained(cls: type, method: ast.FunctionDef) -> None:
    text = ast.get_docstring(method)
    assert text
    assert undescribed(f"{text}\n{define(cls).text}", method) == []


@pytest.mark.parametrize("name", CLASSES)
def test_an_interface_says_what_becomes_of_its_errors(name: str) -> None:
    assert "\nErrors: " in define(CLASSES[name]).text


def test_a_registry_is_explained(made: str) -> None:
    for method in define(Registry).methods():
        assert ast.get_docstring(method), method.name
    for name, registry in registries.all().items():
        (row,) = [line for line in made.splitlines() if line.startswith(f"| `{name}` | ")
                  and f"(#{load_path(registry.base).__name__.lower()}) |" in line]  # fmt: skip
        assert registry.kind.removesuffix("y") in row


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.title)
def test_everything_that_is_listed_has_a_docstring(chapter) -> None:
    for module, names in chapter.names.items():
        for name in names.split():
            thing = getattr(import_module(module), name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert define(thing).text, f"{module}.{name}"


def test_examples_import_only_what_is_listed() -> None:
    known = {*listed(), *interfaces(), ("core.hooks", "hookimpl"), ("core", "plugins")}
    known |= {("core.registry", name) for name in (*registries.all(), "registries")}
    things = {id(getattr(import_module(module), name)) for module, name in known}
    strange = [
        f"{module}.{name}"
        for module, name in sorted(imported("examples"))
        if id(getattr(import_module(module), name, None)) not in things
    ]
    assert strange == [], "put these names in tools/public_names.py, or do without them"


def test_nothing_private_is_listed() -> None:
    assert [pair for pair in listed() if "._" in f"{pair[0]}.{pair[1]}"] == []


# how a definition is read


class Sample:
    """A class.

    >>> Sample()
    >>> for x in Sample():
    ...     pass
    """

    plain: int  # what it holds,
    #             in two lines
    silent: str = "a|b"
    below: list[int] = []  # noqa: RUF012
    """Said below."""

    def method(self, a: int, /, b: str = ", ", *rest: int, key: bool = False, **more: int) -> int:
        """A method."""
        return a

    def silent_method(self) -> None: ...

    def _private(self) -> None:
        """Not shown."""


def sample() -> Definition:
    return define(Sample)


def test_a_signature_is_as_it_is_written() -> None:
    (method, silent) = sample().methods()
    assert signature(method) == (
        "method(a: int, /, b: str = ', ', *rest: int, key: bool = False, **more: int) -> int"
    )
    assert silent.name == "silent_method"


def test_attributes_are_read_with_their_comments() -> None:
    plain, silent, below = sample().fields()
    assert plain == ("plain", "int", "", "what it holds, in two lines")
    assert silent == ("silent", "str", "'a|b'", "")
    assert below[3] == "Said below."


def test_examples_in_docstrings_are_fenced() -> None:
    text = "A class.\n\n```python\nSample()\nfor x in Sample():\n    pass\n```"
    assert markdown(sample().text) == text
