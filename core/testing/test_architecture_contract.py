"""What every model must do; run for each `--model`, on a random checkpoint or on `--reference`."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from core.errors import UserError
from core.interfaces import Architecture
from core.registry import registries
from core.testing.checkpoints import (
    BIASED,
    WINDOWED,
    described,
    reference_logits,
    sequences,
    write_random,
)
from core.testing.ranks import Ranks
from core.testing.session import name_of

Kind = type[Architecture]

RANKS = (2, 3, 4)
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biased and tied": BIASED,
    "windowed": WINDOWED,
}
TOLERANCE = 1e-4  # of the largest logit: float32, in another order


@dataclasses.dataclass(frozen=True)
class Given:
    """A checkpoint of the model, how to open it, and sequences with their logits on one rank."""

    folder: Path
    open: Callable[[int], Ranks]
    ids: list[list[int]]
    reference: list[Tensor] | None  # by transformers
    logits: list[Tensor]


@pytest.fixture(scope="module", params=CHANGES)
def found(
    request: pytest.FixtureRequest,
    architecture: Kind,
    plait_words: tuple[str, ...],
    device: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Given | str:
    """`--reference` if it is one of this model's; else random ones, if transformers makes them;
    else why there are none."""
    name = name_of(registries.models, architecture)
    references = map(Path, request.config.getoption("reference"))
    folder = next((path for path in references if described(path)["architectures"] == [name]), None)
    if request.param != "plain" and folder is not None:
        pytest.skip("there is a reference")
    if folder is None:
        changes = CHANGES[request.param]
        folder = write_random(name, tmp_path_factory.mktemp("random"), **changes)
    if folder is None:
        reason = f"transformers has no {name}: give a checkpoint of it with --reference=DIR"
        if request.param != "plain":
            pytest.skip(reason)
        return reason
    if request.param == "windowed" and described(folder).get("sliding_window") is None:
        pytest.skip("its family has no windows")
    path = folder

    def open_(ranks: int) -> Ranks:
        return Ranks(path, ranks, device=device, plugins=list(plait_words))

    try:
        one = open_(1)
    except UserError as error:
        if request.param == "plain":
            raise
        pytest.skip(str(error))
    ids = sequences(one.setup.model_config.vocab_size)
    reference = reference_logits(folder, ids)
    if reference is not None:
        ids = reference[0]
    return Given(folder, open_, ids, reference and reference[1], one.logits(ids))


@pytest.fixture
def checkpoint(found: Given | str) -> Given:
    """What was found; the test does not run without."""
    if isinstance(found, str):
        pytest.skip(found)
    return found


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    """Equal within TOLERANCE of the largest logit."""
    for s, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.shape == theirs.shape
        worst = float((ours - theirs).abs().max() / theirs.abs().max())
        assert worst < TOLERANCE, f"sequence {s} is off by {worst:.1e} of its largest logit"


def test_there_is_a_checkpoint(found: Given | str, refused: Callable[[list[str]], None]) -> None:
    if isinstance(found, str):
        refused([found])


def test_logits_are_those_of_the_reference(checkpoint: Given) -> None:
    if checkpoint.reference is None:
        pytest.skip("transformers does not know it, and there is no reference.safetensors")
    assert_same(checkpoint.logits, checkpoint.reference)


@pytest.mark.parametrize("seed", range(4))
def test_chunks_and_neighbours_do_not_matter(checkpoint: Given, seed: int) -> None:
    """Any steps that compute the sequences give the logits of each alone in one step."""
    rng = random.Random(seed)
    left, steps = [len(ids) for ids in checkpoint.ids], []
    while any(left):
        counts = [min(n, rng.choice((0, 1, 1, rng.randint(0, 9)))) for n in left]
        if any(counts):
            steps.append(counts)
            left = [n - count for n, count in zip(left, counts, strict=True)]
    assert_same(checkpoint.open(1).logits(checkpoint.ids, steps), checkpoint.logits)


@pytest.mark.parametrize("ranks", RANKS)
def test_any_number_of_ranks_computes_what_one_does(checkpoint: Given, ranks: int) -> None:
    several = opened(checkpoint, ranks)
    together = [[len(ids) for ids in checkpoint.ids]]
    assert_same(several.logits(checkpoint.ids, together), checkpoint.logits)


@pytest.mark.parametrize("ranks", [1, *RANKS])
def test_every_element_of_the_checkpoint_is_read(checkpoint: Given, ranks: int) -> None:
    """What the ranks hold is the checkpoint, bit for bit."""
    from safetensors.torch import load_file

    try:
        found = opened(checkpoint, ranks).weights()
    except ValueError as error:
        pytest.skip(str(error))
    files = [f for f in checkpoint.folder.glob("*.safetensors") if "reference" not in f.name]
    stored = {name: x for file in files for name, x in load_file(file).items()}
    for name, x in found.items():
        assert name in stored, f"{name} is not in the checkpoint"
        assert torch.equal(x.cpu(), stored[name].to(x.dtype)), f"{name} has changed"


def opened(checkpoint: Given, ranks: int) -> Ranks:
    sizes = checkpoint.open(1).setup.plan.feasible()
    if ranks not in sizes:
        pytest.skip(f"this checkpoint can be cut for {sizes} ranks")
    return checkpoint.open(ranks)


def test_its_configuration_has_what_the_engine_reads(architecture: Kind, checkpoint: Given) -> None:
    config: Any = architecture.config(described(checkpoint.folder))
    assert hasattr(config, "__dataclass_fields__")
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "longest"):
        assert getattr(config, name) >= 1, name
    assert isinstance(config.tie_word_embeddings, bool)
    assert config.dtype is None or isinstance(getattr(torch, config.dtype), torch.dtype)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.vocab_size = 1


def test_a_key_that_it_does_not_implement_is_refused_by_name(
    architecture: Kind, checkpoint: Given
) -> None:
    changed = described(checkpoint.folder) | {"gain_of_every_second_layer": 2.5}
    with pytest.raises(UserError, match="gain_of_every_second_layer"):
        architecture.config(changed)
    architecture.config(changed, ignore=("gain_of_every_second_layer",))
