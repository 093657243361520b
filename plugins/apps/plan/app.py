"""The plan app: reads headers, compiles the plan for every rank, prints tables and a summary."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from core.errors import UserError
from core.interfaces import App
from core.visible import visible
from plugins.apps.output_files import check_outputs, write_text
from plugins.apps.plan.summary import Cache, cache_of, facts
from plugins.apps.terminal import interactive, show_table

if TYPE_CHECKING:
    from core.config import Config
    from core.parallel import Index, ParallelPlan
    from core.setup import Setup

HEADER = ("local shape", "<- checkpoint tensor [region]", "-> region", "read")


class Plan(App):
    """A dry run: loads no weights, starts no process, needs no GPU."""

    @dataclass
    class Options:
        rank: int | None = field(
            default=None, metadata={"help": "the rank to show; null: every rank in turn"}
        )
        layers: Literal["fold", "all"] = field(
            default="fold", metadata={"help": "fold: layers that are cut alike are shown once"}
        )
        json: str | None = field(
            default=None, metadata={"help": "file that gets all of it as JSON; - for the screen"}
        )
        html: str | None = field(
            default=None,
            metadata={"help": "file that gets a page with pictures of it, for any browser"},
        )
        svg: str | None = field(
            default=None, metadata={"help": "file that gets one picture of it, for a document"}
        )

    options: Options

    def run(self, config: Config) -> int:
        from core.setup import check_source, dtype_of, open_source, read_setup

        json = None if self.options.json == "-" else self.options.json
        check_outputs(json=json, html=self.options.html, svg=self.options.svg)
        setup = read_setup(config)
        plan = setup.plan
        ranks = self._ranks(plan.tensor)
        with open_source(config, setup, values=False) as source:
            check_source(config, setup, source)
            index = source.index()
        cache = cache_of(config, setup, dtype_of(config, setup))
        lines = facts(plan, index, cache)
        self._draw(config, setup, index, cache, lines)
        if self.options.json is not None:
            self._write(plan, index, ranks, lines)
        if self.options.json != "-":
            for rank in ranks:
                self._show(plan, index, rank)
            print(visible("\n".join(f"{name:<32}{value}" for name, value in lines.items())))
            if warning := plan.summary(index).warning:
                print(visible(warning), file=sys.stderr)
        return 0

    def _draw(
        self, config: Config, setup: Setup, index: Index, cache: Cache, facts: dict[str, str]
    ) -> None:
        wanted = {"page.html.jinja": self.options.html, "picture.svg.jinja": self.options.svg}
        if not any(wanted.values()):
            return
        from core.setup import dtype_of
        from plugins.apps.plan.content import content
        from plugins.apps.plan.page import render

        shown = content(
            setup.checkpoint.name,
            setup.plan,
            index,
            dtype_of(config, setup),
            facts=facts,
            cache=cache.ranks,
            fold=self.options.layers == "fold",
        )
        for template, path in wanted.items():
            if path is not None:
                write_text(template.split(".")[1], path, render(template, shown))

    def _ranks(self, count: int) -> list[int]:
        rank = self.options.rank
        if rank is None:
            return list(range(count))
        if not 0 <= rank < count:
            raise UserError(
                f"run.rank is {rank}, and parallel.tensor={count} has ranks 0 to {count - 1}."
            )
        return [rank]

    def _show(self, plan: ParallelPlan, index: Index, rank: int) -> None:
        rows = [
            [
                row.param,
                str(row.shape),
                row.source,
                row.region,
                f"{row.read:.1%}" if row.read else "-",
            ]
            for row in plan.table(rank, index, self.options.layers == "fold")
        ]
        header = [f"param (rank {rank} of {plan.tensor})", *HEADER]
        show_table(header, rows, right=(1, 3, 4))
        if not interactive(sys.stdout):
            print()

    def _write(
        self, plan: ParallelPlan, index: Index, ranks: list[int], facts: dict[str, str]
    ) -> None:
        fold = self.options.layers == "fold"
        whole = {"facts": facts, "ranks": [plan.as_json(rank, index, fold) for rank in ranks]}
        text = json.dumps(whole, indent=1)
        if self.options.json == "-":
            print(text)
        else:
            assert self.options.json is not None
            write_text("json", self.options.json, text + "\n")
