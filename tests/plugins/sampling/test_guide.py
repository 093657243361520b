"""The processor for structured outputs: how it is chosen, and how it joins when a request asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from core import settings
from core.errors import UserError
from core.interfaces import LogitsProcessor
from core.registry import registries
from core.sampling.params import SamplingParams
from core.sampling.rows import SampleRows
from core.testing.sampling import limits
from plugins.sampling.default import DefaultSampler

ROOT = Path(__file__).parents[3]
ASKS = SamplingParams(structured_outputs={"choice": ["yes", "no"]})


class Form(LogitsProcessor):
    """Says so if it is used before it was prepared, which takes until `may` is set."""

    made: ClassVar[list[Form]]
    begun: ClassVar[threading.Event]
    may: ClassVar[threading.Event]
    fails: ClassVar[bool]

    @dataclass
    class Options:
        size: int = 1

    only_asked = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.prepared = self.closed = False
        self.made.append(self)

    def prepare(self, config: Any, setup: Any) -> None:
        self.begun.set()
        assert self.may.wait(20)
        if self.fails:
            raise RuntimeError("no network")
        self.prepared = True

    def close(self) -> None:
        self.closed = True

    def wants(self, params: SamplingParams) -> bool:
        return params.structured_outputs is not None

    def accepts(self, params: SamplingParams) -> list[str]:
        return [] if self.prepared else ["it was not prepared"]

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> torch.Tensor:
        return logits


class Everybody(Form):
    only_asked = False

    def wants(self, params: SamplingParams) -> bool:
        return True


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    before = registries.snapshot()
    Form.made, Form.fails = [], False
    Form.begun, Form.may = threading.Event(), threading.Event()
    Form.may.set()
    registries.processors.register("form", Form)
    registries.processors.register("everybody", Everybody)
    registries.processors.register("absent", Form, needs=("no_such_package",))
    registries.processors.register("penalties", "plugins.sampling.penalties:Penalties")
    yield
    registries.restore(before)


def sampler(structured: Any, *processors: Any, prepared: bool = True) -> DefaultSampler:
    options = DefaultSampler.Options(processors=list(processors), structured=structured)
    made = DefaultSampler(options, limits(9))
    if prepared:
        made.prepare(None, None)  # type: ignore[arg-type]
    return made


class TestChoosing:
    @pytest.mark.parametrize(
        ("chosen", "words"),
        [
            ("frm", "Did you mean 'form'"),
            ({"use": "frm"}, "Did you mean 'form'"),
            ({"use": "form", "sise": 2}, "Did you mean 'size'"),
            (3, "not 3"),
            (["form"], r"not \['form'\]"),
            ({"size": 2}, "use: name"),
            ("penalties", "part of the default sampler"),
            ({"use": "absent"}, "no_such_package"),
            ("everybody", "sampler.processors"),
            ({"use": "everybody"}, "sampler.processors"),
        ],
        ids=str,
    )
    def test_what_can_never_join_is_a_mistake_at_once(self, chosen: Any, words: str) -> None:
        with pytest.raises(UserError, match=words):
            DefaultSampler.Options(structured=chosen)

    def test_the_mistake_is_one_of_the_configuration(self) -> None:
        words = [f"model.path={ROOT}/models/qwen3/tiny", "sampler.structured=gided"]
        with pytest.raises(UserError, match="sampler: no logits processor is called 'gided'"):
            settings.load(None, words)

    def test_a_missing_package_is_told_to_who_asks(self) -> None:
        (reason,) = sampler("absent").accepts(ASKS)
        assert "no_such_package, which is not installed" in reason

    @pytest.mark.parametrize("switched_off", [["no:guided"], []])
    def test_the_usual_one_need_not_be_there(self, switched_off: list[str]) -> None:
        words = [f"model.path={ROOT}/models/qwen3/tiny"]
        config = settings.load(None, words, plugins=switched_off)
        assert ("guided" in registries.processors.names()) == (not switched_off)
        assert config.sampler.options.structured == "guided"  # type: ignore[union-attr]

    def test_nobody_may_be_chosen(self) -> None:
        assert sampler(None).accepts(SamplingParams()) == []

    @pytest.mark.parametrize(
        ("structured", "processors"),
        [
            ("form", []),
            ({"use": "form", "size": 2}, []),
            ("form", ["everybody"]),
            ("everybody", [{"use": "everybody", "size": 2}]),
        ],
    )
    def test_what_is_captured_is_decided_for_all_that_may_join(
        self, structured: Any, processors: list[Any]
    ) -> None:
        made = sampler(structured, *processors)
        decided = made.graphable, made.shards
        assert made.accepts(ASKS) == []
        assert decided == (not made.chain.asks_all, not made.chain.asks_all)


class TestJoining:
    def test_with_options_it_is_there_from_the_start(self) -> None:
        made = sampler({"use": "form", "size": 2}, prepared=False)
        assert made.chain.processors["form"].options == Form.Options(2)

    def test_nobody_sees_it_before_it_is_prepared(self) -> None:
        made = sampler("form")
        Form.made.clear()
        Form.may.clear()
        with ThreadPoolExecutor(2) as pool:
            try:
                first = pool.submit(made.accepts, ASKS)
                assert Form.begun.wait(20)
                assert made.slow(ASKS)
                assert not made.chain.processors
                second = pool.submit(made.accepts, ASKS)
                assert made.accepts(SamplingParams()) == []  # others do not wait
                assert not second.done()
            finally:
                Form.may.set()
            assert (first.result(20), second.result(20)) == ([], [])
        assert len(Form.made) == 1
        assert not made.slow(ASKS)

    def test_one_that_cannot_be_prepared_leaves_nothing_and_is_tried_again(self) -> None:
        made = sampler("form")
        Form.made.clear()
        Form.fails = True
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no network"):
                made.accepts(ASKS)
        assert not made.chain.processors
        assert [form.closed for form in Form.made] == [True, True]
        Form.fails = False
        assert made.accepts(ASKS) == []

    def test_who_goes_through_the_chain_is_not_disturbed(self) -> None:
        made = sampler("form", "everybody")
        going = iter(made.chain.processors.items())
        next(going)
        assert made.accepts(ASKS) == []
        assert list(going) == []
        assert [*made.chain.processors] == ["everybody", "form"]
