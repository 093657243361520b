"""Whether a request's parameters can go to ranks in other processes, which is asked beforehand."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

from core.importing import cause

if TYPE_CHECKING:
    from core.sampling.params import SamplingParams

ADVICE = (
    "With several ranks a request is sent to all of them. Give numbers, texts, lists and mappings."
)


def unsendable(params: SamplingParams) -> str | None:
    """A sentence that says why a rank could not read these parameters; None when it can.

    A rank that cannot read a request could not go on, and the engine with it.
    """
    memory = io.BytesIO()
    try:
        _Pickler(memory, 5).dump(params)
        pickle.loads(memory.getvalue())
    except Exception as error:  # classes say by themselves how they are pickled
        return f"extra_args: they cannot be sent: {cause(error)}. {ADVICE}"
    return None


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> None:
        # it would be found here, and not by a rank, whose program is another one
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise TypeError(f"{value.__qualname__} is defined in the program itself")
