"""Loads plugins: fills the registries, connects the hooks, and records what went wrong."""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pluggy

from core import hooks
from core.errors import UserError
from core.importing import cause, load_path
from core.interrupts import CtrlC
from core.patience import Patience, seconds_allowed
from core.plugins.answers import answers
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


_imported: dict[str, tuple[object, list[tuple[str, Entry]]] | UserError] = {}
"""What came of each import in this process: an error only where it had to be ended."""
_warned: set[str] = set()
_current: Plugins | None = None


def load(words: Iterable[str] = (), *, strict: bool = False, warn: bool = True) -> Plugins:
    """Load every plugin that is built in, installed or named; empties the registries before.

    `words` name plugins, modules and files, or with "no:" leave one out. A plugin that fails is
    recorded and undone, and so is one that does not come to an end (see core/patience.py);
    UserError only if a word names it, or if `strict`. Otherwise the log gets its traceback, once,
    unless `warn` is false.
    """
    global _current
    words = tuple(absolute(word, Path.cwd()) for word in words)
    plugins, mistakes, warnings = find(words)
    _current = None  # unless all goes well
    registries.forget_plugins()
    offering, acting = _manager(), _manager()
    with CtrlC() as ctrl_c, Patience(seconds_allowed()) as patience:
        # pluggy asks the latest first: whom the user names, then ourselves, then who is installed
        for plugin in sorted(plugins, key=lambda p: (p.named, p.builtin)):
            if plugin.blocked:
                continue
            before = registries.snapshot()
            try:
                with (
                    provided_by(plugin.provider),
                    patience.on(str(plugin), plugin.module, plugin.remedy),
                ):
                    plugin.body = _connect(plugin, offering, acting)
            except BaseException as error:  # whatever a stranger's module comes up with
                registries.restore(before)
                for manager in (offering, acting):
                    if manager.has_plugin(str(plugin)):
                        manager.unregister(name=str(plugin))
                plugin.error = error
                if plugin.hung and isinstance(error, UserError):
                    _imported[_key(plugin)] = error
                registries.notes.append(_note(plugin))
                trace = "".join(traceback.format_exception(error)).rstrip()
                if plugin.named or strict:
                    mistakes.append(f"{plugin} did not load: {cause(error)}")
                    mistakes += indent(trace, "    ").splitlines() if strict else []
                elif multiprocessing.parent_process() is None:
                    said = f" {error}" if isinstance(error, UserError) else f"\n{trace}"
                    warnings.append(f"{plugin} did not load:{said}")
            ctrl_c.heed()
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
    words = tuple(absolute(word, Path.cwd()) for word in words)
    if _current is not None and (_current.words, _current.strict) == (words, strict):
        return _current
    return load(words, strict=strict)


def words_for_others(words: Iterable[str]) -> tuple[str, ...]:
    """`words` for further processes of an engine: they leave out what hung in this one."""
    return (*words, *(f"no:{plugin.handle or plugin.name}" for plugin in current() if plugin.hung))


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


def _connect(
    plugin: Plugin, offering: pluggy.PluginManager, acting: pluggy.PluginManager
) -> object:
    body = _import(plugin)
    hooks_of = answers(body, plugin)
    offering.register(hooks_of, str(plugin))
    # this plugin's alone, so that a fault in it is its own
    for answer in offering.hook.register.get_hookimpls():
        if answer.plugin is hooks_of:
            answer.function(*(registries for _ in answer.argnames))
    if plugin.named:
        acting.register(hooks_of, str(plugin))
    return body


def _key(plugin: Plugin) -> str:
    file = plugin.file
    return f"{file}:{file.stat().st_mtime_ns}" if file else plugin.target


def _import(plugin: Plugin) -> object:
    key = _key(plugin)
    known = _imported.get(key)
    if isinstance(known, UserError):
        raise UserError(str(known)) from known.__cause__
    if known is not None:
        body, entries = known
        for registry, entry in entries:
            getattr(registries, registry).add(entry)
    else:
        body = _execute(plugin.file) if plugin.file else load_path(plugin.target)
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


def _note(plugin: Plugin) -> str:
    assert plugin.error is not None
    misfit = f"; {found}" if (found := plugin.misfit()) else ""
    return f"note: {plugin} did not load: {cause(plugin.error)}{misfit}"
