"""Names to components: the tables through which a YAML file selects code."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from core.errors import UserError
from core.importing import cause, extra_with, installed, load_path
from core.interfaces.versions import unfit
from core.interrupts import CtrlC
from core.patience import Unending, told_if_long
from core.sealing import Sealed, SealedNames

if TYPE_CHECKING:
    from core.interfaces import (
        App,
        Architecture,
        AttentionBackend,
        Executor,
        Kernels,
        LogitsProcessor,
        Runner,
        Sampler,
        Scheduler,
    )
    from core.parallel.axes import Partitioner
    from core.parallel.formats import Quantization
    from core.parallel.sources import Source
    from core.parallel.strategy import Sharding

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])


@dataclass(frozen=True)
class Provider:
    """Who registers: a plugin's name, and the package, file or process that it comes from."""

    plugin: str = ""
    source: str = "this process"
    handle: str = ""  # the word that switches it off: -p no:HANDLE

    def __str__(self) -> str:
        return f"plugin {self.plugin!r} ({self.source})" if self.plugin else self.source


_provider: ContextVar[Provider] = ContextVar("provider", default=Provider())  # noqa: B039


@contextmanager
def provided_by(provider: Provider) -> Iterator[None]:
    """Attribute every registration made in the block to `provider`."""
    token = _provider.set(provider)
    try:
        yield
    finally:
        _provider.reset(token)


@dataclass(frozen=True)
class Entry:
    """One component under one name. A target given as a path is imported on first use."""

    name: str
    target: str | type[Any]
    provider: Provider
    summary: str = ""
    needs: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The target as "package.module:Class", whichever way it was given."""
        if isinstance(self.target, str):
            return self.target
        return f"{self.target.__module__}:{self.target.__qualname__}"

    def missing(self) -> list[str]:
        """The needs that are not installed. Imports nothing.

        A need is an import name, or several of which one is enough: "flash_attn or xformers".
        """
        return [need for need in self.needs if not any(map(installed, need.split(" or ")))]


class Registry(Sealed, Generic[T]):
    """The components of one kind.

    >>> @samplers.register("greedy", summary="the most likely token")
    ... class Greedy(Sampler): ...
    >>> attention.register("flash", "my_package.flash:Flash", needs=("flash_attn",))
    """

    def __init__(self, kind: str, base: str | None = None, notes: Sequence[str] = ()) -> None:
        """`kind` is the word for error messages; `base` is the path of the class to derive from.

        `notes` is read when an error is raised: lines about plugins that did not load.
        """
        self.kind = kind
        self.base = base
        self._notes = notes
        self._entries: dict[str, tuple[Entry, ...]] = {}
        self._seal()

    @overload
    def register(
        self, name: str, target: str, *, needs: Sequence[str] = (), summary: str = ""
    ) -> None: ...
    @overload
    def register(
        self, name: str, target: C, *, needs: Sequence[str] = (), summary: str = ""
    ) -> C: ...
    @overload
    def register(
        self, name: str, target: None = None, *, needs: Sequence[str] = (), summary: str = ""
    ) -> Callable[[C], C]: ...
    def register(
        self, name: str, target: Any = None, *, needs: Sequence[str] = (), summary: str = ""
    ) -> Any:
        """Add a class, or the path "package.module:Class", under `name`; without one, decorate.

        `needs` are import names that must be installed before the target is imported; "a or b"
        wants either.
        """
        if target is None:
            return lambda cls: self.register(name, cls, needs=needs, summary=summary)
        if not (isinstance(name, str) and name and isinstance(summary, str)):
            raise TypeError(f"{self.kind} {name!r}: a name and a summary are text")
        if isinstance(target, str) and target.count(":") != 1:
            raise ValueError(f"{self.kind} {name!r}: {target!r} is not 'package.module:Class'")
        if isinstance(needs, str):
            raise TypeError(f"{self.kind} {name!r}: needs=({needs!r},) takes a comma")
        if not summary and isinstance(target, type):
            summary = (target.__doc__ or "").strip().partition("\n")[0]
        self.add(Entry(name, target, _provider.get(), summary, tuple(needs)))
        return None if isinstance(target, str) else target

    def add(self, entry: Entry) -> None:
        """Add a finished entry. The same target again replaces its entry, so nothing doubles."""
        others = [e for e in self._entries.get(entry.name, ()) if e.path != entry.path]
        self._entries[entry.name] = (*others, entry)

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        return sorted(self._entries)

    def entries(self) -> list[Entry]:
        """Every entry by name; a name that two providers claim is there twice."""
        return [entry for name in self.names() for entry in self._entries[name]]

    def entry(self, name: str) -> Entry:
        """The one entry called `name`. UserError if it is unknown or claimed more than once."""
        found = self._entries.get(name, ())
        if not found:
            close = difflib.get_close_matches(name, self.names(), n=1)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            names = ", ".join(self.names()) or "none"
            self._refuse(f"no {self.kind} is called {name!r}. {hint}Registered: {names}.")
        if len(found) > 1 and len({e.provider for e in found}) == 1:
            classes = " and ".join(e.path for e in found)
            self._refuse(
                f"{found[0].provider} registers several classes as {self.kind} {name!r}: "
                f"{classes}. Give each a name of its own."
            )
        if len(found) > 1:
            claims = " and ".join(str(e.provider) for e in found)
            ways = " or ".join(f"-p no:{e.provider.handle}" for e in found if e.provider.handle)
            self._refuse(
                f"{self.kind} {name!r} is provided by {claims}. Switch one of them off: {ways}."
            )
        return found[0]

    def get(self, name: str) -> type[T]:
        """The class called `name`, imported now if it was registered by path.

        UserError if the name is unknown or claimed twice, a needed package is missing, or the
        target cannot be imported, is not a class of this kind, or is an unfinished one.
        """
        entry = self.entry(name)
        label = f"{self.kind} {name!r} of {entry.provider}"
        if missing := entry.missing():
            extra = extra_with(missing)
            hint = f" (it is in plait's extra {extra!r})" if extra else ""
            self._refuse(
                f"{label} needs {', '.join(missing)}, which is not installed. "
                f"Install it{hint} or choose another {self.kind}."
            )
        target = entry.target
        if isinstance(target, str):
            with CtrlC() as ctrl_c:
                try:
                    with provided_by(entry.provider), told_if_long(label, target):
                        target = load_path(target)
                except Unending:  # for whoever waits for what led here
                    raise
                except BaseException as error:  # whatever a stranger's module comes up with
                    ctrl_c.heed()
                    self._refuse(f"{label} cannot be imported: {entry.path}: {cause(error)}", error)
                ctrl_c.heed()
        if not isinstance(target, type):
            self._refuse(f"{label}: {entry.path} is {target!r}, not a class.")
        base: type[Any] = load_path(self.base) if self.base else object
        if not issubclass(target, base):
            self._refuse(f"{label}: {entry.path} does not derive from {self.base}.")
        if reason := unfit(target, base):
            self._refuse(f"{label}: {reason}")
        if missing := sorted(getattr(target, "__abstractmethods__", ())):
            self._refuse(f"{label}: {entry.path} does not define {', '.join(missing)}.")
        chosen: type[T] = target
        return chosen

    def _refuse(self, message: str, error: BaseException | None = None) -> NoReturn:
        raise UserError("\n".join([message, *self._notes])) from error


class Registries(Sealed):
    """One registry of each kind, and the notes that their errors carry."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        interfaces = "core.interfaces:"
        self.attention: Registry[AttentionBackend] = self._new(
            "attention backend", interfaces + "AttentionBackend"
        )
        self.kernels: Registry[Kernels] = self._new("kernel set", interfaces + "Kernels")
        self.sharding: Registry[Sharding] = self._new(
            "sharding strategy", "core.parallel.strategy:Sharding"
        )
        self.partitions: Registry[Partitioner] = self._new(
            "partition", "core.parallel.axes:Partitioner"
        )
        self.quantization: Registry[Quantization] = self._new(
            "quantization format", "core.parallel.formats:Quantization"
        )
        self.samplers: Registry[Sampler] = self._new("sampler", interfaces + "Sampler")
        self.processors: Registry[LogitsProcessor] = self._new(
            "logits processor", interfaces + "LogitsProcessor"
        )
        self.schedulers: Registry[Scheduler] = self._new("scheduler", interfaces + "Scheduler")
        self.runners: Registry[Runner] = self._new("runner", interfaces + "Runner")
        self.executors: Registry[Executor] = self._new("executor", interfaces + "Executor")
        self.apps: Registry[App] = self._new("app", interfaces + "App")
        self.models: Registry[Architecture] = self._new("model", interfaces + "Architecture")
        self.sources: Registry[Source] = self._new("weight source", "core.parallel.sources:Source")
        self._seal()

    def _new(self, kind: str, base: str | None = None) -> Registry[Any]:
        return Registry(kind, base, self.notes)

    def all(self) -> dict[str, Registry[Any]]:
        """Every registry by its attribute's name."""
        return {name: r for name, r in vars(self).items() if isinstance(r, Registry)}

    def snapshot(self) -> Mapping[str, Mapping[str, tuple[Entry, ...]]]:
        """What is registered now, for `restore`."""
        return {name: dict(registry._entries) for name, registry in self.all().items()}

    def restore(self, snapshot: Mapping[str, Mapping[str, tuple[Entry, ...]]]) -> None:
        """Forget every registration made since the snapshot."""
        for name, registry in self.all().items():
            registry._entries.clear()
            registry._entries.update(snapshot[name])

    def of(self, provider: Provider) -> list[tuple[str, Entry]]:
        """What `provider` registered: (attribute name of the registry, entry)."""
        return [
            (n, e) for n, r in self.all().items() for e in r.entries() if e.provider == provider
        ]

    def forget_plugins(self) -> None:
        """Keep only what this process registered itself, outside any plugin."""
        self.notes.clear()
        for registry in self.all().values():
            own = [entry for entry in registry.entries() if not entry.provider.plugin]
            registry._entries.clear()
            for entry in own:
                registry.add(entry)


registries = Registries()
attention = registries.attention
kernels = registries.kernels
sharding = registries.sharding
partitions = registries.partitions
quantization = registries.quantization
samplers = registries.samplers
processors = registries.processors
schedulers = registries.schedulers
runners = registries.runners
executors = registries.executors
apps = registries.apps
models = registries.models
sources = registries.sources
sys.modules[__name__].__class__ = SealedNames
