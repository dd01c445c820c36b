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
from collections.abc import Iterator
from typing import Any

import disco_torch as package
import torch
from torch import Tensor

from parity.adapters.torch import Adapter, Tensors
from parity.layers import REGISTRY
from parity.runs.curves import Step
from parity.runs.spec import RunSpec
from port.adapter.inputs import config_of
from port.config import AgentNetConfig
from port.networks import param_names
from reports.audit.disco_torch import curves, formulas, learning, metanet
from reports.audit.disco_torch.inputs import Settings, default_dtype


def release() -> str:
    """The release under test, as its metadata beside the code says."""
    try:
        return importlib.metadata.version("disco-torch")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown release"


def names(s: Settings) -> Iterator[tuple[str, str]]:
    """Parameters of the agent have this project's names, whose network it is; states have the package's."""
    yield from ((name, f"{name}_state") for name in ("adv_ema", "td_ema", "opt"))
    yield from (("rnn/hidden", "rnn_state/0"), ("rnn/cell", "rnn_state/1"))
    if "dense" in s:
        yield from ((name, ours) for ours, name in param_names.agent_names(config_of(AgentNetConfig, s)).items())


class DiscoTorch(Adapter):
    """The layers of the registry that the installed release has."""

    has_joint_pass = False  # weights that need no gradient are loaded by the package's own loader

    def __init__(self) -> None:
        super().__init__("disco_torch", f"disco-torch {release()}, PyTorch {torch.__version__}", names=names)
        found = formulas.LAYERS | metanet.LAYERS | learning.layers()
        self.layers = {name: found[name] for name in REGISTRY if name in found}
        self.without_gradients = set(learning.WITHOUT_GRADIENTS)  # the trainer's own steps keep no graph

    def apply(self, layer: str, x: Tensors, settings: dict[str, Any]) -> dict[str, Tensor]:
        """A layer's outputs, with the package's own tensors in the precision asked for."""
        with default_dtype(x.dtype):
            return super().apply(layer, x, settings)

    def train(self, spec: RunSpec) -> Iterator[Step] | None:
        """A training run, step by step; see `parity/runs/curves.py`."""
        return curves.train(spec)


implementation = DiscoTorch()
FOLDER = package.__path__[0]
