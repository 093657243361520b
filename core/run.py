"""What `python -m core.run` starts: the command line, and its end when Ctrl-C comes early."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run what the command line asks for.

    -> exit status: the app's, 2 after a user's mistake, 1 after a fault, 130 after Ctrl-C.
    """
    try:
        # here, because half of the time until something happens goes into imports
        from core.command_line import run

        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
