"""What a quantization format must do to a whole model; run for each `--quantization`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from core.errors import UserError
from core.parallel import Quantization
from core.registry import registries
from core.testing.checkpoints import described, reference_logits, sequences, write_random
from core.testing.quantization import QuantizedLayer, Widths
from core.testing.ranks import Ranks
from core.testing.session import name_of

Kind = type[Quantization]

SIZES: dict[str, dict[str, Any]] = {
    "odd sizes": {},
    "whole blocks": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "head_dim": 64,
    },
}
TOLERANCE = 1e-4  # of the largest logit: float32, in another order
FILE = "model.safetensors"


@dataclasses.dataclass(frozen=True)
class Given:
    """A checkpoint of plain numbers, how to open it in the format, and what that gives."""

    folder: Path
    formats: Quantization
    open: Callable[..., Ranks]  # (ranks, folder=..., settings)
    ids: list[list[int]]
    logits: list[Tensor]
    converted: list[str]  # names of the weights that the format holds


@pytest.fixture(scope="module", params=SIZES)
def model(
    request: pytest.FixtureRequest,
    quantization: Kind,
    plait_words: tuple[str, ...],
    device: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Given:
    """A small Qwen3, quantized while it is read; skipped if the format refuses its sizes."""
    if not quantization.encodes():
        pytest.skip("it has no encode(), so that no checkpoint of it can be made up here")
    name = name_of(registries.quantization, quantization)
    folder = write_random(
        "Qwen3ForCausalLM",
        tmp_path_factory.mktemp("plain"),
        attention_bias=True,
        num_hidden_layers=2,
        **SIZES[request.param],
    )
    assert folder is not None
    plain = folder

    def open_(ranks: int, folder: Path = plain, use: str = name) -> Ranks:
        settings = {"plugins": list(plait_words), "quantization": use}
        return Ranks(folder, ranks, device=device, **settings)

    try:
        one = open_(1)
    except UserError as error:
        pytest.skip(str(error))
    plan = one.setup.plan
    assert plan.formats is not None
    converted = [
        f"{part.source}.weight"
        for rule in plan.rules
        if rule.module in plan.built.prepared
        for part in rule.parts
    ]
    ids = sequences(one.setup.model_config.vocab_size)
    return Given(folder, plan.formats, open_, ids, one.logits(ids), converted)


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    """Equal within TOLERANCE of the largest logit."""
    for s, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        worst = float((ours - theirs).abs().max() / theirs.abs().max())
        assert worst < TOLERANCE, f"sequence {s} is off by {worst:.1e} of its largest logit"


def test_some_layers_are_converted(model: Given) -> None:
    assert model.converted


def test_logits_are_transformers_own_for_the_numbers_that_are_stored(
    model: Given, device: str, tmp_path: Path
) -> None:
    """Written out as a plain checkpoint, by what single layers make of unit vectors."""
    tensors = load_file(model.folder / FILE)
    for name in model.converted:
        outs, ins = tensors[name].shape
        layer = QuantizedLayer(
            model.formats,
            "rowwise",
            Widths(outs, ins, 0),
            bias=False,
            device=device,
            names=(name.removesuffix(".weight"),),
            plain={name: tensors[name]},
        )
        tensors[name] = layer.weight().float().contiguous()
    shutil.copytree(model.folder, tmp_path, dirs_exist_ok=True)
    save_file(tensors, tmp_path / FILE, metadata={"format": "pt"})
    reference = reference_logits(tmp_path, model.ids)
    assert reference is not None
    assert_same(model.logits, reference[1])


@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_ranks_computes_what_one_does(model: Given, ranks: int) -> None:
    sizes = model.open(1).setup.plan.feasible()
    if ranks not in sizes:
        pytest.skip(f"in this format it can be cut for {sizes} ranks")
    together = [[len(ids) for ids in model.ids]]
    assert_same(model.open(ranks).logits(model.ids, together), model.logits)


def test_what_it_leaves_alone_is_as_it_was(model: Given) -> None:
    ranks = model.open(1)
    if type(model.formats).finalize is not Quantization.finalize:
        pytest.skip("it repacks what was loaded")
    stored, found = load_file(model.folder / FILE), ranks.weights()
    stems = {name.removesuffix("weight") for name in model.converted}
    for name, x in found.items():
        stem, _, role = name.rpartition(".")
        if f"{stem}." not in stems or role == "bias":
            assert torch.equal(x.cpu(), stored[name]), f"{name} has changed"
    assert set(stored) - set(model.converted) <= set(found)


def test_a_checkpoint_that_is_stored_so_gives_the_same(model: Given, tmp_path: Path) -> None:
    """Of a format whose `quantization_config` has the name of the format as its quant_method."""
    formats = model.formats
    name = name_of(registries.quantization, type(formats))
    config = {**formats.config, "quant_method": name}
    if not type(formats).matches(config):
        pytest.skip(f"it does not read quant_method {name!r}")
    tensors = load_file(model.folder / FILE)
    for weight in model.converted:
        stem = weight.removesuffix(".weight")
        format = formats.format(stem, nn.Linear(1, 1))
        encoded = formats.encode(tensors.pop(weight), format)
        tensors |= {f"{stem}.{role}": x.contiguous() for role, x in encoded.items()}
    shutil.copytree(model.folder, tmp_path, dirs_exist_ok=True)
    save_file(tensors, tmp_path / FILE)
    raw = described(tmp_path) | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    found = model.open(1, tmp_path, name).logits(model.ids)
    for ours, theirs in zip(found, model.logits, strict=True):
        assert torch.equal(ours, theirs), "the stored checkpoint gives other logits"
