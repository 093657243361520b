"""A plugin that raises: runs without it never notice, runs with it say whose fault it is."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from core.registry import registries
from tests.thirdparty import faulty
from tests.thirdparty.installed import Site
from tests.thirdparty.packaged import ATTENTION, SAMPLER

PROCESSED = {"sampler": {"use": "default", "processors": ["faulty"]}}
CUT = {"tensor": 2, "plan": {"model.layers.*.self_attn.o_proj": "faulty:q"}}
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
    "configure": {"plugins": ["faulty"]},
    "engine_started": {"plugins": ["faulty"]},
    "step_done": {"plugins": ["faulty"]},
    "request_done": {"plugins": ["faulty"]},
    "engine_stopped": {"plugins": ["faulty"]},
    "dims": {"parallel": CUT},
}
"""Where it raises, and a configuration that comes there."""

REFUSED = {"import", "register", "target", "wants"}  # before anything runs, so it is no crash
EARLY = {"import", "register"}


@pytest.mark.parametrize("place", USES)
def test_a_run_that_does_not_use_it_is_untouched(
    place, site: Site, config, here, expected, caplog
) -> None:
    faulty.install(site, place)
    run = here(config())
    assert (run.status, run.tokens) == (0, expected), run.err
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == (place in EARLY)
    for text in warnings:
        assert text.startswith("plugin 'faulty' (plait-faulty 0.7) did not load:\n")
        assert f"no luck in {place}" in text


@pytest.mark.parametrize("place", USES)
def test_a_run_that_uses_it_names_package_version_file_and_line(
    place, site: Site, config, here, capsys
) -> None:
    faulty.install(site, place)
    run = here(config(**USES[place]))
    assert run.status == (2 if place in REFUSED else 1), run.err
    assert "plugin 'faulty' (plait-faulty 0.7)" in run.err
    assert "fault of Plait" not in run.err
    name = "plait_faulty.py" if place in faulty.ENTRY_PLACES else "plait_faulty_parts.py"
    assert f"{site.folder / name}" in run.err
    assert f"no luck in {place}" in run.err
    assert ", line " in run.err
    assert ("Traceback" in run.err) == (
        place not in REFUSED | {"plan", "forward", "call", "process"}
    )


@pytest.mark.parametrize("place", ["forward", "guard", "engine_started"])
def test_two_ranks_end_with_one_account_of_the_fault(place, site: Site, config, apart) -> None:
    faulty.install(site, place)
    sections = {"guard": {}, **USES}[place]
    run = apart(config(**{"parallel": CUT if place == "guard" else {"tensor": 2}} | sections))
    assert run.status == 1, run.err
    assert run.err.count("Traceback") == 1
    assert run.err.count("This is a fault of plugin 'faulty' (plait-faulty 0.7)") == 1
    assert run.err.count(f"ValueError: no luck in {place}") == 1


def test_a_fault_on_rank_0_alone_ends_the_others(site: Site, checkpoint, device) -> None:
    from core import LLM, EngineDead

    faulty.install(site, "")
    settings = {"device": device, "tensor_parallel_size": 2, "sampler": "faulty"}
    with LLM(checkpoint, **settings) as llm:
        (process,) = llm.engine.executor._ranks._processes.values()
        __import__("plait_faulty_parts").PLACE = "call"  # in this process
        began = time.monotonic()
        with pytest.raises(EngineDead) as caught:
            llm.generate([[5]])
        assert time.monotonic() - began < 10
    assert process.poll() is not None
    message = str(caught.value)
    assert message.startswith("rank 0 failed:\nTraceback")
    assert "This is a fault of plugin 'faulty' (plait-faulty 0.7)" in message


def test_ranks_do_not_repeat_the_warning(site: Site, config, apart, expected) -> None:
    faulty.install(site, "import")
    run = apart(config(parallel={"tensor": 2}))
    assert (run.status, run.tokens) == (0, expected), run.err
    assert run.err.count("did not load") == 1


def test_one_request_s_fault_is_not_the_next_one_s(site: Site, checkpoint, device, expected):
    from core import LLM, SamplingParams
    from tests.thirdparty.conftest import PROMPTS, TOKENS

    faulty.install(site, "")
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(checkpoint, device=device, dtype="float32", sampler="faulty") as llm:
        part = __import__("plait_faulty_parts")
        part.PLACE = "call"
        (output,) = llm.generate(PROMPTS[0], params)
        assert output.outputs[0].finish_reason == "error"
        assert "plugin 'faulty' (plait-faulty 0.7) failed: ValueError" in output.outputs[0].error
        part.PLACE = ""
        outputs = llm.generate(PROMPTS, params)
        assert [output.outputs[0].token_ids for output in outputs] == expected


def test_a_caller_that_goes_on_after_a_hook_raised_has_an_idle_engine(site, checkpoint, device):
    from core import LLM, SamplingParams

    faulty.install(site, "request_done")
    with LLM(checkpoint, device=device, plugins=["faulty"]) as llm:
        with pytest.raises(ValueError, match="no luck in request_done"):
            llm.generate([[5], [6, 7], [8]], SamplingParams(n=2, max_tokens=3))
        assert not llm.engine.busy
        assert llm.engine.statistics()["pages_owned"] == 0


# clashing, misspelt, unfinished


def test_two_packages_of_one_name_hurt_only_whoever_uses_it(
    site: Site, config, here, tmp_path, expected
) -> None:
    ATTENTION.install(site, tmp_path)
    site.folder.joinpath("plait_rival.py").write_text(
        "from core.hooks import hookimpl\n"
        "@hookimpl\n"
        "def register(registries):\n"
        "    registries.attention.register('naive', 'plait_rival_parts:Rival')\n"
        "    registries.attention.register('sdpa', 'plait_rival_parts:Rival')\n"
    )
    site.metadata("plait-rival", "2.0", {"rival": "plait_rival"})
    clash = here(config(attention="naive"))
    assert clash.status == 2
    assert "plugin 'naive' (plait-naive 0.3) and plugin 'rival' (plait-rival 2.0)" in clash.err
    assert "-p no:naive or -p no:rival" in clash.err
    assert here(config(attention="naive"), "-p", "no:rival").tokens == expected
    # a name of ours is no one's to take over silently
    ours = here(config())
    assert ours.status == 2
    assert "plugin 'rival' (plait-rival 2.0) and plugin 'attention' (built in)" in ours.err
    assert here(config(), "-p", "no:rival").tokens == expected


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"attention": "naiv"}, "no attention backend is called 'naiv'. Did you mean 'naive'?"),
        ({"sampler": "top_n_sigma"}, "Did you mean 'top-n-sigma'?"),
        ({"sampler": {"use": "top-n-sigma", "m": 1}}, "Options: n."),
        ({"sampler": {"use": "top-n-sigma", "n": "many"}}, "sampler.n: must be a number"),
        ({"sampler": {"use": "top-n-sigma", "n": -1}}, "n must be above 0, not -1.0."),
        ({"plugins": ["naiv"]}, "no plugin is called 'naiv'. Did you mean 'naive'?"),
        ({"plugins": ["./naiv.py"]}, "there is no such file"),
        ({"plugins": "naive"}, "must be a list of names"),
        ({"sampler": "naive"}, "no sampler is called 'naive'"),
    ],
)
def test_what_is_misspelt_is_named_with_the_nearest(
    site: Site, config, here, tmp_path, sections, said
) -> None:
    ATTENTION.install(site, tmp_path)
    SAMPLER.install(site, tmp_path)
    run = here(config(**sections))
    assert (run.status, run.tokens) == (2, None)
    assert said in run.err
    assert "Traceback" not in run.err
    assert "some.yaml:" in run.err or "plugin" in run.err


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("class Own(Sampler):\n    pass\n", "does not define __call__"),
        (
            "class Own(Sampler):\n"
            "    class Options:\n"
            "        n: int = 1\n"
            "    def __call__(self, logits, rows): ...\n",
            "Own.Options is not a dataclass. Write @dataclass above it.",
        ),
        ("class Own:\n    pass\n", "does not derive from core.interfaces:Sampler"),
        (
            "class Own(Sampler):\n    def __call__(self, logits, rows):\n        return logits\n",
            "of plugin 'own'",
        ),
    ],
)
def test_an_unfinished_component_says_what_is_missing(
    site: Site, config, here, tmp_path, body, said
) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from core.interfaces import Sampler\nfrom core.registry import samplers\n"
        f"@samplers.register('own')\n{body}"
    )
    run = here(config(plugins=[str(file)], sampler="own"))
    assert run.status == (1 if "return logits" in body else 2), run.err
    assert said in run.err
    assert registries.samplers.entry("own").provider.plugin == "own"
