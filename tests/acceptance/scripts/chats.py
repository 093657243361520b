"""Conversations: one, a batch of them, with variables for the template, and rendered by hand."""

import sys

from vllm import LLM, SamplingParams

llm = LLM(sys.argv[1], dtype="half", max_model_len=200)
params = SamplingParams(temperature=0, max_tokens=8)

conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I help you?"},
    {"role": "user", "content": [{"type": "text", "text": "Tell me a story."}]},
]
(single,) = llm.chat(conversation, params, False)
batch = llm.chat([conversation, conversation[:2]], sampling_params=params, use_tqdm=False)
quiet = llm.chat(conversation, params, chat_template_kwargs={"enable_thinking": False})
started = [*conversation[:2], {"role": "assistant", "content": "Once"}]
llm.chat(started, params, add_generation_prompt=False, continue_final_message=True)

tokenizer = llm.get_tokenizer()
text = tokenizer.apply_chat_template(
    conversation[:3], tokenize=False, add_generation_prompt=True, enable_thinking=False
)
(by_hand,) = llm.generate([text], params)

assert [len(o.outputs[0].token_ids) for o in batch] == [8, 8]
assert single.outputs[0].token_ids == batch[0].outputs[0].token_ids
assert quiet[0].prompt.endswith("</think>\n\n")
assert by_hand.prompt == text
assert by_hand.prompt_token_ids == tokenizer(text)["input_ids"] == tokenizer.encode(text)
print(tokenizer.eos_token, tokenizer.eos_token_id, len(tokenizer), tokenizer.pad_token)
