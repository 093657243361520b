"""Who may import whom: core no plugin, a plugin no other plugin, registration nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.plugins.discovery import BUILTIN
from tests.thirdparty.installed import ROOT

HEAVY = {"torch", "transformers", "omegaconf", "triton", "flash_attn", "ray", "starlette"}


def files(folder: str) -> list[Path]:
    found = sorted(ROOT.joinpath(folder).rglob("*.py"))
    assert found, folder
    return found


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, at the top, in functions and under TYPE_CHECKING."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def home(path: Path) -> str:
    """The plugin that a file belongs to: plugins.NAME or models.NAME."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[:2])


def test_core_imports_no_plugin_and_no_model() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files("core")
        for line, name in imports(path)
        if name.partition(".")[0] in ("plugins", "models", "tests", "tools", "configs")
    ]
    assert bad == []


@pytest.mark.parametrize("folder", ["plugins", "models"])
def test_a_plugin_imports_core_and_itself_only(folder: str) -> None:
    bad = []
    for path in files(folder):
        for line, name in imports(path):
            top = name.partition(".")[0]
            own = f"{name}.".startswith(f"{home(path)}.")
            if top in ("plugins", "models", "tests", "tools") and not own:
                bad.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert bad == []


def test_a_plugin_uses_public_names_of_core_only() -> None:
    bad = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in ("plugins", "models")
        for path in files(folder)
        for line, name in imports(path)
        if name.startswith("core.")
        and any(part.startswith("_") and not part.endswith("__") for part in name.split("."))
    ]
    assert bad == []


def test_every_built_in_plugin_is_there_and_every_plugin_is_built_in() -> None:
    packages = {
        home(path)
        for folder in ("plugins", "models")
        for path in files(folder)
        if len(path.relative_to(ROOT).parts) > 2 and "register" in path.read_text()
        and path.name == "__init__.py" and len(path.relative_to(ROOT).parts) == 3
    }  # fmt: skip
    assert set(BUILTIN) == packages


def test_registration_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from core import plugins\n"
        "loaded = plugins.load()\n"
        "assert loaded.notes() == [], loaded.notes()\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not HEAVY & set(done.stdout.split())


def test_every_entry_of_a_built_in_plugin_can_be_imported() -> None:
    code = (
        "from core import plugins\n"
        "from core.registry import registries\n"
        "plugins.load()\n"
        "for registry in registries.all().values():\n"
        "    for entry in registry.entries():\n"
        "        if entry.provider.source == 'built in' and not entry.missing():\n"
        "            registry.get(entry.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
