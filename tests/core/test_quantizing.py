"""Which storage format a run has: what the configuration chooses, or what the checkpoint says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core import plugins
from core.errors import UserError
from core.parallel import Quantization
from core.quantizing import encoding, quantization_of
from core.registry import registries
from core.settings import load


class Reader(Quantization):
    """Reads what is stored so, and cannot make it."""

    @classmethod
    def matches(cls, config):
        return config.get("quant_method") in ("reader", "both")


class Rival(Reader):
    pass


@pytest.fixture
def formats():
    plugins.load()
    before = registries.snapshot()
    registries.quantization.register("reader", Reader)
    registries.quantization.register("rival", Rival)
    yield
    registries.restore(before)


def found(stored: dict[str, Any] | None, *words: str) -> Quantization | None:
    config = load(None, ["model.path=x", "model.device=cpu", *words])
    raw = {} if stored is None else {"quantization_config": stored}
    checkpoint: Any = SimpleNamespace(config=raw, path=Path("x"))
    made = quantization_of(config, checkpoint)
    assert encoding(checkpoint, made) == (stored is None and made is not None)
    return made


def test_auto_is_what_the_checkpoint_says(formats) -> None:
    assert found(None) is None
    made = found({"quant_method": "int8", "modules_to_not_convert": ["o_proj"]})
    assert made is not None
    assert made.config["modules_to_not_convert"] == ["o_proj"]


def test_plain_numbers_are_put_into_the_format_that_is_chosen(formats) -> None:
    made = found(None, "quantization={use: int8, modules_to_not_convert: [o_proj]}")
    assert type(made) is registries.quantization.get("int8")
    assert made.config == {"modules_to_not_convert": ["o_proj"]}


def test_a_choice_settles_who_reads_a_checkpoint_that_two_claim(formats) -> None:
    with pytest.raises(UserError, match="or choose one with quantization=NAME"):
        found({"quant_method": "both"})
    assert type(found({"quant_method": "both"}, "quantization=rival")) is Rival


@pytest.mark.parametrize(
    ("stored", "words", "said"),
    [
        (
            {"quant_method": "gptq"},
            ["quantization=int8"],
            "quantization is int8, and x is stored in another format already "
            "(quantization_config: gptq). Leave quantization out.",
        ),
        (
            {"quant_method": "int8"},
            ["quantization={use: int8, modules_to_not_convert: []}"],
            "quantization has options, and x says itself how it is stored (quantization_config: "
            "int8). Leave them out.",
        ),
        (
            None,
            ["quantization=reader"],
            "quantization is reader, which reads checkpoints in that format and cannot make it of "
            "plain numbers, as x has them. These can: int8.",
        ),
        (
            None,
            ["quantization.bits=4"],
            "command line: quantization.bits: quantization format 'auto' has no such option. "
            "Options: none.",
        ),
        (
            None,
            ["quantization=int9"],
            "command line: quantization: no quantization format is called 'int9'. Did you mean "
            "'int8'? Registered: int8, reader, rival.",
        ),
    ],
)
def test_contradictions_are_refused_in_a_sentence(formats, stored, words, said) -> None:
    with pytest.raises(UserError) as caught:
        found(stored, *words)
    assert str(caught.value) == said


def test_layers_are_finalized_once_loaded_and_before_guards(formats, tmp_path: Path) -> None:
    from core.parallel import Guard
    from core.testing.checkpoints import write_random
    from core.testing.ranks import Ranks

    seen = []

    class Finalized(registries.quantization.get("int8")):
        def finalize(self, module, format):
            seen.append((id(module), isinstance(module, Guard), bool(module.weight.any())))

    registries.quantization.register("finalized", Finalized)
    folder = write_random("Qwen3ForCausalLM", tmp_path, num_hidden_layers=2)
    assert folder is not None
    Ranks(folder, 2, quantization="finalized")
    assert len(seen) == len({name for name, *_ in seen}) == 2 * 2 * 4  # ranks, layers, matrices
    assert {(guarded, loaded) for _, guarded, loaded in seen} == {(False, True)}
