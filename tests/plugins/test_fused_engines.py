"""Engines in which products and norms wait in captured steps: same tokens, and who is given what.

Of the last two, which run Triton's products, one needs TRITON_INTERPRET=1, the other `--on cuda`.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.fusing import Fusing, Waiting, value_of
from core.layers import bind
from core.parallel.groups import ThreadCommunicator
from plugins.attention.sdpa import Sdpa
from plugins.kernels.torch import TorchKernels
from tests.models.by_hand import ByHand
from tests.plugins.graph_engines import *  # noqa: F403
from tests.plugins.graph_engines import DENSE, TOKENS, answers, worker
from tests.tiny import tiny_model

HERE = Path(__file__).parents[1]
WAITING = [DENSE, str(HERE / "waiting_kernels.py")]
LAYERS = 3


def taken(llm: Any) -> list[str]:
    seen: list[str] = type(worker(llm).kernels).taken
    seen.clear()
    return seen


def test_captured_steps_hand_on_what_waits(engine, expected, device):
    if device != "cpu":
        pytest.skip("what a graph holds is not run again")
    llm = engine(plugins=WAITING, kernels="waiting")
    seen = taken(llm)
    assert answers(llm) == expected
    # qkv of all layers but the first, gate and up of all, and the head take a norm that waits;
    # the head is not in the graph of the first step, which has the prompts
    assert Counter(seen) == {
        "product": 2 * LAYERS * TOKENS - 1,
        "add_rms_norm": 2 * LAYERS * TOKENS,
        "silu_mul": LAYERS * TOKENS,
    }


def test_eager_steps_show_tensors_to_whoever_looks(engine, expected):
    llm = engine(plugins=WAITING, kernels="waiting", runner="eager")
    seen, kinds = taken(llm), set()

    def look(module: nn.Module, given: Any, result: Any) -> None:
        results = result if isinstance(result, tuple) else (result,)
        kinds.update(type(x) for x in (*given, *results) if isinstance(x, Tensor | Waiting))

    for module in worker(llm).model.modules():
        module.register_forward_hook(look)
    assert answers(llm) == expected
    assert seen == []
    assert Waiting not in kinds
    assert kinds <= {Tensor, nn.Parameter}


@pytest.mark.parametrize("size", [2, 3])
def test_sums_over_ranks_come_before_what_follows(engine, expected, monkeypatch, device, size):
    if device != "cpu":
        pytest.skip("ranks that are threads meet on the host")
    monkeypatch.setattr(ThreadCommunicator, "graphable", True)
    plugins = [*WAITING, str(HERE / "threads.py")]
    llm = engine(plugins=plugins, kernels="waiting", executor="threads", tensor_parallel_size=size)
    seen = type(llm.engine.executor.workers[0].kernels).taken
    seen.clear()
    assert answers(llm) == expected
    assert set(seen) == {"silu_mul"}, "a product that is a partial sum has waited"


@pytest.mark.parametrize("requests", [1, 2, 5])
def test_tritons_products_give_the_logits_of_torch(requests: int) -> None:
    """In float32, for which they are where they are interpreted, and for a step of one token."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("float32 needs TRITON_INTERPRET=1")
    from plugins.kernels.triton import norms
    from plugins.kernels.triton.kernels import TritonKernels

    model = ByHand(tiny_model())
    names = [f"request {i}" for i in range(requests)]
    model.step({name: range(3 + i) for i, name in enumerate(names)})
    batch = model.batch({name: [7 + i] for i, name in enumerate(names)})
    fusing = Fusing()

    def logits(kernels: Any, on: bool) -> Tensor:
        backends = bind(
            model.model, kernels, Sdpa, Sdpa.Options(), model.caches, model, fusing=fusing
        )
        for backend in backends:
            backend.plan(batch.attention)
        with torch.inference_mode(), fusing.allowed(on):
            return value_of(model.model.logits(model.model(batch)))

    wanted = logits(TorchKernels(TorchKernels.Options(pack_from=None)), False)
    kernels = TritonKernels(TritonKernels.Options())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norms, "add_rms_norm", None)  # all residuals are added by products
        found = logits(kernels, True)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_bfloat16_is_as_close_with_products_as_without(device: str) -> None:
    """Logits of a decode step of real widths, beside the same weights in float32."""
    if not device.startswith("cuda"):
        pytest.skip("products in bfloat16 need --on cuda")
    pytest.importorskip("triton")
    from tools.decode_step import DecodeStep

    step = DecodeStep("0.6B", device, layers=4)
    for tokens in (1, 2, 8, 24, 64):
        with torch.inference_mode():
            run = step.at(tokens, 40)
            step.kernels.options.products = False
            plain = run().float()
            step.kernels.options.products = True
            fused = run().float()
        difference = (fused - plain).norm() / plain.norm()
        assert 0 < difference < 2e-2, "bfloat16 rounds in other places, and by no more"
