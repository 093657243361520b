"""A sampler's ids may be whole numbers of any type, and below 0 where a row has no token."""

from __future__ import annotations

from pathlib import Path

import pytest

from core import LLM, SamplingParams
from tests.tiny import save_tiny

SAMPLER = """
from core.registry import samplers
from plugins.sampling.default import DefaultSampler

@samplers.register("short")
class Short(DefaultSampler):
    graphable = graphable_truncation = shards = False

    def __call__(self, logits, rows):
        found = super().__call__(logits, rows)
        found.errors = dict(found.errors or {})
        for s in found.errors:
            found.ids[s] = -1
        found.ids = found.ids.int()
        return found
"""
PROMPTS = [[5, 6, 7, 8, 9], [5, 6, 7], [9], [4, 4]]


def asked(**more: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, **more)  # type: ignore[arg-type]


HOPELESS = asked(allowed_token_ids=[3], stop_token_ids=[3], min_tokens=2)
WISHING = asked(presence_penalty=1.0, logprobs=1)


@pytest.mark.parametrize("overlap", ["on", "off"])
def test_short_ids_and_none_are_taken_as_they_are(
    tmp_path: Path, device: str, overlap: str
) -> None:
    """With overlap the next step of a row without a token is on its way before that is known."""
    (tmp_path / "short.py").write_text(SAMPLER)
    checkpoint = save_tiny(tmp_path / "tiny")
    found = []
    for sampler in ("default", "short"):
        with LLM(
            checkpoint,
            device=device,
            dtype="float32",
            plugins=[str(tmp_path / "short.py")],
            sampler=sampler,
            cache={"page_size": 4, "pages": 64},
            executor={"use": "local", "overlap": overlap},
        ) as llm:
            answers = llm.generate(PROMPTS, [asked(), HOPELESS, WISHING, asked()], use_tqdm=False)
            found.append(
                [(a.token_ids, a.finish_reason, a.error) for b in answers for a in b.outputs]
            )

    usual, short = found
    assert short == usual
    assert [reason for _, reason, _ in usual] == ["length", "error", "length", "length"]
