"""A plugin that raises: runs without it never notice, runs with it say whose fault it is."""

from __future__ import annotations

import logging
import time

import pytest

from core import plugins
from core.registry import registries
from tests.thirdparty import faulty
from tests.thirdparty.installed import Site
from tests.thirdparty.packaged import ATTENTION, SAMPLER


@pytest.mark.parametrize("place", ["forward", "guard", "engine_started"])
def test_two_ranks_end_with_one_account_of_the_fault(place, site: Site, config, apart) -> None:
    faulty.install(site, place)
    cut = {"tensor": 2, "plan": {"model.layers.*.self_attn.o_proj": "faulty:q"}}
    sections = {
        "forward": {"parallel": {"tensor": 2}, "attention": "faulty"},
        "guard": {"parallel": cut},
        "engine_started": {"parallel": {"tensor": 2}, "plugins": ["faulty"]},
    }
    run = apart(config(**sections[place]))
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


@pytest.mark.parametrize("place", ["import", "hang"])
def test_ranks_do_not_repeat_the_warning(
    place, site: Site, config, apart, expected, monkeypatch
) -> None:
    monkeypatch.setenv("PLAIT_PLUGIN_SECONDS", "1")
    faulty.install(site, place)
    run = apart(config(parallel={"tensor": 2}))
    assert (run.status, run.tokens) == (0, expected), run.err
    assert run.err.count("did not load") == 1
    assert run.err.count("waiting for plugin 'faulty' (plait-faulty 0.7) at ") == (place == "hang")


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


@pytest.mark.parametrize("place", ["step_done", "request_done"])
def test_a_hook_that_always_raises_is_told_once_and_loses_no_request(
    place, site, checkpoint, device, caplog
) -> None:
    from core import LLM, SamplingParams

    faulty.install(site, place)
    with LLM(checkpoint, device=device, plugins=["faulty"]) as llm:
        outputs = llm.generate([[5], [6, 7], [8]], SamplingParams(n=2, max_tokens=3))
        assert not llm.engine.busy
        assert llm.engine.statistics()["pages_owned"] == 0
    ends = [sequence.finish_reason for output in outputs for sequence in output.outputs]
    assert ends == ["length"] * 6
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.getMessage().count(f"no luck in {place}") == 1
    assert record.exc_info is not None


def test_other_plugins_hear_of_a_step_that_one_failed_at(site, checkpoint, device, tmp_path):
    from core import LLM, SamplingParams

    faulty.install(site, "step_done")
    counter = tmp_path / "counter.py"
    counter.write_text(
        "from core.hooks import hookimpl\nsteps = []\n"
        "@hookimpl\ndef step_done(plan):\n    steps.append(plan.number)\n"
    )
    for words in (["faulty", str(counter)], [str(counter), "faulty"]):
        with LLM(checkpoint, device=device, plugins=words) as llm:
            llm.generate([[5]], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
        (found,) = [p for p in plugins.current() if p.name == "counter"]
        assert len(found.body.steps) >= 4
        found.body.steps.clear()


def test_a_plugin_that_refuses_what_it_was_offered_is_named(site, config, here) -> None:
    site.folder.joinpath("plait_strict.py").write_text(
        "from core.errors import UserError\nfrom core.hooks import hookimpl\n"
        "@hookimpl\ndef open_weights(path):\n    raise UserError('the file is cut short.')\n"
    )
    site.metadata("plait-strict", "1.1", {"strict": "plait_strict"})
    run = here(config())
    assert run.status == 2
    assert (
        "the file is cut short. (Says plugin 'strict' (plait-strict 1.1); -p no:strict" in run.err
    )
    assert here(config(), "-p", "no:strict").status == 0
    named = here(config(plugins=["strict"]))
    assert "Says plugin" not in named.err


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
