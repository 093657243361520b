"""What holds for every file of the repository."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 300  # lines
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".jinja", ""}
# homes, mounts and temporary folders of whoever wrote the file
MACHINE_PATHS = re.compile(r"(?<![\w.~$}])/(?:home|root|Users|work|opt|mnt|tmp)/\w")


def files(*suffixes: str) -> list[Path]:
    """The files of the repository, as git sees them; all of the tree where there is no git."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        found = [ROOT / name for name in listed]
    except (OSError, subprocess.CalledProcessError):
        found = [p for p in ROOT.rglob("*") if not any(d.startswith(".") for d in p.parts)]
    return sorted(p for p in found if p.suffix in suffixes and p.is_file())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", files(".py"), ids=relative)
def test_a_module_opens_with_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))

    assert docstring, "no docstring"
    assert docstring.splitlines()[0].strip(), "the docstring's first line is empty"


def test_no_module_outgrows_its_page() -> None:
    long = {
        relative(path): lines
        for path in files(".py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST
    }

    assert long == {}


def test_no_file_names_the_machine_that_it_was_written_on() -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in files(*TEXT)
        if path.name != "LICENSE"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]

    assert found == []


@pytest.mark.parametrize("path", files(".md"), ids=relative)
def test_links_and_paths_in_a_document_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", text)
    paths = re.findall(r"`((?:core|plugins|models|configs|tests|docs|tools)/[\w./-]+)`", text)

    missing = [link for link in links if not (path.parent / link).exists()]
    missing += [name for name in paths if not (ROOT / name).exists()]

    assert missing == []


def test_test_files_have_names_of_their_own() -> None:
    names = [p.name for p in files(".py") if p.name.startswith("test_")]

    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_python_files_are_not_scripts_by_accident() -> None:
    assert [relative(p) for p in files(".py") if os.access(p, os.X_OK)] == []
