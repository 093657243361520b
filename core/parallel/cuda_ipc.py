"""Memory of one GPU that other processes map: as much of CUDA's runtime as that takes.

The memory comes from cudaMalloc and not from torch, whose allocator may cut it from segments that
cannot be shared. Source: the CUDA Runtime API, "Interprocess Communication".
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

HANDLE = 64  # bytes of a cudaIpcMemHandle_t
LAZY_PEER_ACCESS = 1


class Handle(ctypes.Structure):
    """What another process needs to map an allocation."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE),)


class IpcError(RuntimeError):
    """The runtime is not there, or has refused a call."""


@cache
def runtime() -> Any:
    """The CUDA runtime that torch has loaded into this process. Raises IpcError."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")
        if "libcudart" in path[2]:
            library = ctypes.CDLL("/" + path[2].strip())
            library.cudaGetErrorString.restype = ctypes.c_char_p
            library.cudaIpcOpenMemHandle.argtypes = [
                ctypes.POINTER(ctypes.c_void_p),
                Handle,
                ctypes.c_uint,
            ]
            return library
    raise IpcError("this process has loaded no libcudart")


def call(name: str, *arguments: Any) -> None:
    """Call a function of the runtime. Raises IpcError with what it says when it fails."""
    library = runtime()
    if status := getattr(library, name)(*arguments):
        library.cudaGetLastError()  # or torch would find the error, and blame a call of its own
        raise IpcError(f"{name}: {library.cudaGetErrorString(status).decode()}")


def take(size: int) -> int:
    """`size` bytes on the current device -> their address."""
    address = ctypes.c_void_p()
    call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
    assert address.value is not None
    return address.value


def give_back(address: int) -> None:
    """Free what `take` gave."""
    call("cudaFree", ctypes.c_void_p(address))


def exported(address: int) -> bytes:
    """What `opened` needs in another process, 64 bytes."""
    handle = Handle()
    call("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(address))
    return ctypes.string_at(ctypes.byref(handle), HANDLE)


def opened(exported: bytes) -> int:
    """Map memory of another process's GPU for the current device -> its address here."""
    address, handle = ctypes.c_void_p(), Handle.from_buffer_copy(exported)
    call("cudaIpcOpenMemHandle", ctypes.byref(address), handle, LAZY_PEER_ACCESS)
    assert address.value is not None
    return address.value


def closed(address: int) -> None:
    """Undo `opened`."""
    call("cudaIpcCloseMemHandle", ctypes.c_void_p(address))
