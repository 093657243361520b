"""Values that wait: computed once, by whoever needs them, however that is said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from core.fusing import FusedProducts, Fusing, Waiting, value_of
from core.layers import Linear, bind


class Counted(Waiting):
    """Twice a tensor."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(x, x.shape[-1])
        self.x, self.times = x, 0

    def compute(self) -> Tensor:
        self.times += 1
        return 2 * self.x


X = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w + 1,
        lambda w: 1 - w,
        lambda w: w * w,
        lambda w: w @ torch.ones(3, 2),
        lambda w: torch.ones(2, 2) @ w,
        lambda w: X + w,
        lambda w: X / (w + 1),
        lambda w: -w,
        lambda w: w[1],
        lambda w: w.view(3, 2).sum(),
        lambda w: w.T,
        lambda w: torch.cat([X, w]),
        lambda w: F.linear(w, torch.ones(4, 3)),
        lambda w: F.rms_norm(w, (3,), torch.ones(3), eps=1e-6),
        lambda w: F.silu(input=w),
        lambda w: nn.Linear(3, 2, bias=False, dtype=torch.float32).requires_grad_(False)(w) * 0,
    ],
)
def test_it_can_be_used_like_a_tensor(use) -> None:
    waiting = Counted(X)
    found = use(waiting)
    assert isinstance(found, Tensor)
    assert torch.equal(found, use(2 * X))
    assert waiting.times == 1


def test_looking_at_its_size_computes_nothing() -> None:
    waiting = Counted(X)
    assert (len(waiting), waiting.shape, waiting.dtype) == (2, (2, 3), torch.float32)
    assert waiting.device == X.device
    assert waiting.times == 0


def test_it_is_computed_once() -> None:
    waiting = Counted(X)
    assert value_of(waiting) is waiting.value()
    assert torch.equal(waiting + waiting, 4 * X)
    assert waiting.times == 1
    assert value_of(X) is X


def test_what_it_does_not_know_is_an_error_as_of_any_tensor() -> None:
    with pytest.raises(AttributeError):
        Counted(X).nothing_of_a_tensor  # noqa: B018


class Products:
    """Kernels that note whether a product may wait."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, *, wait: bool) -> Tensor:
        self.asked.append(wait)
        return F.linear(x, weight, bias)


class Summed(Linear):
    """As a plan puts a collective around a projection."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 0


def bound(fusing: Fusing | None) -> tuple[nn.Module, Products]:
    kernels = Products()
    assert isinstance(kernels, FusedProducts)
    model = nn.Sequential(Linear(3, 3), Summed(3, 3), nn.Linear(3, 3)).requires_grad_(False)
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    worker = SimpleNamespace(device=torch.device("cpu"))
    bind(model, kernels, None, None, [], worker, fusing=fusing)  # type: ignore[arg-type]
    return model, kernels


def test_products_wait_where_it_is_allowed_and_nothing_stands_between() -> None:
    fusing = Fusing()
    model, kernels = bound(fusing)
    plain = model(X)
    assert kernels.asked == []
    with fusing.allowed(True):
        assert torch.equal(model(X), plain)
    assert kernels.asked == [True, False]
    with fusing.allowed(False):
        model(X)
    assert kernels.asked == [True, False]


def test_it_is_over_when_a_step_fails() -> None:
    fusing = Fusing()
    with pytest.raises(ValueError, match="step"), fusing.allowed(True):
        raise ValueError("step")
    assert not fusing.on


def test_nothing_waits_in_a_model_whose_worker_does_not_say_when() -> None:
    model, kernels = bound(None)
    model(X)
    assert kernels.asked == []
