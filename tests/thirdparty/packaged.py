"""Packages made of the one-file examples, in the way that docs/plugins.md shows."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.thirdparty.installed import ROOT, Site

EXAMPLES = ROOT / "examples" / "one_file"

PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"

[project.entry-points.plait]
{plugin} = "{module}"
"""

REGISTER = """\
from core.hooks import hookimpl


@hookimpl
def register(registries):
    registries.{kind}.register("{component}", "{module}.{file}:{cls}", summary="packaged")
"""


@dataclass(frozen=True)
class Example:
    """One component of the examples: its file, and what it registers there."""

    file: str  # the module's name
    kind: str  # of the registry
    component: str
    cls: str
    version: str = "0.3"

    @property
    def path(self) -> Path:
        return EXAMPLES / f"{self.file}.py"

    @property
    def plugin(self) -> str:
        return self.component.replace("_", "-")

    @property
    def module(self) -> str:
        return f"plait_{self.component.replace('-', '_')}"

    def source(self, folder: Path) -> Path:
        """Write a package that pip can install into `folder`. -> the folder."""
        home = folder / "src" / self.module
        home.mkdir(parents=True)
        words = vars(self) | {
            "name": f"plait-{self.plugin}",
            "plugin": self.plugin,
            "module": self.module,
        }
        folder.joinpath("pyproject.toml").write_text(PYPROJECT.format(**words))
        home.joinpath("__init__.py").write_text(REGISTER.format(**words))
        shutil.copy(self.path, home)
        return folder

    def install(self, site: Site, work: Path) -> None:
        """Lay the package out in `site`, as pip would."""
        shutil.copytree(self.source(work / self.plugin) / "src", site.folder, dirs_exist_ok=True)
        site.metadata(f"plait-{self.plugin}", self.version, {self.plugin: self.module})


SAMPLER = Example("top_n_sigma_sampler", "samplers", "top-n-sigma", "TopNSigma")
SCHEDULER = Example("shortest_first_scheduler", "schedulers", "shortest-first", "ShortestFirst")
ATTENTION = Example("naive_attention", "attention", "naive", "Naive")
STRATEGY = Example("best_logits_strategy", "sharding", "best_logits", "BestLogits")
PROCESSOR = Example("watermark_processor", "processors", "watermark", "Watermark")
FLEX = Example("flex_attention_backend", "attention", "flex", "Flex")
SEQUENCE = Example("sequence_parallel", "sharding", "seq_gather", "SeqGather")
HOOKS = ("rank_route",)
"""Files without a component; see tests/plugins/serve/test_serve_rank_example.py."""

ALL = (SAMPLER, SCHEDULER, ATTENTION, STRATEGY, PROCESSOR, FLEX, SEQUENCE)
