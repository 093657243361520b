"""Fills the templates of a kind and writes them as the folder of a package, whole or not at all."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from string import Template

from core import __version__
from core.errors import UserError
from core.scaffold.kinds import COMMON, TEMPLATES, Kind
from core.scaffold.names import Names

SUFFIX = ".tmpl"


def templates(kind: Kind) -> dict[str, str]:
    """The template files by name, without suffix; those of the kind replace those of all."""
    return {
        file.name.removesuffix(SUFFIX): file.read_text(encoding="utf-8")
        for folder in (COMMON, kind.name)
        for file in sorted((TEMPLATES / folder).glob(f"*{SUFFIX}"))
    }


def component_code(kind: Kind) -> str:
    """The template of the module that the component is in."""
    return templates(kind)[f"{kind.file}.py"]


def package(names: Names, kind: Kind) -> dict[str, str]:
    """Every file of a new package: path below its folder -> text."""
    found = templates(kind)
    words = {
        "name": names.distribution,
        "plugin": names.plugin,
        "module": names.module,
        "component": names.component,
        "cls": names.cls,
        "range": compatible(__version__),
        "word": kind.word,
        "registry": kind.registry,
        "file": kind.file,
        "summary": kind.summary,
    }

    def filled(name: str) -> str:
        return Template(found.pop(name)).substitute(words)

    words["kit_words"] = " ".join(kit_words(names, kind))
    kit = filled("kit.md")
    words["kit"] = kit if kind.option else ""
    words["use"] = filled("use.yaml").rstrip()
    files = {
        "pyproject.toml": filled("pyproject.toml"),
        "README.md": filled("README.md"),
        ".gitignore": filled("gitignore"),
        f"tests/test_{names.module}.py": filled("test.py"),
    }
    for name in sorted(found):
        files[f"{names.module}/{name}"] = filled(name)
    return files


def kit_words(names: Names, kind: Kind) -> list[str]:
    """What runs the conformance kit on the component, as words behind `pytest`."""
    words = ["--pyargs", "core.testing", "--load", names.module]
    words.append(f"--{kind.option}={names.component}")
    if kind.name == "model":
        words.append("--reference=CHECKPOINT")
    return [*words, "-k", f'"not {kind.without}"'] if kind.without else words


def compatible(version: str) -> str:
    """The versions of Plait that a plugin written for this one fits, as a requirement says it.

    Before 1.0 a minor version may change an interface; from then on a major one.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    assert found is not None, version
    major, minor = int(found[1]), int(found[2])
    # "0.2" is later than any of its own pre-releases
    least = f"{major}.{minor}" if re.fullmatch(r"[\d.]+", version) else version.partition("+")[0]
    return f">={least},<{major + 1}" if major else f">={least},<0.{minor + 1}"


def write(files: dict[str, str], folder: Path) -> None:
    """Write the files below a folder that is not there yet. UserError if that cannot be done."""
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} is there already. Choose another name, or another --into.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-plugin-") as work:
            whole = Path(work) / folder.name
            for name, text in files.items():
                path = whole / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            whole.rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error}. Choose another --into.") from error
