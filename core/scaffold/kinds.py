"""The kinds of component that a new package can begin with, and what each template does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
COMMON = "common"  # the folder of what all kinds share


@dataclass(frozen=True)
class Kind:
    """One kind. Its templates are the files of `templates/NAME/`, over those of `common/`."""

    name: str  # after --kind
    word: str  # what users call such a component
    file: str  # the module of the component
    summary: str  # what the component of the template does, as --list-plugins says it
    registry: str = ""  # attribute of core.registry.registries; none: its hooks are all it has
    option: str = ""  # of the conformance kit, such as --sampler; none: it has no tests of these
    without: str = ""  # kit tests that the template leaves out on purpose

    @property
    def help(self) -> str:
        """A line for --help."""
        return f"{self.word}; begins as: {self.summary}"


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "sampler",
            "sampler",
            "sampler",
            "draws no token that is less likely than epsilon",
            "samplers",
            "sampler",
            without="distribution",
        ),
        Kind(
            "processor",
            "logits processor",
            "processor",
            "lets no n-gram come twice",
            "processors",
        ),
        Kind(
            "scheduler",
            "scheduler",
            "scheduler",
            "priorities that age, so that nobody waits for ever",
            "schedulers",
            "scheduler",
        ),
        Kind(
            "attention",
            "attention backend",
            "attention",
            "torch's own attention, a request at a time",
            "attention",
            "backend",
        ),
        Kind(
            "kernels",
            "kernel set",
            "kernels",
            "silu_mul rounded once, the rest as in torch's set",
            "kernels",
            "kernels",
        ),
        Kind(
            "sharding",
            "sharding strategy",
            "strategy",
            "inputs cut by an axis, partial sums reduced in chunks",
            "sharding",
            "sharding",
        ),
        Kind(
            "quantization",
            "quantization format",
            "quantization",
            "8-bit weights with a scale for each output",
            "quantization",
            "quantization",
        ),
        Kind(
            "runner",
            "runner",
            "runner",
            "names the stages of a step for torch's profiler",
            "runners",
            "runner",
        ),
        Kind("app", "app", "app", "compares the perplexity of texts", "apps"),
        Kind(
            "model",
            "model",
            "architecture",
            "a small decoder with attention and MLP side by side",
            "models",
            "model",
        ),
        Kind(
            "source",
            "weight source",
            "source",
            "weights in numpy files, mapped into memory",
            "sources",
        ),
        Kind("observer", "step observer", "observer", "says how long the steps of an engine took"),
    )
}
