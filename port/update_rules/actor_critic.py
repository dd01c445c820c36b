"""The actor-critic update rule: V-trace, a policy gradient, a value loss and an entropy bonus; no meta-network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from port import moving_average, ops
from port.config import ActorCriticConfig, ActorCriticHyperParams
from port.distributed import Averaging
from port.types import ActorCriticState, Heads, Logs, MetaOut, Params, RuleInputs
from port.update_rules.base import UpdateRule
from port.value_fns import value_utils, vtrace


@dataclass(frozen=True)
class ActorCritic(UpdateRule):
    """The rule with its configuration (`port.update_rules.base.UpdateRule`).

    Reference: disco_rl/update_rules/actor_critic.py::ActorCritic
    """

    hyper: ActorCriticHyperParams
    rule: ActorCriticConfig
    averaging: Averaging | None = None

    @property
    def value_form(self) -> value_utils.ValueForm:
        """How the head v stands for a value."""
        rule = self.rule
        return value_utils.ValueForm(rule.max_abs_value, rule.categorical_value, rule.nonlinear_value_transform)

    @property
    def _value_settings(self) -> value_utils.ValueSettings:
        return value_utils.ValueSettings(
            form=self.value_form,
            discount=self.hyper.discount_factor,
            lambda_=self.hyper.vtrace_lambda,
            decay=self.rule.moving_average_decay,
            eps=self.rule.moving_average_eps,
        )

    def heads(self, num_actions: int) -> Heads:
        """A policy, and a value as logits over bins or as a scalar; nothing per action.

        Reference: disco_rl/update_rules/actor_critic.py::ActorCritic.flat_output_spec
        """
        return Heads({"logits": num_actions, "v": self.rule.num_bins if self.rule.categorical_value else 1}, {})

    def init_meta_state(self, params: Params) -> ActorCriticState:
        """Moments of nothing yet, with the dtype and device of `params`.

        Reference: disco_rl/update_rules/actor_critic.py::ActorCritic.init_meta_state
        """
        like = next(iter(params.values()))
        return ActorCriticState(moving_average.init(like), moving_average.init(like))

    def unroll_meta_net(
        self, meta_params: Params, params: Params, meta_state: ActorCriticState, inputs: RuleInputs
    ) -> tuple[MetaOut, ActorCriticState]:
        """Advantages and value errors of a rollout, by V-trace.

        Returns:
            raw_advs, normalized_advs, value_target, tds and normalized_tds [T, B], values [T+1, B]; and the moments
            that include this rollout.

        Reference: disco_rl/update_rules/actor_critic.py::ActorCritic.unroll_meta_net
        """
        self._check(inputs, is_off_policy=True)
        outs, adv_ema, td_ema = vtrace.value_outs(
            inputs.agent_out["v"],
            inputs.agent_out["logits"],
            inputs.behaviour_agent_out["logits"],
            inputs.actions,
            inputs.rewards,
            1.0 - inputs.is_terminal.to(inputs.rewards.dtype),
            meta_state,
            self._value_settings,
            averaging=self.averaging,
        )
        meta_out = {
            "raw_advs": outs.adv,
            "normalized_advs": outs.normalized_adv,
            "value_target": outs.value_target,
            "values": outs.value,
            "tds": outs.td,
            "normalized_tds": outs.normalized_td,
        }
        return meta_out, ActorCriticState(adv_ema, td_ema)

    def agent_loss(self, inputs: RuleInputs, meta_out: Mapping[str, Any], backprop: bool) -> tuple[Tensor, Logs]:
        """Policy gradient, value loss and entropy bonus per step [T, B], and logs; advantages and errors are constants.

        `backprop` has no effect, since there is no meta-network.

        Reference: disco_rl/update_rules/actor_critic.py::ActorCritic.agent_loss
        """
        self._check(inputs)
        rule, hyper = self.rule, self.hyper
        advs = meta_out["normalized_advs" if rule.normalize_adv else "raw_advs"]
        tds = meta_out["normalized_tds" if rule.normalize_td else "tds"].detach()
        logits = inputs.agent_out["logits"][:-1]  # [T, B, A]
        pg_loss = ops.policy_gradient_loss(logits, inputs.actions[:-1], advs)
        value_loss = value_utils.value_loss_from_td(inputs.agent_out["v"][:-1], tds, self.value_form)
        entropy = ops.categorical_entropy(logits)
        total = hyper.pg_cost * pg_loss + hyper.value_cost * value_loss - hyper.entropy_cost * entropy
        logged = {
            "logits": logits,
            "entropy": entropy,
            "pg_advs": advs,
            "raw_advs": meta_out["raw_advs"],
            "avg_value": meta_out["values"],
        }
        return total, {name: ops.mean(x) for name, x in logged.items()}

    def _check(self, inputs: RuleInputs, is_off_policy: bool = False) -> None:
        self.check_inputs(inputs, ("logits", "v"), is_off_policy)
        got, width = inputs.agent_out["v"].shape[2:], self.heads(0).flat["v"]
        if got != (width,):
            raise ValueError(f"The head v gives {tuple(got)} numbers a step; with this rule it must give ({width},).")
