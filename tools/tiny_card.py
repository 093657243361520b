"""The tiny model's card, from what training and evaluation wrote beside it.

python -m tools.tiny_card local/tiny local/tiny-text
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from safetensors import safe_open

from tools.tiny_measures import STRIDE, WINDOW
from tools.tiny_sources import SOURCES, WORDNET
from tools.tiny_text import PARTS

TEMPLATE = Path(__file__).with_suffix(".md")


def model_card(folder: Path, text: Path) -> str:
    """README.md for the model in `folder`, trained on the text in `text`."""
    config = json.loads((folder / "config.json").read_text())
    report = json.loads((folder / "report.json").read_text())
    training = json.loads((folder / "training.json").read_text())
    sizes = json.loads((text / "summary.json").read_text())
    trial = min(training["trials"], key=lambda t: t["best"])
    texts = {name: row for name, row in report.items() if isinstance(row, dict) and "xz" in row}
    return TEMPLATE.read_text().format(
        **{k: v for k, v in config.items() if isinstance(v, int | float | str)},
        **trial["recipe"] | {"epochs": trial["passes"]},
        parameters=parameters(folder),
        megabytes=(folder / "model.safetensors").stat().st_size / 1e6,
        parts=" | ".join(PARTS),
        rules=" | ".join("---:" for _ in PARTS),
        sources="\n".join(
            f"| {s.name} | {s.client}: `{s.package}` | {s.licence} | "
            + " | ".join(f"{sizes[s.name][part]:,}" for part in PARTS)
            + " |"
            for s in SOURCES
        ),
        wordnet=WORDNET.package,
        wordnet_licence=WORDNET.licence,
        seed=training["seed"],
        examples=training["examples"],
        steps=trial["steps"],
        kept=min(trial["curve"], key=lambda row: row[2])[0],
        curve="\n".join(f"| {s:,} | {t:.3f} | {v:.3f} |" for s, t, v in trial["curve"]),
        window=WINDOW,
        stride=STRIDE,
        figures="\n".join(
            f"| {name} | {r['bytes']:,} | {r['bits_per_byte']:.3f} | {r['xz']:.3f} |"
            f" {1 - r['bits_per_byte'] / r['xz']:.0%} |"
            for name, r in texts.items()
        ),
        known=", ".join(f"{share:.1%}" for share in report["known_words"]),
        repeated=max(report["repeated_5grams"]),
        answers="\n".join(
            f"| {question} | {' '.join(plain.split()).replace('|', '/')} |"
            for question, (plain, _) in report["answers"].items()
        ),
    )


def parameters(folder: Path) -> int:
    """How many numbers the model's file holds."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


if __name__ == "__main__":
    card = model_card(Path(sys.argv[1]), Path(sys.argv[2]))
    (Path(sys.argv[1]) / "README.md").write_text(card)
