"""What a run can be told: one dataclass for each section of the YAML file."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any, Literal

from core.errors import UserError


@dataclass(kw_only=True)
class ModelConfig:
    """Which checkpoint to run, and how to read it."""

    path: str = field(metadata={"help": "folder or file of the checkpoint, or its name on the hub"})
    revision: str | None = field(
        default=None,
        metadata={"help": "branch, tag or commit of a model on the hub; null: its main branch"},
    )
    tokenizer: str | None = field(
        default=None,
        metadata={"help": "where the tokenizer is, if not with the model"},
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto",
        metadata={"help": "type of weights and activations; auto: as the checkpoint was saved"},
    )
    device: str = field(
        default="auto",
        metadata={"help": "auto, cpu, cuda or cuda:N (of rank 0); auto: cuda where there is one"},
    )
    max_length: int | None = field(
        default=None,
        metadata={
            "help": "most tokens of a request, prompt and output; null: the checkpoint's limit"
        },
    )
    weights: str = field(
        default="auto",
        metadata={
            "help": "who reads the weights: auto (pread for a GPU, else mmap), pread, mmap, dummy "
            "(random values) or a plugin's source"
        },
    )
    seed: int = field(
        default=0, metadata={"help": "seed of requests that bring none, and of dummy weights"}
    )
    generation_config: str = field(
        default="auto",
        metadata={
            "help": "sampling defaults: auto (generation_config.json), none, or the path of a file"
        },
    )
    config: dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "help": "values that replace those in the checkpoint's config.json; each is logged"
        },
    )
    ignore_config: list[str] = field(
        default_factory=list,
        metadata={
            "help": "keys of config.json that are not implemented and that you accept as ignored"
        },
    )


@dataclass(kw_only=True)
class ParallelConfig:
    """How the model is spread over devices."""

    tensor: int = field(
        default=1, metadata={"help": "ranks that share each layer (tensor parallel)"}
    )
    pipeline: int = field(default=1, metadata={"help": "reserved for pipeline parallel; must be 1"})
    data: int = field(default=1, metadata={"help": "reserved for data parallel; must be 1"})
    expert: int = field(default=1, metadata={"help": "reserved for expert parallel; must be 1"})
    plan: dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "help": "lines that replace those of the model's parallel plan",
            "dotted": True,
        },
    )
    replicate_limit: float = field(
        default=0.01,
        metadata={"help": "largest share of the weights that may be copied to every rank unasked"},
    )


@dataclass(kw_only=True)
class CacheConfig:
    """The paged key-value cache."""

    page_size: int | Literal["auto"] = field(
        default="auto",
        metadata={"help": "tokens in a page; auto: what the attention backend reads best"},
    )
    pages: int | None = field(
        default=None,
        metadata={"help": "number of pages, whatever memory says; null: as many as memory holds"},
    )
    memory: str | None = field(
        default=None,
        metadata={
            "help": "memory of the cache on each device, such as 4GiB; null: by memory_fraction,"
            " and at most 4GiB on a CPU"
        },
    )
    memory_fraction: float = field(
        default=0.9,
        metadata={
            "help": "share of a GPU's memory that the engine may use in all, weights included"
        },
    )
    prefix: bool = field(default=True, metadata={"help": "reuse pages of prompts that begin alike"})
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto", metadata={"help": "type of cached keys and values; auto: the model's"}
    )
    check: bool = field(
        default=False,
        metadata={"help": "verify after each step that every page is in one place (slow)"},
    )


@dataclass(kw_only=True)
class ObserveConfig:
    """What plugins may hand to callers of what they see inside the model."""

    memory: str = field(
        default="1GiB",
        metadata={"help": "most that one request may get; one that could need more is refused"},
    )


@dataclass
class Component:
    """A component chosen by name: `sampler: NAME`, or `sampler: {use: NAME, option: value}`."""

    use: str
    options: Any = field(default_factory=dict)  # its Options; a dict until `use` is resolved


COMPONENTS = {
    "quantization": "quantization",
    "attention": "attention",
    "kernels": "kernels",
    "runner": "runners",
    "scheduler": "schedulers",
    "sampler": "samplers",
    "executor": "executors",
    "run": "apps",
}
"""Sections that choose a component, and the registry that each chooses from."""


@dataclass(kw_only=True)
class Config:
    """A whole configuration. Pickling keeps it usable anywhere: unpickling loads its plugins."""

    plugins: list[str] = field(
        default_factory=list,
        metadata={
            "help": "plugins to load and let act: NAME, a module, ./file.py; no:NAME leaves one out"
        },
    )
    model: ModelConfig = field(metadata={"help": "which checkpoint to run, and how to read it"})
    parallel: ParallelConfig = field(
        default_factory=ParallelConfig,
        metadata={"help": "how the model is spread over devices"},
    )
    cache: CacheConfig = field(
        default_factory=CacheConfig, metadata={"help": "the paged key-value cache"}
    )
    observe: ObserveConfig = field(
        default_factory=ObserveConfig,
        metadata={"help": "what plugins may hand to callers of what they see inside the model"},
    )
    quantization: Component = field(
        default_factory=lambda: Component("auto"),
        metadata={"help": "how weights are stored; auto: as the checkpoint says"},
    )
    attention: Component = field(
        default_factory=lambda: Component("auto"), metadata={"help": "the attention backend"}
    )
    kernels: Component = field(
        default_factory=lambda: Component("auto"),
        metadata={"help": "norms, rotation and activation between matrix products"},
    )
    runner: Component = field(
        default_factory=lambda: Component("auto"),
        metadata={"help": "how a step runs on the device: eagerly or as a graph"},
    )
    scheduler: Component = field(
        default_factory=lambda: Component("fcfs"),
        metadata={"help": "which requests a step computes"},
    )
    sampler: Component = field(
        default_factory=lambda: Component("default"), metadata={"help": "how logits become tokens"}
    )
    executor: Component = field(
        default_factory=lambda: Component("auto"), metadata={"help": "where the workers run"}
    )
    run: Component = field(
        default_factory=lambda: Component("generate"),
        metadata={"help": "the app: what to do with the model"},
    )

    origins: dict[str, str] = field(default_factory=dict, metadata={"internal": True})
    """Where each key was set ("configs/x.yaml:7"); a key that is not here has its default."""
    strict: bool = field(default=False, metadata={"internal": True})
    """Whether a plugin that nobody named may not fail either."""

    def __reduce__(self) -> tuple[Any, ...]:
        # the inner bytes wait until the plugins that define their classes are loaded
        from core.plugins import words_for_others

        return _unpack, (words_for_others(self.plugins), self.strict, pickle.dumps(self.__dict__))


def _unpack(plugins: tuple[str, ...], strict: bool, state: bytes) -> Config:
    from core.plugins import load_like

    load_like(plugins, strict)
    config = Config.__new__(Config)
    try:
        config.__dict__.update(pickle.loads(state), plugins=list(plugins))
    except (AttributeError, ImportError) as error:
        raise UserError(
            f"a process of the engine cannot find a component that was chosen: {error}. It was "
            "registered by a script itself, which the others do not run. Put it in a file or a "
            "package, and name that under `plugins:`."
        ) from error
    return config
