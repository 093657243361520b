"""Loads plugins: fills the registries, connects the hooks, and records what went wrong."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import multiprocessing
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pluggy

from core import hooks
from core.errors import UserError
from core.importing import cause, load_path
from core.plugins.discovery import Plugin, absolute, find, module_name
from core.registry import Entry, provided_by, registries

if TYPE_CHECKING:
    from core.config import Config

log = logging.getLogger("plait")


@dataclass(frozen=True)
class Plugins:
    """The plugins of a run. `hook.NAME(...)` calls those that answer, with keywords only.

    Hooks that offer something are answered by every loaded plugin, named ones first; hooks that
    act are answered by the plugins that the configuration names.
    """

    words: tuple[str, ...]
    strict: bool
    found: list[Plugin]
    hook: Any

    def notes(self) -> list[str]:
        """A line for each plugin that did not load; goes with every later error."""
        return [_note(plugin) for plugin in self.found if plugin.error]


_imported: dict[str, tuple[object, list[tuple[str, Entry]]]] = {}
_warned: set[str] = set()
_current: Plugins | None = None


def load(words: Iterable[str] = (), *, strict: bool = False, warn: bool = True) -> Plugins:
    """Load every plugin that is built in, installed or named; empties the registries before.

    `words` name plugins, modules and files, or with "no:" leave one out. A plugin that fails is
    recorded and undone; UserError only if a word names it, or if `strict`. Otherwise the log
    gets its traceback, once, unless `warn` is false.
    """
    global _current
    words = tuple(absolute(word, Path.cwd()) for word in words)
    plugins, mistakes, warnings = find(words)
    registries.forget_plugins()
    offering, acting = _manager(), _manager()
    # pluggy asks the latest first: whom the user names, then ourselves, then whoever is installed
    for plugin in sorted(plugins, key=lambda p: (p.named, p.builtin)):
        if plugin.blocked:
            continue
        before = registries.snapshot()
        try:
            with provided_by(plugin.provider):
                body = _import(plugin)
                _check_names(body)
                offering.register(body, str(plugin))
                # this plugin's alone, so that a fault in it is its own
                for answer in offering.hook.register.get_hookimpls():
                    if answer.plugin is body:
                        answer.function(*(registries for _ in answer.argnames))
            if plugin.named:
                acting.register(body, str(plugin))
            plugin.body = body
        except (Exception, SystemExit) as error:
            registries.restore(before)
            if offering.has_plugin(str(plugin)):
                offering.unregister(name=str(plugin))
            plugin.error = error
            registries.notes.append(_note(plugin))
            trace = "".join(traceback.format_exception(error)).rstrip()
            if plugin.named or strict:
                mistakes.append(f"{plugin} did not load: {cause(error)}")
                mistakes += indent(trace, "    ").splitlines() if strict else []
            elif multiprocessing.parent_process() is None:
                warnings.append(f"{plugin} did not load:\n{trace}")
    for warning in warnings:
        if warn and warning not in _warned:
            _warned.add(warning)
            log.warning("%s", warning)
    if mistakes:
        raise UserError("\n".join(mistakes))
    calls = {name: getattr(offering.hook, name) for name in hooks.OFFERING}
    calls |= {name: getattr(acting.hook, name) for name in hooks.ACTING}
    _current = Plugins(words, strict, plugins, SimpleNamespace(**calls))
    return _current


def load_like(words: Iterable[str], strict: bool = False) -> Plugins:
    """The plugins of a configuration (its `plugins` and `strict`), loaded if they are not yet.

    Every process of an engine has them: unpickling a Config calls this.
    """
    words = tuple(words)
    if _current is not None and (_current.words, _current.strict) == (words, strict):
        return _current
    return load(words, strict=strict)


def current() -> list[Plugin]:
    """The plugins found by the latest `load`."""
    return _current.found if _current else []


def acting(config: Config) -> Any:
    """The hooks of the plugins that `config` names: call them by name, with keywords."""
    return load_like(config.plugins, config.strict).hook


def offer(hook: str, **arguments: Any) -> Any:
    """What the first plugin that has an answer returns for an offering `hook`, or None."""
    return getattr((_current or load()).hook, hook)(**arguments)


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    return manager


def _import(plugin: Plugin) -> object:
    file = plugin.file
    key = f"{file}:{file.stat().st_mtime_ns}" if file else plugin.target
    if key in _imported:
        body, entries = _imported[key]
        for registry, entry in entries:
            getattr(registries, registry).add(entry)
    else:
        body = _execute(file) if file else load_path(plugin.target)
        # decorators ran with the import, which will not run again in this process
        _imported[key] = body, registries.of(plugin.provider)
    return body


def _execute(file: Path) -> object:
    name = module_name(file)
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _check_names(body: object) -> None:
    """Refuse hooks that nobody would call: misspelt, or without their mark."""
    known = hooks.OFFERING + hooks.ACTING
    for name in dir(body):
        function = getattr(body, name, None)
        marked = getattr(function, f"{hooks.PROJECT}_impl", None)
        if isinstance(marked, dict):
            meant = marked.get("specname") or name
            if meant not in known and not marked.get("optionalhook"):
                near = get_close_matches(meant, known, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"Hooks: {', '.join(known)}."
                raise UserError(f"{meant!r} is marked @hookimpl, but there is no such hook. {hint}")
        elif (
            name in known
            and inspect.isfunction(function)
            and function.__module__ == getattr(body, "__name__", None)
        ):
            raise UserError(f"its function {name!r} has the name of a hook: mark it @hookimpl.")


def _note(plugin: Plugin) -> str:
    assert plugin.error is not None
    misfit = f"; {found}" if (found := plugin.misfit()) else ""
    return f"note: {plugin} did not load: {cause(plugin.error)}{misfit}"
