"""vLLM's keyword arguments in terms of our settings, so that moving is one import line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.config import Config
from core.errors import UserError

if TYPE_CHECKING:
    from core.settings import Argument

KEYS = {
    "model": "model.path",
    "tokenizer": "model.tokenizer",
    "dtype": "model.dtype",
    "device": "model.device",
    "max_model_len": "model.max_length",
    "seed": "model.seed",
    "load_format": "model.weights",
    "generation_config": "model.generation_config",
    "hf_overrides": "model.config",
    "tensor_parallel_size": "parallel.tensor",
    "pipeline_parallel_size": "parallel.pipeline",
    "data_parallel_size": "parallel.data",
    "gpu_memory_utilization": "cache.memory_fraction",
    "block_size": "cache.page_size",
    "kvcache_block_size": "cache.page_size",
    "num_gpu_blocks_override": "cache.pages",
    "enable_prefix_caching": "cache.prefix",
    "kv_cache_dtype": "cache.dtype",
    "max_num_seqs": "scheduler.max_num_seqs",
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
    "enable_chunked_prefill": "scheduler.chunked_prefill",
    "scheduling_policy": "scheduler.use",
    "distributed_executor_backend": "executor.use",
    "enforce_eager": "runner.use",
}
"""Keyword -> key. Some values have other names with us, see `VALUES`."""

VALUES: Mapping[str, Mapping[Any, Any]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "load_format": {"safetensors": "mmap"},
    "generation_config": {"vllm": "none"},
    "distributed_executor_backend": {"mp": "local", "external_launcher": "torchrun"},
    "enforce_eager": {True: "eager", False: "auto"},
}

SWITCHED_OFF = {
    # keywords of which we implement just the one value that changes nothing
    "trust_remote_code": (False, "code from a checkpoint is never run; write a model plugin"),
    "skip_tokenizer_init": (False, "a tokenizer is used where there is one"),
    "quantization": (None, "quantization is read from the checkpoint's config.json"),
    "enable_lora": (False, "adapters are not implemented"),
    "disable_log_stats": (True, "statistics are not logged; see LLM.engine.statistics()"),
    "swap_space": (0, "preempted requests are computed again, never swapped"),
    "cpu_offload_gb": (0, "weights are never offloaded"),
}


def arguments(keywords: Mapping[str, Any]) -> list[Argument]:
    """Keyword arguments of `LLM` as settings. UserError lists all that are unknown or refused."""
    from core.settings import Argument

    sections = [f.name for f in fields(Config) if not f.metadata.get("internal")]
    wrong: list[str] = []
    found: list[Argument] = []
    # whole sections first, so that a keyword may change one key of a section given beside it
    for name, value in sorted(keywords.items(), key=lambda item: item[0] not in sections):
        origin = f"argument {name}"
        if name in sections and not (name == "model" and not isinstance(value, Mapping)):
            found.append(Argument(name, value, origin))
        elif name in SWITCHED_OFF:
            neutral, reason = SWITCHED_OFF[name]
            if value != neutral and value is not None:
                wrong.append(f"{origin}: {value!r} is not supported: {reason}.")
        elif name in KEYS:
            if isinstance(value, Path):
                value = str(value)
            value = VALUES.get(name, {}).get(value, value) if _hashable(value) else value
            found.append(Argument(KEYS[name], _plain(value), origin))
        else:
            near = difflib.get_close_matches(name, [*KEYS, *sections, *SWITCHED_OFF], n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            wrong.append(f"{origin}: there is no such argument.{hint}")
    if wrong:
        raise UserError("\n".join(wrong))
    return found


def _hashable(value: Any) -> bool:
    return value.__hash__ is not None


def _plain(value: Any) -> Any:
    """A torch dtype, as vLLM takes one, by its name."""
    name = str(value)
    return name.removeprefix("torch.") if name.startswith("torch.") else value
