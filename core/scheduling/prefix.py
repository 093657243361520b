"""Names for what a page holds, so that equal beginnings of requests share their pages."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.types import Request

DIGEST = 32  # bytes; a collision would hand one user's cache to another, so all 256 bits
TOKEN = array("i").itemsize


class PrefixKeys:
    """The keys of one request's full pages, made as its tokens become known.

    The key of a page is a digest of the key before it and of the page's own token ids: keys and
    values depend on all tokens so far, and equal keys mean that all of those are equal. The chain
    starts from the request's salt.
    """

    __slots__ = ("_keys", "_page_size", "_root")

    def __init__(self, salt: str | None, page_size: int) -> None:
        self._root = root(salt)
        self._page_size = page_size
        self._keys: list[bytes] = []

    def of(self, request: Request, start: int, end: int) -> list[bytes]:
        """Keys of pages `start` to `end` (not included), all of whose tokens `request` holds."""
        keys, size = self._keys, self._page_size
        if len(keys) < end:
            data = array("i", tokens_between(request, len(keys) * size, end * size)).tobytes()
            key = keys[-1] if keys else self._root
            for at in range(0, len(data), size * TOKEN):
                key = blake2b(key + data[at : at + size * TOKEN], digest_size=DIGEST).digest()
                keys.append(key)
        return keys[start:end]


def root(salt: str | None) -> bytes:
    """Where the chain of a salt starts. No salt and the empty one are different."""
    kind = b"none" if salt is None else b"text"
    data = b"" if salt is None else salt.encode("utf-8", "surrogatepass")
    # `person` keeps a salt apart from the bytes of a page, whatever its text
    return blake2b(data, digest_size=DIGEST, person=b"salt " + kind).digest()


def tokens_between(request: Request, start: int, end: int) -> list[int]:
    """Tokens `start` to `end` (not included) of prompt and output."""
    prompt, output = request.prompt, request.output
    size = len(prompt)
    return prompt[start:end] + output[max(start - size, 0) : max(end - size, 0)]
