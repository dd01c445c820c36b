"""The stages of a learner step that may be computed in more than one way; an agent chooses a strategy once.

`Plain` is the algorithm, and the base of whatever computes the same in less time (`port.fast.learner.Fast`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from port.network import Network
from port.types import Logs, Outputs, Params, Rollout
from port.update_rules.base import UpdateRule

Loss: TypeAlias = Callable[[Outputs], tuple[Tensor, Logs]]  # from outputs of the network to loss and logs


@dataclass(frozen=True)
class Plain:
    """The algorithm as the paper has it: one network pass, one loss, one gradient.

    Attributes:
        network: of the agent.
        rule: makes the targets and the loss, from outputs that `unroll` gave.
    """

    network: Network
    rule: UpdateRule

    def threads(self, params: Params) -> AbstractContextManager[None]:
        """Stands around a learner step with these parameters; here, threads are left to torch."""
        return nullcontext()

    def unroll(self, params: Params, rollout: Rollout) -> Outputs:
        """Outputs of the online network for T+1 steps, with a graph."""
        return self.network.unroll(params, rollout.observations)

    def grads(self, loss: Loss, params: Params, agent_out: Outputs, keep_graph: bool) -> tuple[Params, Logs]:
        """Gradient of the loss with its targets held constant, although they may depend on the outputs too.

        The loss is taken on aliases of the outputs: its gradient for the aliases is the partial one, and one more
        product carries it back to the parameters. So a single forward pass serves both the targets and the loss.
        """
        alias = {head: x.view_as(x) for head, x in agent_out.items()}
        total, logs = loss(alias)
        partial = torch.autograd.grad(total, list(alias.values()), create_graph=keep_graph, materialize_grads=True)
        outputs, leaves = list(agent_out.values()), list(params.values())
        grads = torch.autograd.grad(outputs, leaves, partial, create_graph=keep_graph)
        return dict(zip(params, grads, strict=True)), logs
