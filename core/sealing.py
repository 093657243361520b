"""What everybody shares and nobody may replace: whoever tries is refused, at their own line."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class Sealed:
    """Its attributes stay as they are once `_seal` was called."""

    _sealed = False

    def _seal(self) -> None:
        self._sealed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._sealed:
            raise AttributeError(_refusal(name))
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(_refusal(name))


class SealedNames(ModuleType):
    """A module that keeps its names of sealed things: `module.__class__ = SealedNames`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(vars(self).get(name), Sealed):
            raise AttributeError(_refusal(name))
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if isinstance(vars(self).get(name), Sealed):
            raise AttributeError(_refusal(name))
        super().__delattr__(name)


def _refusal(name: str) -> str:
    return f"{name!r} is shared by all plugins: it cannot be replaced or deleted, only added to."
