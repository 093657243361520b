"""The script that most people write first: a list of prompts, one set of parameters, a loop."""

import sys

from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, seed=7)

llm = LLM(
    model=sys.argv[1],
    tokenizer=None,
    tokenizer_mode="auto",
    trust_remote_code=False,
    tensor_parallel_size=1,
    dtype="float32",
    quantization=None,
    revision=None,
    seed=42,
    gpu_memory_utilization=0.5,
    swap_space=4,
    enforce_eager=True,
    max_model_len=128,
    max_num_seqs=16,
    max_num_batched_tokens=512,
    enable_prefix_caching=True,
    enable_chunked_prefill=True,
    disable_log_stats=True,
)
outputs = llm.generate(prompts, sampling_params)
for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")
