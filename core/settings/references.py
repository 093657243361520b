"""Replaces ${...} in settings: other keys, the environment, and files that ship with Plait."""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path
from typing import Any

from core.settings.report import Key, Report
from core.settings.sections import sections, settable
from core.settings.tree import Node, from_python, leaves, merge

HOME = Path(__file__).resolve().parents[2]


def fill_in(tree: Node, report: Report) -> None:
    """Replace ${key}, ${oc.env:NAME,default} and ${packaged:PATH} by what they stand for."""
    asking: list[tuple[Key, Node]] = []
    leaves(tree, lambda key, node: asking.append((key, node)) if "${" in str(node.value) else None)
    if not asking:
        return
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def refuse(key: Key, node: Node, error: Exception) -> None:
        sentence = f"{str(error).splitlines()[0]}. Write \\${{ for a plain ${{."
        report.mistake(key, node.origin, sentence)
        node.value = ""

    values: dict[str, Any] = {
        name: {f.name: f.default for f in settable(cls) if f.default is not MISSING}
        for name, cls in sections().items()
    }
    defaults = from_python(values, "")
    merge(defaults, tree)
    OmegaConf.register_resolver("packaged", lambda path: str(HOME / path), replace=True)
    for key, node in list(asking):
        try:
            OmegaConf.create({"x": node.value})
        except OmegaConfBaseException as error:
            refuse(key, node, error)
            asking.remove((key, node))
    whole = OmegaConf.create(defaults.plain(), flags={"allow_objects": True})
    for key, node in asking:
        try:
            value: Any = whole
            for name in key:
                value = value[name]
            node.text = None
            node.value = (
                OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            )
        except OmegaConfBaseException as error:
            refuse(key, node, error)
