"""The kit's pytest plugin. Every run of pytest imports it; only a run of the kit notices it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path(__file__).parent
PACKAGE = "core.testing"
SESSION = "plait-kit"  # pytest's name for core.testing.session


class Kind(NamedTuple):
    """One kind of component: its option, and where its tests are."""

    option: str  # --NAME on the command line
    registry: str  # attribute of core.registry.registries
    subject: str  # the fixture that a test asks for
    word: str

    def tested_in(self, file: Path) -> bool:
        """Whether a file of the kit holds tests of this kind."""
        return file.name.startswith(f"test_{self.subject}_")


KINDS = (
    Kind("backend", "attention", "attention", "attention backend"),
    Kind("kernels", "kernels", "kernels", "kernel set"),
    Kind("sampler", "samplers", "sampler", "sampler"),
    Kind("scheduler", "schedulers", "scheduler", "scheduler"),
    Kind("sharding", "sharding", "strategy", "sharding strategy"),
    Kind("quantization", "quantization", "quantization", "quantization format"),
    Kind("runner", "runners", "runner", "runner"),
    Kind("model", "models", "architecture", "model"),
)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Offer the options if the kit is among what shall be tested.

    Not in `pytest_addoption`: other projects have options of the same names.
    """
    if any(map(_is_kit, early_config.known_args_namespace.file_or_dir)):
        activate(early_config.pluginmanager, parser)


def activate(pluginmanager: pytest.PytestPluginManager, parser: pytest.Parser) -> None:
    """Add the options, the fixture `device` and the kit's way of collecting. May be repeated."""
    if pluginmanager.has_plugin(SESSION):
        return
    group = parser.getgroup("plait", "Plait's conformance kit (--pyargs core.testing)")
    for kind in KINDS:
        group.addoption(
            f"--{kind.option}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"test this {kind.word}, or '{{use: NAME, option: value}}'; may be repeated. With "
            "none of these: the built-in ones",
        )
    group.addoption(
        "--load",
        action="append",
        default=[],
        metavar="PLUGIN",
        help="load this plugin first: a name, a module or ./file.py, as after core.run's -p",
    )
    group.addoption(
        "--on", default="cpu", metavar="DEVICE", help="device of the tests: cpu (default) or cuda"
    )
    group.addoption(
        "--reference",
        action="append",
        default=[],
        metavar="DIR",
        help="for --model: a checkpoint to compare with what transformers makes of it, or with "
        "the tensors 'ids' [N, T] and 'logits' [N, T, V] of its reference.safetensors",
    )
    from core.testing import session

    pluginmanager.register(session, SESSION)


def _is_kit(word: str) -> bool:
    name = str(word).partition("::")[0]
    if name == PACKAGE or name.startswith(f"{PACKAGE}."):
        return True
    path = Path(name).absolute()
    return path == HERE or HERE in path.parents


def asked(config: pytest.Config) -> Iterable[tuple[Kind, list[str]]]:
    """Each kind, with the names that the command line gives."""
    return [(kind, config.getoption(kind.option)) for kind in KINDS]
