"""The workload of nano-vLLM's benchmark: random ids, a length for each answer, ends ignored."""

import sys
import time
from random import randint, seed

from nanovllm import LLM, SamplingParams


def main():
    seed(0)
    num_seqs, max_input_len, max_output_len = 24, 100, 60
    llm = LLM(sys.argv[1], enforce_eager=False, max_model_len=200)

    prompt_token_ids = [
        [randint(0, 255) for _ in range(randint(10, max_input_len))] for _ in range(num_seqs)
    ]
    sampling_params = [
        SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=randint(10, max_output_len))
        for _ in range(num_seqs)
    ]
    llm.generate(["Benchmark: "], SamplingParams())
    t = time.time()
    outputs = llm.generate(prompt_token_ids, sampling_params, use_tqdm=False)
    t = time.time() - t
    total_tokens = sum(sp.max_tokens for sp in sampling_params)
    assert sum(len(output.outputs[0].token_ids) for output in outputs) == total_tokens
    print(f"Total: {total_tokens}tok, Time: {t:.2f}s, Throughput: {total_tokens / t:.2f}tok/s")


if __name__ == "__main__":
    main()
