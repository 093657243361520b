"""Which earlier tokens does each head of a layer look at most? Ask the model that ships with Plait.

    python examples/look_inside.py
    python examples/look_inside.py --layer 0 "The cat sat on the mat, and the cat was"

It prints a row for each head: the tokens that the prompt's last token attends to most, and how much
of the head's attention goes to the token itself, to the one before it, and to the first one, where
heads that have nothing to say tend to look (Xiao et al. 2023, arXiv 2309.17453).
"""

import argparse

from rich.console import Console
from rich.table import Table
from rich.text import Text

from core import LLM
from plugins.observers.look import Seen, look

PROMPT = '"Who is there?" said the Mole. "It is I," said the Rat. "Come in," said the'


def picture(seen: Seen, layer: int, best: int) -> Table:
    """A table of the heads of a layer, seen from the last token."""
    last = seen.attentions[layer][:, -1]  # [heads, keys]
    here = len(seen.tokens) - 1
    table = Table(title=f"layer {layer}, seen from {seen.tokens[-1]!r}, token {here}")
    for name in ("head", "looks most at", "itself", "before", "first"):
        table.add_column(name, justify="left" if name.startswith("looks") else "right")
    for head, weights in enumerate(last):
        shares, places = weights[:here].topk(min(best, here))
        places = zip(places.tolist(), shares.tolist(), strict=True)
        told = ", ".join(f"{seen.tokens[at]!r}@{at} {share:.0%}" for at, share in places)
        few = (f"{float(weights[at]):.0%}" for at in (here, here - 1, 0))
        table.add_row(str(head), Text(told), *few)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--model", default="tiny", help="a checkpoint; tiny: the one that ships")
    parser.add_argument("--layer", type=int, default=-1, help="which layer; -1: the last")
    parser.add_argument("--best", type=int, default=4, help="how many tokens to name for a head")
    asked = parser.parse_args()
    with LLM(asked.model, dtype="float32", plugins=["observers"]) as llm:
        wish = {"layers": [asked.layer], "positions": "last"}
        (seen,) = look(llm, asked.prompt, attentions=wish)
    Console().print(picture(seen, asked.layer, asked.best))


if __name__ == "__main__":
    main()
