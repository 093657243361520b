"""JSON files of checkpoints: each holds one object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core.errors import UserError


def read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """The object in a file; of an `optional` file that is not there, an empty one.

    UserError names the file and the place of a mistake.
    """
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(value).__name__}.")
    return value
