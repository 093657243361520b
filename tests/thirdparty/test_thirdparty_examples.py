"""Every one-file example: its own command runs, and its component passes the kit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from core import LLM, SamplingParams
from core.run import main
from core.testing.command import run_kit
from tests.thirdparty.conftest import PROMPTS, TOKENS
from tests.thirdparty.installed import ROOT, Site
from tests.thirdparty.packaged import (
    ALL,
    ATTENTION,
    EXAMPLES,
    FLEX,
    PROCESSOR,
    SAMPLER,
    SCHEDULER,
    SEQUENCE,
    STRATEGY,
    Example,
)

GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
KIT = {
    ATTENTION: ["--backend=naive"],
    FLEX: ["--backend=flex"],
    SAMPLER: ["--sampler=top-n-sigma"],
    SCHEDULER: ["--scheduler=shortest-first"],
    STRATEGY: ["--sharding=best_logits"],
    SEQUENCE: [f"--sharding=seq_{name}" for name in ("vocab", "colwise", "rowwise", "gather")],
}
SPLIT = {  # as in sequence_parallel.yaml
    "model.embed_tokens": "seq_vocab",
    "model.layers.*.self_attn.qkv_proj": {
        "q_proj": "seq_colwise:q",
        "k_proj": "seq_colwise:kv",
        "v_proj": "seq_colwise:kv",
    },
    "model.layers.*.self_attn.o_proj": "seq_rowwise:q",
    "model.layers.*.mlp.gate_up_proj": {
        "gate_proj": "seq_colwise:mlp",
        "up_proj": "seq_colwise:mlp",
    },
    "model.layers.*.mlp.down_proj": "seq_rowwise:mlp",
    "model.norm": "seq_gather",
}


def command(example: Example) -> list[str]:
    """The words behind `python -m core.run` in its docstring."""
    found = re.search(r"python -m core\.run ((?:.*\\\\\n)*.*)\n", example.path.read_text())
    assert found is not None, example.file
    return shlex.split(found[1].replace("\\\\\n", " "))


@pytest.mark.parametrize("example", ALL, ids=lambda example: example.file)
def test_the_command_in_its_first_lines_runs(
    example: Example,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    assert main([*command(example), "run.params.max_tokens=6"]) == 0
    out, err = capsys.readouterr()
    assert len(out) > 6, err
    assert "WARNING" not in err


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, device: str) -> str:
    """What the kit says of all of them, in one process."""
    loaded = [f"--load={example.path}" for example in KIT]
    components = [component for components in KIT.values() for component in components]
    unlike = ["-k", "not distribution"]  # the sampler has another, on purpose
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.chdir(tmp_path_factory.mktemp("kit"))
        return run_kit(*loaded, *components, *unlike, f"--on={device}", "-vv")


@pytest.mark.parametrize("example", KIT, ids=lambda example: example.file)
def test_it_passes_the_kit(example: Example, report: str) -> None:
    for component in KIT[example]:
        name = component.partition("=")[2]
        passed = re.findall(rf"\[(?:.*-)?{name}(?:-.*)?\] PASSED", report)
        assert len(passed) > 5, component


@pytest.fixture
def split(site: Site, checkpoint: Path, device: str) -> Callable[..., LLM]:
    """An engine on some ranks, which are threads, each with its share of the tokens."""

    def split(ranks: int, **settings: object) -> LLM:
        return LLM(
            checkpoint,
            plugins=[str(SEQUENCE.path), str(ROOT / "tests" / "threads.py")],
            executor="threads",
            device=device,
            dtype="float32",
            cache={"page_size": 4, "pages": 64, "check": True},
            parallel={"tensor": ranks, "plan": SPLIT},
            **settings,
        )

    return split


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("budget", [4, 64])
def test_ranks_that_share_tokens_find_those_of_one(
    split: Callable[..., LLM], expected: list[list[int]], ranks: int, budget: int
) -> None:
    """Steps of 1 to `budget` tokens, which nothing divides: some ranks have none."""
    with split(ranks, max_num_batched_tokens=budget) as llm:
        found = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    assert found == expected


def test_each_token_passes_the_norms_on_one_rank_alone(split: Callable[..., LLM]) -> None:
    seen: list[int] = []
    with split(3) as llm:
        for worker in llm.engine.executor.workers:
            layer = worker.model.model.layers[1]
            layer.post_attention_layernorm.register_forward_hook(
                lambda module, given, made: seen.append(len(given[0]))
            )
        llm.generate([[5] * 7], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    assert sorted(seen[:3]) == [2, 2, 3]  # the prompt
    assert sorted(seen[3:6]) == [0, 0, 1]  # the token behind it


def test_the_plan_of_the_file_is_the_one_tested_here() -> None:
    import yaml

    file = yaml.safe_load(SEQUENCE.path.with_suffix(".yaml").read_text())
    assert file["parallel"]["plan"] == SPLIT


def test_a_request_says_how_strong_its_watermark_is(
    site: Site, checkpoint: Path, device: str
) -> None:
    asked = [{}, {"watermark_bias": 12.0}, {"watermark_bias": 0.0}]
    params = [
        SamplingParams(
            temperature=3, max_tokens=60, seed=3, ignore_eos=True,
            extra_args={"watermark": True} | extra,
        )
        for extra in asked
    ]  # fmt: skip
    sampler = {"use": "default", "processors": [{"use": "watermark", "bias": 0.0}]}
    words = {"plugins": [str(PROCESSOR.path)], "device": device, "dtype": "float32"}
    with LLM(checkpoint, sampler=sampler, **words) as llm:
        plain, strong, none = (
            o.outputs[0].token_ids for o in llm.generate(PROMPTS[:1] * 3, params)
        )
        with pytest.raises(Exception, match="watermark_bias is 'much', not a number"):
            llm.generate([[5]], SamplingParams(extra_args={"watermark_bias": "much"}))
    assert plain == none != strong


def test_a_row_that_rules_tokens_out_keeps_its_distance(site: Site) -> None:
    """What the model rules out does not count among the deviations."""
    from core import plugins
    from core.registry import samplers
    from core.testing.sampling import make_rows

    plugins.load([str(SAMPLER.path)])
    sampler = samplers.get("top-n-sigma")
    made = sampler(sampler.Options(n=1.0), None)
    logits = torch.full((200, 301), -torch.inf)
    logits[:, :4] = torch.tensor([3.0, 2.0, 0.0, -1.0])  # mean 1, deviation 1.6
    found = made(logits, make_rows([SamplingParams()] * 200, 301))
    assert set(found.ids.tolist()) == {0, 1}
    assert not found.errors


def test_files_of_examples_say_how_to_run_them() -> None:
    index = (ROOT / "examples" / "README.md").read_text()
    scripts = [*EXAMPLES.glob("*.py"), *EXAMPLES.parent.glob("*.py")]
    for path in [*scripts, *(p for p in EXAMPLES.parent.iterdir() if p.is_dir())]:
        if path != EXAMPLES:
            assert path.name in index, f"{path.name} is not in examples/README.md"
