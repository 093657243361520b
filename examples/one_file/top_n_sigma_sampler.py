"""A sampler: draw only from tokens within n standard deviations of the best one.

    python -m core.run configs/qwen3.yaml model.path=tiny model.generation_config=none \\
        -p examples/one_file/top_n_sigma_sampler.py sampler=top-n-sigma sampler.n=1.5

The cut is made where noise begins in the logits, and does not move with the temperature. (Without
the model's generation_config.json, because that asks for top_p, which this sampler does not do.)
Source: Tang et al. 2024, arXiv 2411.07641.
"""

from dataclasses import dataclass, field

import torch

from core import SamplingParams
from core.interfaces import Sampler
from core.registry import samplers
from core.sampling.outcome import outcome

# What SamplingParams has for a sampler to do, and this one does not. A request that asks for it
# is refused, because it would get something else.
NOT_DONE = (
    "allowed_token_ids",
    "bad_words",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "repetition_penalty",
    "top_k",
    "top_p",
)


@samplers.register("top-n-sigma", summary="tokens within n standard deviations of the best")
class TopNSigma(Sampler):
    @dataclass
    class Options(Sampler.Options):
        n: float = field(default=1.0, metadata={"help": "standard deviations below the best logit"})

        def __post_init__(self):
            if self.n <= 0:
                raise ValueError(f"n must be above 0, not {self.n}.")

    graphable = True  # __call__ is the same work for any values, and waits for none

    def accepts(self, params):
        usual = SamplingParams()
        return [
            f"the sampler top-n-sigma does not look at {name}. Leave it out."
            for name in NOT_DONE
            if getattr(params, name) != getattr(usual, name)
        ]

    def __call__(self, logits, rows):
        """logits [S, V], and what the S requests ask for -> an id for each."""
        logits = logits.float()
        seen = logits.where(logits > -torch.inf, torch.nan)  # what is ruled out is no noise
        sigma = (seen - seen.nanmean(-1, keepdim=True)).square().nanmean(-1).sqrt()  # [S]
        floor = logits.amax(-1) - self.options.n * sigma
        # `draw` divides by each request's temperature and takes the noise of its seed and position;
        # at temperature 0 it takes the largest logit. `outcome` tells which rows have no token.
        return outcome(rows.draw(logits, floor), logits)
