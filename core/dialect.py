"""vLLM's keyword arguments in terms of our settings, so that moving is one import line."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from core.config import Config
from core.errors import UserError

if TYPE_CHECKING:
    from core.settings import Argument

log = logging.getLogger("plait")

KEYS = {
    "model": "model.path",
    "revision": "model.revision",
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
    "kv_cache_memory_bytes": "cache.memory",
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
"""Keyword -> key. Some values have other names with us, see `VALUES`. None means "not said"."""

VALUES: Mapping[str, Mapping[Any, Any]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "load_format": {"safetensors": "mmap"},
    "generation_config": {"vllm": "none"},
    "distributed_executor_backend": {
        "mp": "local",
        "uni": "local",
        "external_launcher": "torchrun",
    },
    "enforce_eager": {True: "eager", False: None},
    "revision": {"main": None},
    "runner": {"generate": "auto"},  # vLLM's runners are what a model is for
}


class Fixed(NamedTuple):
    """A keyword without a setting of ours: the values that ask for what happens anyway."""

    values: tuple[Any, ...]
    reason: str  # what to tell about any other value


_HUB = "download the checkpoint (`hf download`) and give its folder"

REFUSED = {
    "convert": Fixed(("auto", "none"), "models generate text and nothing else"),
    "cpu_offload_gb": Fixed((0,), "weights are never offloaded"),
    "download_dir": Fixed((), f"set HF_HOME, or {_HUB}"),
    "enable_lora": Fixed((False,), "adapters are not implemented"),
    "enable_sleep_mode": Fixed((False,), "close the engine, and make a new one later"),
    "hf_token": Fixed((), "set the environment variable HF_TOKEN"),
    "limit_mm_per_prompt": Fixed(({},), "models take text only"),
    "logits_processors": Fixed(
        ([],), 'name logits processors in sampler={"use": "default", "processors": [...]}'
    ),
    "mm_processor_kwargs": Fixed(({},), "models take text only"),
    "model_impl": Fixed(("auto", "vllm"), "write a model plugin"),
    "override_generation_config": Fixed(({},), "say it in SamplingParams"),
    "rope_scaling": Fixed((), 'say hf_overrides={"rope_parameters": ...}'),
    "rope_theta": Fixed((), 'say hf_overrides={"rope_parameters": ...}'),
    "skip_tokenizer_init": Fixed((False,), "a tokenizer is used where there is one"),
    "speculative_config": Fixed(({},), "speculative decoding is not implemented"),
    "task": Fixed(("auto", "generate"), "models generate text and nothing else"),
    "tokenizer_mode": Fixed(("auto",), "tokenizer.json is read, or a plugin opens the tokenizer"),
    "tokenizer_revision": Fixed(("main",), _HUB),
}
"""Keywords that would change what comes out, or what it takes; other values are errors."""

WITHOUT_EFFECT = {
    "async_scheduling": Fixed((), "say executor={'use': 'local', 'overlap': 'on'} or 'off'"),
    "compilation_config": Fixed((), "say which runner captures or compiles: runner=..."),
    "disable_async_output_proc": Fixed((False,), "outputs are made by the step loop"),
    "disable_custom_all_reduce": Fixed((False,), "sums over ranks are torch's"),
    "disable_log_stats": Fixed((True,), "every output carries its metrics; nothing is printed"),
    "max_logprobs": Fixed((), "a request may ask for any number"),
    "max_seq_len_to_capture": Fixed((), "what is captured does not depend on lengths"),
    "served_model_name": Fixed((), "that is for a server"),
    "swap_space": Fixed((0,), "preempted requests are computed again, never swapped"),
    "trust_remote_code": Fixed((False,), "code from a checkpoint is never run"),
    "use_tqdm_on_load": Fixed((True,), "a bar is shown on terminals"),
}
"""Hints and permissions that can change no answer; other values are logged and not used."""

CALLS = {
    "chat_template_content_format": Fixed(("auto", "string"), "templates get contents as text"),
    "guided_options_request": Fixed((), "guided decoding is not a part of this call"),
    "lora_request": Fixed(([],), "adapters are not implemented"),
    "mm_processor_kwargs": Fixed(({},), "models take text only"),
    "prompt_adapter_request": Fixed((), "adapters are not implemented"),
    "tokenization_kwargs": Fixed(
        ({},), "encode the prompts with get_tokenizer() and give token ids"
    ),
}
"""Keywords of `generate` and `chat` without a counterpart."""

METHODS = {
    "apply_model": "the model is the workers' own; write a plugin that acts on engine_started",
    "beam_search": "beam search is not implemented; sample several answers with n",
    "classify": "models generate text and nothing else",
    "collective_rpc": "workers take no calls; write a plugin",
    "embed": "models generate text and nothing else",
    "encode": "models generate text and nothing else; for token ids see get_tokenizer().encode",
    "get_metrics": "see engine.statistics(), and the metrics of each output",
    "llm_engine": "the step loop is the attribute engine",
    "reward": "models generate text and nothing else",
    "score": "models generate text and nothing else",
    "set_tokenizer": "name the tokenizer when the engine is made: tokenizer=...",
    "sleep": "close the engine to free its memory, and make a new one later",
    "start_profile": "use torch.profiler around generate",
    "stop_profile": "use torch.profiler around generate",
    "wake_up": "close the engine to free its memory, and make a new one later",
}
"""Attributes of vLLM's LLM that ours lacks, and what to do instead."""


class NotOffered(UserError, AttributeError):
    """An attribute of vLLM's that is not here; `hasattr` says so."""


def not_offered(llm: Any, name: str) -> AttributeError:
    """The error for an attribute that `LLM` lacks; vLLM's are refused with a sentence."""
    if name in METHODS:
        return NotOffered(f"LLM.{name} is not supported: {METHODS[name]}.")
    return AttributeError(f"'LLM' object has no attribute {name!r}", name=name, obj=llm)


def arguments(keywords: Mapping[str, Any]) -> list[Argument]:
    """Keyword arguments of `LLM` as settings. UserError lists all that are unknown or refused."""
    from core.settings import Argument

    sections = [f.name for f in fields(Config) if not f.metadata.get("internal")]
    known = {**KEYS, **REFUSED, **WITHOUT_EFFECT}.keys() | set(sections)
    wrong: list[str] = []
    found: list[Argument] = []
    # whole sections first, so that a keyword may add one key to a section given beside it
    for name, value in sorted(keywords.items(), key=lambda item: item[0] not in sections):
        origin = f"argument {name}"
        if _hashable(value):
            value = VALUES.get(name, {}).get(value, value)
        if name not in known:
            wrong.append(f"{origin}: there is no such argument.{_near(name, known)}")
        elif value is None:
            continue
        elif name in sections and not (name == "model" and not isinstance(value, Mapping)):
            found.append(Argument(name, value, origin))
        elif name in REFUSED:
            wrong += _unsupported(origin, value, REFUSED[name])
        elif name in WITHOUT_EFFECT:
            if _unsupported(origin, value, kept := WITHOUT_EFFECT[name]):
                log.warning("%s: %r has no effect: %s.", origin, value, kept.reason)
        elif name == "hf_overrides" and callable(value):
            wrong.append(f"{origin}: it must be a mapping; functions are not supported.")
        else:
            found.append(Argument(KEYS[name], _plain(name, value), origin))
    wrong += _contradictions(found)
    if wrong:
        raise UserError("\n".join(wrong))
    return found


def _contradictions(found: Iterable[Argument]) -> list[str]:
    """Keys that two arguments set differently."""
    from core.settings.tree import Node, from_python, leaves

    said: dict[str, Node] = {}
    wrong = []

    def hear(key: tuple[str, ...], node: Node) -> None:
        name = ".".join(key)
        first = said.setdefault(name, node)
        if first.value != node.value:
            wrong.append(
                f"{node.origin} makes {name} {node.value!r}, and {first.origin} makes it "
                f"{first.value!r}. Give one of them."
            )

    for key, value, origin in found:
        leaves(from_python({key: value}, origin), hear)
    return wrong


def check_call(method: str, keywords: Mapping[str, Any], known: Iterable[str]) -> None:
    """The keywords of a call that its method does not know. UserError lists what they ask for."""
    wrong = []
    for name, value in keywords.items():
        if name in CALLS:
            wrong += _unsupported(f"{method}: {name}", value, CALLS[name])
        else:
            hint = _near(name, [*known, *CALLS])
            if not hint and "template" in "".join(known):
                hint = " Variables of the chat template go into chat_template_kwargs."
            wrong.append(f"{method}: there is no argument {name!r}.{hint}")
    if wrong:
        raise UserError("\n".join(wrong))


def _unsupported(label: str, value: Any, fixed: Fixed) -> list[str]:
    # 0 == False, but they are not the same to say
    same = any(isinstance(value, bool) == isinstance(v, bool) and value == v for v in fixed.values)
    if value is None or same:
        return []
    return [f"{label}: {value!r} is not supported: {fixed.reason}."]


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _hashable(value: Any) -> bool:
    return value.__hash__ is not None


def _plain(name: str, value: Any) -> Any:
    """Paths as text, a torch dtype by its name, and bytes as a size."""
    if isinstance(value, Path):
        return str(value)
    if name == "kv_cache_memory_bytes":
        return f"{value}B" if isinstance(value, int) else value
    text = str(value)
    return text.removeprefix("torch.") if text.startswith("torch.") else value
