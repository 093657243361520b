"""One answer on its way through its form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.errors import UserError
from plugins.guided.grammars import Grammars, brief

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from core.types import Admission
    from plugins.guided.form import Form

    Words = NDArray[np.int32]  # [ceil(V / 32)] int32, a bit a token


class Followed:
    """What is possible next, after the ids that were sampled so far.

    It begins anew with each admission: after a preemption all ids come again.
    """

    def __init__(self, admission: Admission, form: Form, grammars: Grammars) -> None:
        self.admission, self.form, self._grammars = admission, form, grammars
        self._started = grammars.start(form)
        self._matcher = self._started.deep_copy()
        self._taken = 0  # ids that it has followed
        self._again = False  # it was rebuilt, apart from all others
        self.ended = False  # by an end of text; what comes now is dropped

    def follow(self, output: Sequence[int]) -> None:
        """Take in every id sampled so far. UserError when the form has no such beginning."""
        for token in output[self._taken :]:
            if self.ended:
                return
            if token in self.admission.stop_ids:
                self.ended = True
            elif not self._matcher.consume_token(token):
                self._rebuild(output)
                return
            self._taken += 1

    def fill(self, words: Words, output: Sequence[int]) -> None:
        """Set the bit of each token that may follow `output`, which was taken in. UserError when
        none may, or finding them takes too much."""
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            self._rebuild(output)
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            raise self._lost()
        if not words.any():
            raise UserError(
                "no token is possible: the form has none that could come next, and has not ended"
            )

    def _rebuild(self, output: Sequence[int]) -> None:
        """Once more, with all limits anew: the answers of a form share what its lexer has learnt,
        and may have come to the limit of that together."""
        if self._again:
            raise self._lost()
        self._again = True
        self._grammars.forget(self.form, self._started)
        self._matcher = self._grammars.fresh(self.form)
        self._taken = 0
        if not self._matcher.consume_tokens(list(output)):
            raise self._lost()
        self._taken = len(output)

    def _lost(self) -> UserError:
        why = brief(self._matcher.get_error())
        return UserError(f"no token is possible: the answer cannot go on in its form: {why}")
