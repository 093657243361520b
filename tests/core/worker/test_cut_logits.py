"""Steps whose logits are cut by the vocabulary: what is gathered, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.parallel import ThreadGroup
from core.parallel.groups import ThreadCommunicator
from core.parallel.logits import CutLogits
from core.testing.sampling import BAD_WORD, GREEDY, WISHES
from plugins.runners.cuda_graph import runner as runner_module
from tests.recorder import Recorder
from tests.tiny import save_tiny

ROOT = Path(__file__).parents[2]
PLUGINS = [str(ROOT / "threads.py"), str(ROOT / "dense_attention.py")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def wishes() -> list[SamplingParams]:
    known = [w for w in WISHES if w is not BAD_WORD and not w.allowed_token_ids]
    return [w.clone() if hasattr(w, "clone") else w for w in known]


def ask(checkpoint: Path, params: list[SamplingParams], **settings: Any) -> list[Any]:
    options = {
        "device": "cpu", "dtype": "float32", "plugins": PLUGINS, "attention": "dense",
        "runner": "eager", "cache": {"page_size": 4, "pages": 128, "check": True},
        "scheduler": {"use": "fcfs", "max_num_seqs": 24, "max_num_batched_tokens": 64},
    }  # fmt: skip
    prompts = [[3 + i, 5, 8 + i] for i in range(len(params))]
    with LLM(checkpoint, **options | settings) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of logits were made whole, each time."""
    seen: list[int] = []
    whole = CutLogits.whole

    def watched(self: CutLogits, part: torch.Tensor) -> torch.Tensor:
        seen.append(len(part))
        return whole(self, part)

    monkeypatch.setattr(CutLogits, "whole", watched)
    return seen


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("runner", ["eager", "cuda_graph"])
def test_all_wishes_together_get_the_tokens_of_one_rank(
    checkpoint: Path, gathered: list[int], monkeypatch: pytest.MonkeyPatch, ranks: int, runner: str
) -> None:
    monkeypatch.setattr(ThreadCommunicator, "graphable", True)
    monkeypatch.setattr(runner_module, "capturing_on", lambda _: Recorder())
    params = wishes()
    alone = ask(checkpoint, params)
    many = ask(checkpoint, params, executor="threads", tensor_parallel_size=ranks, runner=runner)
    assert [o.token_ids for o in many] == [o.token_ids for o in alone]
    assert gathered
    for one, other in zip(many, alone, strict=True):
        assert (one.logprobs is None) == (other.logprobs is None)
        for mine, theirs in zip(one.logprobs or (), other.logprobs or (), strict=True):
            assert mine.keys() == theirs.keys()
            for token, found in mine.items():
                assert found.logprob == pytest.approx(theirs[token].logprob, abs=1e-4)


def test_rows_that_ask_for_a_temperature_alone_gather_nothing(
    checkpoint: Path, gathered: list[int]
) -> None:
    params = [GREEDY, SamplingParams(seed=1), SamplingParams(temperature=0.5, seed=2)]
    ask(checkpoint, params, executor="threads", tensor_parallel_size=2)
    assert gathered == []


def test_of_a_mixed_step_only_the_rows_that_ask_for_more_are_gathered(
    checkpoint: Path, gathered: list[int]
) -> None:
    params = [GREEDY, SamplingParams(top_k=3, seed=1), SamplingParams(seed=2)]
    ask(checkpoint, params, executor="threads", tensor_parallel_size=2)
    assert gathered
    assert set(gathered) == {1}


def test_a_sampler_that_knows_nothing_of_parts_sees_whole_logits(
    checkpoint: Path, gathered: list[int], tmp_path: Path
) -> None:
    plugin = tmp_path / "whole.py"
    plugin.write_text(
        "from core.interfaces import Sampler\n"
        "from core.registry import samplers\n"
        "from core.sampling.outcome import outcome\n"
        "@samplers.register('whole')\n"
        "class Whole(Sampler):\n"
        "    def __call__(self, logits, rows):\n"
        "        assert logits.shape[1] == self.limits.vocab_size\n"
        "        return outcome(rows.draw(logits), logits)\n"
    )
    params = [GREEDY, SamplingParams(seed=1)]
    settings = {"plugins": [*PLUGINS, str(plugin)], "sampler": "whole"}
    alone = ask(checkpoint, params)
    many = ask(checkpoint, params, executor="threads", tensor_parallel_size=2, **settings)
    assert [o.token_ids for o in many] == [o.token_ids for o in alone]
    assert set(gathered) == {2}


def test_the_model_itself_gives_whole_logits_but_when_it_is_asked_for_parts() -> None:
    from core.parallel.axes import Partition
    from core.parallel.guards import guarded

    def one(comm: Any) -> Any:
        head = torch.nn.Linear(4, 3, bias=False)
        head.weight.data.copy_(torch.arange(12.0).view(3, 4) + 100 * comm.rank)
        head.__class__ = guarded(CutLogits, torch.nn.Linear)
        head.bind(comm, [Partition(5, (((0, 3),), ((3, 5),)), (3, 3))], None)  # type: ignore
        x = torch.ones(2, 4)
        with head.in_parts():  # type: ignore[operator]
            part = head(x)
        return part, head(x), head.shard

    (a, whole, first), (b, again, last) = ThreadGroup(2).run(one)
    assert torch.equal(whole, torch.cat([a, b[:, :2]], 1))
    assert torch.equal(whole, again)
    assert (first.first, first.size, last.first, last.size) == (0, 3, 3, 2)
