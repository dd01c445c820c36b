"""The Disco update rule: what the meta-network makes of a rollout, and the agent's loss against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from port import moving_average, ops, optimizers
from port.config import DiscoConfig, HyperParams, MetaNetConfig
from port.distributed import Averaging
from port.fast import fused_kl, unique_rows
from port.fast.unique_rows import Shared
from port.networks import agent_net, meta_nets, param_names
from port.types import Heads, Logs, LstmState, MetaOut, MetaState, Observations, Outputs, Params, RuleInputs
from port.update_rules import base
from port.value_fns import value_utils

ALL_HEADS = (*agent_net.FLAT_HEADS, *agent_net.MODEL_HEADS)
UnrollFn = Callable[[Params, Observations], Outputs]

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


def init_meta_state(config: MetaNetConfig, params: Params) -> MetaState:
    """What the rule remembers at the start of an agent's life; dtype and device are those of `params`.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.init_meta_state
    """
    like = next(iter(params.values()))
    M = config.meta_rnn.hidden_size
    rnn_state = LstmState(like.new_zeros(M), like.new_zeros(M))
    return MetaState(rnn_state, moving_average.init(like), moving_average.init(like), dict(params))


def unroll_meta_net(
    meta_params: Params,
    params: Params,
    meta_state: MetaState,
    inputs: RuleInputs,
    hyper: HyperParams,
    rule: DiscoConfig,
    meta_config: MetaNetConfig,
    unroll_policy: UnrollFn = agent_net.unroll,
    averaging: Averaging | None = None,
) -> tuple[MetaOut, MetaState]:
    """Runs the target network, the value estimates and the meta-network over a rollout.

    Args:
        meta_params: of the meta-network.
        params: of the agent, towards which the target network moves.
        meta_state: what the rule remembers.
        inputs: the rollout; any `extra_from_rule` in it is replaced.
        hyper: the trace parameter and the speed of the target network are read.
        rule: value estimation.
        meta_config: of the meta-network.
        unroll_policy: the agent's network, from parameters and observations to outputs.
        averaging: over ranks, of the moments and of what the meta-RNN sees.

    Returns:
        Targets pi [T, B, A], y and z [T, B, P], meta_input_emb [T, B, 1], the value estimates that the loss and the
        logs read, the target network's outputs as `target_out`; and what the rule remembers from here on.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.unroll_meta_net
    """
    base.check_inputs(inputs, ALL_HEADS, "Disco", is_off_policy=True)
    target_out = unroll_policy(meta_state.target_params, inputs.observations)
    outs, adv_ema, td_ema = value_utils.value_outs(
        unique_rows.find(inputs.agent_out, "q"),
        unique_rows.find(target_out, "q"),
        inputs.agent_out["logits"],
        inputs.behaviour_agent_out["logits"],
        inputs.actions,
        inputs.rewards,
        inputs.is_terminal,
        meta_state.adv_ema,
        meta_state.td_ema,
        rule.value_discount,
        hyper.value_fn_td_lambda,
        rule.max_abs_value,
        rule.moving_average_decay,
        rule.moving_average_eps,
        averaging=averaging,
    )
    extra = {
        "v_scalar": outs.value,
        "adv": outs.adv,
        "normalized_adv": outs.normalized_adv,
        "q": outs.target_q_value,
        "qv_adv": outs.qv_adv,
        "normalized_qv_adv": outs.normalized_qv_adv,
        "target_out": target_out,
    }
    seen = replace(inputs, extra_from_rule=extra)
    net_out, rnn_state = meta_nets.meta_net(meta_params, seen, meta_state.rnn_state, meta_config.inputs, averaging)
    meta_out: MetaOut = {**net_out, **{name: getattr(outs, name) for name in _VALUE_FIELDS}, "target_out": target_out}
    target_params = optimizers.target_average(meta_state.target_params, params, hyper.target_params_coeff)
    return meta_out, MetaState(rnn_state, adv_ema, td_ema, target_params)


def agent_loss(
    inputs: RuleInputs, meta_out: Mapping[str, Any], hyper: HyperParams, backprop: bool
) -> tuple[Tensor, Logs]:
    """Distance of the agent's predictions from the meta-network's targets.

    Args:
        inputs: the rollout.
        meta_out: targets pi [T, B, A], y [T, B, P] and z [T, B, P].
        hyper: weights of the four terms.
        backprop: whether gradients flow into the targets, as meta-training needs.

    Returns:
        Loss per step [T, B], and logs, scalars.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.agent_loss
    """
    base.check_inputs(inputs, tuple(head for head in ALL_HEADS if head != "q"), "Disco")
    pi_hat, y_hat, z_hat = (meta_out[name] if backprop else meta_out[name].detach() for name in ("pi", "y", "z"))
    logits, y, z_a, aux_a = _learned(inputs)
    for name, got, want in (("pi", pi_hat, logits), ("y", y_hat, y), ("z", z_hat, z_a)):
        if got.shape != want.shape:
            raise ValueError(f"The target {name} is {tuple(got.shape)}; the agent predicts {tuple(want.shape)}.")

    # Log-probabilities, once for the losses and the logged entropies.
    log_pi, log_aux, log_pi_hat = (x.log_softmax(-1) for x in (logits, aux_a, pi_hat))
    log_next = inputs.agent_out["logits"][1:].log_softmax(-1)

    # Two policies are few numbers and often nearly equal, which leaves little of a float32 difference.
    pi_loss = ops.categorical_kl(ops.widened(pi_hat), ops.widened(logits)).to(log_pi.dtype)  # [T, B]
    y_loss, y_entropy = _kl_and_entropy(y_hat, y, backprop)
    z_loss, z_entropy = _kl_and_entropy(z_hat, z_a, backprop)
    continues = 1.0 - inputs.is_terminal.to(log_pi.dtype)
    aux_loss = ops.kl_from_log_probs(log_next.detach(), log_aux) * continues
    total = hyper.pi_cost * pi_loss + hyper.y_cost * y_loss + hyper.z_cost * z_loss + hyper.aux_policy_cost * aux_loss
    T, z = len(total), unique_rows.find(inputs.agent_out, "z")
    with torch.set_grad_enabled(torch.is_grad_enabled() and backprop):
        by_log = {
            "entropy": log_pi,
            "pi_hat_entropy": log_pi_hat,
            "aux_policy_entropy": log_aux,
            "aux_target_entropy": log_next,
        }
        means = {"logits": logits, "pi_loss": pi_loss, "aux_kl_loss": aux_loss, "pi_hat": pi_hat}
        means |= {"y_hat": y_hat, "z_hat": z_hat, "y_entropy": y_entropy, "z_entropy": z_entropy}
        means |= {name: ops.entropy_from_log_probs(x) for name, x in by_log.items()}
        logs = {name: ops.mean(x) for name, x in means.items()}
        return total, {**logs, "y": _mean_of_first_steps(y, T), "z": _mean_of_first_steps(z, T)}


def _learned(inputs: RuleInputs) -> tuple[Tensor, Tensor | Shared, Tensor | Shared, Tensor]:
    """What the loss learns on: the policy's logits [T, B, A] and y [T, B, P]; z and aux_pi for the actions taken."""
    own = inputs.learned
    if own is not None:
        return own["logits"], unique_rows.find(own, "y"), unique_rows.find(own, "z"), own["aux_pi"]
    # Looked up before the last step is dropped: else the backward pass pads the outputs of all actions with zeros.
    z_a = ops.batch_lookup(inputs.agent_out["z"], inputs.actions)[:-1]
    aux_a = ops.batch_lookup(inputs.agent_out["aux_pi"], inputs.actions)[:-1]
    return inputs.agent_out["logits"][:-1], inputs.agent_out["y"][:-1], z_a, aux_a


def _kl_and_entropy(target: Tensor, predicted: Tensor | Shared, backprop: bool) -> tuple[Tensor, Tensor]:
    """KL(target || predicted) and the entropy of the prediction, [T, B] each."""
    if isinstance(predicted, Shared) and not backprop:
        return fused_kl.kl_and_entropy(target, predicted)
    return ops.kl_and_entropy(target, unique_rows.spread(predicted))


def _mean_of_first_steps(x: Tensor | Shared, steps: int) -> Tensor:
    """Mean over the first T steps of [T or T+1, B, ...]; what states share is averaged once, in double."""
    if isinstance(x, Tensor):
        return ops.mean(x[:steps])
    by_state = x.map(lambda rows: ops.widened(rows.sum(-1)).reshape(*rows.shape[:2], -1).sum(-1)).spread()
    return (by_state[:steps].mean() / x.rows[0, 0].numel()).to(x.rows.dtype)


def agent_loss_no_meta(
    inputs: RuleInputs, meta_out: Mapping[str, Any], hyper: HyperParams, rule: DiscoConfig
) -> tuple[Tensor, Logs]:
    """The value loss, which lets no gradient into the meta-network.

    Args:
        inputs: the rollout.
        meta_out: q_td [T, B], and what the logs report: q_target, q_value, normalized_q_td.
        hyper: the weight of the loss.
        rule: value estimation.

    Returns:
        Loss per step [T, B], and logs, scalars.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.agent_loss_no_meta
    """
    own = inputs.learned
    q_a: Tensor | Shared  # [T, B, K]
    q_a = ops.batch_lookup(inputs.agent_out["q"], inputs.actions)[:-1] if own is None else unique_rows.find(own, "q")
    td = meta_out["q_td"].detach()
    loss = value_utils.value_loss_from_td(q_a, td, rule.max_abs_value, categorical=True, nonlinear=True)
    logs = {
        "q_target": ops.mean(meta_out["q_target"]),
        "agent_q_mean": ops.mean(meta_out["q_value"]),
        "q_loss": ops.mean(loss),
        "td": ops.mean(meta_out["q_td"]),
        "normalized_td": ops.mean(meta_out["normalized_q_td"]),
    }
    return loss * hyper.value_cost, logs


@dataclass(frozen=True)
class Disco:
    """The rule with its configuration, as an agent holds it (`port.update_rules.base.UpdateRule`).

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule
    """

    hyper: HyperParams
    rule: DiscoConfig
    meta_net: MetaNetConfig
    unroll_policy: UnrollFn = agent_net.unroll  # the agent's network, which the target network is too
    averaging: Averaging | None = None

    def heads(self, num_actions: int) -> Heads:
        """Policy and y per state; z, the policy one step ahead and action values per action.

        Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.model_output_spec
        """
        P, K = self.meta_net.prediction_size, self.rule.num_bins
        return Heads({"logits": num_actions, "y": P}, {"z": P, "aux_pi": num_actions, "q": K})

    def init_meta_state(self, params: Params) -> MetaState:
        """As `init_meta_state` above."""
        return init_meta_state(self.meta_net, params)

    def check_meta_params(self, meta_params: Params | None) -> None:
        """Raises ValueError where these are not the parameters of this meta-network."""
        if meta_params is None:
            raise ValueError("Disco learns by a meta-network; pass its parameters, from load_npz or init_meta_params.")
        param_names.check_shapes(meta_params, self._meta_shapes, "meta-parameters")

    def check_meta_state(self, meta_state: MetaState, params: Params) -> None:
        """Raises ValueError or TypeError where this is not what Disco remembers of an agent with such parameters."""
        base.check_memory(meta_state, self.init_meta_state(params), "Disco")

    @cached_property
    def _meta_shapes(self) -> param_names.Shapes:
        return param_names.meta_shapes(self.meta_net)

    def unroll_meta_net(
        self, meta_params: Params, params: Params, meta_state: MetaState, inputs: RuleInputs
    ) -> tuple[MetaOut, MetaState]:
        """As `unroll_meta_net` above."""
        settings = (self.hyper, self.rule, self.meta_net, self.unroll_policy, self.averaging)
        return unroll_meta_net(meta_params, params, meta_state, inputs, *settings)

    def agent_loss(self, inputs: RuleInputs, meta_out: Mapping[str, Any], backprop: bool) -> tuple[Tensor, Logs]:
        """As `agent_loss` above."""
        return agent_loss(inputs, meta_out, self.hyper, backprop)

    def agent_loss_no_meta(self, inputs: RuleInputs, meta_out: Mapping[str, Any]) -> tuple[Tensor, Logs]:
        """As `agent_loss_no_meta` above."""
        return agent_loss_no_meta(inputs, meta_out, self.hyper, self.rule)
