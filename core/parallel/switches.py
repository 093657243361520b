"""What the libraries between GPUs are told by the environment, before any of them is loaded.

NVLink multicast (NVLS, multimem) can put the GPUs of a host out of service when a program that uses
it goes wrong, so it stays off in every process that is a rank.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

from core.errors import UserError

MULTICAST_OFF = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
USUAL = {
    # Graphs hold no extra streams and events then. In turn no two collectives may overlap, captured
    # or not: all of them are on the stream of the step.
    "NCCL_GRAPH_MIXING_SUPPORT": "0",
    # A rank that is gone is told in a sentence. torch's watchdog would end this process instead.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


def set_switches(environment: MutableMapping[str, str] = os.environ) -> None:
    """Multicast is off whatever the environment says; the rest is what it says, if it says it."""
    environment.update(MULTICAST_OFF)
    for name, value in USUAL.items():
        environment.setdefault(name, value)


def check_allocator(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse settings of torch's allocator that several GPUs cannot work with. Raises UserError."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        words = environment.get(name, "").lower().replace(" ", "")
        if "expandable_segments:true" in words:
            raise UserError(
                f"{name} says expandable_segments:True. Memory of that kind cannot be shared "
                "between the processes of several GPUs, which captured collectives do. Leave it "
                "out, or say parallel.tensor=1."
            )
