"""Finds plugins without importing them: built in, installed, or named by path or module."""

from __future__ import annotations

import difflib
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, entry_points
from importlib.util import find_spec
from pathlib import Path

from core import __version__
from core.hooks import PROJECT
from core.patience import Unending
from core.registry import Provider, registries

BUILTIN = (
    "plugins.attention",
    "plugins.kernels",
    "plugins.sharding",
    "plugins.quantization",
    "plugins.sampling",
    "plugins.guided",
    "plugins.scheduling",
    "plugins.runners",
    "plugins.executors",
    "plugins.apps",
    "plugins.sources",
    "plugins.observers",
    "plugins.serve",
    "models.qwen3",
)


@dataclass
class Plugin:
    """A plugin that was found, and what became of it."""

    name: str
    source: str  # "built in", "plait-minp 0.1", "./file.py" or "module x"
    target: str  # "package.module", "package.module:object" or the path of a file
    distribution: Distribution | None = None
    handle: str = ""  # what `-p no:` takes: the name, or the package's where names clash
    named: bool = False
    blocked: bool = False
    error: BaseException | None = None
    body: object = None  # the imported module or object; None if blocked or failed

    def __str__(self) -> str:
        return f"plugin {self.name!r} ({self.source})"

    @property
    def builtin(self) -> bool:
        return self.source == "built in"

    @property
    def provider(self) -> Provider:
        return Provider(self.name, self.source, self.handle or self.name)

    @property
    def module(self) -> str:
        """The name of the module that is imported for it."""
        return module_name(self.file) if self.file else self.target.partition(":")[0]

    @property
    def hung(self) -> bool:
        """Whether its import had to be ended."""
        return self.error is not None and isinstance(self.error.__cause__, Unending)

    @property
    def remedy(self) -> str:
        """The sentence that says how to do without."""
        return f"-p no:{self.handle or self.name} leaves it out."

    def answers_to(self, word: str) -> bool:
        """Whether `-p word` means this plugin: its name, its package, its module or its file."""
        package = self.source.partition(" ")[0] if self.distribution else self.name
        module = self.target.partition(":")[0]
        return word in (self.name, package, module) or _canonical(word) == _canonical(package)

    def holds(self, module: str) -> bool:
        """Whether the module of this name is part of the plugin: of its package, or registered."""
        if self.file:
            return module == module_name(self.file)
        targets = [self.target, *(entry.path for _, entry in registries.of(self.provider))]
        tops = {re.split("[.:]", target)[0] for target in targets}
        if self.distribution:
            tops |= {file.parts[0].removesuffix(".py") for file in self.distribution.files or ()}
        return module.partition(".")[0] in tops

    def misfit(self) -> str:
        """Why the plugin's package asks for another version of Plait, or nothing."""
        for line in (self.distribution.requires if self.distribution else None) or ():
            if _canonical(re.split(r"[^\w.-]", line)[0]) == PROJECT:
                from packaging.requirements import Requirement

                wanted = Requirement(line).specifier
                if not wanted.contains(__version__, prereleases=True):
                    return f"made for {PROJECT} {wanted}, this is {__version__}"
        return ""

    @property
    def file(self) -> Path | None:
        """The file of a plugin that is one file."""
        return Path(self.target) if is_file(self.target) else None


def is_file(word: str) -> bool:
    """Whether a word names a file, and not a plugin or a module."""
    if "\0" in word:  # no file's name has one
        return False
    return word.endswith(".py") or "/" in word or "\\" in word


def absolute(word: str, folder: Path) -> str:
    """A word of `plugins:` or `-p` with its path, if it is one, made independent of the folder."""
    block, name = ("no:", word[3:]) if word.startswith("no:") else ("", word)
    return block + str((folder / Path(name).expanduser()).resolve()) if is_file(name) else word


def module_name(file: Path) -> str:
    """A name for the module of a one-file plugin; the same in every process."""
    return f"plait_file_{file.stem}_{zlib.crc32(str(file).encode()):08x}"


def find(words: Iterable[str]) -> tuple[list[Plugin], list[str], list[str]]:
    """Every plugin there is, marked as `words` want it: -> plugins, mistakes, warnings.

    A word is a name, a module or an absolute path of a file, with "no:" before it to block it.
    Of two words about one plugin the later counts.
    """
    plugins = [*_installed(), *_builtin()]
    mistakes, warnings = [], []
    for word in words:
        block, name = word.startswith("no:"), word.removeprefix("no:")
        meant = [p for p in plugins if p.answers_to(name)]
        if not meant and block:
            warnings.append(f"no:{name} leaves out nothing: {_unknown(name, plugins)}")
        elif not meant:
            found = _named(name, plugins)
            if isinstance(found, str):
                mistakes.append(found)
            else:
                plugins.append(found)
                meant = [found]
        for plugin in meant:
            plugin.named, plugin.blocked = not block, block
    for plugin in plugins:
        shared = [p for p in plugins if p.name == plugin.name]
        if len(shared) > 1 and plugin.distribution:
            plugin.handle = plugin.source.partition(" ")[0]
    return plugins, mistakes, warnings


def _builtin() -> Iterator[Plugin]:
    for module in BUILTIN:
        yield Plugin(module.rpartition(".")[2], "built in", module)


def _installed() -> list[Plugin]:
    found = []
    for point in entry_points(group=PROJECT):
        # pluggy's own loader would stop at the first broken one and drop the second of a name
        package = point.dist
        source = "unknown package"
        if package:
            told = package.metadata  # parsed anew at every look
            source = f"{told['Name']} {told['Version']}"
        found.append(Plugin(point.name, source, point.value, package))
    return sorted(found, key=lambda plugin: (plugin.source, plugin.name))


def _named(name: str, plugins: list[Plugin]) -> Plugin | str:
    """The plugin at a path or in a module, or the sentence why there is none."""
    if is_file(name):
        file = Path(name)
        if file.is_file():
            return Plugin(file.stem, str(file), str(file))
        if file.is_dir():
            return f"plugin {name}: is a folder. Name a .py file, or install the package."
        near = difflib.get_close_matches(file.name, [p.name for p in file.parent.glob("*.py")], n=1)
        hint = f" Did you mean {file.with_name(near[0])}?" if near else ""
        return f"plugin {name}: there is no such file.{hint}"
    try:
        known = find_spec(name) is not None
    except (ImportError, ValueError):
        known = False
    return Plugin(name, f"module {name}", name) if known else _unknown(name, plugins)


def _unknown(name: str, plugins: list[Plugin]) -> str:
    near = difflib.get_close_matches(name, [p.name for p in plugins], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"no plugin is called {name!r}.{hint} It is neither an installed plugin nor a module; "
        "see --list-plugins, or give a path such as ./file.py."
    )


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
