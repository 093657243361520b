"""What graphs take of a device's memory, and that nothing is left of it when an engine closes."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams
from core.worker.memory import SPARE
from plugins.runners.cuda_graph import runner as runner_module
from plugins.runners.cuda_graph.capture import Capturing
from tests.recorder import Recorded, Recorder, Work
from tests.tiny import save_tiny

DENSE = str(Path(__file__).parents[1] / "dense_attention.py")
PARAMS = SamplingParams(temperature=0.5, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


class Forgetful(Recorder):
    """Does not know what it captured, as CUDA's graphs do not know what was captured."""

    def capture(self, work: Work) -> Recorded:
        made = super().capture(work)
        self.graphs.clear()
        return made


def engine(checkpoint: Path, device: str, **settings: Any) -> LLM:
    return LLM(
        checkpoint,
        device=device,
        plugins=[DENSE],
        attention="dense",
        runner="cuda_graph",
        max_num_seqs=20,
        **settings,
    )


def test_an_engine_that_closes_leaves_nothing_without_a_collection(
    checkpoint, device, monkeypatch
) -> None:
    if device == "cpu":
        monkeypatch.setattr(runner_module, "capturing_on", lambda _: Forgetful())
    # steps of few sizes, which are quickly captured
    few = {"max_num_batched_tokens": 64, "cache": {"page_size": 16, "pages": 40}}
    engine(checkpoint, device, **few).close()  # libraries keep memory that a process has once
    gc.collect()
    before = torch.cuda.memory_allocated() if device != "cpu" else 0
    llm = engine(checkpoint, device, **few)
    llm.generate([[1, 2, 3]], PARAMS, use_tqdm=False)
    worker = llm.engine.executor._worker
    found = [worker, worker.model, worker.runner, worker.runner._graphs, worker.rows.history]
    left = [weakref.ref(one) for one in found]
    del worker, found
    gc.collect()
    gc.disable()
    try:
        llm.close()
        assert [ref() for ref in left] == [None] * len(left)
        if device != "cpu":
            assert torch.cuda.memory_allocated() - before < 1 << 20
            assert gc.get_freeze_count() == 0
    finally:
        gc.enable()


def test_what_is_reserved_covers_what_is_captured(checkpoint, device) -> None:
    if device == "cpu":
        pytest.skip("graphs take no memory here")
    frozen = gc.get_freeze_count()
    cache = {"page_size": 16}  # without `pages`: the engine measures before it sizes its cache
    with engine(checkpoint, device, cache=cache) as llm:
        worker = llm.engine.executor._worker
        assert gc.get_freeze_count() > frozen
        worker.runner.close()
        reserved = worker.runner.reserve(worker, worker.limits)
        measuring = Capturing(torch.device("cuda"))
        before = measuring.used()
        worker.runner.prepare(worker, worker.limits)
        assert measuring.used() - before <= reserved + SPARE
        outputs = llm.generate([[1, 2, 3]] * 20, PARAMS, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == 8 for output in outputs)
