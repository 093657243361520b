"""The command that begins a plugin: `python -m core.new_plugin NAME --kind KIND`."""

from __future__ import annotations

import argparse
import shlex
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from core.errors import UserError
from core.scaffold.kinds import KINDS, Kind

USAGE = """\
python -m core.new_plugin NAME --kind KIND [--into FOLDER]

Writes NAME/, a package that adds a component to Plait: it can be installed, its tests pass, and
what is in it is short and yours to change. NAME is the name of the package; the component of
plait-min-p is called min-p.

  --kind KIND     what it adds; see below
  --into FOLDER   where to write it; the current folder if not said
  --help          this text

kinds:
"""
STEPS = """\
Go there, and try it:
    cd {folder}
    python -m pip install -e ".[test]"
    python -m pytest"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. See --help.")


def main(argv: list[str] | None = None) -> int:
    """Write a package as the command line says. -> exit status: 0, or 2 after a user's mistake."""
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def _run(argv: list[str]) -> int:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--kind")
    parser.add_argument("--into", type=Path, default=Path(), metavar="FOLDER")
    parser.add_argument("--help", "-h", action="store_true")
    asked = parser.parse_args(argv)
    if asked.help:
        rows = "".join(f"  {kind.name:14}{kind.help}\n" for kind in KINDS.values())
        print(USAGE + rows, end="")
        return 0
    if asked.name is None:
        raise UserError("name the package: python -m core.new_plugin NAME --kind KIND; see --help.")
    kind = _kind(asked.kind)
    from core.scaffold.names import names_for
    from core.scaffold.writing import component_code, package, write

    names = names_for(asked.name, kind, component_code(kind))
    files = package(names, kind)
    folder = asked.into.expanduser() / names.distribution
    write(files, folder)
    print(f"{folder} has the {kind.word} {names.component!r}:")
    print("".join(f"    {name}\n" for name in files))
    print(STEPS.format(folder=shlex.quote(str(folder))))
    return 0


def _kind(name: str | None) -> Kind:
    if name in KINDS:
        return KINDS[name]
    every = f"Kinds: {', '.join(KINDS)}."
    if name is None:
        raise UserError(f"--kind is missing. {every}")
    near = get_close_matches(name, KINDS, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise UserError(f"--kind: there is no kind {name!r}. {hint}{every}")


if __name__ == "__main__":
    sys.exit(main())
