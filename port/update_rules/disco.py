"""The Disco update rule: a meta-network makes targets from a rollout, and the agent's loss is its distance from them.

The agent's network (`port.networks.agent_net`) makes five predictions. The meta-network (`port.networks.meta_nets`)
sets the targets of three: the policy `pi`, given by `logits`, and the vectors `y` (of a state) and `z` (of a state and
an action), whose meaning is discovered. The targets of the other two are fixed: `q`, the action value, learns from
Retrace, and `aux_pi` predicts the policy one step later.

Oh et al., Discovering state-of-the-art reinforcement learning algorithms, Nature 648, 312-319, 2025,
doi 10.1038/s41586-025-09761-x.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from torch import Tensor

from port import moving_average, ops, optimizers
from port.config import DiscoConfig, HyperParams, MetaNetConfig
from port.distributed import Averaging
from port.networks import agent_net, meta_nets, param_names
from port.types import (
    Heads,
    Logs,
    LstmState,
    MetaOut,
    MetaState,
    Observations,
    Outputs,
    Params,
    RuleInputs,
)
from port.update_rules.base import UpdateRule
from port.value_fns import value_utils

ALL_HEADS = (*agent_net.FLAT_HEADS, *agent_net.MODEL_HEADS)
UnrollFn: TypeAlias = Callable[[Params, Observations], Outputs]

_VALUE_FIELDS = (
    "q_target",
    "adv",
    "normalized_adv",
    "qv_adv",
    "normalized_qv_adv",
    "q_value",
    "q_td",
    "normalized_q_td",
)


@dataclass(frozen=True)
class Disco(UpdateRule):
    """The rule with its configuration. `port.fast` replaces the methods that take most of the time.

    Attributes:
        hyper: weights of the loss's terms, lambda of Retrace, and the coefficient of the target network.
        rule: how values are estimated.
        meta_net: sizes and inputs of the meta-network.
        unroll_policy: the agent's network, from parameters and observations to outputs.
        averaging: over ranks, of the moving averages and of the meta-RNN's input.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule
    """

    hyper: HyperParams
    rule: DiscoConfig
    meta_net: MetaNetConfig
    unroll_policy: UnrollFn = agent_net.unroll
    averaging: Averaging | None = None

    def heads(self, num_actions: int) -> Heads:
        """Policy and y per state; z, aux_pi and q per state and action.

        Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.model_output_spec
        """
        P, K = self.meta_net.prediction_size, self.rule.num_bins
        return Heads({"logits": num_actions, "y": P}, {"z": P, "aux_pi": num_actions, "q": K})

    def init_meta_state(self, params: Params) -> MetaState:
        """The rule's state at the start of an agent's lifetime; dtype and device are those of `params`.

        Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.init_meta_state
        """
        like = next(iter(params.values()))
        M = self.meta_net.meta_rnn.hidden_size
        rnn_state = LstmState(like.new_zeros(M), like.new_zeros(M))
        return MetaState(rnn_state, moving_average.init(like), moving_average.init(like), dict(params))

    def check_meta_params(self, meta_params: Params | None) -> None:
        """Raises ValueError where these are not the parameters of this meta-network."""
        if meta_params is None:
            raise ValueError("Disco learns by a meta-network; pass its parameters, from load_npz or init_meta_params.")
        param_names.check_shapes(meta_params, self._meta_shapes, "meta-parameters")

    @cached_property
    def _meta_shapes(self) -> param_names.Shapes:
        return param_names.meta_shapes(self.meta_net)

    @property
    def value_settings(self) -> value_utils.ValueSettings:
        """How values are estimated, from both configurations."""
        return value_utils.ValueSettings(
            form=value_utils.ValueForm(self.rule.max_abs_value),
            discount=self.rule.value_discount,
            lambda_=self.hyper.value_fn_td_lambda,
            decay=self.rule.moving_average_decay,
            eps=self.rule.moving_average_eps,
        )

    def unroll_meta_net(
        self, meta_params: Params, params: Params, meta_state: MetaState, inputs: RuleInputs
    ) -> tuple[MetaOut, MetaState]:
        """Runs the target network, the value estimates and the meta-network over a rollout.

        Args:
            meta_params: of the meta-network.
            params: of the agent; the target network takes a step towards them.
            meta_state: of the rule: meta-RNN, moving averages, parameters of the target network.
            inputs: the rollout; its `extra_from_rule` is made here.

        Returns:
            Targets pi [T, B, A], y and z [T, B, P], the meta-RNN's input meta_input_emb [T, B, 1], value estimates, and
            the target network's outputs as `target_out`; and the new state of the rule.

        Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.unroll_meta_net
        """
        self.check_inputs(inputs, ALL_HEADS, is_off_policy=True)
        target_out = self.unroll_policy(meta_state.target_params, inputs.observations)
        q_values, averages = self.q_values(inputs, target_out), (meta_state.adv_ema, meta_state.td_ema)
        settings = self.value_settings
        outs, adv_ema, td_ema = value_utils.value_outs(*q_values, inputs, averages, settings, self.averaging)
        extra = {
            "v_scalar": outs.value,
            "adv": outs.adv,
            "normalized_adv": outs.normalized_adv,
            "q": outs.target_q_value,
            "qv_adv": outs.qv_adv,
            "normalized_qv_adv": outs.normalized_qv_adv,
            "target_out": target_out,
        }
        targets, rnn_state = self.targets(meta_params, replace(inputs, extra_from_rule=extra), meta_state.rnn_state)
        estimates = {name: getattr(outs, name) for name in _VALUE_FIELDS}
        target_params = optimizers.target_average(meta_state.target_params, params, self.hyper.target_params_coeff)
        new_state = MetaState(rnn_state, adv_ema, td_ema, target_params)
        return {**targets, **estimates, "target_out": target_out}, new_state

    def q_values(self, inputs: RuleInputs, target_out: Outputs) -> tuple[Tensor, Tensor]:
        """Action values [T+1, B, A] of the online network and of the target network."""
        form = self.value_settings.form
        online, target = (value_utils.values_from_logits(out["q"], form) for out in (inputs.agent_out, target_out))
        return online, target

    def targets(self, meta_params: Params, inputs: RuleInputs, state: LstmState) -> tuple[Outputs, LstmState]:
        """Outputs of the meta-network, and the new state of its meta-RNN."""
        return meta_nets.meta_net(meta_params, inputs, state, self.meta_net.inputs, self.averaging)

    def agent_loss(self, inputs: RuleInputs, meta_out: Mapping[str, Any], backprop: bool) -> tuple[Tensor, Logs]:
        """Distance of the agent's predictions from the meta-network's targets pi_hat, y_hat and z_hat.

            L_t = c_pi KL(pi_hat_t || pi_t) + c_y KL(y_hat_t || y_t) + c_z KL(z_hat_t || z_t(a_t))
                  + c_aux KL(pi_{t+1} || aux_pi_t(a_t)) (1 - terminal_t)

        Each term compares two categorical distributions, given by logits. The weights c are those of `hyper`
        (`pi_cost` and so on). pi_{t+1} is held constant.

        Args:
            inputs: the rollout.
            meta_out: targets pi [T, B, A], y [T, B, P] and z [T, B, P].
            backprop: whether gradients flow into the targets, as meta-training needs.

        Returns:
            Loss per step [T, B], and logs; logs are scalars.

        Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.agent_loss
        """
        self.check_inputs(inputs, tuple(head for head in ALL_HEADS if head != "q"))
        hyper = self.hyper
        pi_hat, y_hat, z_hat = (meta_out[name] if backprop else meta_out[name].detach() for name in ("pi", "y", "z"))
        logits, y, z_a, aux_a = self.predictions(inputs)
        for name, target, predicted in (("pi", pi_hat, logits), ("y", y_hat, y), ("z", z_hat, z_a)):
            if target.shape != predicted.shape:
                shapes = f"The target {name} is {tuple(target.shape)}; the agent predicts {tuple(predicted.shape)}."
                raise ValueError(shapes)

        next_logits = inputs.agent_out["logits"][1:]
        # In double: the two policies are often nearly equal, and their difference would lose its digits in float32.
        pi_loss = ops.categorical_kl(ops.widened(pi_hat), ops.widened(logits)).to(logits.dtype)  # [T, B]
        y_loss, y_entropy = self.kl_and_entropy(y_hat, y)
        z_loss, z_entropy = self.kl_and_entropy(z_hat, z_a)
        continues = 1.0 - inputs.is_terminal.to(logits.dtype)
        aux_loss = ops.categorical_kl(next_logits.detach(), aux_a) * continues
        total = (
            hyper.pi_cost * pi_loss + hyper.y_cost * y_loss + hyper.z_cost * z_loss + hyper.aux_policy_cost * aux_loss
        )

        entropy_of = {
            "entropy": logits,
            "pi_hat_entropy": pi_hat,
            "aux_policy_entropy": aux_a,
            "aux_target_entropy": next_logits,
        }
        means = {"logits": logits, "pi_loss": pi_loss, "aux_kl_loss": aux_loss, "pi_hat": pi_hat}
        means |= {"y_hat": y_hat, "z_hat": z_hat, "y_entropy": y_entropy, "z_entropy": z_entropy}
        means |= {name: ops.categorical_entropy(x) for name, x in entropy_of.items()}
        logs = {name: ops.mean(x) for name, x in means.items()}
        return total, {**logs, **{head: self.mean_prediction(inputs.agent_out, head) for head in ("y", "z")}}

    def predictions(self, inputs: RuleInputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The policy's logits [T, B, A] and y [T, B, P]; z [T, B, P] and aux_pi [T, B, A] for the actions taken."""
        out, actions = inputs.agent_out, inputs.actions
        # The last step is dropped after the lookup, where the tensors are smaller.
        z_a, aux_a = ops.batch_lookup(out["z"], actions)[:-1], ops.batch_lookup(out["aux_pi"], actions)[:-1]
        return out["logits"][:-1], out["y"][:-1], z_a, aux_a

    def kl_and_entropy(self, target: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
        """KL(target || predicted) and the entropy of the prediction, by logits: [T, B, P] to [T, B] each."""
        return ops.kl_and_entropy(target, predicted)

    def mean_prediction(self, agent_out: Outputs, head: str) -> Tensor:
        """The mean logit of a head over the first T steps, for the logs."""
        return ops.mean(agent_out[head][:-1])

    def agent_loss_no_meta(self, inputs: RuleInputs, meta_out: Mapping[str, Any]) -> tuple[Tensor, Logs]:
        """The value loss, from which no gradient flows into the meta-network.

            L_t = c_value CE(two_hot(h(Q_t(a_t) + td_t)), softmax q_t(a_t)),  td_t = G_t - Q_t(a_t)

        CE is the cross-entropy, `q` the logits over bins, Q the action value that they stand for, G Retrace's target
        and h the signed hyperbolic. The first argument, CE's target, is held constant.

        Args:
            inputs: the rollout.
            meta_out: the error q_td [T, B]; and q_target, q_value and normalized_q_td for the logs.

        Returns:
            Loss per step [T, B], and logs; logs are scalars.

        Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.agent_loss_no_meta
        """
        td = meta_out["q_td"].detach()
        loss = self.value_loss(inputs, td)
        logs = {
            "q_target": ops.mean(meta_out["q_target"]),
            "agent_q_mean": ops.mean(meta_out["q_value"]),
            "q_loss": ops.mean(loss),
            "td": ops.mean(meta_out["q_td"]),
            "normalized_td": ops.mean(meta_out["normalized_q_td"]),
        }
        return loss * self.hyper.value_cost, logs

    def value_loss(self, inputs: RuleInputs, td: Tensor) -> Tensor:
        """Cross-entropy of the action values to themselves plus the errors `td`: [T, B] to [T, B]."""
        q_a = ops.batch_lookup(inputs.agent_out["q"], inputs.actions)[:-1]  # [T, B, K]
        return value_utils.value_loss_from_td(q_a, td, self.value_settings.form)
