"""A path of the server: which of some continuations does the model expect most?

    python -m core.run configs/qwen3-serve.yaml -p examples/one_file/rank_route.py

    curl http://127.0.0.1:8000/v1/rank -H "Content-Type: application/json" \\
      -d '{"prompt": "The sun is", "continuations": [" sad", " bright", " hot"]}'

answers with the continuations, the best first, and the log probability of each behind the prompt.
That makes a classifier of a model ("Review: ... Sentiment:" with " good" and " bad"), grades tests
with given answers, or chooses a tool. Nothing is drawn, so that the same question has the same
answer. `"by": "mean"` divides by the number of tokens, which is fairer to long continuations.
"""

import math
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Literal

import msgspec
from starlette.responses import JSONResponse
from starlette.routing import Route

from core import SamplingParams, UserError
from core.hooks import hookimpl

MOST = 128  # continuations of a request
LEAST = -9999.0  # stands for minus infinity, which JSON cannot say

SCORING = SamplingParams(prompt_logprobs=0, max_tokens=1, temperature=0)


class Question(msgspec.Struct):
    """The body of a request."""

    prompt: str
    continuations: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MOST)]
    by: Literal["sum", "mean"] = "sum"
    model: str | None = None


@hookimpl
def routes(app, engine):
    app.router.routes.append(Route("/v1/rank", partial(rank, engine=engine), methods=["POST"]))


async def rank(request, engine):
    serving = request.app.state.serving
    asked = await serving.read(request, Question)
    serving.check_model(asked.model)
    shared, texts = await tokenized(serving.prompts, asked)
    async with AsyncExitStack() as ends:  # whatever happens, nothing is left with the engine
        answers = [await ends.enter_async_context(engine.submit(ids, SCORING)) for ids in texts]
        found = [(await of_tokens(answer))[shared - 1 :] for answer in answers]
    scores = [max(sum(each), LEAST) for each in found]
    if asked.by == "mean":
        scores = [score / len(each) for score, each in zip(scores, found, strict=True)]
    shares = softmax(scores)
    results = [
        {
            "index": i,
            "continuation": text,
            "logprob": scores[i],  # its sum over the tokens, or the mean of them
            "share": shares[i],  # exp(logprob), of the continuations that were asked about
            "tokens": len(found[i]),
        }
        for i, text in enumerate(asked.continuations)
    ]
    results.sort(key=lambda result: -result["logprob"])
    return JSONResponse({"object": "rank", "model": engine.info.model, "results": results})


async def tokenized(prompts, asked):
    """-> number of tokens that all texts begin with, ids of each text.

    A tokenizer may join the end of the prompt with what follows, so a text is tokenized as a whole.
    What all begin with is the condition, and the same one for each: only so can they be compared.
    """
    before = await prompts.encode(asked.prompt)
    texts = [await prompts.encode(asked.prompt + text) for text in asked.continuations]
    shared = min(in_common(before, ids) for ids in texts)
    if not shared:
        raise UserError("prompt holds no token that every continuation leaves alone: lengthen it.")
    for i, ids in enumerate(texts):
        if len(ids) == shared:
            raise UserError(f"continuations[{i}] adds nothing to the prompt: leave it out.")
    return shared, texts


def in_common(some, others):
    """The number of ids that both begin with."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(some), len(others)))


async def of_tokens(answer):
    """The log probability of each token of a prompt but the first. -> list of T - 1"""
    async for piece in answer:
        if piece.finish == "error":
            raise RuntimeError(piece.error)
        if piece.prompt_logprobs is not None:
            return [position.logprob for position in piece.prompt_logprobs]
    raise RuntimeError("the engine gave no log probabilities of the prompt")


def softmax(scores):
    best = max(scores)
    weights = [math.exp(score - best) for score in scores]
    return [weight / sum(weights) for weight in weights]
