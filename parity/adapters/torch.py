"""Adapters for PyTorch: layers are functions of tensors; values and gradients come from autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from parity.adapters import shared
from parity.adapters.shared import Tensors, check_cotangents, layer_name, look_up
from parity.errors import InputChanged
from parity.layers.spec import Arrays, Settings

Module = TypeVar("Module", bound=nn.Module)

__all__ = ["Adapter", "Tensors", "graft", "layer_name", "pull_back"]


class Adapter(shared.Adapter):
    """Layers in PyTorch; see `parity.adapters`."""

    def _tensors(self, arrays: Arrays, dtype: torch.dtype) -> Tensors:
        tensors = {name: torch.tensor(value, device=self.device) for name, value in arrays.items()}
        cast = {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
        return Tensors(cast, dtype, torch.device(self.device))

    def _compute(
        self, layer: str, inputs: Arrays, settings: Settings, dtype: str, cotangents: Arrays, wrt: Sequence[str]
    ) -> tuple[Arrays, Arrays]:
        x, pulled = (self._tensors(arrays, getattr(torch, dtype)) for arrays in (inputs, cotangents))
        parts = self.pull_back(layer, x, settings, pulled, wrt)
        outputs, gradients = ({name: y.detach().cpu().numpy() for name, y in part.items()} for part in parts)
        return outputs, gradients

    def pull_back(
        self, layer: str, x: Tensors, settings: Settings, cotangents: Mapping[str, Tensor], wrt: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A layer's outputs, and its VJPs for the inputs in `wrt`."""
        return pull_back(lambda x: self.apply(layer, x, settings), x, cotangents, wrt)


def pull_back(
    function: Callable[[Tensors], dict[str, Tensor]], x: Tensors, cotangents: Mapping[str, Tensor], wrt: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs, and for the inputs in `wrt` the gradient of sum(output * cotangent), zeros where none flows.

    InputChanged where the function writes into an input.
    """
    sources = {name: x[name].detach().requires_grad_() for name in wrt}
    x = x | {name: source.clone() for name, source in sources.items()}  # torch itself refuses writes into leaves
    versions = {name: value._version for name, value in x.items()}
    outputs = function(x)
    if written := [name for name, version in versions.items() if x[name]._version != version]:
        raise InputChanged(written[0])
    check_cotangents(outputs, cotangents)
    reached = [name for name in cotangents if outputs[name].requires_grad] if wrt else []
    if not reached:
        return outputs, {name: torch.zeros_like(source) for name, source in sources.items()}
    gradients = torch.autograd.grad(
        [outputs[name] for name in reached],
        list(sources.values()),
        [cotangents[name].to(outputs[name].dtype) for name in reached],
        allow_unused=True,
        materialize_grads=True,
    )
    return outputs, dict(zip(wrt, gradients, strict=True))


def graft(module: Module, table: Mapping[str, str], params: Mapping[str, Tensor]) -> Module:
    """Makes a module compute with the original's parameters themselves, so that gradients reach them.

    Args:
        module: with layers of torch (`nn.Linear`, `nn.Conv1d`), whose weights are the original's with axes reversed.
        table: path of a part of the module (`""` for itself) -> the original's name of its layer (`lstm/linear`), or of
            the layers of a stack, counted by `{i}` or, where the first has no number, by `{_i}`: `lstm/conv1_d{_i}`.
            Or path of one parameter, `cell.kernel` -> the original's name of it, `lstm/linear/w`; with `.T` behind it
            where the module has axes in the reverse order.
        params: by the original's names.

    Returns:
        The module.
    """
    for path, original in table.items():
        owner, leaf = module.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        if isinstance(getattr(owner, leaf, None), Tensor):
            value = look_up(params, original.removesuffix(".T"))
            _replace(owner, leaf, reverse(value) if original.endswith(".T") else value)
            continue
        stack = [part for part in module.get_submodule(path).modules() if isinstance(part, nn.Linear | nn.Conv1d)]
        for i, part in enumerate(stack):
            name = layer_name(original, i)
            weight, bias = (look_up(params, f"{name}/{kind}".lstrip("/")) for kind in "wb")
            _replace(part, "weight", reverse(weight))
            _replace(part, "bias", bias)
    return module


def reverse(value: Tensor) -> Tensor:
    """Axes in the reverse order."""
    return value.permute(*reversed(range(value.ndim)))


def _replace(part: nn.Module, name: str, value: Tensor) -> None:
    before: Any = getattr(part, name)
    if before.shape != value.shape:
        raise ValueError(f"The module's {name} is {list(before.shape)}, the original's {list(value.shape)}.")
    delattr(part, name)
    setattr(part, name, value)
