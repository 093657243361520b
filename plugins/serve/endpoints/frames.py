"""Events of a stream, put together from parts that are the same for every token."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from plugins.serve.protocol.usage import Usage

encode = msgspec.json.Encoder().encode


class Frames:
    """The events of one request, around what is new in each."""

    def __init__(self, kind: str, prefix: str, model: str, *, tells_usage: bool) -> None:
        """`kind`: what `object` says. `prefix`: of the id. `tells_usage`: with include_usage every
        event has a usage, which is null but in the last one."""
        self.id = prefix + uuid.uuid4().hex
        self.created = int(time.time())
        self.model = model
        head = encode({"id": self.id, "object": kind, "created": self.created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._usage = b',"usage":null' if tells_usage else b""

    def around(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """What comes before and after the part of a choice that changes from token to token."""
        return self._head + before, after + b"]" + self._usage + b"}\n\n"

    def event(self, choice: bytes, usage: Usage | None = None, more: bytes = b"") -> bytes:
        """One event of one choice, or of none. `more`: further fields beside the choices."""
        told = self._usage if usage is None else b',"usage":' + encode(usage)
        return self._head + choice + b"]" + (b"," + more if more else b"") + told + b"}\n\n"


def fields(**values: Any) -> bytes:
    """Fields of a JSON object, without its braces; those that are None are left out."""
    return encode({name: value for name, value in values.items() if value is not None})[1:-1]
