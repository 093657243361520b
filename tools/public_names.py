"""What others may import from core: the names of docs/reference.md, by chapter."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Chapter:
    """Names that belong together, by the module that they are imported from."""

    title: str
    text: str
    names: dict[str, str]  # module -> names, separated by blanks


CHAPTERS = (
    Chapter(
        "What passes between the parts",
        "The values that components are given and return. Letters in shapes: T tokens of a step, B "
        "its requests, S rows that are sampled, H query heads, KV key/value heads, D head size, V "
        "vocabulary, P pages of the longest request.",
        {
            "core.types": "Request StepPlan Admission StepOutput TokenLogprobs Batch "
            "AttentionMetadata AttentionShape KVLayer Limits Watched",
            "core.interfaces": "Step Sampled Pending Observer Dialect",
            "core.sampling.deferred": "Deferred",
            "core.landed": "Landed to_host",
            "core.sampling.rows": "SampleRows History",
            "core.engine": "Engine",
            "core.config": "Config Component",
            "core.setup": "Setup",
        },
    ),
    Chapter(
        "Parts to build from",
        "Classes and functions that components derive from or are made of.",
        {
            "core.scheduling": "QueueScheduler",
            "core.layers": "RMSNorm Linear GatedActivation Rotary Attention FusedAttention "
            "PackedProducts",
            "core.rope": "Rope read_rope",
            "core.config_json": "ConfigJson MOST_LAYERS",
            "core.sampling.outcome": "outcome",
            "core.text": "TokenizerLike Tokenizer",
        },
    ),
    Chapter(
        "Parallel plans",
        "[parallel-plans.md](parallel-plans.md) explains them; here are the names.",
        {
            "core.parallel": "axis even gqa vocab experts Axis Partition Infeasible Guard guard "
            "Communicator CutLogits Solo ThreadGroup connect Format formats_of Index DictSource "
            "ParallelPlan verify_plan load unshard on_meta dtype_name",
            "core.parallel.groups": "rows_of",
            "core.parallel.formats": "DENSE",
            "core.parallel.recipe": "Box Range slices",
        },
    ),
    Chapter(
        "Python interface",
        "The words are vLLM's.",
        {
            "core": "LLM SamplingParams StructuredOutputsParams RequestOutput CompletionOutput "
            "TextPrompt TokensPrompt",
        },
    ),
    Chapter(
        "Errors",
        "",
        {"core.errors": "UserError EngineDead RankDone Mistakes"},
    ),
    Chapter(
        "Loading plugins and configurations",
        "For tests and programs; a plugin itself needs none of it.",
        {
            "core.plugins": "load",
            "core.settings": "load",
            "core.run": "main",
            "core.registry": "Registries Entry Provider",
        },
    ),
    Chapter(
        "Testing",
        "What the tests that ship with Plait are made of; "
        "[plugins.md](plugins.md#testing-your-plugin) says how to run those.",
        {
            "core.testing.attention": "AttentionCase",
            "core.testing.kernels": "HeadsCase",
            "core.testing.sampling": "make_rows limits shares assert_drawn",
            "core.testing.traffic": "Traffic",
            "core.testing.ranks": "Ranks",
            "core.testing.checkpoints": "write_random sequences reference_logits",
            "core.testing.command": "run_kit",
        },
    ),
)
"""Beside the hooks, the registries and their interfaces, which need no list."""

CHOSEN_BY = {
    "processors": "`sampler.processors`",
    "models": "`architectures` in the checkpoint's config.json",
    "sources": "`model.weights`",
    "sharding": "a model's parallel plan, or `parallel.plan`",
    "partitions": "an axis of a model",
}
"""The registries that no section of a configuration chooses from."""


def listed() -> Iterator[tuple[str, str]]:
    """(module, name) of everything in the chapters."""
    for chapter in CHAPTERS:
        for module, names in chapter.names.items():
            yield from ((module, name) for name in names.split())


def imported(*folders: str) -> set[tuple[str, str]]:
    """(module, name) of everything that the Python files below these folders import from core."""
    found = set()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    if node.module.partition(".")[0] == "core":
                        found |= {(node.module, alias.name) for alias in node.names}
                elif isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                    found |= {(n, "") for n in names if n.partition(".")[0] == "core"}
    return found
