"""Under torchrun every rank finds the same mistakes: the first to find one tells it."""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta

WAIT = timedelta(seconds=5)  # for torchrun's store


def follows() -> bool:
    """Whether this is one of torchrun's ranks, and not the first."""
    return _by_torchrun() and os.environ.get("RANK", "0") != "0"


def first_to_tell(message: str) -> bool:
    """Whether no other rank has told this. True for a single process, or if ranks cannot meet."""
    if not _by_torchrun() or os.environ.get("WORLD_SIZE") == "1":
        return True
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"plait/told/{attempt}/{hashlib.sha256(message.encode()).hexdigest()}"
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False, timeout=WAIT)
        return bool(store.add(key, 1) == 1)
    except (KeyError, ValueError, RuntimeError):
        return True


def _by_torchrun() -> bool:
    # then torchrun itself holds the store, which is there before any rank is
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
