"""Logits processors of third parties: chosen by name, each failure an error of one request."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from core.errors import UserError
from core.interfaces import LogitsProcessor, Sampled, Sampler
from core.registry import registries
from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.testing.sampling import limits, make_rows
from plugins.sampling.default import DefaultSampler

SIZE = 20


class Forbid(LogitsProcessor):
    """Forbids the token that `extra_args` names, and raises where it is 13 or cannot be."""

    @dataclass
    class Options:
        share: float = field(default=1.0, metadata={"help": "how much of it"})
        names: list[int] = field(default_factory=list)

    def accepts(self, params: SamplingParams) -> list[str]:
        token = params.extra_args.get("forbid", 0)
        return [] if isinstance(token, int) else [f"forbid is {token!r}, not a token id"]

    def wants(self, params: SamplingParams) -> bool:
        return "forbid" in params.extra_args

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        for s, params in enumerate(rows.params):
            logits[s, params.extra_args["forbid"]] = -math.inf
            if params.extra_args["forbid"] == 13:
                raise RuntimeError("thirteen")
        return logits


class Double(LogitsProcessor):
    def wants(self, params: SamplingParams) -> bool:
        return params.extra_args.get("double", False)

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        narrow = any("narrow" in params.extra_args for params in rows.params)
        return logits[:, 1:] if narrow else logits * 2


class AddOne(LogitsProcessor):
    """Wants every request; makes token 3 the best where that is 1."""

    def wants(self, params: SamplingParams) -> bool:
        return True

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        logits[:, 3] += 1
        return logits


class Halve(LogitsProcessor):
    """Halves the logits in place, then raises if it does not like one of the rows."""

    def wants(self, params: SamplingParams) -> bool:
        return "halve" in params.extra_args

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        logits /= 2
        assert all(params.extra_args["halve"] for params in rows.params)
        return logits


class Moody(LogitsProcessor):
    def wants(self, params: SamplingParams) -> bool:
        return 1 / params.extra_args["mood"] > 0

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        return logits


class MinP(Sampler):
    """A whole sampler of a third party: temperature, then tokens at least so likely as the best."""

    @dataclass
    class Options:
        floor: float = 0.1

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> Sampled:
        floor = rows.extra("floor", self.options.floor)
        least = logits.float().amax(-1) + rows.temperature * floor.log()
        return Sampled(rows.draw(logits, least))


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    before = registries.snapshot()
    for name, cls in {
        "forbid": Forbid,
        "double": Double,
        "add-one": AddOne,
        "halve": Halve,
        "moody": Moody,
    }.items():
        registries.processors.register(name, cls)
    yield
    registries.restore(before)


def sampler(*processors: object) -> DefaultSampler:
    return DefaultSampler(DefaultSampler.Options(processors=list(processors)), limits(SIZE))


def greedy(**extra: object) -> SamplingParams:
    return SamplingParams(temperature=0, extra_args=extra)


def falling(rows: int) -> torch.Tensor:
    """Token 0 is the best, then 1, and so on."""
    return -torch.arange(SIZE).float().expand(rows, -1).clone()


def test_a_processor_changes_the_rows_that_want_it_and_no_others(device: str) -> None:
    params = [greedy(forbid=0), greedy(), greedy(forbid=1), SamplingParams(temperature=0)]
    found = sampler("forbid")(falling(4).to(device), make_rows(params, SIZE, device=device))
    assert found.ids.tolist() == [1, 0, 0, 0]
    assert not found.errors


def test_one_that_wants_every_row_also_gets_plain_ones() -> None:
    logits = torch.zeros(2, SIZE)
    logits[:, 0] = 0.5
    rows = make_rows([SamplingParams(temperature=0)] * 2, SIZE)
    assert sampler("add-one")(logits, rows).ids.tolist() == [3, 3]


def test_processors_run_in_the_order_of_their_names() -> None:
    logits = torch.zeros(1, SIZE)
    logits[0, 5] = 1.5
    rows = make_rows([greedy(double=True)], SIZE)
    logits[0, 3] = 0.8
    assert sampler("double", "add-one")(logits, rows).ids.tolist() == [5]  # 2 * 0.8 + 1 < 3
    assert sampler("add-one", "double")(logits, rows).ids.tolist() == [3]  # 2 * (0.8 + 1) > 3


def test_they_run_after_the_built_in_ones() -> None:
    logits = torch.zeros(1, SIZE)
    params = SamplingParams(temperature=0, logit_bias={5: 0.9}, extra_args={"double": True})
    rows = make_rows([params], SIZE)
    # doubling before the bias would leave token 5 behind token 3, which gets 1
    assert sampler("double", "add-one")(logits, rows).ids.tolist() == [5]


def test_a_processor_that_raises_costs_its_request_only() -> None:
    params = [greedy(forbid=0), greedy(forbid=13), greedy(), greedy(forbid=0), greedy(forbid=99)]
    found = sampler("forbid")(falling(5), make_rows(params, SIZE))
    assert found.ids.tolist() == [1, 0, 0, 1, 0]
    assert set(found.errors) == {1, 4}
    assert "'forbid' failed: RuntimeError: thirteen" in found.errors[1]


def test_a_failed_attempt_leaves_nothing_behind() -> None:
    logits = torch.zeros(3, SIZE)
    logits[:, 5] = 2.5  # halved once it is more than 1, halved twice it is less
    params = [greedy(halve=True), greedy(halve=False), greedy(halve=True)]
    found = sampler("halve", "add-one")(logits, make_rows(params, SIZE))
    assert list(found.errors) == [1]
    assert found.ids.tolist() == [5, 0, 5]


def test_a_wrong_shape_costs_its_request_only() -> None:
    params = [greedy(double=True), greedy(double=True, narrow=True), greedy(double=True)]
    found = sampler("double")(falling(3), make_rows(params, SIZE))
    assert list(found.errors) == [1]
    assert "must return logits [1, 20], not [1, 19]" in found.errors[1]
    assert found.ids.tolist() == [0, 0, 0]


def test_a_processor_that_cannot_be_asked_costs_its_request_only() -> None:
    params = [greedy(mood=1), greedy(mood=0), greedy(mood=2)]
    found = sampler("moody")(falling(3), make_rows(params, SIZE))
    assert set(found.errors) == {1}
    assert "ZeroDivisionError" in found.errors[1]


def test_processors_are_asked_whether_they_accept_a_request() -> None:
    asked = sampler("forbid", "moody")
    assert asked.accepts(greedy(forbid=3, mood=1)) == []
    (reason,) = asked.accepts(greedy(forbid="x", mood=1))
    assert reason == "forbid: forbid is 'x', not a token id"
    (reason,) = asked.accepts(greedy(forbid=3, mood=0))
    assert "'moody' failed" in reason


def test_extra_args_that_nobody_reads_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    asked = sampler("forbid")
    with caplog.at_level(logging.WARNING, "plait"):
        for _ in range(3):
            assert asked.accepts(greedy(forbid=1, forbud=2)) == []
    assert len(caplog.records) == 1
    assert "'forbud'" in caplog.text


def test_no_client_can_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    asked = sampler("forbid")
    with caplog.at_level(logging.WARNING, "plait"):
        for number in range(100):
            assert asked.accepts(greedy(**{f"{number:03}" + "x" * 10_000: 1})) == []
    assert len(caplog.records) == 21  # the last says that there will be no more
    assert max(len(record.getMessage()) for record in caplog.records) < 200


def test_a_processor_may_name_what_it_reads(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forbid, "extra_args", ("softly",), raising=False)
    with caplog.at_level(logging.WARNING, "plait"):
        sampler("forbid").accepts(greedy(forbid=1, softly=2))
    assert not caplog.records


def test_options_are_checked_and_filled() -> None:
    chosen = sampler({"use": "forbid", "share": 1, "names": [3]}).chain.processors["forbid"]
    assert chosen.options == Forbid.Options(share=1.0, names=[3])
    with pytest.raises(UserError) as caught:
        sampler({"use": "forbid", "shore": 1, "names": "x"})
    lines = str(caught.value).splitlines()
    assert "no option 'shore'. Did you mean 'share'?" in lines[0]
    assert lines[1].startswith("forbid: names: must be")


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (["forbud"], "Did you mean 'forbid'"),
        (["forbid", {"use": "forbid"}], "named twice"),
        ([{"share": 1}], "use: name"),
        ([3], "use: name"),
        (["penalties"], "part of the default sampler"),
    ],
)
def test_unusable_choices_are_refused(chosen: list, words: str) -> None:
    registries.processors.register("penalties", "plugins.sampling.penalties:Penalties")
    with pytest.raises(UserError, match=words):
        sampler(*chosen)


def test_a_third_party_sampler_is_a_few_lines(device: str) -> None:
    logits = torch.tensor([[0.0, -1.0, -2.0, -3.0]] * 60).to(device)
    params = [SamplingParams()] * 20 + [SamplingParams(temperature=0)] * 20
    params += [SamplingParams(extra_args={"floor": 0.9})] * 20
    found = MinP(MinP.Options(floor=0.2), limits(4))(logits, make_rows(params, 4, device=device))
    assert set(found.ids[:20].tolist()) == {0, 1}
    assert set(found.ids[20:].tolist()) == {0}
