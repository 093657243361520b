"""What a run is for: the app that uses an engine, and the model family that it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import nn

    from core.config import Config


class App(ABC):
    """What `run:` names: the program that uses the engine.

    Errors: a UserError of `run` is printed as it is, with exit status 2. Anything else is printed
    with its traceback, with exit status 1.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for

    @dataclass
    class Options: ...

    def __init__(self, options: Options) -> None:
        self.options = options

    @abstractmethod
    def run(self, config: Config) -> int:
        """-> exit status."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The tags that a model family writes around what is not plain text. None: it has no such tags.

    Since 0.1.
    """

    thinking: tuple[str, str] | None = None  # before and after what it thinks, ahead of the answer
    thinking_switch: str | None = None  # the chat template's variable; false: it does not think
    tool_call: tuple[str, str] | None = None  # around {"name": ..., "arguments": {...}}


class Architecture(ABC):
    """A model family, registered under the name in config.json's `architectures`.

    Errors: `config` raises UserError. What else is raised by either method ends the start.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for
    axes: ClassVar[Mapping[str, Any]]
    plan: ClassVar[Mapping[str, Any]]
    ignore: ClassVar[tuple[str, ...]] = ()
    rename: ClassVar[Mapping[str, str]] = {}
    dialect: ClassVar[Dialect] = Dialect()  # how answers of its chat models are to be read

    @classmethod
    @abstractmethod
    def config(
        cls, raw: Mapping[str, Any], *, max_length: int | None = None, ignore: Sequence[str] = ()
    ) -> Any:
        """`raw`, a config.json, as a frozen dataclass. -> that dataclass.

        UserError names every key that cannot be honoured.

        `max_length` fixes the rotation of rope types that depend on the length; `ignore` names
        keys that the user accepts to be ignored. The result has at least vocab_size, hidden_size,
        num_hidden_layers, tie_word_embeddings, dtype (a name, or None) and longest, the most
        positions that the model was made for.
        """

    @classmethod
    @abstractmethod
    def model(cls, config: Any) -> nn.Module:
        """The plain modules: `model(batch) -> [T, hidden]`, `model.logits(hidden) -> [S, V]`."""
