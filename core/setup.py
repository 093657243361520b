"""From a configuration to what every rank builds from: checkpoint, model configuration, plan."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from core import registry
from core.checkpoint import Checkpoint, claimed, find, open_checkpoint
from core.errors import Mistakes, UserError
from core.parallel import EncodedSource, Headers, ParallelPlan, Source, dtype_name
from core.quantizing import encoding, quantization_of
from core.sampling.params import SamplingParams
from core.types import Limits

if TYPE_CHECKING:
    from core.config import Config
    from core.interfaces import Architecture, Sampler
    from core.parallel import Index
    from core.text import TokenizerLike

log = logging.getLogger("plait")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is made of, before any memory is taken. The same on every rank."""

    checkpoint: Checkpoint
    architecture: type[Architecture]
    model_config: Any  # of the whole model
    plan: ParallelPlan
    max_length: int
    longest: int  # the checkpoint's own limit
    shared: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """What parts of an engine keep in common in one process; a key is like nobody else's."""


def read_setup(config: Config) -> Setup:
    """Read the checkpoint's configuration and compile the parallel plan. Opens no weights.

    UserError with everything that is wrong with either.
    """
    checkpoint = open_checkpoint(config.model)
    mistakes = Mistakes()
    with mistakes.noted():
        checkpoint.eos_ids()
    with mistakes.noted():
        _check_defaults(checkpoint)
    with mistakes.noted():
        architecture = _architecture(checkpoint)
        model_config = _model_config(config, checkpoint, architecture)
        longest, wanted = model_config.longest, config.model.max_length
        with mistakes.noted():
            if wanted is not None and wanted > longest:
                raise UserError(
                    f"model.max_length is {wanted}, but positions of {checkpoint.path} end at "
                    f"{longest}. Lower it, or replace rope_parameters and "
                    "max_position_embeddings in model.config."
                )
        plan = ParallelPlan.build(
            architecture,
            model_config,
            tensor=config.parallel.tensor,
            overrides=config.parallel.plan,
            formats=quantization_of(config, checkpoint),
            replicate_limit=config.parallel.replicate_limit,
        )
    mistakes.tell()
    return Setup(checkpoint, architecture, model_config, plan, wanted or longest, longest)


def _architecture(checkpoint: Checkpoint) -> type[Architecture]:
    try:
        return registry.models.get(checkpoint.architecture)
    except UserError as error:
        code = " Code that a checkpoint brings (auto_map) is never run." * bool(
            checkpoint.config.get("auto_map")
        )
        raise UserError(f"{checkpoint.config_file}: {error}{code}") from error


def _model_config(config: Config, checkpoint: Checkpoint, architecture: type[Architecture]) -> Any:
    try:
        return architecture.config(
            checkpoint.config,
            max_length=config.model.max_length,
            ignore=tuple(config.model.ignore_config),
        )
    except UserError as error:
        # a model knows the contents of the file, not where it is
        start = re.compile(r"^config\.json(?=: )", re.MULTILINE)
        file = str(checkpoint.config_file)
        raise UserError(start.sub(lambda _: file, str(error))) from error


def _check_defaults(checkpoint: Checkpoint) -> None:
    try:
        SamplingParams.from_defaults(checkpoint.generation)
    except UserError as error:
        raise UserError(
            f"{error}\nThese are the sampling defaults of {checkpoint.path}. Correct them, or say "
            "model.generation_config=none."
        ) from error


def open_source(config: Config, setup: Setup, *, values: bool = True) -> Source:
    """Where the weights come from: a plugin that claims them, or a registered source.

    What is to be quantized on the way is quantized, and what is on the hub only is fetched. Without
    `values` its headers are enough, and nothing can be read then.
    """
    plan, dtype = setup.plan, dtype_name(dtype_of(config, setup))
    if not encoding(setup.checkpoint, plan.formats):
        return _source(config, setup, plan.expected_index(dtype), values)
    source = _source(config, setup, EncodedSource.plain(plan, dtype), values)
    try:
        return EncodedSource(source, plan)
    except BaseException:
        source.close()
        raise


def _source(config: Config, setup: Setup, expected: Index, values: bool) -> Source:
    name, checkpoint = config.model.weights, setup.checkpoint
    if checkpoint.hub is not None and (name == "auto" or registry.sources.get(name).finds_files):
        if values:
            checkpoint.hub.fetch()
        elif not checkpoint.hub.complete():
            return Headers(checkpoint.hub.headers())
    if name == "auto":
        found = claimed(checkpoint.path)
        if found is not None:
            return found
        name = "pread" if config.model.device.startswith("cuda") else "mmap"
    source: type[Source] = registry.sources.get(name)
    return source.open(checkpoint.path, expected, seed=config.model.seed)


def open_tokenizer(config: Config) -> TokenizerLike | None:
    """The tokenizer of the configuration: a plugin's, or one in the Hugging Face layout.

    None when the checkpoint has none: prompts must then be token ids.
    """
    from core.plugins import offer
    from core.text import Tokenizer, has_tokenizer

    name = config.model.tokenizer
    if name is None:
        path = find(config.model.path, revision=config.model.revision)
    else:
        path = find(name, "model.tokenizer")
    found: TokenizerLike | None = offer("open_tokenizer", path=path)
    if found is not None:
        return found
    if name is None and not has_tokenizer(path):
        log.info("%s holds no tokenizer: prompts must be token ids", path)
        return None
    return Tokenizer.open(path)


def make_sampler(config: Config, setup: Setup, limits: Limits) -> Sampler:
    """The sampler of the configuration. There is one in the engine, which is asked whether it
    accepts a request, and one in each rank, which samples."""
    sampler: Sampler = registry.samplers.get(config.sampler.use)(config.sampler.options, limits)
    sampler.prepare(config, setup)
    return sampler


def end_ids(setup: Setup, tokenizer: TokenizerLike | None, limits: Limits) -> frozenset[int]:
    """The ids that end a text according to the checkpoint and the tokenizer."""
    ends = setup.checkpoint.eos_ids()
    ends |= tokenizer.eos_ids if tokenizer else set()
    # a checkpoint may name ids that its model cannot sample
    return frozenset(id for id in ends if id < limits.vocab_size)


def check_weights(config: Config, setup: Setup) -> None:
    """Compare the checkpoint's headers with the plan, once for all ranks.

    UserError lists every tensor that is missing, too many, of a wrong shape, or read by nobody.
    """
    with open_source(config, setup) as source:
        check_source(config, setup, source)


def check_source(config: Config, setup: Setup, source: Source) -> None:
    """`check_weights` for a source that is open."""
    auto = config.model.dtype == "auto" and setup.model_config.dtype is None
    readable = source if source.has_values else None
    setup.plan.check(source.index(), readable, auto_dtype="F32" if auto else None)


def limits_of(config: Config, setup: Setup, page_size: int, pages: int) -> Limits:
    """The sizes that the engine is built for. UserError when the cache is too small for them."""
    check_length(config, setup, page_size, pages)
    options = config.scheduler.options
    longest = min(setup.max_length, pages * page_size)
    if longest < setup.max_length:
        log.info(
            "requests may hold %d tokens: the cache has no room for %d", longest, setup.max_length
        )
    return Limits(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_length=longest,
        page_size=page_size,
        pages=pages,
        vocab_size=setup.model_config.vocab_size,
        prefix_cache=config.cache.prefix,
        check=config.cache.check,
    )


def check_length(config: Config, setup: Setup, page_size: int, pages: int) -> None:
    """UserError when the cache cannot hold a request of the length that was asked for."""
    room, wanted = pages * page_size, config.model.max_length
    more = "give the cache more with cache.pages, cache.memory or cache.memory_fraction."
    if room < 2:
        raise UserError(f"the cache holds a single token: no prompt with an answer fits; {more}")
    if wanted is not None and room < wanted:
        raise UserError(
            f"model.max_length is {wanted}, and the cache holds {pages} pages of {page_size} "
            f"tokens, {room} in all. Lower model.max_length, or {more}"
        )


def device_of(config: Config, rank: int) -> torch.device:
    """The device of a rank. UserError when it is not there."""
    name = config.model.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            f"model.device is {name}, but torch {torch.__version__} sees no CUDA device here. "
            "Say model.device=cpu, or install a CUDA build of torch and its driver."
        )
    first = int(name.partition(":")[2] or 0)
    if first + rank >= torch.cuda.device_count():
        raise UserError(
            f"rank {rank} needs device cuda:{first + rank}, and this machine has "
            f"{torch.cuda.device_count()}. Lower parallel.tensor."
        )
    return torch.device("cuda", first + rank)


def dtype_of(config: Config, setup: Setup) -> torch.dtype:
    """The type of weights and activations: as configured, else the checkpoint's, else float32."""
    name = config.model.dtype
    if name == "auto":
        name = setup.model_config.dtype or "float32"
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise UserError(
            f"{setup.checkpoint.path}: weights of type {name} are not supported. "
            "Say model.dtype=float32, bfloat16 or float16."
        )
    return known[name]
