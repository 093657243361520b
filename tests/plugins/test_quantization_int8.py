"""int8: the nearest of 255 numbers for each weight, one scale a row, and little memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from core import LLM, SamplingParams
from core.errors import UserError
from core.parallel import weight_bytes
from core.parallel.formats import DENSE
from core.testing.checkpoints import sequences, write_random
from core.testing.ranks import Ranks
from plugins.quantization.int8 import INT8, Int8, Int8Linear


def rounded(weight: np.ndarray) -> np.ndarray:
    """What the format makes of a weight; numbers are found in float32, as it says."""
    weight = weight.astype(np.float32)
    step = np.abs(weight).max(1, keepdims=True) / np.float32(127)
    return np.rint(weight / step).astype(np.float64) * step


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_no_number_in_reach_is_nearer(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((rows, columns)) * 10 ** rng.uniform(-12, 12, (rows, 1))
    found = Int8({}).encode(torch.tensor(weight, dtype=torch.float32), INT8)
    assert found["weight"].dtype == torch.int8
    assert found["weight_scale"].dtype == torch.float32
    meant = found["weight"].double().numpy() * found["weight_scale"].double().numpy()[:, None]
    largest = np.abs(weight).max(1, keepdims=True)
    assert (np.abs(meant - weight) <= largest / 127 * 0.50001).all()
    assert (np.abs(found["weight"].numpy()).max(1) == 127).all()


def test_a_row_of_zeros_stays_one() -> None:
    found = Int8({}).encode(torch.zeros(2, 3, dtype=torch.bfloat16), INT8)
    assert not found["weight"].any()
    assert bool((found["weight_scale"] > 0).all())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_random(
        "Qwen3ForCausalLM", tmp_path_factory.mktemp("int8"), tie_word_embeddings=True
    )
    assert path is not None
    return path


@pytest.mark.parametrize("ranks", [1, 2])
def test_logits_are_those_of_the_rounded_weights_in_float64(folder: Path, ranks: int) -> None:
    """transformers in float64, with weights that numpy rounds."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("_proj.weight"):
                weight.copy_(torch.from_numpy(rounded(weight.numpy())))
    ids = sequences(301)
    found = Ranks(folder, ranks, quantization="int8").logits(ids)
    for tokens, ours in zip(ids, found, strict=True):
        with torch.no_grad():
            right = model(torch.tensor([tokens])).logits[0]
        assert float((ours.double() - right).abs().max() / right.abs().max()) < 1e-5


def test_layers_that_are_named_stay_as_they_are(folder: Path) -> None:
    chosen = {"use": "int8", "modules_to_not_convert": ["lm_head", "model.layers.1.mlp.down_proj"]}
    weights = Ranks(folder, quantization=chosen).weights()
    stored = load_file(folder / "model.safetensors")
    for name in stored:
        kept = name == "model.layers.1.mlp.down_proj.weight" or not name.endswith("_proj.weight")
        assert (weights[name].dtype == torch.float32) == kept, name
        if kept:
            assert torch.equal(weights[name], stored[name])


def test_a_layer_that_is_an_embedding_as_well_is_told(folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        Ranks(folder, quantization={"use": "int8", "modules_to_not_convert": []})
    assert str(caught.value) == (
        "lm_head cannot be quantized: the config ties it to model.embed_tokens.weight, which stays "
        "as it is. Let the format leave lm_head as it is, too."
    )
    assert Ranks(
        folder,
        quantization={"use": "int8", "modules_to_not_convert": []},
        load_format="dummy",
    ).logits([[1, 2]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_engine_runs_with_it(folder: Path, dtype: str) -> None:
    settings = {"device": "cpu", "cache": {"pages": 16, "page_size": 16}, "dtype": dtype}
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(folder, quantization="int8", **settings) as llm:
        (output,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 6


def test_a_byte_is_held_for_each_weight_and_four_for_each_row(folder: Path) -> None:
    (worker,) = Ranks(folder, quantization="int8", dtype="bfloat16").workers
    layers = [module for module in worker.model.modules() if isinstance(module, Int8Linear)]
    assert layers
    for layer in layers:
        rows, columns = layer.weight.shape
        held = sum(x.numel() * x.element_size() for x in layer.parameters())
        assert held == rows * columns + 4 * rows
    said = weight_bytes(worker.setup.plan.local_model(0), torch.bfloat16)
    assert said == sum(x.numel() * x.element_size() for x in worker.model.parameters())


def test_dummy_weights_can_be_had_in_it(folder: Path) -> None:
    found = Ranks(folder, quantization="int8", load_format="dummy").logits([[1, 2, 3]])
    plain = Ranks(folder, load_format="dummy").logits([[1, 2, 3]])
    error = float((found[0] - plain[0]).abs().max() / plain[0].abs().max())
    assert 0 < error < 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_long_sums_stay_within_the_range_of_float16(dtype: torch.dtype) -> None:
    """127 * 4096 numbers alike would not, and what they stand for does."""
    layer = torch.nn.Linear(4096, 3, bias=False, device="meta")
    Int8({}).prepare(layer, INT8, 1)
    layer.weight = torch.nn.Parameter(torch.full((3, 4096), 127, dtype=torch.int8), False)
    layer.weight_scale = torch.nn.Parameter(torch.tensor([1e-4, 1e-2, 0.0]))
    found = layer(torch.ones(2, 4096, dtype=dtype))
    right = (127 * 4096 * layer.weight_scale.detach()).expand(2, 3)
    torch.testing.assert_close(found.float(), right, rtol=0.01, atol=0)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "int8", "bits": 4}, "quantization_config: bits is not implemented"),
        ({"modules_to_not_convert": "lm_head"}, "must be a list of names, not 'lm_head'"),
        ({"modules_to_not_convert": [3]}, r"must be a list of names, not \[3\]"),
    ],
)
def test_what_it_cannot_honour_is_refused(config, said) -> None:
    with pytest.raises(UserError, match=said):
        Int8(config)


def test_whatever_is_no_linear_layer_is_left_alone() -> None:
    for module in (torch.nn.Embedding(3, 4), torch.nn.LayerNorm(4), torch.nn.Conv1d(1, 1, 1)):
        assert Int8({}).format("x", module) == DENSE
