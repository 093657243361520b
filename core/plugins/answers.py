"""The hooks that a plugin answers: checked, and kept from harming what can do without them."""

from __future__ import annotations

import functools
import inspect
import logging
import multiprocessing
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

from core import hooks
from core.deprecation import deprecated
from core.errors import UserError
from core.importing import cause
from core.interrupts import CtrlC
from core.plugins.discovery import Plugin
from core.registry import registries

log = logging.getLogger("plait")

KNOWN = hooks.OFFERING + hooks.ACTING


class Answers:
    """The hooks of one plugin, and nothing else that pluggy would have to look through."""

    def __init__(self, found: dict[str, Callable[..., Any]]) -> None:
        self.__dict__.update(found)

    def __dir__(self) -> list[str]:
        return list(self.__dict__)


def answers(body: object, plugin: Plugin) -> Answers:
    """The marked functions of a plugin's module or object, as pluggy registers them.

    Those that only watch, and those that offer something nobody asked this plugin for, tell what
    they raise once, and the run goes on. UserError for a hook that nobody would call: misspelt,
    without its mark, or around those of other plugins.
    """
    found = {}
    for name, function, marked in _marked(body):
        hook = marked.get("specname") or name
        if marked.get("wrapper") or marked.get("hookwrapper"):
            raise UserError(
                f"its hook {hook!r} is a wrapper around those of other plugins. A plugin answers "
                "for itself: write a hook without wrapper=True."
            )
        if hook not in KNOWN and not marked.get("optionalhook"):
            near = get_close_matches(hook, KNOWN, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Hooks: {', '.join(KNOWN)}."
            raise UserError(f"{hook!r} is marked @hookimpl, but there is no such hook. {hint}")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UserError(
                f"its hook {hook!r} is a coroutine or a generator, which nobody would run: a hook "
                "is an ordinary function. Write it without async and yield."
            )
        for (of, argument), (ends, instead) in hooks.GOING.items():
            if of == hook and argument in inspect.signature(function).parameters:
                deprecated(f"{plugin}: the {argument} of {hook}", ends=ends, instead=instead)
        if hook in hooks.WATCHING:
            function = _watching(function, plugin, hook)
        elif hook in hooks.OFFERING and hook != "register" and not (plugin.named or plugin.builtin):
            function = _offering(function, plugin, hook)
        found[name] = function
    return Answers(found)


def _marked(body: object) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """(name, function, what its mark says) of each hook."""
    for name in dir(body):
        function = getattr(body, name, None)
        marked = getattr(function, f"{hooks.PROJECT}_impl", None)
        if isinstance(marked, dict):
            assert callable(function)
            yield name, function, marked
        elif (
            name in KNOWN
            and inspect.isfunction(function)
            and function.__module__ == getattr(body, "__name__", None)
        ):
            raise UserError(f"its function {name!r} has the name of a hook: mark it @hookimpl.")


def _watching(function: Callable[..., Any], plugin: Plugin, hook: str) -> Callable[..., Any]:
    told = False

    @functools.wraps(function)
    def watch(*arguments: Any) -> Any:
        nonlocal told
        try:
            return function(*arguments)
        except (Exception, SystemExit, GeneratorExit) as error:
            if not told:
                told = True
                log.error(
                    "%s failed in its hook %s; the run goes on, and this is told once: %s",
                    plugin, hook, cause(error), exc_info=error,
                )  # fmt: skip

    return watch


def _offering(function: Callable[..., Any], plugin: Plugin, hook: str) -> Callable[..., Any]:
    told = False

    @functools.wraps(function)
    def offer(*arguments: Any) -> Any:
        nonlocal told
        with CtrlC() as ctrl_c:
            try:
                return function(*arguments)
            except UserError as error:  # it knows what it was asked for, and what is wrong with it
                raise UserError(f"{error} (Says {plugin}; {plugin.remedy})") from error
            except BaseException as error:
                ctrl_c.heed()
                if not told:
                    told = True
                    text = f"{plugin} failed in its hook {hook}: {cause(error)}"
                    registries.notes.append(f"note: {text}")
                    if multiprocessing.parent_process() is None:
                        log.warning("%s. %s", text, plugin.remedy, exc_info=error)
        return None

    return offer
