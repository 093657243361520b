"""A file that a script is told to write, looked at before the script does what takes long."""

from __future__ import annotations

import argparse
from pathlib import Path

from plugins.apps.output_files import look_at


def output_file(text: str) -> Path:
    """For `add_argument(type=...)`: argparse tells whoever names a file that cannot be written."""
    try:
        look_at(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}") from None
    return Path(text)
