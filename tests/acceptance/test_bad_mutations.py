"""Checkpoints with random changes in their JSON: each runs, or is refused in sentences.

PLAIT_FUZZ_SECONDS says for how long; PLAIT_FUZZ_SEED where to begin.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core import LLM, SamplingParams, UserError
from tests.acceptance.broken import save_sharded

SECONDS = float(os.environ.get("PLAIT_FUZZ_SECONDS", "4"))
FIRST = int(os.environ.get("PLAIT_FUZZ_SEED", "0"))
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "model.safetensors.index.json",
)
VALUES: list[Any] = [None, True, False, 0, 1, -1, 2, 3, 10**9, 10**40, 10**400, 0.5, -0.0, 1e308]
VALUES += [float("nan"), float("inf"), "", "x", "\ud800", "a" * 3000, "{{", "Qwen3ForCausalLM"]
VALUES += [[], {}, [[]], [1], ["a"], [None], {"a": 1}, {"content": "x"}, [{"content": "x"}]]
KEYS = ("zz", "auto_map", "rope_scaling", "quantization_config", "added_tokens_decoder", "dtype")
KEYS += ("chat_template", "extra_special_tokens", "eos_token_id", "rope_parameters", "bos_token")
KEYS += ("sliding_window", "use_sliding_window", "layer_types", "temperature", "__metadata__")


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a JSON value has parts; of lists the first few."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = list(enumerate(value))[:6]
    for key, part in items:
        yield (*above, key)
        yield from places(part, (*above, key))


def mutated(content: Any, rng: random.Random) -> Any:
    """A copy with one to four parts replaced, removed or added."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not (found := list(places(content))):
            break
        *above, last = rng.choice(found)
        part = content
        for key in above:
            part = part[key]
        way = rng.random()
        if way < 0.7:
            part[last] = copy.deepcopy(rng.choice(VALUES))
        elif way < 0.85:
            del part[last]
        elif isinstance(part, dict):
            part[rng.choice(KEYS)] = copy.deepcopy(rng.choice(VALUES))
        else:
            part.append(copy.deepcopy(rng.choice(VALUES)))
    return content


def mutate(file: Path, rng: random.Random) -> None:
    """Change a JSON file, or the header of a safetensors file."""
    data, behind = file.read_bytes(), b""
    if file.suffix == ".safetensors":
        (size,) = struct.unpack("<Q", data[:8])
        data, behind = data[8 : 8 + size], data[8 + size :]
    text = json.dumps(mutated(json.loads(data), rng)).encode()
    head = struct.pack("<Q", len(text)) if file.suffix == ".safetensors" else b""
    file.write_bytes(head + text + behind)


def test_any_checkpoint_runs_or_is_refused(tmp_path, device):
    whole, path = save_sharded(tmp_path / "whole"), tmp_path / "mutated"
    shutil.copytree(whole, path)
    files = [*FILES, sorted(whole.glob("model-*.safetensors"))[0].name]
    params = SamplingParams(max_tokens=3, temperature=0, stop="q")
    end = time.monotonic() + SECONDS
    seen: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + 10_000_000):
        rng = random.Random(seed)
        changed = rng.sample(files, rng.choice((1, 1, 2)))
        for name in changed:
            mutate(path / name, rng)
        try:
            with LLM(path, device=device, max_num_seqs=2, cache={"pages": 20}) as llm:
                llm.generate("hi there", params, use_tqdm=False)
                seen["ran"] += 1
        except UserError:
            seen["refused"] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, {changed}") from error
        for name in changed:
            shutil.copy(whole / name, path / name)
        if time.monotonic() > end:
            break
    assert seen["ran"] > 5
    assert seen["refused"] > 5
