"""Registries: names, laziness, clashes, and errors that say what to do."""

from __future__ import annotations

import sys
from email.message import Message

import pytest

from core.errors import UserError
from core.interfaces import Sampler
from core.registry import Provider, Registries, Registry, provided_by


class Fine(Sampler):
    """Takes the first token.

    Not the second.
    """

    def __call__(self, logits, rows):
        raise NotImplementedError


def samplers() -> Registry[Sampler]:
    return Registry("sampler", "core.interfaces:Sampler")


def refusal(registry: Registry[Sampler], name: str) -> str:
    with pytest.raises(UserError) as caught:
        registry.get(name)
    return str(caught.value)


def test_decorator_and_call_return_the_class() -> None:
    registry = samplers()
    assert registry.register("a")(Fine) is Fine
    assert registry.register("b", Fine) is Fine
    assert registry.register("c", f"{__name__}:Fine") is None
    assert registry.names() == ["a", "b", "c"]
    assert {registry.get(name) for name in "abc"} == {Fine}


def test_a_summary_is_the_first_line_of_the_docstring_unless_given() -> None:
    registry = samplers()
    registry.register("a", Fine)
    registry.register("b", Fine, summary="mine")
    assert [entry.summary for entry in registry.entries()] == ["Takes the first token.", "mine"]


def test_a_path_is_imported_on_first_use(tmp_path, monkeypatch) -> None:
    tmp_path.joinpath("plait_lazy.py").write_text(f"from {__name__} import Fine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = samplers()
    registry.register("lazy", "plait_lazy:Fine")
    assert registry.entry("lazy").missing() == []
    assert "plait_lazy" not in sys.modules
    assert registry.get("lazy") is Fine
    del sys.modules["plait_lazy"]


def test_an_unknown_name_lists_the_names_and_the_nearest() -> None:
    registry = samplers()
    registry.register("min-p", Fine)
    registry.register("greedy", Fine)
    message = refusal(registry, "mip-p")
    assert "no sampler is called 'mip-p'" in message
    assert "Did you mean 'min-p'?" in message
    assert "greedy, min-p" in message


def test_two_providers_of_a_name_are_an_error_only_when_it_is_used() -> None:
    registry = samplers()
    with provided_by(Provider("minp", "plait-minp 0.1", "minp")):
        registry.register("min-p", "one:One")
        registry.register("other", Fine)
    with provided_by(Provider("dup", "plait-dup 2.0", "dup")):
        registry.register("min-p", "two:Two")
    assert registry.get("other") is Fine
    message = refusal(registry, "min-p")
    assert "plugin 'minp' (plait-minp 0.1) and plugin 'dup' (plait-dup 2.0)" in message
    assert "-p no:minp or -p no:dup" in message


def test_the_same_class_again_is_no_second_provider() -> None:
    registry = samplers()
    registry.register("a", f"{__name__}:Fine")
    registry.register("a", Fine)
    assert registry.get("a") is Fine


def test_missing_needs_are_named_and_nothing_is_imported() -> None:
    registry = samplers()
    registry.register("fast", "plait_unreachable:Fast", needs=("json", "plait_absent", "os.nope"))
    assert registry.entry("fast").missing() == ["plait_absent", "os.nope"]
    assert "needs plait_absent, os.nope, which is not installed" in refusal(registry, "fast")


def test_a_need_may_name_alternatives() -> None:
    registry = samplers()
    registry.register("fast", Fine, needs=("plait_absent or json", "plait_no or plait_none"))
    assert registry.entry("fast").missing() == ["plait_no or plait_none"]
    assert "needs plait_no or plait_none, which is not installed" in refusal(registry, "fast")


@pytest.mark.parametrize(
    ("needs", "extra"),
    [
        (("plait_absent",), "odd"),
        (("plait_no or plait_absent.part", "plait_other"), "both"),
        (("plait_absent", "plait_unlisted"), None),
    ],
)
def test_the_extra_that_has_what_is_missing_is_named(
    needs: tuple[str, ...], extra: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = Message()
    for line in (
        "Requires-Dist: plait-unlisted",
        "Requires-Dist: plait-other; extra == 'few'",
        "Requires-Dist: plait_absent>=2; python_version > '3' and extra == 'odd'",
        "Requires-Dist: plait-absent; extra == 'both'",
        "Requires-Dist: plait-other; extra == 'both'",
        *(f"Provides-Extra: {name}" for name in ("few", "odd", "both")),
    ):
        about.add_header(*line.split(": "))
    monkeypatch.setattr("core.importing.metadata.metadata", lambda name: about)
    registry = samplers()
    registry.register("fast", Fine, needs=needs)

    told = refusal(registry, "fast")

    assert (f"Install it (it is in plait's extra '{extra}') or choose" in told) is bool(extra)
    assert ("extra" in told) is bool(extra)


def test_needs_looks_into_packages_without_importing_them(tmp_path, monkeypatch) -> None:
    package = tmp_path / "plait_heavy"
    package.mkdir()
    package.joinpath("__init__.py").write_text("raise SystemExit('imported')\n")
    package.joinpath("inner.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = samplers()
    registry.register("x", Fine, needs=("plait_heavy.inner", "plait_heavy.outer"))
    assert registry.entry("x").missing() == ["plait_heavy.outer"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("plait_absent:X", "ModuleNotFoundError: No module named 'plait_absent'"),
        ("json:Nothing", "AttributeError: module 'json' has no attribute 'Nothing'"),
        ("json:dumps", "not a class"),
        ("json:JSONDecoder", "does not derive from core.interfaces:Sampler"),
    ],
)
def test_a_bad_target_names_its_provider_and_the_cause(target: str, said: str) -> None:
    registry = samplers()
    with provided_by(Provider("mine", "plait-mine 3.1")):
        registry.register("x", target)
    message = refusal(registry, "x")
    assert "sampler 'x' of plugin 'mine' (plait-mine 3.1)" in message
    assert target in message
    assert said in message


def test_mistakes_of_authors_are_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"package\.module:Class"):
        samplers().register("x", "json.JSONDecoder")
    with pytest.raises(TypeError, match="comma"):
        samplers().register("x", Fine, needs="torch")


def test_restore_forgets_later_registrations() -> None:
    registries = Registries()
    registries.samplers.register("early", Fine)
    before = registries.snapshot()
    registries.samplers.register("late", Fine)
    registries.apps.register("late", "a:B")
    registries.restore(before)
    assert registries.samplers.names() == ["early"]
    assert registries.apps.names() == []


def test_notes_about_plugins_go_with_every_refusal() -> None:
    registries = Registries()
    registries.notes.append("note: plugin 'x' (x 1.0) did not load: why")
    with pytest.raises(UserError, match=r"note: plugin 'x' \(x 1\.0\) did not load: why"):
        registries.samplers.get("nothing")
