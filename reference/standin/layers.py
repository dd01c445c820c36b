"""The stand-in's functions under the names, inputs and outputs of the registry of layers."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import rlax

from reference.flat_dict import Array, Settings, Tensors, below, flat_state, only, read_state, under
from reference.standin import elementary, environments, learning, metanet, networks, rule, values


def normalize(x: Tensors, s: Settings) -> Tensors:
    """The transform with a state."""
    m1, m2 = (elementary.Debiased(x[f"state/{m}/hidden"], x[f"state/{m}/counter"]) for m in ("m1", "m2"))
    out, m1, m2 = elementary.normalize_by_history(x["x"], m1, m2, s.get("axis_name"))
    return {"out": out, **below("state/m1", m1._asdict()), **below("state/m2", m2._asdict())}


def transform(fn: Callable[[Array], Array]) -> Callable[[Tensors, Settings], Tensors]:
    """A transform of one array, as a layer."""
    return lambda x, s: {"out": fn(x["x"])}


def update_moments(x: Tensors, s: Settings) -> Tensors:
    """One update of a moving average."""
    state = elementary.Moments(**under("state", x))
    return below("state", flat_state(elementary.update_moments(x["values"], state, s["decay"], s.get("axis_name"))))


def normalize_by_moments(x: Tensors, s: Settings) -> Tensors:
    """Normalisation by a moving average as it is."""
    state = elementary.Moments(**under("state", x))
    return {"out": elementary.normalize_by_moments(x["values"], state, s["eps"], s["subtract_mean"])}


ELEMENTARY = {
    **{f"transforms/{name}": transform(fn) for name, fn in elementary.TRANSFORMS.items()},
    "transforms/select_a": lambda x, s: {"out": elementary.lookup(x["x"], x["actions"])},
    "transforms/pi_weighted_avg": lambda x, s: {"out": elementary.policy_average(x["x"], x["policy"])},
    "transforms/normalize": normalize,
    "ops/lookup": lambda x, s: {"out": elementary.lookup(x["table"], x["index"])},
    "ops/signed_hyperbolic": lambda x, s: {"out": rlax.signed_hyperbolic(x["x"])},
    "ops/signed_parabolic": lambda x, s: {"out": rlax.signed_parabolic(x["x"])},
    "ops/two_hot": lambda x, s: {"probs": elementary.two_hot(x["value"], s["K"], s["max_abs_value"])},
    "ops/from_two_hot": lambda x, s: {"value": elementary.mean_of_bins(x["probs"], s["max_abs_value"])},
    "ops/kl": lambda x, s: {"out": elementary.kl(x["p_logits"], x["q_logits"])},
    "ops/entropy": lambda x, s: {"out": elementary.entropy(x["p_logits"])},
    "ops/importance_weight": lambda x, s: {"rho": elementary.importance_weight(**x)},
    "moving_average/update": update_moments,
    "moving_average/normalize": normalize_by_moments,
}


def lstm_step(x: Tensors, s: Settings) -> Tensors:
    """One LSTM step."""
    hidden, cell = networks.lstm_step(**x)
    return {"hidden": hidden, "cell": cell}


NETWORKS = {
    "nets/mlp": lambda x, s: {"out": networks.mlp(under("params", x), "mlp", x["x"])},
    "nets/conv_block": lambda x, s: {"out": networks.conv_block(**x)},
    "nets/lstm_step": lstm_step,
    "nets/unroll": lambda x, s: {"hidden": networks.unroll_backwards(**x)},
    "nets/action_model": lambda x, s: networks.action_model(under("params", x), x["torso"]),
    "nets/agent": lambda x, s: networks.agent_network(under("params", x), x["observations"]),
    "nets/agent_init": lambda x, s: below("params", networks.initial_agent(under("noise", x), s["head_w_init_std"])),
}


def form(s: Settings) -> values.ValueForm:
    """What a network's output stands for; of bins and squashed, where a layer has no such setting."""
    return values.ValueForm(s["max_abs_value"], s.get("categorical", True), s.get("nonlinear", True))


def q_and_v(x: Tensors, s: Settings) -> Tensors:
    """Action values and state values."""
    q, v = values.q_and_v(x["q_logits"], x["pi_logits"], form(s))
    return {"q": q, "v": v}


def steps(x: Tensors) -> values.Steps:
    """The transitions from their named parts."""
    return values.Steps(*(x[name] for name in values.Steps._fields))


def retrace(x: Tensors, s: Settings) -> jax.Array:
    """Retrace targets from the target network's values."""
    return values.retrace(steps(x), x["target_values"], x["target_q_values"], s["discount"], s["lambda"])


def estimate_q(x: Tensors, s: Settings) -> Tensors:
    """Targets, advantages and TD errors."""
    online, target = (x["q_values"], x["values"]), (x["target_q_values"], x["target_values"])
    return values.estimates(steps(x), online, target, retrace(x, s))


def value_outs(x: Tensors, s: Settings) -> Tensors:
    """All value outputs and both moving averages."""
    numbers = values.ValueSettings(form(s), s["discount"], s["lambda"], s["decay"], s["eps"])
    outs, averages = values.value_outs(x, read_state(values.Averages, x), numbers)
    return outs | flat_state(averages)


VALUES = {
    "values/from_logits": lambda x, s: {"value": values.scalar_value(x["net_out"], form(s))},
    "values/q_and_v": q_and_v,
    "values/retrace": lambda x, s: {"q_target": retrace(x, s)},
    "values/estimate_q": estimate_q,
    "values/outs": value_outs,
    "values/loss_from_target": lambda x, s: {"loss": values.value_loss(x["net_out"], x["target"], form(s))},
    "values/loss_from_td": lambda x, s: {"loss": values.value_loss_from_td(x["net_out"], x["td"], form(s))},
}


def meta_inputs(x: Tensors, s: Settings) -> Tensors:
    """The meta-network's input vectors."""
    vectors, actions = metanet.inputs(under("meta_params", x), x, metanet.TRAJECTORY_NETS)
    return {"x": vectors, "policy_emb": actions}


def lifetime_rnn(x: Tensors, s: Settings) -> Tensors:
    """The meta-RNN's step on given targets."""
    before = metanet.RnnState(**under("rnn", x))
    return below("rnn", flat_state(metanet.lifetime_rnn(under("meta_params", x), x, under("meta_out", x), before)))


def meta_network(x: Tensors, s: Settings) -> Tensors:
    """The whole meta-network."""
    targets, state = metanet.meta_network(under("meta_params", x), x, metanet.RnnState(**under("rnn", x)))
    return targets | below("rnn", flat_state(state))


META = {
    "meta/inputs": meta_inputs,
    "meta/trajectory_rnn": lambda x, s: {
        "x": metanet.trajectory_rnn(under("meta_params", x), x["x"], x["is_terminal"])
    },
    "meta/gate": lambda x, s: {"x": metanet.gate(under("meta_params", x), x["x"], x["rnn/hidden"])},
    "meta/heads": lambda x, s: metanet.heads(under("meta_params", x), x["x"], x["policy_emb"]),
    "meta/rnn": lifetime_rnn,
    "meta/whole": meta_network,
    "meta/init": lambda x, s: below("params", metanet.initial_meta_params(under("noise", x), s)),
}


def adam(x: Tensors, s: Settings) -> Tensors:
    """Adam's direction."""
    before = read_state(learning.AdamState, under("opt", x))
    updates, state = learning.adam(under("grads", x), before, s["b1"], s["b2"], s["eps"])
    return below("updates", updates) | below("opt", flat_state(state))


def update(x: Tensors, s: Settings) -> Tensors:
    """The agent's optimiser, applied to parameters."""
    before = read_state(learning.AdamState, under("opt", x))
    updates, state = learning.update(under("grads", x), before, s["learning_rate"], s["max_abs_update"])
    params = learning.add(under("params", x), updates)
    return below("params", params) | below("updates", updates) | below("opt", flat_state(state))


def unroll_meta_net(x: Tensors, s: Settings) -> Tensors:
    """The rule's targets and next state."""
    before = read_state(rule.MetaState, under("meta_state", x))
    out, state = rule.disco_targets(x, under("meta_params", x), under("params", x), before, s)
    return below("meta_out", out) | below("meta_state", flat_state(state))


def prediction_loss(x: Tensors, s: Settings) -> Tensors:
    """The part of the loss that meta-gradients pass through."""
    targets = under("meta_out", x)
    if not s["backprop"]:
        targets = jax.lax.stop_gradient(targets)
    loss, logs = rule.prediction_loss(under("agent_out", x), x["actions"], x["is_terminal"], targets, s)
    return {"loss": loss, **below("log", logs)}


def action_value_loss(x: Tensors, s: Settings) -> Tensors:
    """The part of the loss that they do not pass through."""
    loss, logs = rule.action_value_loss(x["agent_out/q"], x["actions"], under("meta_out", x), s)
    return {"loss": loss, **below("log", logs)}


def actor_step(x: Tensors, s: Settings) -> Tensors:
    """The actor's step on given noise."""
    actions, out = learning.act(under("params", x), x["observation"], x["gumbel"])
    return {"actions": actions, "discounts": jnp.logical_not(x["is_last"]), **out}


def agent_loss(x: Tensors, s: Settings) -> Tensors:
    """The agent's loss and its gradient."""
    gradient = jax.grad(learning.agent_loss, has_aux=True)
    grads, logs = gradient(under("params", x), under("rollout", x), under("meta_out", x), s)
    total = logs.pop("total_loss")
    return {"total_loss": total, **below("log", logs), **below("grads", grads)}


def learner_step(x: Tensors, s: Settings) -> Tensors:
    """One learner step."""
    before = read_state(learning.LearnerState, x)
    after, logs = learning.learner_step(before, under("rollout", x), under("meta_params", x), s)
    return flat_state(after) | below("log", logs)


def learner_steps(x: Tensors, s: Settings) -> Tensors:
    """Learner steps one after the other, each on its own rollout."""
    rollouts, constants = only("rollout", x), only("meta_params", x)
    start = {name: value for name, value in x.items() if name not in rollouts | constants}

    def step(state: Tensors, rollout: Tensors) -> tuple[Tensors, Tensors]:
        out = learner_step(state | rollout | constants, s)
        return {name: out[name] for name in state}, only("log", out)

    end, logs = jax.lax.scan(step, start, rollouts)
    return end | logs


LEARNING = {
    "optim/adam": adam,
    "optim/update": update,
    "optim/target_average": lambda x, s: below(
        "target", rule.target_average(under("target", x), under("online", x), s["target_params_coeff"])
    ),
    "disco/unroll_meta_net": unroll_meta_net,
    "disco/agent_loss": prediction_loss,
    "disco/agent_loss_no_meta": action_value_loss,
    "agent/actor_step": actor_step,
    "agent/loss": agent_loss,
    "agent/learner_step": learner_step,
    "agent/learner_steps": learner_steps,
}

LAYERS = {**ELEMENTARY, **NETWORKS, **VALUES, **META, **LEARNING, **environments.LAYERS}
