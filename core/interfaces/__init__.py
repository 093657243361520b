"""What a component must do to be chosen by name. Each class here is the contract of one registry.

A component is built from its `Options`, a dataclass filled and checked from its section of the
YAML file. Capability is asked before anything is built: `rejects(...)` and `accepts(...)` return
reasons in words, and an empty list means yes.

Each class has a version, `interface`. A component that repeats it (`interface = 1`) says what it
was written for, and is refused or still served by a Plait with another version; one that does not
is taken to fit. docs/compatibility.md says what changes a version.
"""

from core.interfaces.compute import AttentionBackend, Kernels, Runner, Step
from core.interfaces.control import Executor, Pending, Scheduler
from core.interfaces.model import App, Architecture, Dialect
from core.interfaces.observing import Observer
from core.interfaces.sampling import LogitsProcessor, Sampled, Sampler

__all__ = [
    "App",
    "Architecture",
    "AttentionBackend",
    "Dialect",
    "Executor",
    "Kernels",
    "LogitsProcessor",
    "Observer",
    "Pending",
    "Runner",
    "Sampled",
    "Sampler",
    "Scheduler",
    "Step",
]
