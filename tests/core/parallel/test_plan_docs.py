"""The guide for plan authors is true: its code runs, and it names everything there is."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from core import registry

GUIDE = (Path(__file__).parents[3] / "docs" / "parallel-plans.md").read_text()


def test_the_code_of_the_guide_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)  # where dataclasses look for it
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    assert len(blocks) >= 7
    for block in blocks:
        exec(compile(block, "parallel-plans.md", "exec", dont_inherit=True), vars(module))
    assert "down.weight[:,4:8]" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["sharding", "partitions", "sources"])
def test_every_built_in_name_is_in_the_guide(kind: str) -> None:
    for entry in registry.registries.all()[kind].entries():
        if entry.path.startswith("plugins."):
            assert re.search(rf"`{entry.name}[`:(]", GUIDE), entry.name


def test_every_code_has_a_line_in_the_guide() -> None:
    assert [f"P{n}" for n in range(1, 13)] == re.findall(
        r"^\| (P\d+) \|", GUIDE, flags=re.MULTILINE
    )
