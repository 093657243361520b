"""Steps that fail: their requests end with a sentence, all others get the tokens they get alone."""

from __future__ import annotations

import random
import textwrap
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core import LLM, SamplingParams
from core.layers import Attention
from tests.acceptance.broken import Broken, broken, whole
from tests.tiny import save_tiny

__all__ = ["broken", "whole"]

PROMPT = list(b"The wind")
BAD = 7  # the token whose embedding is NaN


def plain(**changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 10, "ignore_eos": True} | changes)


def make(path: Path, device: str, **settings) -> LLM:
    """Small enough that prompts are cut in chunks, and requests sent back to the queue."""
    small = {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 16,
        "cache": {"page_size": 4, "pages": 24, "check": True},
    }
    return LLM(path, device=device, dtype="float32", **small | settings)


def alone(path: Path, device: str, asked: list[tuple[list[int], SamplingParams]]):
    """What each request gets from an engine that runs one at a time and caches nothing."""
    cache = {"page_size": 16, "pages": 16, "prefix": False}
    with LLM(path, device=device, dtype="float32", max_num_seqs=1, cache=cache) as llm:
        return [llm.generate(p, q, use_tqdm=False)[0].outputs[0] for p, q in asked]


def assert_idle(llm: LLM) -> None:
    numbers = llm.engine.statistics()
    assert (numbers["running"], numbers["waiting"], numbers["pages_owned"]) == (0, 0, 0)
    assert numbers["pages_free"] + numbers["pages_cached"] == numbers["pages_total"]


def requests(rng: random.Random, count: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts that share beginnings, with parameters of every kind."""
    stems = [[rng.randrange(8, 256) for _ in range(24)] for _ in range(3)]
    made = []
    for number in range(count):
        prompt = rng.choice(stems)[: rng.choice((3, 14, 24, 24, 24))]
        prompt = prompt + [rng.randrange(8, 256) for _ in range(rng.randint(1, 8))]
        params = plain(
            max_tokens=rng.randint(1, 9),
            temperature=rng.choice([0, 0, 1.0]),
            seed=number,
            top_k=rng.choice([0, 5]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            logprobs=rng.choice([None, None, 2]),
            prompt_logprobs=rng.choice([None, None, None, 1]),
        )
        made.append((prompt, params))
    return made


class Faults:
    """Raises now and then: before any layer of the model, and before sampling."""

    def __init__(self, llm: LLM, rng: random.Random, rate: float) -> None:
        self.rng, self.rate = rng, rate
        worker = llm.engine.executor._worker
        layers = [m for m in worker.model.modules() if isinstance(m, Attention)]
        self.places = len(layers) + 1
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(lambda *_, number=number: self.perhaps(number))
        logits = worker.logits

        def sampled(*given):
            self.perhaps("the head")
            return logits(*given)

        worker.logits = sampled

    def perhaps(self, place: object) -> None:
        if self.rng.random() < self.rate / self.places:
            raise ValueError(f"a kernel broke in {place}")


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_steps_that_fail_now_and_then_under_load(whole, device, overlap):
    rng = random.Random(overlap)
    kinds = requests(rng, 40)
    expected = [answer.token_ids for answer in alone(whole, device, kinds)]
    # one after the other, so that the second reads what the first has only just begun to write
    which = [k for _ in range(100) for k in [rng.randrange(len(kinds))] * 2]
    asked = [kinds[k][0] for k in which], [kinds[k][1] for k in which]
    with make(whole, device, executor={"overlap": overlap}) as llm:
        faults = Faults(llm, rng, 0.1)
        seen: Counter[str] = Counter()
        for k, output in zip(which, llm.generate(*asked, use_tqdm=False), strict=True):
            found = output.outputs[0]
            seen[found.finish_reason] += 1
            if found.finish_reason == "error":
                assert "a kernel broke in" in found.error
                assert found.token_ids == expected[k][: len(found.token_ids)]
            else:
                assert found.token_ids == expected[k]
        assert_idle(llm)
        numbers = llm.engine.statistics()
        assert seen["error"] > 50
        assert seen["length"] > 50
        assert numbers["preemptions"] > 10
        assert numbers["prefix_hits"] > 100
        faults.rate = 0.0  # what the failed steps left in the cache is nowhere found
        after = llm.generate(*asked, use_tqdm=False)
        assert [o.outputs[0].token_ids for o in after] == [expected[k] for k in which]
        assert_idle(llm)


def test_a_model_of_nan_answers_with_a_sentence(broken: Broken, device):
    broken.tensors(lambda t: t.update({"model.norm.weight": torch.full((64,), torch.nan)}))
    with make(broken.path, device) as llm:
        for output in llm.generate([PROMPT] * 3, plain(), use_tqdm=False):
            found = output.outputs[0]
            assert (found.finish_reason, found.token_ids) == ("error", [])
            assert "among the logits is nan. Check the weights and the dtype" in found.error
        assert_idle(llm)


@pytest.fixture(scope="module")
def partly_nan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is fine until it reads the token BAD."""
    path = save_tiny(tmp_path_factory.mktemp("nan"), tie_word_embeddings=False)
    file = path / "model.safetensors"
    tensors = dict(load_file(file))
    tensors["model.embed_tokens.weight"][BAD] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("page_size", [4, 16])
def test_nan_stays_with_the_request_that_has_it(partly_nan, device, page_size):
    rng = random.Random(page_size)
    asked = [
        ([rng.randrange(8, 256) for _ in range(rng.randint(1, 30))], plain()) for _ in range(25)
    ]
    expected = alone(partly_nan, device, asked)
    cache = {"page_size": page_size, "pages": 96 // page_size, "check": True}
    with make(partly_nan, device, cache=cache) as llm:
        for layer in llm.engine.executor._worker.model.modules():
            if isinstance(layer, Attention):  # fresh memory may hold anything
                layer.cache.k.fill_(torch.nan)
                layer.cache.v.fill_(torch.nan)
        prompts = []
        for prompt, _ in asked:  # the bad one begins like the good one, so they share pages
            prompts += [prompt, [*prompt[: len(prompt) // 2], BAD, *prompt[len(prompt) // 2 :]]]
        outputs = llm.generate(prompts, plain(), use_tqdm=False)
        for good, bad, one in zip(outputs[::2], outputs[1::2], expected, strict=True):
            assert good.outputs[0].token_ids == one.token_ids
            assert good.outputs[0].finish_reason == one.finish_reason
            assert bad.outputs[0].finish_reason == "error"
        assert_idle(llm)
        again = llm.generate(prompts[::2], plain(), use_tqdm=False)
        assert [o.outputs[0].token_ids for o in again] == [one.token_ids for one in expected]


@pytest.mark.filterwarnings("error")
def test_extreme_values_harm_no_neighbour(whole, device):
    (expected,) = alone(whole, device, [(PROMPT, plain())])
    everything = {token: 3.4e38 for token in range(301)}
    extremes = [
        plain(temperature=3.4e38, seed=1),
        plain(temperature=1.1e-5, seed=1, top_p=1e-300, min_p=1e-300),
        plain(repetition_penalty=1e-38),
        plain(repetition_penalty=3.4e38),
        plain(logit_bias=everything),
        plain(logit_bias={token: -bias for token, bias in everything.items()}),
        plain(allowed_token_ids=[300], logit_bias={300: -3.4e38}),
        plain(top_k=2**31 - 1, temperature=1.0, seed=2**64 - 1, logprobs=-1),
    ]
    with make(whole, device, max_num_seqs=16) as llm:
        outputs = llm.generate([PROMPT] * 9, [*extremes, plain()], use_tqdm=False)
        assert outputs[-1].outputs[0].token_ids == expected.token_ids
        for output in outputs:
            found = output.outputs[0]
            assert found.finish_reason == "length" or "among the logits is" in found.error
        assert_idle(llm)


PLUGIN = """
    from core.interfaces import LogitsProcessor, Sampled, Sampler
    from core.registry import processors, samplers

    @processors.register("touchy")
    class Touchy(LogitsProcessor):
        extra_args = ("explode",)

        def wants(self, params):
            return "explode" in (params.extra_args or {})

        def __call__(self, logits, rows):
            if any(params.extra_args["explode"] for params in rows.params):
                raise ZeroDivisionError("boom")
            return logits

    @samplers.register("touchy")
    class TouchySampler(Sampler):
        def __call__(self, logits, rows):
            if any((params.extra_args or {}).get("explode") for params in rows.params):
                raise ZeroDivisionError("boom")
            return Sampled(rows.draw(logits))
"""


@pytest.mark.parametrize(
    "sampler", [{"use": "default", "processors": ["touchy"]}, {"use": "touchy"}]
)
def test_a_sampler_that_raises_for_one_request_harms_no_other(whole, tmp_path, device, sampler):
    plugin = tmp_path / "touchy.py"
    plugin.write_text(textwrap.dedent(PLUGIN))
    (expected,) = alone(whole, device, [(PROMPT, plain())])
    with make(whole, device, plugins=[str(plugin)], sampler=sampler) as llm:
        params = [plain(), plain(extra_args={"explode": 1}), plain(extra_args={"explode": 0})]
        outputs = llm.generate([PROMPT] * 3, params, use_tqdm=False)
        good, bad, quiet = (output.outputs[0] for output in outputs)
        assert good.token_ids == quiet.token_ids == expected.token_ids
        assert bad.finish_reason == "error"
        assert "touchy" in bad.error
        assert "ZeroDivisionError: boom" in bad.error
        (output,) = llm.generate(PROMPT, params[1], use_tqdm=False)  # and when it is alone
        assert output.outputs[0].finish_reason == "error"
        assert_idle(llm)


def test_engines_with_different_plugins_live_side_by_side(whole, tmp_path, device):
    made = []
    for number in (1, 2):
        plugin = tmp_path / f"always{number}.py"
        plugin.write_text(
            textwrap.dedent(
                f"""
                import torch
                from core.hooks import hookimpl
                from core.interfaces import Sampled, Sampler
                from core.registry import samplers
                done = []

                @samplers.register("always")
                class Always(Sampler):
                    def __call__(self, logits, rows):
                        return Sampled(torch.full((len(rows),), {number}))

                @hookimpl
                def request_done(request, output):
                    done.append(output.outputs[0].token_ids)
                """
            )
        )
        made.append(make(whole, device, plugins=[str(plugin)], sampler="always"))
    made.append(make(whole, device))
    (expected,) = alone(whole, device, [(PROMPT, plain(max_tokens=3))])
    for _ in range(2):
        found = [
            llm.generate(PROMPT, plain(max_tokens=3), use_tqdm=False)[0].outputs[0].token_ids
            for llm in made
        ]
        assert found == [[1, 1, 1], [2, 2, 2], expected.token_ids]
    made[0].close()
    (output,) = made[1].generate(PROMPT, plain(max_tokens=3), use_tqdm=False)
    assert output.outputs[0].token_ids == [2, 2, 2]
    for llm in made:
        llm.close()
