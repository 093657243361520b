"""Compiles kernels for Hopper on a machine without a GPU, into Triton's cache.

    python -m tools.bench_linears --record FILE      note every variant that the benchmark launches
    TRITON_CACHE_DIR=... python -m tools.compile_ahead FILE

The folder serves another machine with the same build of Triton for the same version of Python, and
the same text of the kernels. The second step needs Triton and no GPU; without torch it leaves out
the kernels in files that import it.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

TARGET = GPUTarget("cuda", 90, 32)
SHARED = 232_448  # bytes of shared memory that a program can have

Job = tuple[str, str, Any, Any, Any, dict[str, Any]]


class NoDevice:
    """As much of a driver as it takes to tell variants apart."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def pretend_hopper() -> None:
    """Let launches on the device meta be those of a Hopper GPU."""
    from plugins.attention.triton import backend
    from plugins.kernels.triton import kernels
    from plugins.kernels.triton.products import waiting

    backend.pdl = kernels._pdl = waiting.pdl = lambda device: True  # type: ignore[assignment]
    waiting._served = lambda device, dtype: True  # type: ignore[assignment]


def record(launches: Callable[[], None]) -> list[Job]:
    """What would have to be compiled for these launches, which may be on the device meta."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    jobs: dict[Any, Job] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> None:
        options |= _usual()
        _, _, _, backend, bind = self.device_caches[0]
        bound, special, used = bind(*args, **options)
        _, signature, constants, attributes = self._pack_args(
            backend, options, bound, special, used
        )
        constants = {
            key: ("dtype", value.name) if isinstance(value, tl.dtype) else value
            for key, value in constants.items()
        }
        chosen = {k: options[k] for k in ("num_warps", "launch_pdl", "maxnreg") if k in options}
        job = (self.__module__, self.__name__, signature, constants, attributes, chosen)
        jobs[tuple(map(str, job))] = job

    driver.set_active(NoDevice())
    usual, JITFunction.run = JITFunction.run, run
    try:
        launches()
    finally:
        JITFunction.run = usual
    return list(jobs.values())


def _usual() -> dict[str, Any]:
    return {
        "debug": False,
        "instrumentation_mode": triton.knobs.compilation.instrumentation_mode,
    }


def build(job: Job) -> tuple[str, int, str]:
    """-> the kernel's name, its bytes of shared memory, and what it is for, if it failed."""
    module, name, signature, constants, attributes, chosen = job
    constants = {
        key: _DTYPES[value[1]] if isinstance(value, tuple) and value[:1] == ("dtype",) else value
        for key, value in constants.items()
    }
    options = make_backend(TARGET).parse_options(chosen | _usual())
    try:
        kernel = getattr(importlib.import_module(module), name)
        made = triton.compile(
            ASTSource(kernel, signature, constants, attributes),
            target=TARGET,
            options=options.__dict__,
        )
    except Exception as error:
        return name, 0, f"{error}, {constants}"
    return name, made.metadata.shared, ""


_DTYPES = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        jobs = pickle.load(file)
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        made = pool.map(build, jobs, chunksize=1)
    for name, shared, failed in made:
        if failed or shared > SHARED:
            print(name, failed or f"needs {shared} bytes of shared memory")
    print(len(made), "variants")


if __name__ == "__main__":
    main()
