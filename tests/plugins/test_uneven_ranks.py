"""Three ranks on one GPU, whose shares differ: what real kernels make of odd shapes.

`--on cuda`. The ranks are threads, so steps run eagerly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.importing import installed
from tests.tiny import save_tiny

THREADS = str(Path(__file__).parents[1] / "threads.py")
SIZES = {  # of three ranks: 3, 3 and 2 of 8 key/value heads, and 134, 133 and 133 of an MLP
    "hidden_size": 256, "intermediate_size": 400, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 1003,
}  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("attention", ["triton", "flash"])
@pytest.mark.parametrize("kernels", ["triton", "torch"])
def test_uneven_ranks_get_the_tokens_of_one(
    device: str, tmp_path: Path, ranks: int, attention: str, kernels: str
) -> None:
    if not device.startswith("cuda"):
        pytest.skip("needs --on cuda")
    if attention == "flash" and not any(
        map(installed, ("flash_attn", "flash_attn_interface", "flash_attn.cute"))
    ):
        pytest.skip("no FlashAttention is installed")
    path = save_tiny(tmp_path / "tiny", **SIZES)
    dtype = "float32" if attention == "triton" else "bfloat16"

    def answers(**settings: Any) -> list[list[int]]:
        options = {
            "device": device, "dtype": dtype, "plugins": [THREADS], "attention": attention,
            "kernels": kernels, "runner": "eager", "cache": {"pages": 256, "check": True},
            "scheduler": {"use": "fcfs", "max_num_seqs": 16, "max_num_batched_tokens": 128},
        }  # fmt: skip
        params = [
            SamplingParams(temperature=s % 3 / 2, seed=s, max_tokens=10, ignore_eos=True,
                           top_k=20 * (s % 2))
            for s in range(40)
        ]  # fmt: skip
        prompts = [[(7 * s + i) % 1003 for i in range(1 + 5 * s % 37)] for s in range(40)]
        with LLM(path, **options | settings) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    alone = answers()
    many = answers(executor="threads", tensor_parallel_size=ranks)
    equal = sum(a == b for a, b in zip(alone, many, strict=True))
    assert equal >= (39 if dtype == "float32" else 20), f"{equal} of 40"
