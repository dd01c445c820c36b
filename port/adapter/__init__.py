"""The port as the parity harness sees it: named layers over flat dicts of NumPy arrays.

This is also the example of an adapter: `run` and `vjp` below are the whole contract, and each layer in the modules
beside this one is a few lines that hand named tensors to a function of the port. It imports nothing of the harness.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from port.adapter import curves, distributed, elementary, environments, learning, metatraining, networks, rules
from port.adapter.inputs import LAYERS, Settings, Tensors

Arrays = dict[str, np.ndarray]

__all__ = [
    "Autocast",
    "Bfloat16Weights",
    "Compiled",
    "Plain",
    "Port",
    "TorchImplementation",
    "autocast",
    "bfloat16_weights",
    "compiled",
    "curves",
    "distributed",
    "elementary",
    "environments",
    "implementation",
    "learning",
    "metatraining",
    "networks",
    "plain",
    "rules",
]


class TorchImplementation:
    """The contract: what the harness calls."""

    name = "port"
    description = f"PyTorch {torch.__version__}"
    layers = LAYERS
    path = "auto"  # of `port.Agent`

    def __init__(self, device: str = "cpu"):
        """Computes on the given device."""
        self.device = device

    def _tensors(self, arrays: Mapping[str, np.ndarray], dtype: torch.dtype) -> Tensors:
        tensors = {name: torch.from_numpy(np.array(value)).to(self.device) for name, value in arrays.items()}
        return {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}

    def _apply(self, layer: str, inputs: Tensors, settings: Settings, dtype: torch.dtype) -> Tensors:
        return self.layers[layer](inputs, {**settings, "torch_dtype": dtype, "path": self.path})

    def run(self, layer: str, inputs: Arrays, settings: Settings, dtype: str) -> Arrays:
        """The layer's outputs."""
        precision = getattr(torch, dtype)
        outputs = self._apply(layer, self._tensors(inputs, precision), settings, precision)
        return {name: value.detach().cpu().numpy() for name, value in outputs.items()}

    def vjp(
        self,
        layer: str,
        inputs: Arrays,
        settings: Settings,
        dtype: str,
        cotangents: Arrays,
        wrt: Sequence[str],
    ) -> Arrays:
        """The vector-Jacobian product of the layer with respect to the inputs in `wrt`; zeros where none flows."""
        precision = getattr(torch, dtype)
        tensors = self._tensors(inputs, precision)
        for name in wrt:
            tensors[name].requires_grad_()
        outputs = self._apply(layer, tensors, settings, precision)
        reached = [name for name in cotangents if outputs[name].requires_grad]
        given = self._tensors({name: cotangents[name] for name in reached}, precision)
        sources = [tensors[name] for name in wrt]
        gradients: Sequence[Tensor] = [torch.zeros_like(x) for x in sources]
        if reached:
            flowing = torch.autograd.grad(
                [outputs[name] for name in reached],
                sources,
                [given[name] for name in reached],
                allow_unused=True,
                materialize_grads=True,
            )
            gradients = flowing
        return {name: value.detach().cpu().numpy() for name, value in zip(wrt, gradients, strict=True)}


class Port(TorchImplementation):
    """The port as users have it: layers, and whole training runs.

    Where only values are wanted, an agent learns as outside of meta-training, which gives the same: so the fast path is
    held to every case of a learner step. Gradients are those of meta-training, whose path is the plain one.
    """

    def run(self, layer: str, inputs: Arrays, settings: Settings, dtype: str) -> Arrays:
        """The layer's outputs."""
        return super().run(layer, inputs, {**settings, "is_meta_training": False}, dtype)

    def train(self, spec: curves.RunSpec) -> Iterator[curves.Step]:
        """A training run, step by step; see `parity/runs/curves.py`."""
        return curves.train(spec)


class Plain(TorchImplementation):
    """The port's algorithm as it stands, without `port.fast`: `--impl port.adapter:plain`."""

    name = "port, plain"
    path = "plain"


class Compiled(Port):
    """The port with its networks compiled by torch, where it makes a difference: `--impl port.adapter:compiled`."""

    name = "port, compiled"
    description = f"PyTorch {torch.__version__} with torch.compile"
    layers = {name: LAYERS[name] for name in ("agent/learner_step", "agent/learner_steps")}  # noqa: RUF012
    path = "compiled"

    def run(self, layer: str, inputs: Arrays, settings: Settings, dtype: str) -> Arrays:
        """The layer's outputs; what was compiled for other sizes is forgotten first, as torch keeps only a few."""
        torch._dynamo.reset()
        return super().run(layer, inputs, settings, dtype)


class Autocast(TorchImplementation):
    """The port under `torch.autocast` in bfloat16: `--impl port.adapter:autocast --precision bf16`."""

    name = "port, autocast"
    description = f"PyTorch {torch.__version__}, torch.autocast(bfloat16)"

    def _apply(self, layer: str, inputs: Tensors, settings: Settings, dtype: torch.dtype) -> Tensors:
        with torch.autocast(self.device, torch.bfloat16, enabled=dtype == torch.float32):
            outputs = super()._apply(layer, inputs, settings, dtype)
        return {name: x.to(dtype) if x.is_floating_point() else x for name, x in outputs.items()}


class Bfloat16Weights(TorchImplementation):
    """The port with parameters rounded to bfloat16: `--impl port.adapter:bfloat16_weights --precision bf16`."""

    name = "port, bfloat16 weights"
    description = f"PyTorch {torch.__version__}, parameters rounded to bfloat16"

    def _apply(self, layer: str, inputs: Tensors, settings: Settings, dtype: torch.dtype) -> Tensors:
        rounded = {name: x.bfloat16().to(dtype) if "params/" in name else x for name, x in inputs.items()}
        return super()._apply(layer, rounded, settings, dtype)


implementation = Port()
plain = Plain()
compiled = Compiled()
autocast = Autocast()
bfloat16_weights = Bfloat16Weights()
