"""What a sampler must do that takes requests for answers in a form; run for each `--sampler`."""

from __future__ import annotations

import pytest

from core.interfaces import Sampler
from core.llm import LLM
from core.registry import registries
from core.sampling.params import SamplingParams
from core.sampling.structured import StructuredOutputsParams
from core.testing.ranks import attention_for
from core.testing.session import name_of


def test_an_answer_has_the_form_that_is_asked_for(
    sampler: type[Sampler], plait_words: tuple[str, ...], device: str
) -> None:
    """By the model that ships with Plait, between answers that it would not give by itself."""
    if not sampler.structured:
        pytest.skip("a request with structured_outputs is refused")
    pytest.importorskip("llguidance", reason="the extra `guided` is not installed")
    attention, size = attention_for(device)
    choice = ["a whale", "two whales"]
    params = SamplingParams(
        temperature=0, max_tokens=20, structured_outputs=StructuredOutputsParams(choice=choice)
    )
    with LLM(
        "tiny",
        device=device,
        dtype="float32",
        attention=attention,
        sampler=name_of(registries.samplers, sampler),
        plugins=list(plait_words),
        cache={"page_size": size, "pages": max(2, 256 // size)},
    ) as llm:
        (output,) = llm.generate(["The sea is"], params, use_tqdm=False)
        assert output.outputs[0].text in choice
