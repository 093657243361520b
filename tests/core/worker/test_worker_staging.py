"""Arrays of all types arrive as they were sent, and buffers are used again, but not too early."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from core.worker.staging import Staging

ARRAYS = [
    np.array([3, -1, 7], np.int32),
    np.zeros(0, np.int32),
    np.arange(6, dtype=np.int64).reshape(2, 3) << 40,
    np.array([0.5, -2.25], np.float32),
    np.arange(20, dtype=np.int32)[::3],
    np.array([True, False, True]),
]


def test_arrays_of_any_type_and_shape_in_one_call(device: str) -> None:
    staging = Staging(torch.device(device))
    for array, sent in zip(ARRAYS, staging.send(*ARRAYS), strict=True):
        assert sent.device.type == torch.device(device).type
        assert sent.shape == array.shape
        assert sent.dtype == torch.from_numpy(array).dtype
        assert sent.tolist() == array.tolist()


class Event:
    """Stands in for a CUDA event whose copy is over when the test says so."""

    over = False

    def query(self) -> bool:
        return self.over

    def record(self) -> None:
        self.over = False


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> Staging:
    """It believes that it is on CUDA; memory is neither pinned nor sent anywhere."""
    plain = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory, **kind: plain(*size, **kind))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    made = Staging(torch.device("cpu"))
    monkeypatch.setattr(made, "device", _CpuThatIsCuda())
    return made


class _CpuThatIsCuda:
    type = "cuda"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What would be sent to the device that there is not, is copied."""
    if "staging" in request.fixturenames:
        monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **__: self.clone())


def test_a_buffer_is_used_again_when_its_copy_is_over(staging: Staging) -> None:
    for _ in range(3):  # nothing is over: each call finds another buffer, and none waits
        staging.send(np.ones(4, np.int32))
    buffers = list(staging._buffers)
    assert len({b.memory.data_ptr() for b in buffers}) == 3
    buffers[0].copied.over = True
    assert staging.send(np.full(4, 2, np.int32))[0].tolist() == [2] * 4
    assert len(staging._buffers) == 3
    assert staging._buffers[-1] is buffers[0]


def test_a_buffer_that_is_too_small_gives_way(staging: Staging) -> None:
    staging.send(np.ones(4, np.int32))
    staging._buffers[0].copied.over = True
    size = 1 << 16
    staging.send(np.ones(size, np.int32))
    assert len(staging._buffers) == 1
    assert staging._buffers[0].memory.numel() == 4 * size
