"""What every quantization format must do; run for each `--quantization`, on layers and a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core.errors import UserError
from core.layers import Linear, RMSNorm
from core.parallel import (
    DictSource,
    EncodedSource,
    Format,
    Quantization,
    on_meta,
    unshard,
    weight_bytes,
)
from core.parallel.formats import DENSE
from core.testing.numbers import assert_close
from core.testing.quantization import STYLES, QuantizedLayer, Widths, held
from core.testing.sharding import cut

Kind = type[Quantization]

WIDTHS = (Widths(37, 29, 11), Widths(512, 256, 256), Widths(517, 261, 133))
RANKS = (2, 3)
ROWS = (300, 33, 1, 0, 129)  # of steps
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def made_of(quantization: Kind) -> Quantization:
    return quantization(dataclasses.asdict(quantization.Options()))


@pytest.fixture(scope="module")
def made(quantization: Kind, refused: Callable[[list[str]], None]) -> Quantization:
    """The format with the options of the run, if it can be made of plain numbers."""
    if not quantization.encodes():
        refused(["it has no encode(), so that no checkpoint of it can be made up here"])
    return made_of(quantization)


def accepted(layer: QuantizedLayer, ranks: int = 1) -> QuantizedLayer:
    """The layer, if the format takes it; else what it says about it is why the test is skipped."""
    if reason := refusal(layer, ranks):
        pytest.skip(reason)
    return layer


def refusal(layer: QuantizedLayer, ranks: int = 1) -> str | None:
    kept = [name for name in layer.names if layer.format(name) == DENSE]
    if kept:
        return f"it leaves {', '.join(kept)} as they are"
    try:
        layer.plan(ranks)
    except UserError as error:
        return str(error) or pytest.fail("a refusal without a sentence")
    return None


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=WIDTHS, ids=lambda c: f"{c.outs}x{c.ins}")
def layer(
    request: pytest.FixtureRequest, made: Quantization, style: str, device: str
) -> QuantizedLayer:
    return accepted(QuantizedLayer(made, style, request.param, device=device))


def test_there_are_layers_that_it_takes(
    made: Quantization, refused: Callable[[list[str]], None]
) -> None:
    reasons = [
        refusal(QuantizedLayer(made, style, widths)) for style in STYLES for widths in WIDTHS
    ]
    if all(reasons):
        refused([str(reason) for reason in dict.fromkeys(reasons)])


# numbers


def test_every_weight_is_as_close_as_the_format_says(
    made: Quantization, layer: QuantizedLayer
) -> None:
    """Each part of a packed layer by its own measure, as if it had been stored alone."""
    found = layer.weight().split(layer.sizes)
    for name, ours in zip(layer.names, found, strict=True):
        plain = layer.plain[f"{name}.weight"]
        allowed = made.error(plain, layer.format(name)).double()
        assert allowed.shape == plain.shape
        assert float(allowed.max()) <= float(plain.abs().max()) / 2, "its error() promises nothing"
        error = (ours - plain.double()).abs()
        worst = float((error / (allowed + 1e-6 * ours.abs() + 1e-30)).max())
        assert worst <= 1, f"{name}: a weight is off by {worst:.3g} times what error() allows"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_are_those_of_the_numbers_that_are_stored(
    layer: QuantizedLayer, dtype: torch.dtype
) -> None:
    weight = layer.weight()
    layer.dtype = dtype
    bias = layer.whole("bias").to(dtype).double()
    wide = 2 * layer.widths.ins
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(n, wide, generator=generator).to(dtype) for n in ROWS]

    def compute(module: nn.Module, rank: int) -> list[Tensor]:
        before = {name: x.clone() for name, x in module.state_dict().items()}
        given = [x.to(layer.device) for x in inputs]
        out = [module(x[:, : layer.widths.ins]) for x in given]
        for x, same in zip(given, inputs, strict=True):
            assert torch.equal(x.cpu(), same), "forward has changed its input"
        for name, x in module.state_dict().items():
            assert torch.equal(x, before[name]), f"forward has changed {name}"
        return out

    (outputs,), _, _ = layer.run(1, compute)
    for x, found in zip(inputs, outputs, strict=True):
        exact = x[:, : layer.widths.ins].double() @ weight.T + bias
        pairs = zip(found.split(layer.sizes, 1), exact.split(layer.sizes, 1), strict=True)
        for name, (ours, right) in zip(layer.names, pairs, strict=True):
            assert_close(ours, right, dtype, name)


def test_some_rows_are_encoded_as_among_all(made: Quantization, layer: QuantizedLayer) -> None:
    """A large weight is encoded some blocks of rows at a time."""
    for name in layer.names:
        plain = layer.plain[f"{name}.weight"]
        format = layer.format(name)
        whole = made.encode(plain, format)
        roles = {role: dict(dims) for role, dims in format.roles.items() if role != "bias"}
        assert set(whole) == set(roles), "encode() and format() have different roles"
        for role, x in made.encode(plain.clone(), format).items():
            assert torch.equal(x, whole[role]), f"{role} is another when encoded again"
        if any("out" not in dims for dims in roles.values()):
            continue  # it always gets the whole weight
        step = math.lcm(*(dims["out"] for dims in roles.values()))
        for start, stop in ((step, 2 * step), (2 * step, len(plain))):
            for role, x in made.encode(plain[start:stop], format).items():
                d = roles[role]["out"]
                at = [dim for dim, _ in format.roles[role]].index("out")
                right = whole[role].narrow(at, start // d, x.shape[at]) if x.numel() else x
                assert torch.equal(x, right), f"{role} of rows {start} to {stop} depends on others"


def test_what_is_encoded_while_it_is_read_is_the_same(layer: QuantizedLayer) -> None:
    stored = layer.stored()
    with EncodedSource(DictSource(layer.plain), layer.plan()) as source:
        assert set(source.index()) == set(stored)
        for name, (shape, _) in source.index().items():
            found = source.read(name, tuple((0, size) for size in shape))
            assert torch.equal(found, stored[name].reshape(shape).to(found.dtype)), name


# ranks and memory


@pytest.mark.parametrize("ranks", RANKS)
def test_any_number_of_ranks_computes_what_one_does(layer: QuantizedLayer, ranks: int) -> None:
    """Outputs are those of one rank, and what was loaded is the checkpoint, scales and all."""
    accepted(layer, ranks)
    stored = DictSource(layer.stored())
    x = torch.randn(9, layer.widths.ins, generator=torch.Generator().manual_seed(3))
    (expected,), _, _ = layer.run(
        1, lambda module, _: module(x.to(layer.device)).cpu(), source=stored
    )
    cuts = layer.plan(ranks).cuts
    before = "S:a" if layer.style == "rowwise" else "R"

    def compute(module: nn.Module, rank: int) -> Tensor:
        own = cut(x, before, cuts, rank, ranks).to(layer.device)
        return torch.as_tensor(module(own)).cpu()

    outputs, states, plan = layer.run(ranks, compute, source=stored)
    largest = expected.abs().amax(0).clamp(min=1e-6)
    for rank, found in enumerate(outputs):
        places = layer.places(plan, rank)
        error = (found - expected[:, places]).abs() / largest[places]
        assert found.shape == (9, len(places))
        assert not error.numel() or float(error.max()) < 1e-4, f"rank {rank} of {ranks} differs"
    back = unshard(plan, states)
    for name, x in stored.tensors.items():
        same = x.reshape(back[name].shape).to(back[name].dtype)
        assert torch.equal(back[name], same), f"{name} does not come back from {ranks} ranks"


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_takes_the_memory_that_it_says(layer: QuantizedLayer, ranks: int) -> None:
    accepted(layer, ranks)

    def measure(module: nn.Module, rank: int) -> tuple[int, int]:
        taken = held(module)
        width = layer.plan(ranks).local_model(rank).get_submodule(layer.module).in_features
        for _ in range(2):
            module(torch.zeros(3, int(width), device=layer.device))  # type: ignore[arg-type]
        return taken, held(module)

    found, _, plan = layer.run(ranks, measure)
    for rank, (taken, later) in enumerate(found):
        said = weight_bytes(plan.local_model(rank), layer.dtype)
        assert taken <= said, f"{taken} bytes instead of {said}"
        assert later == taken, f"{later - taken} bytes more after a forward"


def test_preparing_takes_no_memory(made: Quantization) -> None:
    body = on_meta(lambda: Linear(256, 128))
    format = made.format("o_proj", body)
    if format == DENSE:
        pytest.skip("it leaves o_proj as it is")
    made.prepare(body, format, 1)
    assert isinstance(body, nn.Linear), "strategies cut linear layers and subclasses"
    assert all(x.is_meta for x in (*body.parameters(), *body.buffers()))
    assert set(dict(body.named_parameters())) == set(format.roles)


# what it is asked


def test_what_it_leaves_alone(made: Quantization) -> None:
    for source, body in (
        ("norm", RMSNorm(8, 1e-6)),
        ("layers.0.norm", nn.LayerNorm(8)),
    ):
        assert made.format(source, body) == DENSE, f"{type(body).__name__} is no matrix"
    seen: dict[str, Format] = {}
    for source in ("lm_head", "layers.0.o_proj", "layers.1.up_proj", "layers.0.o_proj"):
        format = made.format(source, Linear(8, 8))
        first = seen.setdefault(format.name, format)
        assert dict(first.roles) == dict(format.roles), f"two formats are called {format.name}"


@pytest.mark.parametrize(
    "config", [{}, {"quant_method": "nobody's"}, {"quant_method": None}], ids=str
)
def test_other_formats_are_not_its_own(quantization: Kind, config: dict[str, Any]) -> None:
    assert quantization.matches(config) is False


def test_a_key_that_it_does_not_implement_is_refused_by_name(quantization: Kind) -> None:
    config = dataclasses.asdict(quantization.Options()) | {"bits_of_nobody": 3}
    with pytest.raises(UserError, match="bits_of_nobody"):
        quantization(config).format("o_proj", Linear(8, 8))
