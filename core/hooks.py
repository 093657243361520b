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
    from core.setup import Setup
    from core.types import Request, StepOutput, StepPlan

PROJECT = "plait"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

OFFERING = ("register", "find_model", "open_weights", "open_tokenizer")
"""Hooks that every loaded plugin answers: they only offer something that a user may choose."""

ACTING = (
    "configure",
    "observers",
    "engine_started",
    "step_done",
    "request_done",
    "routes",
    "engine_stopped",
)
"""Hooks that only plugins named in the configuration answer: they change or watch a run."""

WATCHING = ("step_done", "request_done", "engine_stopped")
"""Those of them that only watch: what they raise is told once, and the run goes on."""

GOING: dict[tuple[str, str], tuple[str, str]] = {}
"""Arguments on their way out: (hook, argument) -> (the release that ends it, what to do instead).
Not pluggy's `warn_on_impl_args`, which cannot say whose plugin it is."""


@hookspec
def register(registries: Registries) -> None:
    """Add components to the registries. Called in every process; import nothing heavy here.

    `registries` has one registry for each kind: `registries.samplers.register("name",
    "package.module:Class")`. What is registered must not depend on the process.

    Errors: whatever it raises undoes all that this plugin registered, and is told. It ends the run
    only if the configuration names the plugin, or with `--strict`.
    """


@hookspec
def configure(config: Config) -> None:
    """Check or adjust the finished configuration, before an engine loads anything.

    `config` may be changed in place; nothing is returned.

    Errors: a UserError refuses the configuration, and its sentence is what the user sees. Anything
    else ends the run too, as a fault of the plugin.
    """


@hookspec(firstresult=True)
def find_model(name: str) -> Any:
    """Return the folder or file (a Path) of the checkpoint that you call `name`, or None.

    Asked when `model.path` or `model.tokenizer` is neither on the disk, before the hub is. The
    first answer counts.

    Errors: a UserError says what is wrong with a model that is yours, and ends the run. Anything
    else counts as None, and is told once; from a plugin that is named it ends the run.
    """


@hookspec(firstresult=True)
def open_weights(path: Path) -> Any:
    """Return a weight source (a `core.parallel.Source`) for the checkpoint at `path`, or None.

    Return None when the format is not yours, and quickly: every model is shown to you. `path` is
    the folder or file behind `model.path`. Asked where there is no config.json, so that
    `Source.config` can stand in for it, and when `model.weights` is `auto`: once to compare the
    source's index with the plan, and once in each rank. Each source is closed after use. The first
    answer counts.

    Errors: as for `find_model`. Raise UserError for a file of your format that is damaged.
    """


@hookspec(firstresult=True)
def open_tokenizer(path: Path) -> Any:
    """Return a tokenizer (a `core.text.TokenizerLike`) for the model at `path`, or None.

    Return None when the format is not yours; the first answer counts. `path` is the folder or file
    behind `model.tokenizer`, or else behind `model.path`. Asked once, in the engine's process.
    `core.text.Tokenizer` makes one of a `tokenizers.Tokenizer`, special tokens and chat templates.
    Answers end at its `eos_ids`, and at the `eos_token_id` of the configuration.

    Errors: as for `find_model`.
    """


@hookspec
def observers(config: Config, setup: Setup) -> Any:
    """Return a new `core.interfaces.Observer`, or None: it sees inside the model for the requests
    that ask by their `extra_args`.

    Called in every process of an engine, before anything is loaded: once for the engine and once
    for each rank.

    Errors: whatever it raises ends the start, as in `configure`.
    """


@hookspec
def engine_started(engine: Engine) -> None:
    """The `engine` is ready: weights loaded, cache allocated, graphs captured. Returns nothing.

    Errors: whatever it raises ends the start, before there is any request; the workers end with it.
    """


@hookspec
def step_done(plan: StepPlan, output: StepOutput, seconds: float) -> None:
    """One step is over, `seconds` after its launch. Called by the engine's process only.

    `plan` says what was computed and `output` what came of it; change neither. What you do here
    delays the next step. Returns nothing.

    Errors: what it raises is told once and the run goes on, with every request.
    """


@hookspec
def request_done(request: Request, output: RequestOutput) -> None:
    """A `request` finished or was aborted; `output` is the last that its caller sees.

    Called once for each of the `n` sequences of a prompt. Returns nothing.

    Errors: what it raises is told once and the run goes on, with every request.
    """


@hookspec
def routes(app: Any, engine: Any) -> None:
    """Add HTTP routes to the Starlette `app` of the server. Returns nothing.

    `engine` is the server's client of the engine, which runs in another process and is ready:
    `async for piece in engine.submit(ids, params)` gives ids as they come, `engine.info` says what
    it is, and `await engine.statistics()` its counters. A route finds more in
    `request.app.state.serving`, such as the tokenizer and the reader of bodies.

    Errors: whatever it raises ends the server before it listens. A UserError of a route is an
    answer with the status 400, and what the engine has against a request is one, too. Anything else
    is the status 500, and the log names the plugin, the file and the line.
    """


@hookspec
def engine_stopped(engine: Engine) -> None:
    """The `engine` is closed: workers have ended and device memory is free. Returns nothing.

    Errors: what it raises is told once; the answers are kept.
    """
