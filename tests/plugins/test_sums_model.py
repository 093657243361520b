"""A decode step of a whole model on ranks whose sums, residuals and norms are one kernel.

Needs TRITON_INTERPRET=1: ranks are processes of one machine, and their memory is shared.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from core.fusing import Fusing, value_of
from core.layers import Attention, allocate_cache, bind
from core.parallel import CutLogits, DictSource, ParallelPlan, allocate, guard, load
from core.parallel.groups import Communicator
from core.parallel.peers import PeerMemory
from core.types import Limits
from models.qwen3.architecture import Qwen3
from plugins.attention.sdpa import Sdpa
from tests.models.by_hand import ByHand
from tests.peers import PeerCommunicator, on_ranks
from tests.tiny import tiny_model

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

from plugins.kernels.triton import norms
from plugins.kernels.triton.kernels import TritonKernels
from plugins.kernels.triton.sums.launch import Sums, memory
from plugins.kernels.triton.sums.sizes import Limits as SumLimits

LIMITS = SumLimits(one_shot=1 << 20, blocks=16)
PROMPTS = {"a": [3, 7, 12], "b": [250]}
DECODES = [{"a": [20], "b": [21]}, {"a": [9], "b": [4]}]


@pytest.fixture(autouse=True)
def _plugins() -> None:
    import plugins.sharding
    from core.registry import registries

    plugins.sharding.register(registries)


def narrowed(hand: ByHand, rank: int, comm: Communicator) -> ByHand:
    """The same model as one rank has it."""
    ranks = comm.size
    plan = ParallelPlan.build(Qwen3, hand.config, tensor=ranks)
    source = DictSource(hand.reference.state_dict())
    model = allocate(plan.local_model(rank), "cpu", torch.float32)
    load(plan.recipe(rank, source.index()), dict(model.named_parameters()), source)
    hand.model = guard(model.eval().requires_grad_(False), plan, rank, comm)
    layers = [m for m in model.modules() if isinstance(m, Attention)]
    limits = Limits(64, 512, 256, hand.page_size, hand.pages, hand.config.vocab_size)
    hand.caches = allocate_cache(layers, Sdpa, limits, torch.float32, torch.device("cpu"))
    for cache in hand.caches:
        cache.k.fill_(torch.nan)
        cache.v.fill_(torch.nan)
    return hand


@torch.inference_mode()
def decoded(hand: ByHand, kernels: Any, fusing: Fusing, on: bool) -> list[Tensor]:
    """Logits of each step; of those that decode, values may wait if `on`."""
    hand.backends = bind(hand.model, kernels, Sdpa, Sdpa.Options(), hand.caches, hand, 256, fusing)
    hand.step(PROMPTS)
    found = []
    for step in DECODES:
        batch = hand.batch(step)
        for backend in hand.backends:
            backend.plan(batch.attention)
        with fusing.allowed(on):
            found.append(value_of(hand.model.logits(hand.model(batch))))
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_logits_are_those_of_one_rank(ranks: int) -> None:
    hand = ByHand(tiny_model(num_hidden_layers=2))
    wanted = []
    hand.step(PROMPTS)
    wanted = [torch.cat(list(hand.step(step).values())) for step in DECODES]
    fresh = ByHand(hand.reference)

    def work(peers: PeerMemory) -> Any:
        added: list[tuple[int, ...]] = []

        class Noted(Sums):
            def added(self, x: Tensor, *rest: Any) -> Any:
                added.append(x.shape)
                return super().added(x, *rest)

        comm = PeerCommunicator(peers, Noted(peers, False, LIMITS))
        mine = narrowed(fresh, peers.rank, comm)
        kernels, alone = TritonKernels(TritonKernels.Options()), norms.add_rms_norm

        def eager_only(*given: Any, **more: Any) -> Any:
            assert not fusing.on, "a norm apart in a step whose values may wait"
            return alone(*given, **more)

        fusing = Fusing()
        norms.add_rms_norm = eager_only
        logits = decoded(mine, kernels, fusing, True)
        heads = [m for m in mine.model.modules() if isinstance(m, CutLogits)]
        return logits, added, len(heads)

    for logits, added, heads in on_ranks(ranks, memory(ranks, LIMITS), work):
        for found, exact in zip(logits, wanted, strict=True):
            torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-4)
        assert added == [(2, 64)] * (2 * 2 * len(DECODES))  # two a layer and step
        assert heads == 1
