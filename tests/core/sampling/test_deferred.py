"""Mappings that are made of tensors on first use."""

from __future__ import annotations

import pickle

import torch

from core.sampling.deferred import Deferred


def squares(host: list[torch.Tensor]) -> dict[int, int]:
    return {i: x * x for i, x in enumerate(host[0].tolist())}


def test_it_is_made_once_and_only_when_it_is_used(device: str) -> None:
    calls = []

    def make(host: list[torch.Tensor]) -> dict[int, int]:
        calls.append(host[0].device.type)
        return squares(host)

    found = Deferred([torch.tensor([2, 3], device=device)], make)
    assert calls == []
    assert dict(found) == {0: 4, 1: 9}
    assert found[1] == 9
    assert len(found) == 2
    assert calls == ["cpu"]


def test_an_empty_one_is_false() -> None:
    assert not Deferred([torch.tensor([])], squares)


def test_it_travels_as_a_plain_dict() -> None:
    found = pickle.loads(pickle.dumps(Deferred([torch.tensor([2])], squares)))
    assert type(found) is dict
    assert found == {0: 4}
