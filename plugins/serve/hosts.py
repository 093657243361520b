"""The names that the server answers to, so that no web page reaches it by a name of its own.

A page of evil.example can let that name stand for 127.0.0.1 (DNS rebinding): to the browser, a
server on this machine is then the page's own. Its requests still say `Host: evil.example`.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from plugins.serve.error_answers import answer
from plugins.serve.protocol.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def names_of(host: str, hosts: Sequence[str] | None, key: str | None) -> list[str] | None:
    """The names to answer to, beside addresses and localhost. None: any.

    `host`, `hosts`: as in the configuration. Where nothing is said, names are checked if nobody but
    this machine's programs, browsers among them, is meant to ask, and no key keeps pages out.
    """
    if hosts is None:
        return [host] if key is None and _is_loopback(host) else None
    return None if "*" in hosts else [host, *hosts]


class HostCheck:
    """Answers 403 to requests for a server of another name."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        """`names`: beside localhost; `*.example.org` stands for all names below it."""
        self._app = app
        self._names = {name.lower() for name in names} | {"localhost"}
        self._ends = tuple(name[1:] for name in self._names if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for name, value in scope["headers"]:
                if name == b"host" and not self._known(value.decode("latin-1")):
                    refused = answer(_refusal(value.decode("latin-1")))
                    await refused(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    def _known(self, given: str) -> bool:
        host = given.strip().lower()
        if host.startswith("["):
            name = host[1:].partition("]")[0]
        else:
            name = host.partition(":")[0].rstrip(".")
        if name in self._names or name.endswith((".localhost", *self._ends)):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # no page can choose what an address stands for


def _refusal(given: str) -> ApiError:
    return ApiError(
        f"This server does not answer to the name {given[:200]!r}. Ask it by its address, or add "
        "the name to run.hosts if it is the server's own.",
        status=403,
        code="host_not_allowed",
    )


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    addresses = {str(address[0]).partition("%")[0] for *_, address in found}
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)
