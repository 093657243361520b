"""Compares lines of `run: bench`, `tools.bench_vllm` or another engine that prints the same keys.

    python -m tools.compare_runs plait.jsonl vllm.jsonl
    python -m tools.compare_runs --names 0.6B 8B --svg speed.svg a.jsonl b.jsonl c.jsonl d.jsonl

Files come in pairs, ours first; `--svg` draws the ratios of all pairs, called as `--names` says.
Workloads that differ by their seed alone are one row: medians in tokens a second (of prompts where
only those count), their ratio, and the ratios of equal workloads. Lines of different work (another
digest) are refused.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plugins.apps.bench.workloads import KINDS
from tools.output_file import output_file
from tools.ratio_picture import listed, picture

Runs = dict[str, list[dict[str, Any]]]  # lines by the whole name of their workload
Rows = list[tuple[str, float, float, float, list[float]]]


def read(path: Path) -> Runs:
    """The lines of a file."""
    runs: Runs = {}
    with path.open("rb") as file:  # only a line feed ends a line of JSON
        for line in map(json.loads, filter(bytes.strip, file)):
            runs.setdefault(line["name"], []).append(line)
    return runs


def kind(name: str) -> str:
    """A workload's name without its seed."""
    what, *numbers = name.split(":")
    meanings = list(inspect.signature(KINDS[what]).parameters) if what in KINDS else []
    kept = (n for i, n in enumerate(numbers) if meanings[i : i + 1] != ["seed"])
    return ":".join([what, *kept])


def rate(line: dict[str, Any]) -> float:
    """Tokens a second that the workload is about."""
    return float(line.get("prompt_tok_s", line["out_tok_s"]))


def rows(ours: Runs, theirs: Runs) -> Rows:
    """(kind, our median, theirs, ratio of the medians, ratios of equal workloads).

    ValueError where two lines of a name are not of the same work.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for name in ours.keys() & theirs.keys():
        digests = {line["digest"] for line in ours[name] + theirs[name]}
        if len(digests) > 1:
            raise ValueError(f"{name}: the lines are of different work ({', '.join(digests)})")
        mine, other = (statistics.median(map(rate, runs[name])) for runs in (ours, theirs))
        found.setdefault(kind(name), []).append((mine, other))
    table = []
    for what, pairs in sorted(found.items()):
        mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
        table.append((what, mine, other, mine / other, sorted(a / b for a, b in pairs)))
    return table


def engine(runs: Runs) -> str:
    """Who made the lines."""
    made = {str(line.get("engine", "?")) for lines in runs.values() for line in lines}
    return " and ".join(sorted(made)).replace("-", " ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="ours theirs")
    parser.add_argument("--svg", type=output_file, help="draw the ratios")
    parser.add_argument("--names", nargs="+", default=[], help="what each pair is called there")
    asked = parser.parse_args()
    pairs = list(zip(asked.files[::2], asked.files[1::2], strict=False))
    names = asked.names or [path.stem for path, _ in pairs]
    if len(asked.files) % 2 or len(names) != len(pairs):
        parser.error("files come in pairs, ours and theirs, and each pair has a name")
    ratios = {}
    for name, (mine, other) in zip(names, pairs, strict=True):
        ours, theirs = read(mine), read(other)
        try:
            table = rows(ours, theirs)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        show(table, sorted(ours.keys() ^ theirs.keys()))
        ratios[name] = listed(table)
    if asked.svg is not None:
        asked.svg.write_text(picture(ratios, engine(ours), engine(theirs)), encoding="utf-8")
    return 0


def show(table: Rows, alone: Sequence[str]) -> None:
    """Print the rows, and the workloads that are in one of the files alone."""
    for what, mine, other, ratio, each in table:
        pairs = " ".join(f"{r:.2f}" for r in each)
        print(f"{what:32}{mine:12,.0f}{other:12,.0f}{ratio:8.2f}   ({pairs})")
    for name in alone:
        print(f"{name:32} is in one of the files alone")


if __name__ == "__main__":
    sys.exit(main())
