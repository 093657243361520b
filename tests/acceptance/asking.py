"""What the tests of the dialect ask, and how they hear a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core import SamplingParams, UserError
from tests.tiny import tiny_tokenizer

TEXT = "The wind"
IDS = tiny_tokenizer().encode(TEXT)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def refusal(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments, **keywords)
    return str(caught.value)
