"""From a configuration to what every rank builds from: checkpoint, model configuration, plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core import registry
from core.checkpoint import Checkpoint, open_checkpoint
from core.errors import UserError
from core.parallel import ParallelPlan, formats_of

if TYPE_CHECKING:
    import torch

    from core.config import Config
    from core.interfaces import Architecture


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is made of, before any memory is taken. The same on every rank."""

    checkpoint: Checkpoint
    architecture: type[Architecture]
    model_config: Any  # of the whole model
    plan: ParallelPlan
    max_length: int
    longest: int  # the checkpoint's own limit


def read_setup(config: Config) -> Setup:
    """Read the checkpoint's configuration and compile the parallel plan. Opens no weights.

    UserError with everything that is wrong with either.
    """
    checkpoint = open_checkpoint(config.model)
    architecture = registry.models.get(checkpoint.architecture)
    model_config = architecture.config(
        checkpoint.config,
        max_length=config.model.max_length,
        ignore=tuple(config.model.ignore_config),
    )
    longest = model_config.longest
    wanted = config.model.max_length
    if wanted is not None and wanted > longest:
        raise UserError(
            f"model.max_length is {wanted}, but positions of {checkpoint.path} end at {longest}. "
            "Lower it, or replace rope_parameters and max_position_embeddings in model.config."
        )
    plan = ParallelPlan.build(
        architecture,
        model_config,
        tensor=config.parallel.tensor,
        overrides=config.parallel.plan,
        formats=formats_of(checkpoint.config),
        replicate_limit=config.parallel.replicate_limit,
    )
    return Setup(checkpoint, architecture, model_config, plan, wanted or longest, longest)


def open_source(config: Config, setup: Setup) -> Any:
    """Where the weights come from: a plugin that claims the folder, or a registered source."""
    from core.plugins import offer

    name = config.model.weights
    if name == "auto":
        found = offer("open_weights", setup.checkpoint.path)
        if found is not None:
            return found
        name = "mmap"
    return registry.sources.get(name).open(setup.checkpoint.path, setup.plan, config.model.seed)


def device_of(config: Config, rank: int) -> torch.device:
    """The device of a rank. UserError when it is not there."""
    import torch

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
    import torch

    name = config.model.dtype
    if name == "auto":
        name = setup.model_config.dtype or "float32"
    dtype = getattr(torch, name, None)
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise UserError(
            f"{setup.checkpoint.path}: weights of type {name} are not supported. "
            "Say model.dtype=float32, bfloat16 or float16."
        )
    return dtype
