"""A tiny checkpoint, an engine that looks inside it, and transformers, which says what is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from core import LLM
from core.layers import Attention
from core.outputs import CompletionOutput
from tests.tiny import save_tiny, tiny_model

Inside = tuple[dict[int, Tensor], dict[int, Tensor]]  # hidden states and attentions, by layer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("observed"))


@pytest.fixture(scope="session")
def inside() -> Callable[[Sequence[int]], Inside]:
    """What transformers sees inside the checkpoint, for these tokens alone."""
    model = tiny_model(attn_implementation="eager")

    @torch.inference_mode()
    def forward(ids: Sequence[int]) -> Inside:
        out = model(torch.tensor([list(ids)]), output_hidden_states=True, output_attentions=True)
        return (
            {i: states[0] for i, states in enumerate(out.hidden_states)},
            {i: maps[0] for i, maps in enumerate(out.attentions)},
        )

    return forward


@pytest.fixture(scope="session")
def engine(checkpoint: Path) -> Callable[..., LLM]:
    """An engine with small pages whose empty slots hold NaN: nothing unwritten may be looked at."""

    def start(device: str = "cpu", path: Path = checkpoint, **settings: Any) -> LLM:
        options: dict[str, Any] = {
            "device": device,
            "dtype": "float32",
            "plugins": ["observers"],
            "cache": {"page_size": 4, "pages": 64, "check": True},
            "scheduler": {"use": "fcfs", "max_num_seqs": 8, "max_num_batched_tokens": 64},
        }
        for key, value in settings.items():
            both = isinstance(value, dict) and isinstance(options.get(key), dict)
            options[key] = options[key] | value if both else value
        llm = LLM(path, **options)
        for module in modules(llm):
            if isinstance(module, Attention):
                for cache in module.cache:
                    cache.fill_(torch.nan)
        return llm

    return start


def workers(llm: LLM) -> list[Any]:
    """The workers of an engine that live in this process."""
    executor: Any = llm.engine.executor
    return list(getattr(executor, "workers", None) or [executor._worker])


def modules(llm: LLM) -> list[torch.nn.Module]:
    return [module for worker in workers(llm) for module in worker.model.modules()]


def close(found: Tensor, expected: Tensor) -> None:
    """Equal in float32, whose steps are as large as the largest value around makes them."""
    assert found.shape == expected.shape
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected.to(found.device), rtol=1e-5, atol=1e-5 * scale)


def matches(answer: CompletionOutput, prompt: Sequence[int], inside: Any) -> None:
    """Everything that was asked of all layers is what transformers says of the same tokens."""
    hidden, maps = inside((list(prompt) + answer.token_ids)[:-1])
    assert answer.error is None
    assert answer.extras["hidden_states"].keys() == hidden.keys()
    assert answer.extras["attentions"].keys() == maps.keys()
    for layer, expected in hidden.items():
        close(answer.extras["hidden_states"][layer], expected)
    for layer, expected in maps.items():
        close(answer.extras["attentions"][layer], expected)


def prompts() -> list[list[int]]:
    """Lengths around multiples of the page size; the last two share their first 16 tokens."""
    made = [
        torch.randint(0, 261, (n,), generator=torch.Generator().manual_seed(n)).tolist()
        for n in (1, 3, 4, 5, 8, 11, 16, 23)
    ]
    made[-1][:16] = made[-2][:16]
    return made
