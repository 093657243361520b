"""ParallelPlan: a model family's plan, made for one config and one number of ranks, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from core.parallel import report
from core.parallel.axes import Infeasible, Partition, feasible, partition
from core.parallel.building import Builder
from core.parallel.compiler import compile_rank
from core.parallel.demand import Demand
from core.parallel.facts import Facts
from core.parallel.formats import Quantization
from core.parallel.index import BITS, Index, check_index, check_unread
from core.parallel.problems import Problem, raise_problems
from core.parallel.recipe import Recipe, Shape, reads, renamed_reads, volume
from core.parallel.rules import Rule
from core.parallel.sources import dtype_name
from core.parallel.syntax import PlanDict

if TYPE_CHECKING:
    from torch import nn

    from core.parallel.sources import Source


@dataclass(frozen=True)
class ParallelPlan:
    """What each of `tensor` ranks builds, reads and guards. Made by `build`; pure data after that.

    >>> plan = ParallelPlan.build(architecture, config, tensor=2)
    >>> model = allocate(plan.local_model(rank), device, dtype)
    >>> load(plan.recipe(rank, source.index()), dict(model.named_parameters()), source)
    >>> plan.finalize(model)
    >>> guard(model, plan, rank, communicator)
    """

    architecture: Any
    config: Any
    tensor: int
    built: Builder

    @classmethod
    def build(
        cls,
        architecture: Any,
        config: Any,
        tensor: int = 1,
        overrides: PlanDict | None = None,
        formats: Quantization | None = None,
        replicate_limit: float = 0.01,
    ) -> ParallelPlan:
        """Make and check the plan of a model family for all ranks, without opening any file.

        `architecture` has `model(config) -> nn.Module`, `axes` and `plan`, and may have `ignore`
        and `rename`; `config` is a dataclass. Raises UserError with every P1 to P8 and P12, and
        the P11 that needs no files.
        """
        builder = Builder(architecture, config, tensor, formats, replicate_limit)
        builder.run(overrides)
        raise_problems(builder.problems)
        return cls(architecture, config, tensor, builder)

    @property
    def rules(self) -> list[Rule]:
        """One rule per module that owns parameters."""
        return self.built.rules

    @property
    def cuts(self) -> Mapping[str, Partition]:
        """The partition of every axis in use."""
        return self.built.cuts

    @property
    def ties(self) -> Mapping[str, str]:
        """Second names of parameters that are one, and the first name of each."""
        return self._uncut.ties

    @property
    def deals_tokens(self) -> bool:
        """Whether a rank has, somewhere in the model, no more than a share of the tokens."""
        return self.tensor > 1 and any(
            "T" in part.strategy.layout() for rule in self.rules for part in rule.parts
        )

    def local_config(self, rank: int) -> Any:
        """The config of the narrower model that this rank builds."""
        return self.built.configs[rank]

    def local_model(self, rank: int) -> nn.Module:
        """A new model of this rank, on the meta device."""
        return self.built.model(self.built.configs[rank])

    def skeleton(self, rank: int) -> nn.Module:
        """What `local_model` builds, kept and shared by ranks that are alike: only to look at."""
        return self.built.skeleton(self.built.configs[rank])

    @property
    def formats(self) -> Quantization | None:
        """The storage format that the plan was made for; None: plain numbers."""
        return self.built.formats

    def finalize(self, model: nn.Module) -> None:
        """Let the storage format repack what was loaded into a rank's model."""
        for name, (format, _) in self.built.prepared.items():
            assert self.formats is not None
            self.formats.finalize(model.get_submodule(name), format)

    def shapes(self, rank: int) -> dict[str, Shape]:
        """The rank's parameters, tied ones once."""
        return {k: v for k, v in self.built.shapes[rank].items() if k not in self._uncut.ties}

    def recipe(self, rank: int, index: Index | None = None) -> Recipe:
        """What fills this rank's parameters, under the checkpoint's names.

        With an index, a tied tensor that the checkpoint holds under its other name only is read
        under that one.
        """
        moved = self.demand.moved(index)
        if not moved:
            return list(self._recipes[rank])
        return [renamed_reads(op, lambda name: moved.get(name, name)) for op in self._recipes[rank]]

    def check(
        self,
        index: Index,
        source: Source | None = None,
        rank: int | None = None,
        auto_dtype: str | None = None,
    ) -> None:
        """Compare the plan with a checkpoint's index. Raises UserError with every P9, P10, P11.

        With a source, tensors that must be equal are compared, too: whole, or as far as `rank`
        reads them. `auto_dtype` (such as BF16) is the parameters' type when the user named none;
        a cast to it that loses precision is then a P9.
        """
        demand = self.demand
        moved = demand.moved(index)
        wanted = {moved.get(name, name): want for name, want in demand.wanted.items()}
        problems = check_index(wanted, demand.twins, index, auto_dtype)
        recipes = [self.recipe(r, index) for r in range(self.tensor)]
        ignore = getattr(self.architecture, "ignore", ())
        problems += check_unread(recipes, demand.twins, index, ignore, demand.rename)
        if source is not None and not problems:
            problems += demand.compare(index, source, None if rank is None else recipes[rank])
        raise_problems(problems)

    def expected_index(self, dtype: str = "BF16") -> dict[str, tuple[Shape, str]]:
        """The index of a checkpoint that fits this plan, floating point tensors as `dtype`."""
        return {
            name: (want.shape, want.dtype or dtype) for name, want in self.demand.wanted.items()
        }

    def feasible(self) -> list[int]:
        """The tensor sizes that work for this config and format, ascending."""
        built = self.built
        sizes: set[int] | None = None
        for group in built.groups:
            blocks = [built.blocks[name] for name in group.names]
            found = set(feasible(group.partitioner, blocks))
            sizes = found if sizes is None else sizes & found
        return [size for size in sorted(sizes or {self.tensor}) if self._compiles(size)]

    def _compiles(self, ranks: int) -> bool:
        """Whether no cut goes through a storage block; one module of a kind stands for all."""
        if not any(self.built.blocks.values()):
            return True
        cuts: dict[str, Partition] = {}
        for group in self.built.groups:
            try:
                blocks = [self.built.blocks[name] for name in group.names]
                cuts.update(
                    zip(group.names, partition(group.partitioner, ranks, blocks), strict=True)
                )
            except Infeasible:
                return False
        problems: list[Problem] = []
        kinds = {(rule.spec.key, rule.format.name): rule for rule in self.rules}.values()
        for rank in range(ranks):
            compile_rank(kinds, cuts, rank, {}, problems)
        return not problems

    def bytes(self, rank: int, index: Index) -> int:
        """Bytes of the checkpoint that this rank reads."""
        total = 0
        for op in self.recipe(rank, index):
            for name, box in reads(op):
                total += volume(box) * BITS[index[name][1]] // 8
        return total

    def table(self, rank: int, index: Index | None = None, fold: bool = True) -> list[report.Row]:
        """One row for each region that the rank fills; layers that look alike are one row."""
        return report.table(self, rank, index or self.expected_index(), fold)

    def summary(self, index: Index | None = None) -> report.Summary:
        """Bytes, balance, collectives per forward, and the tensor sizes that work."""
        return report.summarize(self, index or self.expected_index())

    def describe(self, rank: int, index: Index | None = None, fold: bool = True) -> str:
        """Table and summary as text."""
        return report.describe(self, rank, index or self.expected_index(), fold)

    def as_json(self, rank: int, index: Index | None = None, fold: bool = True) -> dict[str, Any]:
        """Table and summary for programs and tests."""
        return report.as_json(self, rank, index or self.expected_index(), fold)

    @cached_property
    def demand(self) -> Demand:
        """What the plan wants of a checkpoint."""
        uncut = self._uncut
        rename: Mapping[str, str] = getattr(self.architecture, "rename", {})
        fixed = {name: dtype_name(dtype) for name, dtype in uncut.fixed.items()}
        return Demand(self.rules, uncut.ties, fixed, rename)

    @property
    def _uncut(self) -> Facts:
        assert self.built.uncut is not None
        return self.built.uncut

    @cached_property
    def _recipes(self) -> list[Recipe]:
        return [self.demand.renamed(recipe) for recipe in self.built.recipes]
