"""What a kernel set may offer, beside `core.interfaces.Kernels`, for sampling on its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class SamplingKernels(Protocol):
    """Both read a row's parameters where the worker keeps them, and nothing on the host.

    columns [R, C] int32 is the table of `core.sampling.columns`; index [S] int64 names its rows.
    """

    def draw(
        self,
        logits: Tensor,
        columns: Tensor,
        index: Tensor,
        positions: Tensor,
        floor: Tensor | None,
    ) -> Tensor:
        """What `core.sampling.noise.draw` draws from logits [S, V] of any float dtype, [S] int64.

        positions [S] int64: where in its sequence each token goes; floor [S] float32: logits below
        are not drawn. The bits of the noise are the same; its logarithms may err a little more.
        """

    def floors(self, logits: Tensor, columns: Tensor, index: Tensor) -> Tensor:
        """The smallest logit that min_p, top_k and top_p of each row let through, [S] float32.

        -inf where a row asks for none of them, or is greedy. Ties with the last are let through.
        """
