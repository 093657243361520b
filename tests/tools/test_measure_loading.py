"""The tool that times loading: every source loads, for one rank and for a part of a model."""

from __future__ import annotations

import re

import pytest

from tests.tiny import save_tiny
from tools.measure_loading import main


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_line_for_each_load(ranks, device, tmp_path, capsys) -> None:
    save_tiny(tmp_path)
    assert main([str(tmp_path), f"--device={device}", f"--tensor={ranks}", "--repeat=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "checkpoint: 0.00 GB, in the system's cache"
    found = [re.match(r"(\w+): [\d.]+ s, [\d.]+ GB/s to ", line) for line in lines[1:4]]
    assert [match and match[1] for match in found] == ["pread", "mmap", "dummy"]
    assert len(lines) == (4 if device == "cpu" else 5)
