"""What every test may ask for: the device under test, and one thread, no network, no deadline."""

from __future__ import annotations

import os

# Before torch, tokenizers and huggingface_hub are imported: they read these once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import pytest

# Machines under load miss deadlines; a printed blob lets a failure be replayed.
hypothesis.settings.register_profile("plait", deadline=None, print_blob=True)
hypothesis.settings.load_profile("plait")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--on", default="cpu", metavar="DEVICE", help="device of the tests: cpu (default) or cuda"
    )


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """The device named by `--on`; tests that use it are skipped where it is not there."""
    name: str = request.config.getoption("--on")
    if name.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip(f"--on {name}: this machine has no CUDA device")
    return name
