"""The address that the server listens on: taken before a model is loaded, opened after it."""

from __future__ import annotations

import errno
import socket

from core.errors import UserError


def take_address(host: str, port: int) -> socket.socket:
    """A socket bound to the address, which does not listen yet: who connects is refused.

    UserError when the address is not one of this machine, or is in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"run.host is {host!r}, which is no address: {error}. Say 127.0.0.1 for this machine "
            "alone, or 0.0.0.0 for all who can reach it."
        ) from error
    family, kind, protocol, _, address = found[0]
    taken = socket.socket(family, kind, protocol)
    try:
        # a server that ended a moment ago leaves connections that would hold the port for a minute
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise UserError(_reason(host, port, error)) from error
    return taken


def open_address(listener: socket.socket, backlog: int = 2048) -> None:
    """Listen. UserError when another program began to while the model was loaded.

    Not left to the event loop: uvloop's does not say that it failed.
    """
    try:
        listener.listen(backlog)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise UserError(_reason(host, port, error)) from error


def url(listener: socket.socket) -> str:
    """Where a browser on this machine finds it."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def beyond(listener: socket.socket) -> str:
    """ ", and ..." if other machines find it as well, at addresses that this one does not know."""
    everywhere = listener.getsockname()[0] in ("0.0.0.0", "::")
    return ", and by all who can reach this machine" if everywhere else ""


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is taken by another program. Give another one with run.port, "
            "or 0 for any that is free."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"run.host is {host!r}, which is no address of this machine. Say 127.0.0.1 or one."
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"this user may not listen on port {port}. Give one above 1023 with run.port."
    return f"the server cannot listen on port {port} of {host}: {error.strerror}."
