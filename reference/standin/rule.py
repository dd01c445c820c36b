"""The Disco rule: what an agent should predict, and the loss that makes it.

Settings `s` are numbers by name: `max_abs_value`, `value_discount`, `value_fn_td_lambda`, `moving_average_decay` and
`moving_average_eps`, `target_params_coeff`; the costs `pi_cost`, `y_cost`, `z_cost`, `aux_policy_cost`, `value_cost`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from reference.flat_dict import Array, Settings, Tensors, below
from reference.standin.elementary import Moments, entropy, kl, lookup
from reference.standin.metanet import RnnState, meta_network
from reference.standin.networks import agent_network
from reference.standin.values import Averages, ValueForm, ValueSettings, value_loss_from_td, value_outs

KEPT_VALUES = (
    *("q_target", "q_value", "q_td", "normalized_q_td"),
    *("adv", "normalized_adv", "qv_adv", "normalized_qv_adv"),
)


def target_average(target: Tensors, online: Tensors, coeff: float) -> Tensors:
    """The target parameters, moved toward the online ones."""
    return {name: coeff * target[name] + (1.0 - coeff) * online[name] for name in target}


class MetaState(NamedTuple):
    """What the rule carries from step to step."""

    rnn: RnnState
    adv_ema: Moments
    td_ema: Moments
    target_params: Tensors


def value_settings(s: Settings) -> ValueSettings:
    """The numbers of the value path among the rule's settings."""
    return ValueSettings(
        ValueForm(s["max_abs_value"]),
        discount=s["value_discount"],
        lambda_=s["value_fn_td_lambda"],
        decay=s["moving_average_decay"],
        eps=s["moving_average_eps"],
        axis=s.get("axis_name"),
    )


def disco_targets(
    e: Tensors, meta_params: Tensors, params: Tensors, state: MetaState, s: Settings
) -> tuple[Tensors, MetaState]:
    """The rule: what the agent should predict, and the next state of the rule.

    Args:
        e: `agent_out/...` all five heads over T+1 steps, `behaviour_out/logits` [T+1, B, A], `observations`
            [T+1, B, ...], `actions` [T+1, B], `rewards` and `is_terminal` [T, B].
        meta_params: of the meta-network.
        params: of the agent's network; toward them the target network moves.
        state: the rule's.
        s: settings.

    Returns:
        The meta-network's targets with the value outputs and target network's outputs beside them; the next state.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.unroll_meta_net
    """
    target_out = agent_network(state.target_params, e["observations"])
    q_logits = {"q_logits": e["agent_out/q"], "target_q_logits": target_out["q"]}
    policy_logits = {"pi_logits": e["agent_out/logits"], "mu_logits": e["behaviour_out/logits"]}
    averages = Averages(state.adv_ema, state.td_ema)
    values, averages = value_outs({**e, **q_logits, **policy_logits}, averages, value_settings(s))
    seen = {**e, **below("target_out", target_out), "v_scalar": values["value"], "q": values["target_q_value"]}
    seen |= {name: values[name] for name in ("adv", "normalized_adv", "qv_adv", "normalized_qv_adv")}
    targets, rnn = meta_network(meta_params, seen, state.rnn, s.get("axis_name"))
    kept = {name: values[name] for name in KEPT_VALUES}
    new = MetaState(rnn, *averages, target_average(state.target_params, params, s["target_params_coeff"]))
    return {**targets, **kept, **below("target_out", target_out)}, new


def prediction_loss(
    agent_out: Tensors, actions: Array, is_terminal: Array, targets: Tensors, s: Settings
) -> tuple[Array, Tensors]:
    """The part of the loss that meta-gradients pass through.

    Args:
        agent_out: `logits` [T+1, B, A], `y` [T+1, B, P], `z` [T+1, B, A, P], `aux_pi` [T+1, B, A, A].
        actions: [T+1, B].
        is_terminal: [T, B].
        targets: logits `pi` [T, B, A], `y` and `z` [T, B, P].
        s: settings.

    Returns:
        [T, B], divergences from the targets, and of the policy predicted one step ahead from the policy that came
        (a constant; where the episode goes on); and logs.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.agent_loss
    """
    now = {name: value[:-1] for name, value in agent_out.items()}
    z_taken, next_taken = (lookup(now[name], actions[:-1]) for name in ("z", "aux_pi"))
    next_policy = jax.lax.stop_gradient(agent_out["logits"][1:])
    pi_loss = kl(targets["pi"], now["logits"])
    aux_loss = kl(next_policy, next_taken) * (1.0 - is_terminal)
    loss = (
        s["pi_cost"] * pi_loss
        + s["y_cost"] * kl(targets["y"], now["y"])
        + s["z_cost"] * kl(targets["z"], z_taken)
        + s["aux_policy_cost"] * aux_loss
    )
    logs = {
        **{name: now[name] for name in ("logits", "y", "z")},
        **{f"{name}_hat": targets[name] for name in ("pi", "y", "z")},
        **{"pi_loss": pi_loss, "aux_kl_loss": aux_loss},
        **{"entropy": entropy(now["logits"]), "y_entropy": entropy(now["y"]), "z_entropy": entropy(z_taken)},
        "pi_hat_entropy": entropy(targets["pi"]),
        "aux_policy_entropy": entropy(next_taken),
        "aux_target_entropy": entropy(next_policy),
    }
    return loss, means(logs)


def action_value_loss(q_logits: Array, actions: Array, meta_out: Tensors, s: Settings) -> tuple[Array, Tensors]:
    """The part of the loss per step [T, B] that meta-gradients do not pass through, and logs.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.agent_loss_no_meta
    """
    taken = lookup(q_logits[:-1], actions[:-1])
    loss = value_loss_from_td(taken, jax.lax.stop_gradient(meta_out["q_td"]), ValueForm(s["max_abs_value"]))
    logs = {
        "q_target": meta_out["q_target"],
        "agent_q_mean": meta_out["q_value"],
        "q_loss": loss,
        "td": meta_out["q_td"],
        "normalized_td": meta_out["normalized_q_td"],
    }
    return s["value_cost"] * loss, means(logs)


def means(logs: Tensors) -> Tensors:
    """Every log as a number."""
    return {name: jnp.mean(value) for name, value in logs.items()}
