"""Checkpoints that ship are found by name; anything else is left to others."""

from __future__ import annotations

import pytest

from core.checkpoint import find
from core.errors import UserError
from models.qwen3 import find_model


@pytest.mark.parametrize("name", ["tiny", "toy", "Qwen3-0.6B", "Qwen3-32B"])
def test_what_ships_is_found_by_name(name):
    assert (find(name) / "config.json").is_file()


@pytest.mark.parametrize("name", ["", ".", "..", "sizes", "../qwen3/tiny", "nothing"])
def test_other_names_are_not_ours(name):
    assert find_model(name) is None


def test_an_unknown_name_says_what_a_name_may_be():
    with pytest.raises(UserError, match="there is no folder or file tinny"):
        find("tinny")
