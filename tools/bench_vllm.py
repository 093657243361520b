"""Runs the workloads of `run: bench` on vLLM, where it is installed, and prints the same lines.

    python -m tools.bench_vllm --model DIR --out vllm.jsonl nanobench:0 decode:8:128:256:11
    python -m tools.bench_vllm --model DIR --tp 2 standard
    python -m tools.compare_runs plait.jsonl vllm.jsonl

With vLLM's defaults (of which full and piecewise CUDA graphs, asynchronous scheduling and its own
choice of attention are the important ones), the limits of `configs/qwen3-bench.yaml`, temperature
0.6 without top-k and top-p, texts made. NVLink multicast stays off, as in Plait, and with it what
needs it: the fusion of all-reduce and norm.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

from core.parallel.switches import MULTICAST_OFF
from plugins.apps.bench.report import record
from plugins.apps.bench.workloads import TEMPERATURE, Workload, workload, workloads
from tools.output_file import output_file

MOST_TOKENS, MOST_REQUESTS, MEMORY = 4096, 512, 0.85


def start(model: str, ranks: int) -> Any:
    """A vLLM `LLM`; what it says goes to standard error."""
    os.environ.update(MULTICAST_OFF)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    options: dict[str, Any] = {}
    if ranks > 1:
        os.environ.update(VLLM_ALLREDUCE_USE_FLASHINFER="0", VLLM_ALLREDUCE_USE_SYMM_MEM="0")
        options = {
            "tensor_parallel_size": ranks,
            "compilation_config": {"pass_config": {"fuse_allreduce_rms": False}},
        }
    from vllm import LLM  # type: ignore[import-not-found]

    return LLM(
        model=model,
        max_model_len=MOST_TOKENS,
        max_num_seqs=MOST_REQUESTS,
        gpu_memory_utilization=MEMORY,
        **options,
    )


def run(llm: Any, work: Workload) -> float:
    """All requests at once, with an empty prefix cache. -> seconds."""
    from vllm import SamplingParams

    llm.reset_prefix_cache()
    prompts = [{"prompt_token_ids": item.prompt} for item in work.items]
    params = [
        SamplingParams(temperature=TEMPERATURE, max_tokens=item.output, ignore_eos=True)
        for item in work.items
    ]
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    made = [len(output.outputs[0].token_ids) for output in outputs]
    assert made == [item.output for item in work.items], "an answer has another length"
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=["standard"])
    parser.add_argument("--model", required=True, help="folder of a checkpoint with a tokenizer")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--out", type=output_file, help="file to which the lines are added as well")
    asked = parser.parse_args()
    loads = workloads(asked.workloads)
    if timed := [work.name for work in loads if work.arrives]:
        parser.error(f"{timed[0]}: requests that arrive over time are measured with run.url")

    began = time.perf_counter()
    llm = start(asked.model, asked.tp)
    import vllm

    engine = f"vllm-{vllm.__version__}"
    print(f"{engine}: ready after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    run(llm, workload("decode:1:3:8:99"))
    for work in loads:
        line = json.dumps(record(work, run(llm, work), engine, tp=asked.tp))
        print(line, flush=True)
        if asked.out:
            with asked.out.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":  # vLLM's own processes import this file again
    main()
