"""Formats: how a checkpoint stores a logical matrix, as far as cutting it is concerned.

A format says, for each role (the last name of a parameter), how many logical elements one storage
index covers on each dim. Strategies and recipes need to know nothing else about quantization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from core.errors import UserError
from core.parallel.problems import listed
from core.visible import visible

if TYPE_CHECKING:
    from torch import Tensor

Dim = tuple[str, int]  # (logical dim, elements per storage index); dim `part`: a slot per part
Dims = tuple[Dim, ...]

EXPERT = "expert"
PART = "part"
GENERIC = ("out", "in", "dim2", "dim3", "dim4", "dim5")


@dataclass(frozen=True)
class Format:
    """Role -> stored dims. `refuses` names logical dims that cannot be cut, with the reason.

    Formats are compared by name, so the name says every parameter.
    """

    name: str
    roles: Mapping[str, Dims] = field(compare=False)
    refuses: Mapping[str, str] = field(default_factory=dict, compare=False)

    def dims(self, role: str, rank: int) -> Dims:
        """The stored dims of a parameter of `rank` dims; plain ones for a role not listed."""
        declared = self.roles.get(role)
        if declared is not None and len(declared) == rank:
            return declared
        if declared is not None and len(declared) < rank and declared[0][0] == EXPERT:
            return declared + tuple((name, 1) for name in GENERIC[: rank - len(declared)])
        return tuple((name, 1) for name in GENERIC[:rank])


DENSE = Format("dense", {"weight": (("out", 1), ("in", 1)), "bias": (("out", 1),)})


def expert_format(inner: Format) -> Format:
    """`inner` for a stack of experts: every role gets a leading expert dim."""
    roles = {role: ((EXPERT, 1), *dims) for role, dims in inner.roles.items()}
    return Format(f"experts of {inner.name}", roles, inner.refuses)


class Quantization:
    """A storage format and the modules that compute on it; subclasses go in `quantization`.

    `config` is a checkpoint's `quantization_config`, or the options, where plain numbers are put
    into the format.

    Errors: a UserError of `__init__` or `format` says what of a checkpoint cannot be honoured. What
    else is raised ends the start.
    """

    interface: ClassVar[int] = 1  # the version of this contract that a component was written for
    summary: ClassVar[str] = ""

    @dataclass
    class Options:
        """The keys beside `use:` in `quantization:`, for a format that can `encode`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    @classmethod
    def matches(cls, config: Mapping[str, Any]) -> bool:
        """Whether this class understands `config`, a checkpoint's `quantization_config`."""
        raise NotImplementedError

    def format(self, source: str, module: Any) -> Format:
        """How the checkpoint module `source` is stored; DENSE for those left unconverted.

        `module` is the model's, into which it goes: embeddings and norms are mostly DENSE.
        """
        raise NotImplementedError

    def prepare(self, module: Any, format: Format, parts: int) -> None:
        """Turn a plain module on the meta device into one that holds the format's parameters.

        `parts` is the number of checkpoint modules that are packed into it. Parameters of another
        type than torch's default one, or named in the module's `keep_dtype`, keep their type.
        """
        raise NotImplementedError

    def finalize(self, module: Any, format: Format) -> None:
        """Repack what was loaded into `module` for the kernels; local to one rank.

        Called once, before guards; it leaves no more memory taken than there was.
        """

    def encode(self, weight: Tensor, format: Format) -> Mapping[str, Tensor]:
        """What a checkpoint in this format holds for `weight` [out, in]: every role but `bias`.

        Optional. With it `quantization: NAME` reads a checkpoint of plain numbers, and converts it
        on the way. `weight` is of any floating type, on the host. It may be some rows of a larger
        one, on whole blocks of the format, and these must come out as they do among all rows; a
        format with a role that has no dim `out` gets the whole weight.
        """
        raise TypeError(f"{type(self).__name__} has no encode()")

    def error(self, weight: Tensor, format: Format) -> Tensor:
        """How far each number that is stored for `weight` [out, in] may be from it, [out, in].

        Optional, for the conformance kit: the promise that a format makes about its precision.
        """
        raise TypeError(f"{type(self).__name__} has no error()")

    @classmethod
    def encodes(cls) -> bool:
        """Whether it can make the format of plain numbers."""
        return cls.encode is not Quantization.encode


def formats_of(config: Mapping[str, Any]) -> Quantization | None:
    """The registered format for a checkpoint, from its config.json; None when it is not quantized.

    Raises UserError when no format, or more than one, claims its `quantization_config`: weights
    are never loaded as plain numbers that they are not.
    """
    from core import registry

    stored = config.get("quantization_config")
    if not stored:
        return None
    names = registry.quantization.names()
    found = [name for name in names if registry.quantization.get(name).matches(stored)]
    method = (
        stored.get("quant_method", "no quant_method") if isinstance(stored, Mapping) else stored
    )
    method = visible(str(method), keep="")
    if len(found) == 1:
        made: Quantization = registry.quantization.get(found[0])(stored)
        return made
    if found:
        raise UserError(
            f"The checkpoint's quantization_config ({method}) is claimed by {listed(found)}; "
            "switch all but one of these plugins off, or choose one with quantization=NAME."
        )
    raise UserError(
        f"The checkpoint is quantized (quantization_config: {method}) and no plugin reads that "
        f"format. Registered: {listed(names)}. Use an unquantized checkpoint, or install a plugin."
    )
