"""A tiny model's probabilities, by transformers and by Plait, and its samples and answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from core import LLM, SamplingParams
from tools.tiny_measures import LogProbs

START = "<|endoftext|>"  # what stands before the first token of every text


def transformers_logprobs(folder: Path, device: str = "cpu") -> LogProbs:
    """By the reference implementation of transformers, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    return model_logprobs(model)


def model_logprobs(model: torch.nn.Module) -> LogProbs:
    """By a causal model of transformers, in its own type."""
    device = next(model.parameters()).device

    @torch.no_grad()
    def logprobs(batch: Sequence[Sequence[int]]) -> list[list[float]]:
        longest = max(map(len, batch))
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        for i, row in enumerate(batch):
            ids[i, : len(row)] = torch.tensor(row)  # right padding is never looked at
        ids = ids.to(device)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0].tolist()
        return [row[: len(tokens) - 1] for row, tokens in zip(chosen, batch, strict=True)]

    return logprobs


def plait_logprobs(llm: LLM) -> LogProbs:
    """By an engine of Plait, which reports them as `prompt_logprobs`."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)

    def logprobs(batch: Sequence[Sequence[int]]) -> list[list[float]]:
        rows = []
        for output in llm.generate([list(row) for row in batch], params, use_tqdm=False):
            found = output.prompt_logprobs or []
            tokens = output.prompt_token_ids
            rows.append([found[i][tokens[i]].logprob for i in range(1, len(tokens))])
        return rows

    return logprobs


def samples(
    llm: LLM, seeds: Sequence[int], pieces: int = 4, length: int = 500, temperature: float = 0.8
) -> list[list[str]]:
    """Texts [seed][piece] of `length` tokens, each sampled from an empty context.

    The whole vocabulary may be drawn, and nothing ends a piece early. No two pieces share noise:
    of `n` samples, number i is drawn with the request's seed plus i.
    """
    params = [
        SamplingParams(
            n=pieces, seed=seed * pieces, temperature=temperature, top_p=1.0, top_k=0,
            max_tokens=length, ignore_eos=True,
        )
        for seed in seeds
    ]  # fmt: skip
    start = llm.get_tokenizer().encode(START)
    outputs = llm.generate([start] * len(params), params, use_tqdm=False)
    return [[piece.text for piece in output.outputs] for output in outputs]


def answers(llm: LLM, questions: Sequence[str], thinking: bool) -> list[str]:
    """Greedy answers to questions, each a chat of its own."""
    params = SamplingParams(temperature=0, max_tokens=120)
    outputs = llm.chat(
        [[{"role": "user", "content": question}] for question in questions],
        params,
        use_tqdm=False,
        chat_template_kwargs={"enable_thinking": thinking},
    )
    return [output.outputs[0].text for output in outputs]
