"""The tiny model's recorded ids come out whichever way the engine computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tools.tiny_golden import CASES, MODEL, ids_of, open_model

GOLDEN = json.loads(Path(__file__).with_name("golden_tiny.json").read_text())
THREADS = {"plugins": [str(Path(__file__).parents[1] / "threads.py")], "executor": "threads"}


def assert_golden(**settings: Any) -> None:
    with open_model(**settings) as llm:
        assert ids_of(llm, GOLDEN["cases"]) == [case["token_ids"] for case in GOLDEN["cases"]]


def test_the_record_is_of_the_cases_that_would_be_recorded() -> None:
    recorded = [(case["prompt"], case["params"]) for case in GOLDEN["cases"]]

    assert recorded == list(CASES)


def test_all_at_once() -> None:
    assert_golden()


def test_one_after_another() -> None:
    assert_golden(scheduler={"use": "fcfs", "max_num_seqs": 1})


@pytest.mark.parametrize("budget", range(3, 17))
def test_in_chunks(budget: int) -> None:
    assert_golden(scheduler={"use": "fcfs", "max_num_batched_tokens": budget})


@pytest.mark.parametrize("ranks", [2, 3])
def test_on_several_ranks(ranks: int) -> None:
    assert_golden(tensor_parallel_size=ranks, **THREADS)


def test_on_two_ranks_in_chunks() -> None:
    scheduler = {"use": "fcfs", "max_num_batched_tokens": 5}
    assert_golden(tensor_parallel_size=2, scheduler=scheduler, **THREADS)


def test_on_two_ranks_in_two_processes() -> None:
    assert_golden(tensor_parallel_size=2)


@torch.inference_mode()
def test_greedy_ids_are_those_of_transformers() -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    greedy = [case for case in GOLDEN["cases"] if case["params"]["temperature"] == 0]
    assert greedy

    for case in greedy:
        ids = tokenizer(case["prompt"], return_tensors="pt")
        plain = transformers.GenerationConfig(
            max_new_tokens=case["params"]["max_tokens"],
            do_sample=False,
            eos_token_id=model.generation_config.eos_token_id,
            pad_token_id=model.generation_config.pad_token_id,
        )
        whole = model.generate(**ids, generation_config=plain)[0].tolist()
        assert whole[ids["input_ids"].shape[1] :] == case["token_ids"]
