"""A whole engine on the Triton kernels, beside one on plain torch.

Runs on CUDA (`--on cuda`), and without a GPU where TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from core import LLM, SamplingParams

pytest.importorskip("triton")
MORE = 6 if os.environ.get("TRITON_INTERPRET") == "1" else 40
PROMPTS = ["Once upon a time", "The whale", "It was", "London", "She", "A long, long sentence of"]
WISHES = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.2, "min_p": 0.05, "presence_penalty": 1.0},
    {"top_p": 0.5, "logprobs": 2},
    {"temperature": 0, "repetition_penalty": 1.3},
]


def written(kernels: str, device: str) -> list[list[int]]:
    params = [
        SamplingParams(seed=s, max_tokens=MORE, ignore_eos=True, **wish)
        for s, wish in enumerate(WISHES)
    ]
    with LLM(
        "models/qwen3/tiny", device=device, dtype="float32", kernels=kernels, attention="sdpa",
        runner="eager", max_model_len=256, max_num_batched_tokens=16,
    ) as llm:  # fmt: skip
        return [list(r.outputs[0].token_ids) for r in llm.generate(PROMPTS, params)]


def test_an_engine_writes_the_same_as_on_plain_torch(device: str) -> None:
    from core.triton_launch import interpreted

    if not device.startswith("cuda") and not interpreted():
        pytest.skip("Triton kernels need --on cuda, or TRITON_INTERPRET=1")
    assert written("triton", device) == written("torch", device)


def test_requests_compile_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is compiled when a request needs it keeps all others waiting for seconds."""
    from core.triton_launch import Launcher, interpreted

    if not device.startswith("cuda") or interpreted():
        pytest.skip("nothing is compiled")
    made: list[str] = []
    original = Launcher._check

    def check(self: Launcher, tensors: Any, constants: Any, pdl: bool) -> None:
        forms = [(tuple(x.shape), x.dtype, x.data_ptr() % 16) for x in tensors]
        made.append(f"{self.kernel.__name__} {forms} {constants}")
        original(self, tensors, constants, pdl)

    for launcher in filter(lambda x: isinstance(x, Launcher), gc.get_objects()):
        monkeypatch.setattr(launcher, "_variants", {})  # of tests before this one
    with LLM("models/qwen3/tiny", max_num_seqs=40, max_num_batched_tokens=128) as llm:
        monkeypatch.setattr(Launcher, "_check", check)
        for count in (1, 3, 9, 40):
            params = [
                SamplingParams(seed=s, max_tokens=9 + s, ignore_eos=True, **WISHES[s % len(WISHES)])
                for s in range(count)
            ]
            texts = [PROMPTS[n % len(PROMPTS)] * (1 + n % 7) for n in range(count)]
            llm.generate(texts, params, use_tqdm=False)
    assert made == []
