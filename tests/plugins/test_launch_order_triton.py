"""The order of a step's launches, which lets attention read lengths and page tables early.

docs/decisions/0011-what-may-start-early.md says why. Runs on CUDA (`--on cuda`), and without a GPU
where TRITON_INTERPRET=1 is set; on a CPU a recorder stands in for CUDA's graphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from core import LLM, SamplingParams
from core.triton_launch import Launcher, interpreted
from plugins.runners.cuda_graph import graphs, runner
from tests.recorder import Recorder
from tests.tiny import save_tiny

pytest.importorskip("triton")

MAKE_TENSORS = {"_derive", "begin"}  # of a step: tokens, positions, slots, lengths, page tables
READ_EARLY = {"decode", "fused"}  # these, before they wait for their predecessor
PLAIN = "aten.embedding.default"  # a launch without PDL


class Order(TorchDispatchMode):
    """Kernels by their names, and torch's operations, in the order of their launches."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.fixture
def order(device: str, monkeypatch: pytest.MonkeyPatch) -> Order:
    if not device.startswith("cuda") and not interpreted():
        pytest.skip("Triton kernels need --on cuda, or TRITON_INTERPRET=1")
    order, launch = Order(), Launcher.__call__

    def launched(launcher: Launcher, *arguments: Any, **options: Any) -> None:
        order.seen.append(launcher.kernel.__name__)
        launch(launcher, *arguments, **options)

    monkeypatch.setattr(Launcher, "__call__", launched)
    return order


def check(seen: list[str]) -> int:
    """Early reads of a run, each of which has a plain launch between itself and the tensors."""
    made, plain, early = -1, -1, 0
    for at, name in enumerate(seen):
        if name in MAKE_TENSORS:
            made = at
        elif name == PLAIN:
            plain = at
        elif name in READ_EARLY and made >= 0:  # before that attention is warmed up, on nothing
            assert 0 <= made < plain, seen[max(made, 0) : at + 1]
            early += 1
    return early


def run(checkpoint: Path, device: str, **settings: Any) -> None:
    with LLM(
        checkpoint, device=device, dtype="float32", attention="triton",
        kernels={"use": "triton", "products": not interpreted()},  # which emulates them for minutes
        max_model_len=64, max_num_seqs=1, max_num_batched_tokens=16,
        cache={"pages": 8, "page_size": 16}, **settings,
    ) as llm:  # fmt: skip
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2, ignore_eos=True))


def test_a_plain_launch_comes_before_what_attention_reads_early(
    device: str, order: Order, tmp_path: Path
) -> None:
    with order:
        run(save_tiny(tmp_path), device, runner="eager")
    assert check(order.seen) > 0


def test_a_captured_step_has_it_too(
    device: str, order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not device.startswith("cuda"):
        monkeypatch.setattr(runner, "capturing_on", lambda _: Recorder())
    original = graphs.Graphs.__init__

    def watched(self: graphs.Graphs, *arguments: Any) -> None:
        original(self, *arguments)
        ends = self._ends

        class Watched:
            finish = staticmethod(ends.finish)

            @staticmethod
            def begin(static: Any) -> None:
                ends.begin(static)
                order.seen.append("begin")

        self._ends = Watched

    monkeypatch.setattr(graphs.Graphs, "__init__", watched)
    with order:
        run(save_tiny(tmp_path), device, runner={"use": "cuda_graph", "prompts": 0})
    assert "begin" in order.seen
    assert check(order.seen) > 0


@pytest.mark.parametrize(
    "seen", [["_derive", "fused"], [PLAIN, "_derive", "fused"], [PLAIN, "begin", "decode", PLAIN]]
)
def test_a_step_without_it_is_noticed(seen: list[str]) -> None:
    with pytest.raises(AssertionError):
        check(seen)
