"""The policy-gradient update rule: advantages of a value function outside the agent, and an entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from port import ops
from port.config import PolicyGradientConfig
from port.types import Heads, Logs, MetaOut, Params, RuleInputs
from port.update_rules.base import UpdateRule


@dataclass(frozen=True)
class PolicyGradient(UpdateRule):
    """The rule with its configuration (`port.update_rules.base.UpdateRule`); it remembers nothing.

    The original's agent cannot run it, since it never hands a rule a value function's estimates; ours does, where
    `Agent.learner_step` is given them.

    Reference: disco_rl/update_rules/policy_gradient.py::PolicyGradientUpdate
    """

    rule: PolicyGradientConfig

    def heads(self, num_actions: int) -> Heads:
        """A policy.

        Reference: disco_rl/update_rules/policy_gradient.py::PolicyGradientUpdate.flat_output_spec
        """
        return Heads({"logits": num_actions}, {})

    def init_meta_state(self, params: Params) -> None:
        """Nothing is remembered.

        Reference: disco_rl/update_rules/policy_gradient.py::PolicyGradientUpdate.init_meta_state
        """
        return None

    def unroll_meta_net(
        self, meta_params: Params, params: Params, meta_state: None, inputs: RuleInputs
    ) -> tuple[MetaOut, None]:
        """The advantages [T, B] of `inputs.value_out` as `pi`, normalised or not; and None. Nothing else is read.

        Reference: disco_rl/update_rules/policy_gradient.py::PolicyGradientUpdate.unroll_meta_net
        """
        self.check_inputs(inputs, ("logits",))
        if inputs.value_out is None:
            raise ValueError(
                "PolicyGradient takes its advantages from a value function; give its estimates, value_out."
            )
        return {"pi": inputs.value_out.normalized_adv if self.rule.normalize_adv else inputs.value_out.adv}, None

    def agent_loss(self, inputs: RuleInputs, meta_out: Mapping[str, Any], backprop: bool) -> tuple[Tensor, Logs]:
        """Policy gradient and entropy bonus; advantages are constants.

        Args:
            inputs: the rollout.
            meta_out: advantages [T, B] as `pi`.
            backprop: not read; there is no meta-network for gradients to flow into.

        Returns:
            Loss per step [T, B], and logs, scalars.

        Reference: disco_rl/update_rules/policy_gradient.py::PolicyGradientUpdate.agent_loss
        """
        self.check_inputs(inputs, ("logits",))
        logits = inputs.agent_out["logits"][:-1]  # [T, B, A]
        pg_loss = ops.policy_gradient_loss(logits, inputs.actions[:-1], meta_out["pi"])
        entropy = ops.categorical_entropy(logits)
        total = self.rule.pg_cost * pg_loss - self.rule.entropy_cost * entropy
        return total, {"entropy": ops.mean(entropy), "pg_advs": ops.mean(meta_out["pi"])}
