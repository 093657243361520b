"""Every fault of a plugin, file or package: whoever uses it is told, nobody else is harmed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from core.hub import HubModel
from tests.thirdparty import faulty
from tests.thirdparty.installed import Site

PROCESSED = {"sampler": {"use": "default", "processors": ["faulty"]}}
CUT = {"tensor": 2, "plan": {"model.layers.*.self_attn.o_proj": "faulty:q"}}
NAMED = {"plugins": ["faulty"]}
USES: dict[str, dict[str, Any]] = {
    "import": {"attention": "faulty"},
    "register": {"attention": "faulty"},
    "target": {"attention": "faulty"},
    "init": {"attention": "faulty"},
    "rejects": {"attention": "faulty"},
    "plan": {"attention": "faulty"},
    "forward": {"attention": "faulty"},
    "accepts": {"sampler": "faulty"},
    "call": {"sampler": "faulty"},
    "order": {"scheduler": "faulty"},
    "wants": PROCESSED,
    "process": PROCESSED,
    "dims": {"parallel": CUT},
    "hang": {"attention": "faulty"},
    **dict.fromkeys(faulty.HOOK_PLACES, NAMED),
}
"""Where it raises, and a configuration that comes there."""

EARLY = {"import", "register", "hang"}
REFUSED = {*EARLY, "target", "wants"}  # before anything runs, so it is no crash
CAUGHT = {"plan", "forward", "call", "process"}  # of single requests, which end with the sentence
COMPONENTS = set(USES) - {*EARLY, "target", *faulty.HOOK_PLACES}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for 10 seconds."""
    monkeypatch.setenv("PLAIT_PLUGIN_SECONDS", "0.5")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("place", USES)
def test_a_package_that_is_not_used_harms_nobody(
    place, site: Site, config, here, expected, caplog, checkpoint, monkeypatch
) -> None:
    faulty.install(site, place)
    sections: dict[str, Any] = {}
    if place == "find_model":  # asked for names alone
        model = HubModel("an-owner/a-name", checkpoint)
        monkeypatch.setattr("core.checkpoint.hub_model", lambda *_: model)
        monkeypatch.setattr(HubModel, "fetch", lambda _: None)
        sections = {"model": {"path": "an-owner/a-name"}}
    run = here(config(**sections))
    assert (run.status, run.tokens) == (0, expected), run.err
    told = warnings(caplog)
    assert all("plugin 'faulty' (plait-faulty 0.7)" in text for text in told)
    if place in EARLY:
        assert "did not load" in told[-1]
        assert len(told) == (2 if place == "hang" else 1)
    elif place in faulty.OFFERING_PLACES:
        (text,) = told
        assert f"failed in its hook {place}: ValueError: no luck in {place}" in text
        assert f"{site.folder / 'plait_faulty.py'}, line " in text
        assert text.endswith("-p no:faulty leaves it out.")
    else:
        assert told == []


@pytest.mark.parametrize("place", sorted(COMPONENTS))
def test_a_file_whose_component_is_not_chosen_harms_nobody(
    place, site: Site, config, here, expected, caplog, tmp_path
) -> None:
    run = here(config(plugins=[str(faulty.one_file(tmp_path, place))]))
    assert (run.status, run.tokens) == (0, expected), run.err
    assert warnings(caplog) == []


@pytest.mark.parametrize("form", ["package", "file"])
@pytest.mark.parametrize("place", USES)
def test_whoever_uses_it_gets_one_error_with_package_version_and_line(
    place, form, site: Site, config, here, expected, caplog, tmp_path, monkeypatch
) -> None:
    sections = dict(USES[place])
    if form == "package":
        faulty.install(site, place)
        file = "plait_faulty.py" if place in faulty.ENTRY_PLACES else "plait_faulty_parts.py"
        origin, path = "plait-faulty 0.7", site.folder / file
    else:
        path = faulty.one_file(tmp_path, place)
        sections["plugins"] = [str(path)]
        origin = str(path)
    if place == "find_model":
        sections["model"] = {"path": "a-name"}
    run = here(config(**sections))
    if place in faulty.WATCHING_PLACES:
        assert (run.status, run.tokens) == (0, expected), run.err
        (text,) = warnings(caplog)
        assert text.startswith(f"plugin 'faulty' ({origin}) failed in its hook {place}; ")
    else:
        assert run.status == (2 if place in REFUSED or (form, place) == ("file", "target") else 1)
        text = run.err
        assert "fault of Plait" not in text
        crash = place not in REFUSED | CAUGHT
        assert text.count("Traceback") == crash
        assert text.count(f"This is a fault of plugin 'faulty' ({origin})") == crash
    assert f"plugin 'faulty' ({origin})" in text
    assert f"{path}, line " in text or f'"{path}", line ' in text
    assert (f"no luck in {place}" if place != "hang" else "it hung for 0.5 s at") in text
