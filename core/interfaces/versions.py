"""Which version of its interface a component was written for, and whether this Plait serves it."""

from __future__ import annotations

from typing import Any

from core import __version__
from core.deprecation import deprecated

OLDER: dict[tuple[str, int], tuple[str, str]] = {}
"""Former versions that are still served: (interface, version) -> (the release with which that
ends, what a component has to change). None yet: every interface is at its first version."""


def unfit(component: type[Any], base: type[Any]) -> str | None:
    """Why `component` cannot be used as a `base`, in a sentence; None when it can.

    A component that says no `interface` of its own has that of its base, whichever it is. One of
    a former version that is still served is told about, once, as a deprecation.
    """
    wanted, ours = (getattr(cls, "interface", None) for cls in (component, base))
    if ours is None:  # not a contract that has versions
        return None
    name = f"{base.__module__}.{base.__qualname__}"
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        return f"its `interface` must be a version of {name} such as {ours}, and is {wanted!r}."
    if wanted == ours:
        return None
    written = f"it was written for version {wanted} of {name}"
    if wanted > ours:
        return f"{written}, and Plait {__version__} has version {ours}. Install a newer Plait."
    if (base.__name__, wanted) not in OLDER:
        return (
            f"{written}, which Plait {__version__} no longer serves: it has version {ours}. "
            "Install a newer version of the plugin, or an older Plait."
        )
    ends, change = OLDER[base.__name__, wanted]
    where = f"{component.__module__}.{component.__qualname__}"
    deprecated(f"{where} for version {wanted} of {name}", ends=ends, instead=change)
    return None
