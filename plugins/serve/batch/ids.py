"""Very many names in little memory: a digest of 16 bytes each."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

SIZE = 16
KIND = np.dtype(f"S{SIZE}")


def digest(name: str) -> bytes:
    """16 bytes that stand for a name; two names with the same are not to be expected."""
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=SIZE).digest()


class Ids:
    """A set of names, closed once `add` is over: 16 MB for a million."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._held = bytearray()
        self._sorted: NDArray[np.bytes_] | None = None
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """One more name."""
        self._held += digest(name)
        self._sorted = None

    def __len__(self) -> int:
        return len(self._held) // SIZE

    def __contains__(self, name: str) -> bool:
        found, wanted = self._in_order(), np.frombuffer(digest(name), KIND)[0]
        place = int(np.searchsorted(found, wanted))
        return place < len(found) and bool(found[place] == wanted)

    def repeated(self) -> Ids:
        """The names that were added more than once."""
        found = self._in_order()
        again = Ids()
        again._held += np.unique(found[1:][found[1:] == found[:-1]]).tobytes()
        return again

    def outside(self, other: Ids) -> int:
        """How many of these are not among the others."""
        return int((~np.isin(self._in_order(), other._in_order())).sum())

    def _in_order(self) -> NDArray[np.bytes_]:
        if self._sorted is None:
            self._sorted = np.sort(np.frombuffer(bytes(self._held), KIND))
        return self._sorted
