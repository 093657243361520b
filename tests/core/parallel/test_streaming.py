"""Streaming fills what plain loading fills, with the same reads, on a CPU and on a GPU."""

from __future__ import annotations

import math
import threading
import time

import pytest
import torch
from torch import Tensor
from toys import Config, checkpoint, toy_plan

from core.errors import UserError
from core.parallel import Call, Copy, DictSource, Fill, allocate, load, streaming
from core.parallel.recipe import Box
from core.parallel.streaming import Streaming


class Concurrent(DictSource):
    """A source that several threads may ask; remembers how many did at once."""

    concurrent = True

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.asked: list[tuple[str, Box]] = []
        self.inside = self.most = 0
        self._lock = threading.Lock()

    def read(self, name: str, box: Box) -> Tensor:
        with self._lock:
            self.asked.append((name, box))
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.001)
        found = super().read(name, box)
        with self._lock:
            self.inside -= 1
        return found


def streamed(recipe, params, source, progress=None, readers=3) -> None:
    device = next(iter(params.values())).device
    Streaming(source, device, readers).load(recipe, params, progress)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_parameters_are_those_of_plain_loading(monkeypatch, device, ranks, piece) -> None:
    monkeypatch.setattr(streaming, "PIECE", piece)
    config = Config(tie_word_embeddings=ranks == 3)
    plan = toy_plan(ranks, config)
    for rank in range(ranks):
        plain, source = allocate(plan.local_model(rank), "cpu", torch.float32), None
        source = DictSource(checkpoint(config))
        load(plan.recipe(rank), dict(plain.named_parameters()), source)
        model = allocate(plan.local_model(rank), device, torch.float32)
        for parameter in model.parameters():
            parameter.data.fill_(torch.nan)
        other = Concurrent(checkpoint(config))
        streamed(plan.recipe(rank), dict(model.named_parameters()), other)
        for name, parameter in plain.named_parameters():
            assert torch.equal(model.get_parameter(name).cpu(), parameter), name
        assert other.bytes_read == source.bytes_read
        assert other.most > 1


def test_pieces_keep_to_their_size(monkeypatch, device) -> None:
    monkeypatch.setattr(streaming, "PIECE", 48)
    source = Concurrent({"w": torch.arange(60.0).reshape(10, 6)})
    target = torch.zeros(7, 4, device=device)
    streamed([Copy("w", ((2, 9), (1, 5)), "p", ((0, 7), (0, 4)))], {"p": target}, source)
    assert torch.equal(target.cpu(), source.tensors["w"][2:9, 1:5])
    assert sorted(box[0] for _, box in source.asked) == [(2, 5), (5, 8), (8, 9)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dims_change_their_order_and_types_on_the_device(monkeypatch, device, dtype) -> None:
    monkeypatch.setattr(streaming, "PIECE", 48)
    whole = torch.arange(60.0).reshape(10, 6)
    target = torch.zeros(5, 9, dtype=dtype, device=device)
    recipe = [
        Copy("w", ((2, 9), (1, 5)), "p", ((0, 4), (1, 8)), perm=(1, 0)),
        Copy("one", (), "p", ((4, 5), (0, 1))),
        Fill("p", ((4, 5), (1, 9)), 7.0),
        Fill("p", ((0, 4), (0, 1)), 3.0),
        Fill("p", ((0, 4), (8, 9)), 4.0),
    ]
    streamed(recipe, {"p": target}, Concurrent({"w": whole, "one": torch.tensor([2.5])}))
    expected = torch.full((5, 9), 7.0)
    expected[:4, 1:8], expected[4, 0] = whole[2:9, 1:5].T, 2.5
    expected[:4, 0], expected[:4, 8] = 3.0, 4.0
    assert torch.equal(target.cpu().float(), expected)


def test_a_call_is_computed_on_the_host(device) -> None:
    tensors = {"w": torch.arange(6.0), "s": torch.full((6,), 2.0)}
    op = Call("operator:mul", (("w", ((0, 6),)), ("s", ((0, 6),))), "p", ((0, 6),))
    target = torch.zeros(6, device=device)
    streamed([op], {"p": target}, DictSource(tensors))
    assert target.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_progress_ends_with_everything(monkeypatch, device) -> None:
    monkeypatch.setattr(streaming, "PIECE", 8)
    target, seen = torch.zeros(9, dtype=torch.bfloat16, device=device), []
    recipe = [Copy("w", ((0, 8),), "p", ((0, 8),)), Fill("p", ((8, 9),), 1.0)]
    source = DictSource({"w": torch.arange(8.0)})
    streamed(recipe, {"p": target}, source, lambda done, total: seen.append((done, total)))
    assert seen == [(6, 18), (10, 18), (14, 18), (18, 18)]


def test_a_source_for_one_thread_is_asked_by_one(monkeypatch, device) -> None:
    monkeypatch.setattr(streaming, "PIECE", 8)
    source = Concurrent({"w": torch.arange(40.0)})
    source.concurrent = False
    target = torch.zeros(40, device=device)
    streamed([Copy("w", ((0, 40),), "p", ((0, 40),))], {"p": target}, source)
    assert source.most == 1
    assert target.tolist() == list(range(40))


def test_the_first_error_ends_it(monkeypatch, device) -> None:
    monkeypatch.setattr(streaming, "PIECE", 8)

    class Broken(Concurrent):
        def read(self, name: str, box: Box) -> Tensor:
            if box[0][0] == 20:
                raise UserError("the disk is gone")
            return super().read(name, box)

    source, target = Broken({"w": torch.arange(4000.0)}), torch.zeros(4000, device=device)
    with pytest.raises(UserError, match="the disk is gone"):
        streamed([Copy("w", ((0, 4000),), "p", ((0, 4000),))], {"p": target}, source)
    assert len(source.asked) < 200 < math.ceil(4000 / 2)


def test_cuda_parameters_are_streamed(monkeypatch, device) -> None:
    if device == "cpu":
        pytest.skip("loading to the host goes piece by piece")
    used = []
    monkeypatch.setattr(Streaming, "load", lambda self, *args: used.append(args))
    load([], {"p": torch.zeros(1, device=device)}, DictSource({}))
    assert len(used) == 1
