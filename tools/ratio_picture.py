"""Ratios between two engines as bars: an SVG for light and dark paper, without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from plugins.apps.plan.colours import colours

LEFT, FIELD, RIGHT = 190.0, 430.0, 60.0  # names, bars, the last figures; in pixels
BAR, GAP, TOP = 16.0, 14.0, 62.0

STYLE = """
:root { color-scheme: light dark; --paper: #fbfbf9; --ink: #1c2026; --soft: #5a626d;
  --line: #98a1ad; LIGHT }
@media (prefers-color-scheme: dark) { :root { --paper: #12151a; --ink: #e8eaee; --soft: #a2abb8;
  --line: #76808e; DARK } }
text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: var(--ink) }
.title { font-size: 15px; font-weight: 650 } .soft { fill: var(--soft) } .end { text-anchor: end }
"""


def picture(ratios: Mapping[str, Mapping[str, float]], ours: str, theirs: str) -> str:
    """The SVG. `ratios`: for each model, by the kind of workload, tokens a second of `ours` over
    those of `theirs`."""
    models = list(ratios)
    kinds = list(dict.fromkeys(kind for table in ratios.values() for kind in table))
    most = max([1.0, *(r for table in ratios.values() for r in table.values())])
    scale = FIELD / most
    tints = colours(len(models))
    light = " ".join(f"--m{i}: {tint.light};" for i, tint in enumerate(tints))
    dark = " ".join(f"--m{i}: {tint.dark};" for i, tint in enumerate(tints))
    parts, y = [], TOP
    for kind in kinds:
        each = [(i, ratios[model].get(kind)) for i, model in enumerate(models)]
        shown = [(i, ratio) for i, ratio in each if ratio is not None]
        middle = y + BAR * len(shown) / 2 + 4
        parts.append(
            f'<text class="end" x="{LEFT - 12}" y="{middle:g}">{escape(said(kind))}</text>'
        )
        for i, ratio in shown:
            parts.append(
                f'<rect x="{LEFT}" y="{y:g}" width="{ratio * scale:.1f}" height="{BAR - 2}" '
                f'fill="var(--m{i})"/><text x="{LEFT + ratio * scale + 6:.1f}" y="{y + 11:g}">'
                f"{ratio:.2f}</text>"
            )
            y += BAR
        y += GAP
    x = LEFT
    for i, model in enumerate(models):
        parts.append(
            f'<rect x="{x:g}" y="34" width="10" height="10" fill="var(--m{i})"/>'
            f'<text x="{x + 15:g}" y="43">{escape(model)}</text>'
        )
        x += 30 + 7.5 * len(model)
    one, width = LEFT + scale, LEFT + FIELD + RIGHT
    title = f"Tokens a second of {ours}, as multiples of {theirs}"
    about = "; ".join(
        f"{model}: " + ", ".join(f"{said(kind)} {ratio:.2f}" for kind, ratio in table.items())
        for model, table in ratios.items()
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{y:g}" '
            f'viewBox="0 0 {width:g} {y:g}" role="img" aria-labelledby="title about">',
            f'<title id="title">{escape(title)}</title><desc id="about">{escape(about)}</desc>',
            f"<style>{STYLE.replace('LIGHT', light).replace('DARK', dark)}</style>",
            '<rect width="100%" height="100%" fill="var(--paper)"/>',
            f'<text class="title" x="16" y="22">{escape(title)}</text>',
            *parts,
            f'<path d="M{one:.1f} {TOP - 8:g}V{y - GAP + 4:g}" stroke="var(--line)" '
            'stroke-dasharray="3 3"/>',
            f'<text class="soft" x="{one + 4:.1f}" y="{TOP - 2:g}">{escape(theirs)}</text>',
            "</svg>\n",
        ]
    )


def said(kind: str) -> str:
    """A kind of workload in words."""
    match kind.split(":"):
        case ["nanobench", *numbers]:
            return f"nanobench, {numbers[0] if numbers else 256} requests"
        case ["decode", "1", *_]:
            return "1 request"
        case ["decode", count, *_]:
            return f"{count} requests at once"
        case ["prefill", count, length, *_]:
            return f"{count} prompts of {length} tokens"
    return kind


def listed(table: Sequence[tuple[str, float, float, float, list[float]]]) -> dict[str, float]:
    """The ratios of `compare_runs.rows`, by workload: many requests, few to many, prompts."""
    found = {what: ratio for what, _, _, ratio, _ in table}
    order = ("nanobench", "decode", "prefill")

    def place(kind: str) -> tuple[int, int]:
        what, *numbers = kind.split(":")
        return (order.index(what) if what in order else len(order)), int([*numbers, "0"][0])

    return {kind: found[kind] for kind in sorted(found, key=place)}
