"""The templates of this package, filled: HTML and SVG that need nothing else."""

from __future__ import annotations

import jinja2

from core.parallel.problems import ranges
from plugins.apps.plan.content import Content
from plugins.apps.plan.names import pieces, printable
from plugins.apps.plan.summary import binary

LAYOUTS = {"R": "whole", "P": "partial sums", "T": "own tokens"}


def layout(kind: str) -> str:
    """Activations in words, from what `Sharding.layout` says: `R`, `S:q S:kv`, `P`."""
    axes = [part.removeprefix("S:") for part in kind.split() if part.startswith("S:")]
    if axes:
        return "cut by " + ", ".join(axes)
    return LAYOUTS.get(kind, kind)


def render(template: str, content: Content) -> str:
    """A template of this package, filled. Names are escaped: a checkpoint chose them."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("plugins.apps.plan"),
        autoescape=True,
        finalize=printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "binary": binary,
        "ranges": ranges,
        "layout": layout,
        "pieces": pieces,
        "px": lambda pixels: f"{pixels:.2f}".rstrip("0").rstrip("."),
    }
    return environment.get_template(template).render(plan=content)
