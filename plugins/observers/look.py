"""A direct call for researchers: prompts in, hidden states and attention out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core import SamplingParams
from core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from core import LLM
    from core.outputs import RequestOutput
    from core.prompts import Prompt


@dataclass(frozen=True)
class Seen:
    """What was seen of one answer."""

    output: RequestOutput
    token_ids: list[int]  # of the positions that the model computed: all but the last token
    tokens: list[str]  # their text
    hidden_states: dict[int, Tensor]  # by layer as asked: [positions, hidden]
    attentions: dict[int, Tensor]  # by layer as asked: [heads, queries, keys]


def look(
    llm: LLM,
    prompts: Prompt | Sequence[Prompt],
    *,
    hidden_states: Any = None,
    attentions: Any = None,
    params: SamplingParams | None = None,
) -> list[Seen]:
    """Run prompts and look inside. -> one for each answer, in order.

    `hidden_states` and `attentions` are what `extra_args` takes: a list of layers, "all", or
    {"layers": ..., "positions": ...}. Without `params` only the prompt is computed, and one token.

    >>> (seen,) = look(llm, "The capital of France is", attentions=[-1])
    >>> seen.attentions[-1].shape, seen.tokens
    """
    if not llm.engine.observers.reads("hidden_states"):
        raise UserError('the engine does not look inside. Make it with plugins=["observers"].')
    asking = SamplingParams(temperature=0.0, max_tokens=1) if params is None else params.clone()
    wishes = {"hidden_states": hidden_states, "attentions": attentions}
    asked = {key: value for key, value in wishes.items() if value is not None}
    asking.extra_args = {**(asking.extra_args or {}), **asked}
    found = []
    for output in llm.generate(prompts, asking, use_tqdm=False):
        for answer in output.outputs:
            if answer.error is not None:
                raise UserError(f"request {output.request_id}: {answer.error}")
            ids = (output.prompt_token_ids + answer.token_ids)[:-1]
            found.append(
                Seen(
                    output=output,
                    token_ids=ids,
                    tokens=[_text(llm, id) for id in ids],
                    hidden_states=answer.extras.get("hidden_states", {}),
                    attentions=answer.extras.get("attentions", {}),
                )
            )
    return found


def _text(llm: LLM, id: int) -> str:
    tokenizer = llm.engine.tokenizer
    return str(id) if tokenizer is None else tokenizer.token_text(id)
