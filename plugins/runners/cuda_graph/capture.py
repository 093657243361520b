"""Work on the device, captured once and replayed: what this project needs of CUDA's graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

Work = Callable[[], Tensor | None]
Cut = Callable[[], None]


class Captured:
    """One graph. What the work returned lies at `result` after each replay, until the next one."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor | None) -> None:
        self._graph, self.result = graph, result

    def let_go(self) -> None:
        """Keep the address of the result and not its memory, so that the pool may give it to the
        graphs that are captured from now on. They, too, must not run at the same time."""
        if self.result is not None:
            self.result = _without_owning(self.result)

    def replay(self) -> None:
        """Start the work on the current stream."""
        self._graph.replay()


class Capturing:
    """Captures work on one stream into one pool of memory, which all graphs share.

    Graphs that share a pool must not run at the same time, and overwrite each other's results. The
    first should be the largest: what it has freed is where the others find their memory. A pool
    ends with the last of its graphs. cuBLAS keeps a workspace for each stream, for as long as the
    process lives, and its address is in the graphs: so there is one stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = _stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    def capture(self, work: Work) -> Captured:
        """Run `work` once, for all that is made on first use, and once more to capture it."""
        [whole] = self.capture_pieces(lambda cut: work())
        return whole

    @torch.inference_mode()
    def capture_pieces(self, work: Callable[[Cut], Tensor | None]) -> list[Captured]:
        """`capture`, in several graphs: `work` is called with what ends one and begins the next.

        The last one has the result.
        """
        current = torch.cuda.current_stream(self.device)
        graphs: list[torch.cuda.CUDAGraph] = []

        def begin() -> None:
            graph = torch.cuda.CUDAGraph()
            # other threads may go on using the device
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            graphs.append(graph)

        def cut() -> None:
            graphs[-1].capture_end()
            begin()

        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work(lambda: None)
            self._stream.synchronize()
            begin()
            try:
                result = work(cut)
            except BaseException:
                with suppress(RuntimeError):  # the first error says more than "capture failed"
                    graphs[-1].capture_end()
                raise
            graphs[-1].capture_end()
        current.wait_stream(self._stream)
        *pieces, last = graphs
        return [*(Captured(piece, None) for piece in pieces), Captured(last, result)]

    def address(self, tensor: Tensor) -> Tensor:
        """The same memory, which stays there as long as the graphs do: see `Captured.let_go`."""
        return _without_owning(tensor)

    def used(self) -> int:
        """Bytes in use on the device, by anyone, without what torch holds in reserve."""
        self.tidy()
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def tidy(self) -> None:
        """Give back the memory that first runs have left behind on this stream."""
        self.wait()
        torch.cuda.empty_cache()

    def wait(self) -> None:
        """Until the device has done all that was launched."""
        torch.cuda.synchronize(self.device)


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def capturing_on(device: torch.device) -> Capturing | None:
    """None where nothing can be captured."""
    return Capturing(device) if device.type == "cuda" else None


class _Address:
    """A tensor's memory as other libraries describe theirs; does not keep it."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__cuda_array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"<i{size}",
            "version": 3,
        }


def _without_owning(tensor: Tensor) -> Tensor:
    """The same memory, which stays there as long as its graph does."""
    whole = torch.as_tensor(_Address(tensor), device=tensor.device)
    return whole.view(tensor.dtype)
