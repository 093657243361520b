"""Components written for another version of their interface: served, served for now, or refused."""

from __future__ import annotations

import warnings
from typing import ClassVar

import pytest

from core import deprecation
from core.deprecation import PlaitDeprecation
from core.errors import UserError
from core.importing import load_path
from core.interfaces import Sampler, versions
from core.interfaces.versions import unfit
from core.registry import registries


class Inherits(Sampler):
    def __call__(self, logits, rows): ...


class ForFirst(Inherits):
    interface: ClassVar[int] = 1


class ForSecond(Inherits):
    interface: ClassVar[int] = 2


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Plait whose samplers are at version 2."""
    monkeypatch.setattr(deprecation, "_told", set())
    monkeypatch.setattr(Sampler, "interface", 2)


def test_every_registry_s_class_has_a_version() -> None:
    for registry in registries.all().values():
        assert registry.base is not None
        assert vars(load_path(registry.base))["interface"] >= 1, registry.kind


def test_what_says_nothing_or_the_present_version_fits() -> None:
    assert unfit(Inherits, Sampler) is None
    assert unfit(ForFirst, Sampler) is None


def test_a_newer_one_is_refused_when_it_is_chosen(isolated) -> None:
    isolated.samplers.register("new", ForSecond)
    with pytest.raises(UserError) as caught:
        isolated.samplers.get("new")
    message = str(caught.value)
    assert message.startswith("sampler 'new' of this process: it was written for version 2 of ")
    assert "has version 1. Install a newer Plait." in message


def test_an_older_one_that_is_still_served_is_told_of_once(later, monkeypatch, recwarn) -> None:
    monkeypatch.setitem(versions.OLDER, ("Sampler", 1), ("99.0", "Return a Sampled."))
    assert unfit(ForFirst, Sampler) is None
    assert unfit(ForFirst, Sampler) is None
    (warning,) = recwarn
    assert warning.category is PlaitDeprecation
    text = str(warning.message)
    assert "ForFirst for version 1 of core.interfaces.sampling.Sampler" in text
    assert text.endswith("is deprecated and goes with Plait 99.0. Return a Sampled.")


def test_an_older_one_that_is_no_longer_served_is_refused(later) -> None:
    reason = unfit(ForFirst, Sampler)
    assert reason is not None
    assert "it was written for version 1 of core.interfaces.sampling.Sampler, which" in reason
    assert "Install a newer version of the plugin" in reason


def test_what_inherits_follows_its_base(later) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert unfit(Inherits, Sampler) is None


@pytest.mark.parametrize("version", [0, "1", None, True, 1.0])
def test_a_version_is_a_whole_number(version: object) -> None:
    odd = type("Odd", (Inherits,), {"interface": version})
    assert "must be a version of" in str(unfit(odd, Sampler))


def test_what_is_still_served_is_a_version_below_the_present() -> None:
    present = {
        load_path(r.base).__name__: load_path(r.base).interface for r in registries.all().values()
    }
    for (name, version), (ends, change) in versions.OLDER.items():
        assert version < present[name]
        assert ends
        assert change
