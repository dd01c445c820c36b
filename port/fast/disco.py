"""Disco's rule over outputs that states share, with its large losses in one go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from port import ops
from port.fast import fused_kl, meta_net, unique_rows
from port.fast.network import TakenOutputs
from port.fast.parallel import in_parallel
from port.fast.unique_rows import Shared
from port.types import LstmState, Outputs, Params, RuleInputs
from port.update_rules.disco import Disco
from port.value_fns import value_utils


@dataclass(frozen=True)
class FastDisco(Disco):
    """The stages of `Disco` that take time, for outputs of `port.fast.network`; nothing can be differentiated twice.

    Attributes:
        has_fused_losses: whether losses and their gradients are computed in one go; see `fused_kl`.
    """

    has_fused_losses: bool = True

    def check_inputs(self, inputs: RuleInputs, heads: tuple[str, ...], is_off_policy: bool = False) -> None:
        """The agent has checked the rollout, and looking at a head's shape would spread it over all states."""

    def q_values(self, inputs: RuleInputs, target_out: Outputs) -> tuple[Tensor, Tensor]:
        """As `Disco.q_values`, of unique rows, and of both networks in parallel."""
        form = self.value_settings.form

        def read(outputs: Outputs) -> Tensor:
            q = unique_rows.find(outputs, "q")
            return unique_rows.spread(unique_rows.mapped(q, lambda x: value_utils.values_from_logits(x, form)))

        outputs = {"online": inputs.agent_out, "target": target_out}
        q = in_parallel({name: partial(read, each) for name, each in outputs.items()})
        return q["online"], q["target"]

    def targets(self, meta_params: Params, inputs: RuleInputs, state: LstmState) -> tuple[Outputs, LstmState]:
        """Outputs of the meta-network, and the new state of its meta-RNN."""
        return meta_net.meta_net(meta_params, inputs, state, self.meta_net.inputs, self.averaging)

    def predictions(self, inputs: RuleInputs) -> Any:
        """As `Disco.predictions`; y and z as states share them."""
        if not isinstance(inputs.agent_out, TakenOutputs):
            return super().predictions(inputs)
        learned = inputs.agent_out.learned
        y, z_a = learned.heads["y"], learned.heads["z"]
        return learned["logits"], y, z_a, learned["aux_pi"]

    def kl_and_entropy(self, target: Tensor, predicted: Any) -> tuple[Tensor, Tensor]:
        """As `Disco.kl_and_entropy`, in one go."""
        if isinstance(predicted, Shared) and self.has_fused_losses:
            return fused_kl.kl_and_entropy(target, predicted)
        return super().kl_and_entropy(target, unique_rows.spread(predicted))

    @torch.no_grad()
    def mean_prediction(self, agent_out: Outputs, head: str) -> Tensor:
        """As `Disco.mean_prediction`; what states share is averaged once, in double."""
        x = unique_rows.find(agent_out, head)
        if isinstance(x, Tensor):
            return ops.mean(x[:-1])
        by_state = x.map(lambda rows: ops.widened(rows.sum(-1)).reshape(*rows.shape[:2], -1).sum(-1)).spread()
        return (by_state[:-1].mean() / x.rows[0, 0].numel()).to(x.rows.dtype)

    def value_loss(self, inputs: RuleInputs, td: Tensor) -> Tensor:
        """As `Disco.value_loss`; only two bins of each target are read."""
        if not isinstance(inputs.agent_out, TakenOutputs):
            return super().value_loss(inputs, td)
        q_a, form = inputs.agent_out.learned.heads["q"], self.value_settings.form
        if isinstance(q_a, Shared) and self.has_fused_losses:
            return value_loss(q_a, td, form)
        return value_utils.value_loss_from_td(unique_rows.spread(q_a), td, form)


def value_loss(net_out: Shared, td: Tensor, form: value_utils.ValueForm) -> Tensor:
    """`value_utils.value_loss_from_td` of logits [T, B, K], of which only the two bins of each target are read.

    Reference: disco_rl/value_fns/value_utils.py::value_loss_from_td
    """
    held = net_out.map(lambda x: value_utils.values_from_logits(x.detach(), form))
    target = ops.signed_hyperbolic(held.spread() + td)  # [T, B]
    log_probs = net_out.rows[0].log_softmax(-1)  # [U, K]
    K = log_probs.shape[-1]
    below, above, weight_below = ops.nearest_bins(target.flatten(), K, form.bound)
    places = torch.cat((net_out.of * K + below, net_out.of * K + above))
    at_below, at_above = log_probs.view(-1).index_select(0, places).chunk(2)
    return -(weight_below * at_below + (1 - weight_below) * at_above).view_as(target)
