"""How an engine starts: what is checked at first, and what is said once it is ready."""

from __future__ import annotations

import logging
import math
import sys
from typing import TYPE_CHECKING

from core import fitting
from core.checkpoint import find
from core.errors import Mistakes
from core.setup import Setup, open_tokenizer, read_setup
from core.visible import visible

if TYPE_CHECKING:
    from core.config import Config
    from core.engine import Engine
    from core.text import TokenizerLike

log = logging.getLogger("plait")

DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


def checked(config: Config) -> tuple[Setup, TokenizerLike | None]:
    """What the configuration is made of, with `auto` settled in it. No memory is taken yet.

    UserError with everything that is wrong with it.
    """
    # of a model that is not there, nothing more can be said
    find(config.model.path, revision=config.model.revision)
    mistakes = Mistakes()
    with mistakes.noted():
        setup = read_setup(config)
        fitting.settle(config, setup)
    with mistakes.noted():
        tokenizer = open_tokenizer(config)
    mistakes.tell()
    return setup, tokenizer


def facts(engine: Engine, seconds: float) -> list[tuple[str, str]]:
    """(label, value) of everything that a user may want to check. `seconds`: time to get ready."""
    config, setup, limits = engine.config, engine.setup, engine.limits
    index = setup.plan.expected_index()
    count = sum(math.prod(shape) for shape, _ in index.values())
    tokens = limits.pages * limits.page_size
    defaults = setup.checkpoint.generation
    named = ", ".join(f"{key} {defaults[key]}" for key in DEFAULTS if key in defaults)
    size = config.parallel.tensor
    return [
        (
            "model",
            f"{setup.checkpoint.hub.name if setup.checkpoint.hub else setup.checkpoint.path} "
            f"({setup.checkpoint.architecture}), {count:,} parameters",
        ),
        ("device", f"{config.model.device}, {size} rank{'s' if size > 1 else ''}"),
        (
            "plugins",
            f"attention {config.attention.use}, kernels {config.kernels.use}, "
            f"runner {config.runner.use}, scheduler {config.scheduler.use}, "
            f"sampler {config.sampler.use}, executor {config.executor.use}",
        ),
        ("cache", f"{limits.pages:,} pages of {limits.page_size} tokens, {tokens:,} in all"),
        (
            "limits",
            f"{limits.max_length:,} tokens a request, {limits.max_num_seqs} requests and "
            f"{limits.max_num_batched_tokens:,} tokens a step",
        ),
        (
            "sampling",
            f"{named} (generation_config.json)" if named else "the engine's own defaults",
        ),
        ("ready after", f"{seconds:.1f} s"),
    ]


def announce(engine: Engine, seconds: float) -> None:
    """Show the facts to whoever listens to the log "plait" at level INFO."""
    if not log.isEnabledFor(logging.INFO):
        return
    rows = facts(engine, seconds)
    if not sys.stderr.isatty():
        for label, value in rows:
            log.info("%s: %s", label, value)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for label, value in rows:
        table.add_row(f"[bold]{label}", escape(visible(value)))
    Console(stderr=True).print(table)
