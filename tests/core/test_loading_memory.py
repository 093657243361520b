"""Loading takes the memory of a rank's own weights and little beside, at any number of ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.make_checkpoint import main as make_checkpoint

ROOT = Path(__file__).parents[2]
LITTLE = 100  # MiB beside weights, cache and the interpreter with torch

PROGRAM = """
import json, re, sys
import torch
from core import LLM

def mib(key, process="self"):
    return int(re.search(key + r":\\s+(\\d+)", open(f"/proc/{process}/status").read())[1]) / 1024

before = mib("VmRSS")
with LLM(sys.argv[1], tensor_parallel_size=int(sys.argv[2]), device="cpu",
         kernels={"use": "torch", "pack_from": None}, cache={"pages": 1, "page_size": 16}) as llm:
    worker = llm.engine.executor._worker
    ranks = llm.engine.executor._ranks
    held = sum(p.numel() * p.element_size() for p in worker.model.parameters()) / 2**20
    found = [[held, mib("VmHWM") - before]]
    for process in ranks._processes.values() if ranks else ():
        found.append([held, mib("VmHWM", process.pid) - before])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 240 MiB in bfloat16, in two files."""
    path = tmp_path_factory.mktemp("large")
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 4,
        "vocab_size": 30000,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "tie_word_embeddings": "false",
    }
    words = [f"--set={key}={value}" for key, value in sizes.items()]
    make_checkpoint([str(path), "--tokenizer=none", "--file-gb=0.15", *words])
    return path


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
@pytest.mark.parametrize("size", [1, 2])
def test_the_peak_is_the_ranks_own_weights_and_little_more(checkpoint, size):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(checkpoint), str(size)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    ranks = json.loads(done.stdout.splitlines()[-1])
    assert len(ranks) == size
    for held, peak in ranks:
        assert held > 100
        assert peak < held + LITTLE
