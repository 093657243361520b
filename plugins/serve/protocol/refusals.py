"""Fields of OpenAI's and vLLM's requests that are not served here, and what to do instead."""

from __future__ import annotations

from typing import Any

Refusals = dict[str, tuple[str, tuple[Any, ...]]]

EVERYWHERE: Refusals = {
    "use_beam_search": ("Beam search is not implemented.", (False,)),
    "length_penalty": ("Beam search is not implemented.", (1, 1.0)),
    "early_stopping": ("Beam search is not implemented.", (False,)),
    "truncate_prompt_tokens": ("Shorten the prompt before you send it.", ()),
    "prompt_embeds": ("Prompts are text or token ids.", ()),
    "logits_processors": ("They are named in the server's configuration.", ()),
    "kv_transfer_params": ("", ()),
    "do_sample": ("Temperature 0 is greedy, any other samples.", (True,)),
    "detokenize": ("Add return_token_ids to get the ids beside the text.", (True,)),
    "extra_body": ("Put its contents into the request itself.", ({},)),
}

COMPLETIONS: Refusals = EVERYWHERE | {
    "suffix": ("Text is only continued, nothing is filled in between.", ("",)),
}

CHAT: Refusals = EVERYWHERE | {
    "audio": ("Answers are text.", ()),
    "modalities": ("Answers are text.", (["text"],)),
    "prediction": ("", ()),
    "web_search_options": ("", ()),
    "functions": ("It was replaced by tools.", ([],)),
    "function_call": ("It was replaced by tool_choice.", ("none", "auto")),
    "reasoning_effort": (
        'Use chat_template_kwargs, such as {"enable_thinking": false}.',
        (),
    ),
    "verbosity": ("Say in the messages how long the answer should be.", ("medium",)),
    "chat_template": ("The model's own template is used.", ()),
    "documents": ("Put them into the messages.", ([],)),
    "mm_processor_kwargs": ("Messages are text.", ({},)),
    "best_of": ("All n answers are returned.", (1,)),
    "echo": ("Only /v1/completions has it.", (False,)),
    "suffix": ("", ("",)),
}
