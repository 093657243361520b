"""The program that tries forms out, in a process that may be lost: one JSON object a line.

First `{"names": [...]}` comes in, of the tokens that grammars may name. Then, for each form,
`{"form": {...}, "seconds": ...}` comes in, and `{"reason": ...}` goes out, null for one that can be
served. What takes longer, more memory or more stack than it may ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from plugins.guided.limits import LIMITS, MEMORY, STACK


def main() -> int:
    """Serve until the input ends."""
    import llguidance.gbnf_to_lark  # noqa: F401  # while there is memory to import it
    from llguidance import LLMatcher
    from llguidance._lib import LLParserLimits

    from core.errors import UserError
    from plugins.guided.form import Form
    from plugins.guided.vocabulary import Vocabulary

    alphabet = [bytes([byte]) for byte in range(256)]
    names = json.loads(sys.stdin.readline() or '{"names": []}')["names"]
    tokens = [*alphabet, b"<|end|>", *(name.encode() for name in names)]
    words = Vocabulary(tokens, range(256, len(tokens)), [256], lambda text: list(text.encode()))
    with suppress(ValueError, OSError):  # not every system can
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()  # else the kernel's log would have a line for each loss
    threading.stack_size(STACK)

    def attempt(form: Form, found: list[str]) -> None:
        try:
            grammar = form.grammar()
        except UserError as error:
            found.append(str(error))
            return
        matcher = LLMatcher(words.made, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
        if not matcher.is_error():
            matcher.compute_bitmask()
        found.append(matcher.get_error())

    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        found: list[str] = []
        # the signal's default is to end the process, in the middle of whatever it computes
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
        thread = threading.Thread(target=attempt, args=(Form(**asked["form"]), found))
        thread.start()
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"reason": (found or ["it cannot be read"])[0] or None}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
