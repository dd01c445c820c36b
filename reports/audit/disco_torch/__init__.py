"""The package `disco-torch` as the parity harness sees it: its own functions, called unchanged.

Nothing is mended on the way. What the package lacks, and what an older release of it lacks, is left out. Three things
are given to it, because it asks for them or has no other way to be asked:

* precision: several of its tensors are made without a dtype, so torch's default dtype is set to the precision asked
  for while it runs (left at float32, its float64 answers would be float32 ones);
* sizes: its meta-network's sizes are written into the constructor; for small cases its own building blocks stand in
  their places at the sizes of the case, and its forward pass runs as it is;
* an agent network, which it expects of its user: it gets this project's.

Flags are given to it as floats of 0 and 1, as its own trainer does.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import disco_torch as package
import numpy as np
import torch
from torch import Tensor

from parity.layers import REGISTRY
from parity.runs.curves import Step
from parity.runs.spec import RunSpec
from port.adapter import TorchImplementation
from reports.audit.disco_torch import curves, elementary, learning, metanet, values
from reports.audit.disco_torch.inputs import default_dtype

Tensors = dict[str, Tensor]
Arrays = dict[str, np.ndarray]
LayerFn = Callable[[Tensors, Mapping[str, Any]], Tensors]


def release() -> str:
    """The release under test, as its metadata beside the code says."""
    try:
        return importlib.metadata.version("disco-torch")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown release"


def provided() -> dict[str, LayerFn]:
    """The layers of the registry that the installed release has."""
    found = elementary.layers() | values.layers() | metanet.layers() | learning.layers()
    return {name: found[name] for name in REGISTRY if name in found}


class DiscoTorch(TorchImplementation):
    """The contract."""

    name = "disco_torch"
    description = f"disco-torch {release()}, PyTorch {torch.__version__}"
    layers = provided()

    def _apply(self, layer: str, inputs: Tensors, settings: Mapping[str, Any], dtype: torch.dtype) -> Tensors:
        with default_dtype(dtype):
            return self.layers[layer](inputs, {**settings, "torch_dtype": dtype})

    def vjp(
        self,
        layer: str,
        inputs: Arrays,
        settings: Mapping[str, Any],
        dtype: str,
        cotangents: Arrays,
        wrt: Sequence[str],
    ) -> Arrays:
        """VJPs by autograd; the trainer's own steps are made without a graph, so they have none."""
        if layer in learning.WITHOUT_GRADIENTS:
            raise NotImplementedError
        return super().vjp(layer, inputs, settings, dtype, cotangents, wrt)

    def train(self, spec: RunSpec) -> Iterator[Step] | None:
        """A training run, step by step; see `parity/runs/curves.py`."""
        return curves.train(spec)


implementation = DiscoTorch()
FOLDER = package.__path__[0]
