"""The guide for plan authors is true: its code runs, and it names everything there is."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from core import registry
from core.parallel import Sharding
from core.registry import registries
from core.testing.command import run_kit
from core.testing.sharding import Layer, verify_layer

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


def strategy_of_the_guide() -> str:
    """Its code under the name that the guide registers it by."""
    (found,) = re.findall(r"```python\n([^`]*\nclass RowwiseTokens.*?)```", GUIDE, flags=re.DOTALL)
    registered = '@sharding.register("rowwise_tokens")\nclass RowwiseTokens'
    imports = "from torch import nn\nfrom core.registry import sharding\n"
    return imports + found.replace("class RowwiseTokens", registered)


def test_the_strategy_of_the_guide_passes_the_kit(tmp_path: Path) -> None:
    (tmp_path / "tokens.py").write_text(strategy_of_the_guide())

    run_kit("--load", str(tmp_path / "tokens.py"), "--sharding=rowwise_tokens")


def test_who_forgets_the_layout_is_told_what_it_says() -> None:
    before = registries.snapshot()
    try:
        defined: dict[str, type[Sharding]] = {}
        exec(strategy_of_the_guide(), defined)
        strategy = defined["RowwiseTokens"]
        del strategy.layout
        layer = Layer("linear", "rowwise_tokens:a", (None,), "a")
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            verify_layer(layer, 2, strategy("a", None))
    finally:
        registries.restore(before)

    said = "layout() says 'R' of what comes in, and 'R' of what goes out"
    assert said in caught.value.__notes__
