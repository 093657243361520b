"""A logits processor: a watermark in the text, and the test that finds it.

    python -m core.run configs/qwen3-tiny.yaml -p examples/one_file/watermark_processor.py \\
        'sampler.processors=[{use: watermark, always: true}]' run.params.temperature=1

The token before, mixed with a key, marks half of the vocabulary green, and green tokens get a
little more likely. Who has the key counts them. Source: Kirchenbauer et al. 2023, arXiv 2301.10226.
A request switches it on by itself with `SamplingParams(extra_args={"watermark": True})`, and says
how strong its own mark is with a number: `{"watermark": True, "watermark_bias": 4.0}`.
"""

import math
from dataclasses import dataclass, field

import torch

from core.interfaces import LogitsProcessor
from core.registry import processors

MASK = 2**32 - 1


@processors.register("watermark", summary="favours tokens that a key marks green")
class Watermark(LogitsProcessor):
    @dataclass
    class Options:
        key: int = field(default=15485863, metadata={"help": "who knows it can find the mark"})
        share: float = field(default=0.5, metadata={"help": "of the vocabulary that is green"})
        bias: float = field(default=2.0, metadata={"help": "added to the logits of green tokens"})
        always: bool = field(default=False, metadata={"help": "mark requests that do not ask, too"})

    # names that this processor reads; others get a warning
    extra_args = ("watermark", "watermark_bias")

    def accepts(self, params):
        asked, reasons = params.extra_args or {}, []
        if not isinstance(on := asked.get("watermark", False), bool):
            reasons.append(f"watermark is {on!r}, not True or False.")
        bias = asked.get("watermark_bias", 0)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not math.isfinite(bias):
            reasons.append(f"watermark_bias is {bias!r}, not a number.")
        return reasons

    def wants(self, params):
        return (params.extra_args or {}).get("watermark", self.options.always)

    def __call__(self, logits, rows):
        """logits [N, V] of the N requests that want it -> the same shape."""
        before = torch.stack([rows.tokens(s)[-1] for s in range(len(rows))])  # [N]
        ids = torch.arange(logits.shape[1], device=logits.device)
        marked = green(before[:, None].long(), ids, self.options.key, self.options.share)
        bias = rows.extra("watermark_bias", self.options.bias)  # [N], each request's own
        return logits + bias[:, None] * marked


def green(before, token, key, share):
    """Whether `token` is green behind the token `before`; int64 tensors that broadcast."""
    x = (token * 0x9E3779B1 + before * 0x85EBCA77 + key) & MASK
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):  # so that every bit reaches all
        x = ((x ^ (x >> shift)) * factor) & MASK
    return (x ^ (x >> 16)) < share * 2**32


def z_score(ids, options):
    """How many standard deviations more tokens are green than by chance; above 4 is a mark."""
    ids = torch.as_tensor(ids)
    count = int(green(ids[:-1], ids[1:], options.key, options.share).sum())
    mean, spread = options.share * (len(ids) - 1), options.share * (1 - options.share)
    return (count - mean) / math.sqrt((len(ids) - 1) * spread)
