"""Components that do not fit: `auto` passes them over, and who names one hears what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, SamplingParams, UserError
from core.registry import registries
from core.settings import auto
from core.types import AttentionShape
from plugins.attention.sdpa import Sdpa
from plugins.attention.triton.backend import TritonAttention
from plugins.kernels.torch import TorchKernels
from tests.tiny import save_tiny


class Wide(Sdpa):
    """For heads that the tiny model does not have."""

    best_page_size = 64

    @dataclass
    class Options:
        least: int = 64

    @classmethod
    def rejects(cls, shape: AttentionShape) -> list[str]:
        return [f"head_dim {shape.head_dim} is below 64"] if shape.head_dim < 64 else []


class Half(TorchKernels):
    """For half precision alone."""

    @classmethod
    def rejects(cls, dtype: Any, device: str) -> list[str]:
        return ["it computes in float16"] if dtype != torch.float16 else []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def better_ones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Candidates that `auto` prefers to those that run everywhere."""
    before = registries.snapshot()
    registries.attention.register("wide", Wide)
    registries.kernels.register("half", Half)
    better = {"attention": {"cpu": ("wide", "sdpa")}, "kernels": {"cpu": ("half", "torch")}}
    monkeypatch.setattr(auto, "CANDIDATES", auto.CANDIDATES | better)
    yield
    registries.restore(before)


def test_auto_passes_over_what_does_not_fit_the_model(checkpoint: Path) -> None:
    with LLM(checkpoint, device="cpu", dtype="float32") as llm:
        config = llm.config
        assert (config.attention.use, config.kernels.use) == ("sdpa", "torch")
        assert config.origins["attention.use"] == "auto: on cpu; wide: head_dim 32 is below 64"
        assert llm.generate([[1]], SamplingParams(max_tokens=2))


def test_auto_keeps_the_best_that_fits(checkpoint: Path) -> None:
    with LLM(checkpoint, device="cpu", dtype="float16") as llm:
        assert llm.config.kernels.use == "half"


def test_who_names_one_that_does_not_fit_hears_which_would(checkpoint: Path) -> None:
    with pytest.raises(UserError) as caught:
        LLM(checkpoint, device="cpu", attention="wide")
    assert str(caught.value).splitlines() == [
        "attention: wide: head_dim 32 is below 64",
        "attention: sdpa would fit; attention=auto takes sdpa",
    ]


def test_options_that_were_given_are_not_thrown_away(checkpoint: Path) -> None:
    with pytest.raises(UserError, match="attention: wide: head_dim 32"):
        LLM(checkpoint, device="cpu", attention={"use": "auto", "least": 3})


@pytest.mark.parametrize("capability", [(7, 5), (8, 0)])
def test_an_old_card_is_refused_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    shape = AttentionShape(4, 2, 32, 0.2, 16, dtype=torch.float16, device="cuda")
    said = TritonAttention.rejects(shape)
    assert said == (
        []
        if capability == (8, 0)
        else ["it needs a device of compute capability 8.0 (Ampere) or above"]
    )


@pytest.mark.parametrize(("capability", "able"), [((8, 0), False), ((8, 6), False), ((8, 9), True)])
def test_a_cache_of_float8_is_refused_where_it_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], able: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    kind = torch.float8_e4m3fn
    shape = AttentionShape(4, 2, 32, 0.2, 16, dtype=torch.float16, cache_dtype=kind, device="cuda")
    said = TritonAttention.rejects(shape)
    assert said == (
        [] if able else [f"a cache of {kind} needs a device of compute capability 8.9 or above"]
    )


def test_an_old_card_gets_no_triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from plugins.kernels.triton.kernels import TritonKernels

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    assert "compute capability 8.0" in " ".join(TritonKernels.rejects(torch.float16, "cuda"))
