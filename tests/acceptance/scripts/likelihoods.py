"""What evaluation harnesses do: log probabilities of continuations, and choices by label."""

import sys

from vllm import LLM, SamplingParams, TokensPrompt

llm = LLM(model=sys.argv[1], dtype="float32", enforce_eager=True, max_logprobs=20)
tokenizer = llm.get_tokenizer()
context, continuations = "The sky is", [" blue", " green"]
params = SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False)
start = len(tokenizer.encode(context))
requests = [TokensPrompt(prompt_token_ids=tokenizer.encode(context + c)) for c in continuations]

for output in llm.generate(requests, params, use_tqdm=False):
    ids = output.prompt_token_ids
    assert output.prompt_logprobs[0] is None
    positions = list(zip(ids, output.prompt_logprobs, strict=True))[start:]
    total = sum(listed[token].logprob for token, listed in positions)
    greedy = all(token == max(d, key=lambda t: d[t].logprob) for token, d in positions)
    print(f"{total:.3f} {greedy}")

(output,) = llm.generate(context, SamplingParams(temperature=0, logprobs=5, max_tokens=4))
answer = output.outputs[0]
for token_id, position in zip(answer.token_ids, answer.logprobs, strict=True):
    chosen = position[token_id]
    assert chosen.rank == 1
    assert next(iter(position)) == token_id
    assert len(position) == 5
    assert chosen.decoded_token == tokenizer.decode([token_id])
assert (
    abs(
        answer.cumulative_logprob
        - sum(d[t].logprob for t, d in zip(answer.token_ids, answer.logprobs, strict=True))
    )
    < 1e-4
)
