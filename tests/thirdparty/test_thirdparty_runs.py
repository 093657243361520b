"""A stranger's components, from one file and from a package, run by the name in a YAML file."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.parallel import Communicator, Partition, ThreadGroup
from core.registry import registries
from tests.thirdparty.installed import ROOT, Site
from tests.thirdparty.packaged import (
    ALL,
    ATTENTION,
    EXAMPLES,
    HOOKS,
    PROCESSOR,
    SAMPLER,
    SCHEDULER,
    STRATEGY,
    Example,
)

PROMPT = list(b"The wind")


@pytest.fixture(params=["file", "package"])
def provide(request: pytest.FixtureRequest, site: Site, tmp_path: Path):
    """Make examples available. -> the words that `plugins:` needs for them."""

    def provide(*examples: Example) -> list[str]:
        if request.param == "package":
            for example in examples:
                example.install(site, tmp_path)
            return []
        folder = tmp_path / "configs" / "parts"
        folder.mkdir(parents=True)
        for example in examples:
            shutil.copy(example.path, folder)
        return [f"./parts/{example.file}.py" for example in examples]

    return provide


def test_all_at_once_on_two_ranks(provide, config, apart, expected) -> None:
    # the processor is there, and no request asks for it
    path = config(
        plugins=provide(ATTENTION, SCHEDULER, STRATEGY, PROCESSOR),
        parallel={"tensor": 2, "plan": {"lm_head": "best_logits?keep=3"}},
        attention="naive",
        scheduler={"use": "shortest-first", "max_num_batched_tokens": 5},
        sampler={"use": "default", "processors": ["watermark"]},
    )
    run = apart(path)
    assert (run.status, run.tokens) == (0, expected), run.err
    assert "plugins: attention naive, kernels torch, runner eager, scheduler shortest-first" in (
        run.err
    )
    assert "WARNING" not in run.err


def test_attention_gives_the_tokens_of_the_built_in(provide, config, here, expected) -> None:
    run = here(config(plugins=provide(ATTENTION), attention="naive"))
    assert (run.status, run.tokens) == (0, expected), run.err
    assert registries.attention.get("naive").__name__ == "Naive"


def test_the_scheduler_changes_the_order_and_no_token(provide, config, here, expected) -> None:
    scheduler = {"use": "shortest-first", "seconds_per_token": 1.0, "max_num_seqs": 1}
    run = here(config(plugins=provide(SCHEDULER), scheduler=scheduler))
    assert (run.status, run.tokens) == (0, expected), run.err


def test_the_sampler_cuts_off_what_is_far_from_the_best(provide, config, here, expected) -> None:
    path = config(plugins=provide(SAMPLER), sampler={"use": "top-n-sigma", "n": 1e-6})
    hot = here(path, "run.params.temperature=100")
    assert (hot.status, hot.tokens) == (0, expected), hot.err
    loose = here(path, "run.params.temperature=100", "sampler.n=9")
    assert loose.status == 0
    assert loose.tokens != expected
    refused = here(path, "run.params.top_p=0.5")
    assert refused.status == 2
    assert "prompt 0: the sampler top-n-sigma does not look at top_p" in refused.err


def test_the_watermark_can_be_found_by_who_has_the_key(provide, config, here) -> None:
    module = load(PROCESSOR)
    marked = {"use": "watermark", "always": True, "bias": 12.0}
    path = config(plugins=provide(PROCESSOR), sampler={"use": "default", "processors": [marked]})
    words = ["run.params.temperature=3", "run.params.max_tokens=40", "run.params.seed=1"]
    with_mark = here(path, *words)
    assert with_mark.status == 0, with_mark.err
    assert with_mark.tokens is not None
    own, other = module.Watermark.Options(), module.Watermark.Options(key=1)
    assert all(module.z_score(ids, own) > 4 for ids in with_mark.tokens)
    assert all(module.z_score(ids, other) < 4 for ids in with_mark.tokens)


def load(example: Example) -> ModuleType:
    """An example as a module, without any registry noticing."""
    before = registries.snapshot()
    spec = importlib.util.spec_from_file_location(f"plait_example_{example.file}", example.path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    registries.restore(before)
    return module


def engine(checkpoint: Path, device: str, example: Example, **settings: Any) -> LLM:
    cache = {"page_size": 4, "pages": 64, "check": True}
    words = {"plugins": [str(example.path)], "device": device, "dtype": "float32", "cache": cache}
    return LLM(checkpoint, **(words | settings))


def test_short_prompts_overtake_long_ones(site, checkpoint, device) -> None:
    scheduler = {"use": "shortest-first", "seconds_per_token": 1.0, "max_num_seqs": 1}
    prompts = [[5] * 40, [6] * 20, [7] * 3]
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with engine(checkpoint, device, SCHEDULER, scheduler=scheduler) as llm:
        outputs = llm.generate(prompts, params)
    ends = [output.metrics.finished_time for output in outputs]
    assert ends == sorted(ends, reverse=True)


def test_a_request_asks_for_its_watermark(site, checkpoint, device) -> None:
    module = load(PROCESSOR)
    asking = {"temperature": 3, "max_tokens": 60, "seed": 3, "ignore_eos": True}
    sampler = {"use": "default", "processors": [{"use": "watermark", "bias": 12.0}]}
    both = [SamplingParams(**asking), SamplingParams(**asking, extra_args={"watermark": True})]
    with engine(checkpoint, device, PROCESSOR, sampler=sampler) as llm:
        plain, marked = (o.outputs[0].token_ids for o in llm.generate([PROMPT, PROMPT], both))
    scores = [module.z_score(ids, module.Watermark.Options()) for ids in (plain, marked)]
    assert scores[0] < 4 < scores[1]


@pytest.mark.parametrize("settings", [{"max_num_batched_tokens": 3}, {"cache": {"pages": 9}}])
def test_attention_reads_chunks_and_windows(site, tmp_path, device, settings) -> None:
    from tests.tiny import greedy, save_tiny, tiny_model

    window = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    path = save_tiny(tmp_path / "windows", **window)
    prompts = [PROMPT, list(b"Once upon a time"), [5]]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    cache = {"page_size": 4, "pages": 64, "check": True} | settings.pop("cache", {})
    with engine(path, device, ATTENTION, attention="naive", cache=cache, **settings) as llm:
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        assert llm.engine.statistics()["preemptions"] > 0 or cache["pages"] > 9
    assert found == greedy(tiny_model(**window), prompts, 12)


def test_a_strategy_that_shows_everything_is_exact(site) -> None:
    code = (
        "import sys\n"
        "from core.plugins import load\n"
        "load([sys.argv[1]])\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from toys import Config, PLAN, reference, toy\n"
        "from core.parallel import verify_plan\n"
        "config = Config()\n"
        "plan = PLAN | {'lm_head': 'best_logits?keep=999'}\n"
        "print(verify_plan(toy(plan=plan), config, (2, 3, 8),\n"
        "                  reference=lambda w, ids: reference(config, w, ids)))\n"
    )
    toys = ROOT / "tests" / "core" / "parallel"
    done = subprocess.run(
        [sys.executable, "-c", code, str(STRATEGY.path), str(toys)],
        env=site.environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "[2, 3, 8]\n", done.stderr


def test_padding_takes_no_place_among_the_best(site) -> None:
    from torch import nn

    module = load(STRATEGY)
    cut = Partition(5, (((0, 3),), ((3, 5),)), (3, 3))
    rows = [[-1.0, -2.0, -3.0], [-4.0, -5.0, 0.0]]  # a padded row is 0

    def rank(comm: Communicator) -> torch.Tensor:
        head = type("Head", (module.ExchangeBest, nn.Linear), {})(1, 3, bias=False)
        head.weight.data = torch.tensor(rows[comm.rank])[:, None]
        head.bind(comm, [cut], module.BestLogits.Options(keep=2))
        return head(torch.ones(1, 1))

    for logits in ThreadGroup(2).run(rank):
        assert logits.tolist() == [[-1.0, -2.0, -torch.inf, -4.0, -5.0]]


def test_the_strategy_takes_the_place_of_the_built_in(provide, config, here) -> None:
    words = {"plugins": provide(STRATEGY), "run": {"use": "plan"}}
    for plan, collectives in (({}, 8), ({"lm_head": "best_logits"}, 9)):
        run = here(config(parallel={"tensor": 2, "plan": plan}, **words))
        assert run.status == 0, run.err
        assert f"collectives a forward pass      {collectives}\n" in run.out


def test_an_option_that_cannot_be_is_named(site, config, here, tmp_path) -> None:
    STRATEGY.install(site, tmp_path)
    run = here(config(parallel={"tensor": 2, "plan": {"lm_head": "best_logits?keep=0"}}))
    assert run.status == 2
    assert "P5" in run.err
    assert "keep is 0, and at least one logit must be shown" in run.err
    run = here(config(parallel={"tensor": 2, "plan": {"lm_head": "best_logit"}}))
    assert run.status == 2
    assert "Did you mean 'best_logits'?" in run.err


@pytest.mark.slow
def test_pip_builds_and_installs_a_package(site, config, here, apart, tmp_path, expected) -> None:
    source = ATTENTION.source(tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site.folder), str(source)], check=True)
    run = apart(config(attention="naive"))
    assert (run.status, run.tokens) == (0, expected), run.err
    listed = here(config(attention="naive"), "--list-plugins")
    assert "plait-naive 0.3" in listed.out


def test_every_example_is_short_and_tested() -> None:
    files = list(EXAMPLES.glob("*.py"))
    assert {path.stem for path in files} == {*HOOKS, *(example.file for example in ALL)}
    assert all(len(path.read_text().splitlines()) <= 130 for path in files)
