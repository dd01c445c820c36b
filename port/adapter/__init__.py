"""The port as the parity harness sees it: named layers over flat dicts of NumPy arrays.

This is also the example of an adapter: each layer in the modules beside this one is a few lines that hand named tensors
to a function of the port, and `parity.adapters.torch` makes the contract of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from parity.adapters.torch import Adapter, Tensors, pull_back
from port.adapter import curves, distributed, elementary, environments, inputs, learning, metatraining, networks
from port.adapter.inputs import Settings

Flat = dict[str, Tensor]

__all__ = ["autocast", "bfloat16_weights", "compiled", "implementation", "plain"]

del elementary, environments, learning, metatraining, networks  # imported for the layers that they register


class Port(Adapter):
    """All layers, on the given path of `port.Agent`."""

    def __init__(self, name: str, path: str = "auto", about: str = "", layers: Sequence[str] = ()):
        """Takes the layers of those names; all of them if none are named."""
        super().__init__(name, f"PyTorch {torch.__version__}{about}", names=inputs.names)
        on_ranks = {name: inputs.registered.layers[within] for name, within in distributed.WITHIN.items()}
        every = inputs.registered.layers | on_ranks
        self.path, self.layers = path, {name: every[name] for name in layers or every}

    def apply(self, layer: str, x: Tensors, settings: Settings) -> Flat:
        """A layer's outputs, by the agent's path of this implementation."""
        return super().apply(layer, x, {**settings, "path": self.path})

    def pull_back(
        self, layer: str, x: Tensors, settings: Settings, cotangents: Mapping[str, Tensor], wrt: Sequence[str]
    ) -> tuple[Flat, Flat]:
        """Outputs and VJPs, on as many ranks as the layer has."""
        if layer not in distributed.WITHIN:
            return super().pull_back(layer, x, settings, cotangents, wrt)

        def on_rank(x: Tensors, cotangents: Flat, averaging: Any) -> tuple[Flat, Flat]:
            s, within = {**settings, "averaging": averaging}, distributed.WITHIN[layer]
            return pull_back(lambda x: self.apply(within, x, s), x, cotangents, wrt)

        return distributed.on_ranks(on_rank, x, cotangents, settings["D"])


class AsUsersHaveIt(Port):
    """The port as users have it: layers, and whole training runs.

    Where only values are wanted, an agent learns as outside of meta-training, which gives the same: so the fast path is
    held to every case of a learner step. Gradients are those of meta-training, whose path is the plain one.
    """

    has_joint_pass = False

    def run(self, layer: str, inputs: Any, settings: Settings, dtype: str) -> Any:
        """The layer's outputs."""
        return super().run(layer, inputs, {**settings, "is_meta_training": False}, dtype)

    def train(self, spec: Any) -> Iterator[curves.Step]:
        """A training run, step by step; see `parity/runs/curves.py`."""
        return curves.train(spec)


class Compiled(AsUsersHaveIt):
    """The port with its networks compiled by torch, where it makes a difference."""

    def run(self, layer: str, inputs: Any, settings: Settings, dtype: str) -> Any:
        """The layer's outputs; what was compiled for other sizes is forgotten first, as torch keeps only a few."""
        torch._dynamo.reset()
        return super().run(layer, inputs, settings, dtype)


class Autocast(Port):
    """The port under `torch.autocast` in bfloat16."""

    def apply(self, layer: str, x: Tensors, settings: Settings) -> Flat:
        """A layer's outputs, in the precision asked for."""
        with torch.autocast(self.device, torch.bfloat16, enabled=x.dtype == torch.float32):
            outputs = super().apply(layer, x, settings)
        return {name: y.to(x.dtype) if y.is_floating_point() else y for name, y in outputs.items()}


class Bfloat16Weights(Port):
    """The port with parameters rounded to bfloat16."""

    def apply(self, layer: str, x: Tensors, settings: Settings) -> Flat:
        """A layer's outputs from the rounded parameters."""
        rounded = {name: value.bfloat16().to(x.dtype) for name, value in x.items() if "params/" in name}
        return super().apply(layer, x | rounded, settings)


# `--impl port.adapter:plain` and so on; the last two with `--precision bf16`.
implementation = AsUsersHaveIt("port")
plain = Port("port, plain", "plain")  # the algorithm as it stands, without `port.fast`
compiled = Compiled("port, compiled", "compiled", " with torch.compile", ("agent/learner_step", "agent/learner_steps"))
autocast = Autocast("port, autocast", about=", torch.autocast(bfloat16)")
bfloat16_weights = Bfloat16Weights("port, bfloat16 weights", about=", parameters rounded to bfloat16")
