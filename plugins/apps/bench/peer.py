"""transformers as the peer: a model of the same shape, and the ways in which it runs a workload."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from core.errors import UserError
from plugins.apps.bench.comparison import Side
from plugins.apps.bench.workloads import TEMPERATURE, Item, Workload


class Transformers:
    """The checkpoint's architecture in transformers; random weights unless `weights` is set."""

    name = f"transformers-{transformers.__version__}"

    def __init__(
        self, path: Path, dtype: torch.dtype, device: torch.device, *, weights: bool
    ) -> None:
        transformers.logging.set_verbosity_error()
        if weights:
            self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        else:
            config = transformers.AutoConfig.from_pretrained(path)
            with _default_dtype(dtype):
                self.model = transformers.AutoModelForCausalLM.from_config(config)
        self.model.to(device).eval()
        # no id ends an answer: each has its full length
        self.model.generation_config.eos_token_id = None

    def sides(self, at_once: int, *, continuous: bool = True) -> list[Side]:
        """The ways to run a workload with at most `at_once` requests together."""

        def side(way: str, run: Callable[[Workload, int], float]) -> Side:
            return Side(f"{self.name} {way}", lambda work: (run(work, at_once), {}), arrivals=False)

        sides = [side("generate", self.static)]
        if continuous and hasattr(self.model, "continuous_batching_context_manager"):
            sides.append(side("continuous", self.continuous))
        return sides

    @torch.inference_mode()
    def static(self, work: Workload, at_once: int) -> float:
        """`generate` on batches of `at_once`, each as long as its longest request. -> seconds.

        A request that wants fewer tokens than its neighbours gets more than it asked for; only
        what was asked for counts as output.
        """
        start = time.monotonic()
        for first in range(0, len(work.items), at_once):
            batch = work.items[first : first + at_once]
            tokens, mask = _left_padded(batch, self.model.device)
            most = max(item.output for item in batch)
            out = self.model.generate(
                tokens, attention_mask=mask, generation_config=_sampling(max_new_tokens=most)
            )
            made = out.shape[1] - tokens.shape[1]
            assert made == most, f"asked transformers for {most} tokens, got {made}"
        return time.monotonic() - start

    @torch.inference_mode()
    def continuous(self, work: Workload, at_once: int) -> float:
        """Its continuous batching, with a cache for as many as run together. -> seconds.

        Making the cache is not timed. UserError when that is too large, or when a request does not
        come back.
        """
        page, at_once = 64, min(at_once, len(work.items))
        blocks = at_once * math.ceil((work.longest + 1) / page) + at_once
        limits = transformers.ContinuousBatchingConfig(
            page_size=page,
            num_blocks=blocks,
            max_batch_tokens=max(512, max(len(item.prompt) for item in work.items)),
            max_requests_per_batch=at_once,
        )
        try:
            with self.model.continuous_batching_context_manager(
                generation_config=_sampling(max_new_tokens=1, eos_token_id=-1),
                continuous_batching_config=limits,
                timeout=60,
            ) as manager:
                _collect(manager, [Item([1, 2, 3], 4)])
                start = time.monotonic()
                _collect(manager, work.items)
                return time.monotonic() - start
        except MemoryError as error:
            raise UserError(
                f"transformers' continuous batching cannot run {at_once} requests: {error}. "
                "Lower scheduler.max_num_seqs, or leave it out with run.continuous=false."
            ) from error


def _collect(manager: Any, items: Sequence[Item]) -> None:
    asked = {
        manager.add_request(item.prompt, max_new_tokens=item.output): item.output for item in items
    }
    while asked:
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            made, wanted = len(result.generated_tokens), asked.pop(result.request_id)
            if result.error is not None or made != wanted:
                raise UserError(
                    f"transformers' continuous batching gave {made} of {wanted} tokens: "
                    f"{result.error}. Leave it out with run.continuous=false."
                )
        elif result is None and not manager.is_running():
            raise UserError(
                "transformers' continuous batching ended by itself. "
                "Leave it out with run.continuous=false."
            )


def _sampling(**lengths: int) -> transformers.GenerationConfig:
    return transformers.GenerationConfig(
        **lengths,
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        top_p=1.0,
        pad_token_id=0,
    )


def _left_padded(batch: Sequence[Item], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts as tokens [B, longest] and their mask, padded in front."""
    longest = max(len(item.prompt) for item in batch)
    pads = [longest - len(item.prompt) for item in batch]
    tokens = [[0] * pad + item.prompt for pad, item in zip(pads, batch, strict=True)]
    mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
    return torch.tensor(tokens, device=device), torch.tensor(mask, device=device)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
