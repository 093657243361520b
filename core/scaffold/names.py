"""From the name of a new package to every name in it, or the sentence why it will not do."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from core.errors import UserError
from core.hooks import PROJECT
from core.plugins import load
from core.registry import registries
from core.scaffold.kinds import Kind

DISTRIBUTION = re.compile(r"[A-Z0-9]|[A-Z0-9][A-Z0-9._-]*[A-Z0-9]", re.IGNORECASE)
"""Source: PyPA's specification of names and normalization."""
TAKEN = {"tests"}  # modules that the package's own folder has already
LONGEST = 100  # letters of a name; those of files and classes get a few more
MEANING = {"auto", "none", "null", "true", "false", "yes", "no", "on", "off"}  # in a YAML file


@dataclass(frozen=True)
class Names:
    """What a package and its parts are called."""

    distribution: str  # as it was given: "plait-min-p"
    plugin: str  # for `-p` and `plugins:`: "min-p"
    module: str  # "plait_min_p"
    component: str  # in its registry; the plugin's, but for a model: "MinPForCausalLM"
    cls: str  # "MinP"


def names_for(given: str, kind: Kind, used: str = "") -> Names:
    """The names of a new package. UserError if it may not be called so, or somebody is already.

    `used`: the code that the class will stand in; it takes no name that this has.
    """
    if not DISTRIBUTION.fullmatch(given):
        raise UserError(
            f"{given!r} is no name of a package: it may have letters, digits, '-', '_' and '.', "
            "and begins and ends with a letter or digit. Try something like my-sampler."
        )
    if len(given) > LONGEST:
        raise UserError(
            f"{given[:20]}... has {len(given)} letters. Take a name of {LONGEST} at most."
        )
    plain = re.sub(r"[-_.]+", "-", given).lower()
    module = plain.replace("-", "_")
    plugin = plain.removeprefix(f"{PROJECT}-")
    words = plugin.split("-")
    if plugin in MEANING:
        raise UserError(
            f"a component called {plugin!r} could not be chosen: in a configuration "
            "that word means something else. Choose another name."
        )
    if not module.isidentifier() or not plugin[0].isalpha() or keyword.iskeyword(module):
        raise UserError(
            f"{given!r} would have a module {module!r}, which Python cannot import by name. Begin "
            "with a letter, and take no word of the language."
        )
    cls = "".join(word[0].upper() + word[1:] for word in words)
    if cls in re.findall(r"\w+", used) or keyword.iskeyword(cls) or hasattr(builtins, cls):
        cls += kind.name.capitalize()
    component = f"{cls}ForCausalLM" if kind.registry == "models" else plugin
    if kind.registry == "models":
        cls = component
    names = Names(given, plugin, module, component, cls)
    _check_free(names, kind)
    return names


def _check_free(names: Names, kind: Kind) -> None:
    """UserError if a package, module, plugin or component of these names is there."""
    other = "Choose another name."
    if names.module in TAKEN or names.module == PROJECT or _installed(names.distribution):
        raise UserError(f"there is a package {names.distribution!r} already. {other}")
    if names.module in sys.stdlib_module_names or _importable(names.module):
        raise UserError(f"there is a Python module {names.module!r} already. {other}")
    found = load(warn=False).found
    if kind.registry:
        registry = registries.all()[kind.registry]
        for entry in registry.entries():
            if entry.name == names.component:
                raise UserError(
                    f"there is a {registry.kind} {entry.name!r} already, of {entry.provider}. "
                    f"{other}"
                )
    for plugin in found:
        if plugin.answers_to(names.plugin):
            raise UserError(f"there is a {plugin} already. {other}")


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _importable(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.origin is not None  # a mere folder has none
