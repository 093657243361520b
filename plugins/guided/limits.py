"""What reading a form, and keeping to it, may cost."""

from __future__ import annotations

from typing import Any

LIMITS: dict[str, Any] = {
    "max_items_in_row": 6_000,  # objects of some 1,000 optional properties; some 30 ms
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 50_000,  # some 10 ms
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,  # 1 to 2 KB each
    "max_grammar_size": 200_000,
    "precompute_large_lexemes": False,  # would read the whole vocabulary in advance
    "verbose_errors": False,  # they quote the schema
}
"""Arguments of llguidance.LLParserLimits. A request that is over them ends with an error."""

STACK = 512 * 1024
"""Bytes of stack on which a form is tried out: less than any thread has that reads it in earnest,
so that nesting which would overflow a stack is found where that ends nothing else."""

MEMORY = 2**30  # bytes of address space in which a form is tried out

KEPT = 20.0
"""Seconds that it may have taken together to read the forms that are kept. The largest that are
accepted have 40 MB and take half a second, so this is some 1.6 GB of them."""
