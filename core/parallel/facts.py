"""Facts: the names and shapes of a model's parameters, and models built without memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from core.errors import UserError
from core.parallel.recipe import Shape

RANDOM = ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_")


@dataclass(frozen=True)
class Facts:
    """What checks need to know of a model. `ties` maps a second name of a parameter to its first.

    `shapes` holds every parameter that a module owns, tied ones under each of their names.
    """

    modules: Mapping[str, nn.Module]
    shapes: Mapping[str, Mapping[str, Shape]]  # module -> role -> shape
    fixed: Mapping[str, torch.dtype]  # parameters that keep their type whatever the run's is
    ties: Mapping[str, str]

    def parameters(self) -> dict[str, Shape]:
        """Shapes by full name."""
        return {
            f"{module}.{role}" if module else role: shape
            for module, roles in self.shapes.items()
            for role, shape in roles.items()
        }


class _Unfilled(TorchFunctionMode):
    """Leaves out random initial values, which a checkpoint replaces anyway.

    Drawing them costs nothing on the meta device, but the first draw there makes torch import
    its symbolic shapes, which takes longer than all the rest of making a plan.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in RANDOM or getattr(func, "__module__", None) == "torch.nn.init":
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """The module that `make` builds, with parameters on the meta device.

    UserError for sizes that no address can reach.
    """
    try:
        with torch.device("meta"), _Unfilled():
            return make()
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        raise UserError(
            f"the sizes in config.json make a parameter that no memory can hold ({error})."
        ) from error


def facts(model: nn.Module) -> Facts:
    """Read off names, shapes and ties."""
    modules: dict[str, nn.Module] = {}
    shapes: dict[str, dict[str, Shape]] = {}
    fixed: dict[str, torch.dtype] = {}
    ties: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        if not own:
            continue
        modules[name] = module
        shapes[name] = {role: tuple(parameter.shape) for role, parameter in own.items()}
        for role, parameter in own.items():
            full = f"{name}.{role}" if name else role
            if keeps_dtype(module, role, parameter):
                fixed[full] = parameter.dtype
            if id(parameter) in first:
                ties[full] = first[id(parameter)]
            else:
                first[id(parameter)] = full
    return Facts(modules, shapes, fixed, ties)


def keeps_dtype(module: nn.Module, role: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter has a type of its own: not torch's default one, or declared to keep it.

    A module declares it with an attribute `keep_dtype`, a tuple of parameter names.
    """
    return parameter.dtype != torch.get_default_dtype() or role in getattr(module, "keep_dtype", ())


def allocate(model: nn.Module, device: torch.device | str, dtype: torch.dtype) -> nn.Module:
    """Give a model built on the meta device memory, in place, and keep tied parameters tied.

    Parameters become `dtype`, except those with a type of their own (see `keeps_dtype`). Their
    contents are undefined until a recipe has been executed. Buffers that were computed on the
    meta device have lost their values: their module must have `reset_buffers()`, which computes
    them again.
    """
    made: dict[int, nn.Parameter] = {}
    for name, module in model.named_modules():
        for role, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                kind = parameter.dtype if keeps_dtype(module, role, parameter) else dtype
                memory = torch.empty(parameter.shape, dtype=kind, device=device)
                made[id(parameter)] = nn.Parameter(memory, requires_grad=False)
            module._parameters[role] = made[id(parameter)]
        _move_buffers(name, module, device)
    return model


def weight_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """The memory that `allocate` takes for parameters."""
    sizes = {
        id(parameter): parameter.numel()
        * (parameter.dtype if keeps_dtype(module, role, parameter) else dtype).itemsize
        for module in model.modules()
        for role, parameter in module.named_parameters(recurse=False)
    }
    return sum(sizes.values())


def _move_buffers(name: str, module: nn.Module, device: torch.device | str) -> None:
    lost = False
    for role, buffer in module._buffers.items():
        if buffer is None:
            continue
        lost = lost or buffer.is_meta
        module._buffers[role] = (
            torch.empty_like(buffer, device=device) if buffer.is_meta else buffer.to(device)
        )
    if lost:
        reset = getattr(module, "reset_buffers", None)
        if reset is None:
            raise UserError(
                f"{name} ({type(module).__name__}) has buffers computed on the meta device and no "
                "reset_buffers() to compute them again; add that method to the module."
            )
        reset()
