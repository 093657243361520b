"""Starts the engine's process, and says what became of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection
from typing import TextIO

from core.children import command, module_path

PROGRAM = "plugins.serve.engine.process"


def start_process(without: Collection[str] = ()) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """-> the process, and this end of the socket to it.

    It lives as long as the pipe to its standard input is open, so it never outlives this process.
    `without`: environment variables that it shall not see.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        # not multiprocessing's spawn: that would import the caller's main script again
        process = subprocess.Popen(
            command(PROGRAM, str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            env={
                **{name: value for name, value in os.environ.items() if name not in without},
                "PYTHONPATH": module_path(),
            },
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the server's to handle
        )
    return process, ours


def _has_descriptor(stream: TextIO) -> bool:
    try:
        return stream.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


def obituary(process: subprocess.Popen[bytes], patience: float) -> str:
    """How the process has ended, in a sentence; it gets `patience` seconds to do so."""
    try:
        code = process.wait(patience)
    except subprocess.TimeoutExpired:
        return "its process closed the connection."
    if code >= 0:
        return f"its process ended with exit status {code}."
    name = signal.Signals(-code).name
    hint = " The system may have run out of memory." if name == "SIGKILL" else ""
    return f"its process was killed by {name}.{hint}"
