"""The calls that a plugin may answer. A step is the smallest unit: nothing here runs per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from core.config import Config
    from core.engine import Engine
    from core.outputs import RequestOutput
    from core.registry import Registries
    from core.types import Request, StepOutput, StepPlan

PROJECT = "plait"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

OFFERING = ("register", "find_model", "open_weights", "open_tokenizer")
"""Hooks that every loaded plugin answers: they only offer something that a user may choose."""

ACTING = (
    "configure",
    "engine_started",
    "step_done",
    "request_done",
    "routes",
    "engine_stopped",
)
"""Hooks that only plugins named in the configuration answer: they change or watch a run."""

WATCHING = ("step_done", "request_done", "engine_stopped")
"""Those of them that only watch: what they raise is told once, and the run goes on."""


@hookspec
def register(registries: Registries) -> None:
    """Add components to the registries. Called in every process; import nothing heavy here."""


@hookspec
def configure(config: Config) -> None:
    """Check or adjust the finished configuration. Raise UserError to refuse it."""


@hookspec(firstresult=True)
def find_model(name: str) -> Any:
    """Return the folder or file (a Path) of the checkpoint that you call `name`, or None.

    Asked when `model.path` or `model.tokenizer` is nothing on the disk, before the hub is.
    """


@hookspec(firstresult=True)
def open_weights(path: Path) -> Any:
    """Return a `core.parallel.Source` for the weights at `path`, or None if they are not yours.

    `path`: the folder or file behind `model.path`. Asked where config.json is missing, so that
    `Source.config()` can take its place, and once for every rank when `model.weights` is `auto`;
    each source is closed after use. Say None quickly: every model is shown to you. A format that
    is yours in a file that is broken is a UserError.
    """


@hookspec(firstresult=True)
def open_tokenizer(path: Path) -> Any:
    """Return a `core.text.TokenizerLike` for the model at `path`, or None if it is not yours.

    `path`: the folder or file behind `model.tokenizer`, or else behind `model.path`. Asked once,
    in the engine's process. `core.text.Tokenizer` makes one of a `tokenizers.Tokenizer`, special
    tokens and chat templates. Ends of text are those of its `eos_ids` and of the configuration's
    `eos_token_id` together.
    """


@hookspec
def engine_started(engine: Engine) -> None:
    """The engine is ready: weights loaded, cache allocated, graphs captured."""


@hookspec
def step_done(plan: StepPlan, output: StepOutput, seconds: float) -> None:
    """One step is over, `seconds` after its launch. Called by the engine's process only."""


@hookspec
def request_done(request: Request, output: RequestOutput) -> None:
    """A request finished or was aborted; `output` is the last that its caller sees."""


@hookspec
def routes(app: Any, engine: Any) -> None:
    """Add HTTP routes to the Starlette `app` of the server."""


@hookspec
def engine_stopped(engine: Engine) -> None:
    """The engine is closed: workers have ended and device memory is free."""
