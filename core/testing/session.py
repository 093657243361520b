"""A run of the kit: finds the components that are asked for, and hands them to the tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core.testing.plugin import HERE, KINDS, PACKAGE, Kind, asked

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.registry import Registry


@dataclass(frozen=True)
class Selection:
    """What is tested: names by registry, and whether somebody asked for just these."""

    words: tuple[str, ...]  # plugins to load
    names: dict[str, list[str]]
    explicit: bool


SELECTION = pytest.StashKey[Selection]()


def selection(config: pytest.Config) -> Selection:
    """The components under test. UsageError for a plugin or a name that is not there."""
    if SELECTION not in config.stash:
        from core.errors import UserError

        try:
            config.stash[SELECTION] = _select(config)
        except UserError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[SELECTION]


def _select(config: pytest.Config) -> Selection:
    from core.errors import UserError
    from core.plugins import load
    from core.testing.choosing import choose, wrong_references

    words = tuple(config.getoption("load"))
    load(words)
    chosen: dict[str, list[str]] = {}
    mistakes = []
    for kind, named in asked(config):
        for word in dict.fromkeys(named):
            try:
                chosen.setdefault(kind.registry, []).append(choose(kind, word))
            except UserError as error:
                mistakes.append(str(error))
    names = chosen or _built_in()
    models = None if mistakes else names.get("models", [])
    mistakes += wrong_references(config.getoption("reference"), models)
    if mistakes:
        raise UserError("\n".join(mistakes))
    return Selection(words, names, bool(chosen))


def _built_in() -> dict[str, list[str]]:
    from core.registry import registries

    return {
        kind.registry: [
            entry.name
            for entry in registries.all()[kind.registry].entries()
            if entry.provider.source == "built in" and not entry.missing()
        ]
        for kind in KINDS
    }


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse what is not there, names, options, references or a device, before collecting."""
    config = session.config
    if any(names for _, names in asked(config)):
        _check_device(config.getoption("--on"))
    given = config.getoption("load") or config.getoption("reference")
    if given or any(names for _, names in asked(config)):
        selection(config)


def _check_device(name: str) -> None:
    """UsageError for a device that would have all tests of named components skipped."""
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise pytest.UsageError(f"--on {name}: it is cpu, cuda or cuda:N.")
    if kind == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise pytest.UsageError(f"--on {name}: this machine has no CUDA device.")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of other kinds when some are asked for by name."""
    if collection_path.parent != HERE or not any(names for _, names in asked(config)):
        return None
    kind = next((k for k in KINDS if k.tested_in(collection_path)), None)
    return True if kind and not config.getoption(kind.option) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of the kit for each component of its kind."""
    if not metafunc.module.__name__.startswith(f"{PACKAGE}."):
        return
    for kind in KINDS:
        if kind.subject in metafunc.fixturenames:
            names = selection(metafunc.config).names.get(kind.registry, [])
            metafunc.parametrize(kind.subject, names, indirect=True, scope="module")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The device named by `--on`; tests that use it are skipped where it is not there."""
    name: str = request.config.getoption("--on")
    if name.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip(f"--on {name}: this machine has no CUDA device")
    return name


@pytest.fixture(scope="module")
def plait_words(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The words of `--load`; the registries hold what those plugins offer."""
    from core.plugins import load

    words = selection(request.config).words
    load(words, warn=False)
    return words


@pytest.fixture(scope="session")
def refused(request: pytest.FixtureRequest) -> Callable[[list[str]], None]:
    """What to do about a component that cannot serve what everybody needs: its reasons given.

    A failure if it was asked for by name, because a run that tests nothing is no success.
    """
    explicit = selection(request.config).explicit

    def refused(reasons: list[str]) -> None:
        text = "; ".join(reasons)
        if explicit:
            pytest.fail(f"nothing was tested: {text}", pytrace=False)
        pytest.skip(text)

    return refused


def name_of(registry: Registry[Any], component: type[Any]) -> str:
    """The name under which a class is registered."""
    return next(
        entry.name
        for entry in registry.entries()
        if not entry.missing() and registry.get(entry.name) is component
    )


def _subject(kind: Kind) -> Any:
    @pytest.fixture(scope="module", name=kind.subject)
    def subject(request: pytest.FixtureRequest, plait_words: tuple[str, ...]) -> type[Any]:
        from core.registry import registries

        found: type[Any] = registries.all()[kind.registry].get(request.param)
        return found

    return subject


(
    attention,
    kernels,
    sampler,
    scheduler,
    strategy,
    quantization,
    runner,
    architecture,
) = map(_subject, KINDS)
