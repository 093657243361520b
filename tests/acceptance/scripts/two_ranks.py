"""Two ranks, an engine that is deleted, another one after it, and an end without any `close`."""

import gc
import sys

from vllm import LLM, SamplingParams

params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
llm = LLM(model=sys.argv[1], tensor_parallel_size=2, distributed_executor_backend="mp")
first = llm.generate("The wind", params)[0].outputs[0].token_ids
del llm
gc.collect()
llm = LLM(model=sys.argv[1], tensor_parallel_size=2, disable_custom_all_reduce=True)
assert llm.generate("The wind", params)[0].outputs[0].token_ids == first
print(first)
