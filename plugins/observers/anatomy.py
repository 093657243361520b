"""Where a model's layers are: the modules whose inputs and attention can be seen."""

from __future__ import annotations

from torch import Tensor, nn

from core.errors import UserError
from core.layers import Attention


class Anatomy:
    """The decoder layers of a model, in order, and the paged attention inside each.

    A decoder layer is an element of a ModuleList that holds one `core.layers.Attention`. What
    enters it are its first argument x [T, hidden] and, if its second is a tensor of the same
    shape, the sum of both.
    """

    def __init__(self, model: nn.Module) -> None:
        """UserError when the model is not made like that."""
        self.model = model
        found: dict[int, tuple[nn.Module, Attention]] = {}
        attentions = 0
        for name, module in model.named_modules():
            if isinstance(module, Attention):
                attentions += 1
                if (layer := _layer(model, name)) is not None:
                    found[module.layer] = layer, module
        alone = len({id(layer) for layer, _ in found.values()}) == attentions == len(found)
        if not found or not alone or sorted(found) != list(range(len(found))):
            raise UserError(
                f"the plugin 'observers' cannot see inside {type(model).__name__}: it looks for "
                "layers in a ModuleList, each with one core.layers.Attention. Leave the plugin out."
            )
        self.scattered: dict[int, bool] = {}  # hidden states of which ranks hold a part each
        self.layers = [found[i][0] for i in range(len(found))]
        self.attentions = [found[i][1] for i in range(len(found))]


def _layer(model: nn.Module, name: str) -> nn.Module | None:
    """The outermost element of a ModuleList on the way to a module."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        if isinstance(model.get_submodule(".".join(parts[:end])), nn.ModuleList):
            return model.get_submodule(".".join(parts[: end + 1]))
    return None


def entering(arguments: tuple[object, ...], index: Tensor | None) -> Tensor:
    """What enters a decoder layer, at these rows or at all, as a new tensor [rows, hidden]."""
    x, *rest = arguments
    assert isinstance(x, Tensor)
    whole = rest and isinstance(rest[0], Tensor) and rest[0].shape == x.shape
    if index is None:
        return x + rest[0] if whole else x.clone()
    chosen = x.index_select(0, index)
    return chosen + rest[0].index_select(0, index) if whole else chosen
