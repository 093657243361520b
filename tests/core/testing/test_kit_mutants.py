"""The kit finds what is wrong: faults planted in built-in components, each must fail a test."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from core.testing.checkpoints import write_random
from core.testing.plugin import KINDS

# one run of the kit for a hundred components, on a machine that may be busy
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LLAMA = ROOT / "examples" / "plait-llama" / "src"
FILES = {
    "backend": ["wrong_attention"],
    "kernels": ["wrong_kernels"],
    "sampler": ["wrong_samplers", "wrong_wishes"],
    "scheduler": ["wrong_schedulers"],
    "sharding": ["wrong_strategies"],
    "quantization": ["wrong_quantization"],
    "runner": ["wrong_runners"],
    "model": ["wrong_models"],
}
PATHS = [HERE / "wrong" / f"{file}.py" for files in FILES.values() for file in files]
NAMES = {
    option: [
        name
        for file in files
        for name in re.findall(
            r'^(?:@\w+\.register|changed)\(\s*"([\w-]+)"',
            (HERE / "wrong" / f"{file}.py").read_text(),
            re.M,
        )
    ]
    for option, files in FILES.items()
}
RIGHT = {
    "backend": "token-by-token",
    "kernels": "in-float64",
    "sampler": "temperature-alone",
    "scheduler": "one-at-a-time",
    "sharding": "rowwise-tokens",
    "quantization": "float8-in-tiles",
    "runner": "warm",
    "model": "LlamaForCausalLM",
}
FAULTS = [(option, name) for option, names in NAMES.items() for name in names]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """One run of the kit for all of them: {"failed": {name: how}, "passed": {name: tests}}."""
    folder = tmp_path_factory.mktemp("kit")
    words = [f"--load={path}" for path in PATHS]
    words += ["--load=" + str(HERE / "right" / "right_parts.py"), "--load=plait_llama"]
    words += [f"--{option}={name}" for option, name in (*FAULTS, *RIGHT.items())]
    whole = write_random("Qwen3ForCausalLM", folder / "whole")
    assert whole is not None
    raw = json.loads((whole / "config.json").read_text())
    for name in NAMES["model"]:
        if hasattr(transformers, name):
            continue  # the kit makes checkpoints of it
        own = folder / name
        shutil.copytree(whole, own)
        (own / "config.json").write_text(json.dumps(raw | {"architectures": [name]}))
        words.append(f"--reference={own}")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, HERE, LLAMA))),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "VERDICTS": str(folder / "verdicts.json"),
    }
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "core.testing", "-p", "core.testing.plugin",
         "-p", "verdicts", "-p", "no:cacheprovider", "-p", "no:logging", "--tb=native", "-qs",
         *words],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 1, run.stdout[-3000:] + run.stderr
    found: dict[str, dict[str, object]] = json.loads((folder / "verdicts.json").read_text())
    return found


@pytest.mark.parametrize(("option", "name"), FAULTS)
def test_a_planted_fault_is_found(verdicts, option: str, name: str) -> None:
    assert name in verdicts["failed"], f"--{option}={name} passes the kit"
    assert "ERROR" not in verdicts["failed"][name]


@pytest.mark.parametrize(("option", "name"), RIGHT.items())
def test_what_somebody_else_wrote_passes(verdicts, option: str, name: str) -> None:
    assert name not in verdicts["failed"], verdicts["failed"].get(name)
    assert verdicts["passed"][name] >= 7


def test_there_is_a_fault_of_every_kind() -> None:
    assert {kind.option for kind in KINDS} == {option for option, _ in FAULTS}
    assert len(FAULTS) >= 12
