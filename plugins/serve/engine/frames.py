"""Messages as bytes with their length in front, so that a stream can be cut into them again."""

from __future__ import annotations

from struct import Struct

LENGTH = Struct("!I")


def frame(message: bytes) -> bytes:
    """The message as it goes onto the stream."""
    return LENGTH.pack(len(message)) + message


class Frames:
    """Collects what a stream brings, and gives the messages that are whole."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes, in order."""
        held = self._held
        held += data
        found, at = [], 0
        while len(held) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(held, at)
            end = at + LENGTH.size + length
            if end > len(held):
                break
            found.append(bytes(held[at + LENGTH.size : end]))
            at = end
        del held[:at]
        return found
