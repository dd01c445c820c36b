"""The meta-network: from what an agent did and predicted to what it should have predicted.

An *experience* is a flat dict: `agent_out/...`, `target_out/...` with logits [T+1, B, A], y [T+1, B, P] and
z [T+1, B, A, P]; `behaviour_out/logits` [T+1, B, A]; `actions` [T+1, B]; `rewards`, `is_terminal`, `adv`,
`normalized_adv` [T, B]; `v_scalar` [T+1, B]; `q`, `qv_adv`, `normalized_qv_adv` [T+1, B, A].

Meta-gradients reach the experience through rewards, y and z only; policies, values and advantages are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax

from reference.flat_dict import Array, Settings, Tensors
from reference.standin.elementary import lookup, over_devices, policy_average, td_pair
from reference.standin.networks import conv_net, initial_params, linear, lstm_step, mlp, unroll_backwards

TRAJECTORY_NETS = {"y": "lstm/mlp", "z": "lstm/mlp_1", "policy": "lstm/sequential"}
LIFETIME = "lstm/~/meta_lstm/~unroll"
LIFETIME_NETS = {"y": f"{LIFETIME}/mlp", "z": f"{LIFETIME}/mlp_1", "policy": f"{LIFETIME}/sequential"}
GATE, EMBEDDING_HEAD, Y_HEAD, Z_HEAD, PI_HEAD = ("lstm/linear", *(f"lstm/linear_{i}" for i in (1, 2, 3, 4)))
NETS_OF_THE_AGENT = ("agent_out", "target_out")


class RnnState(NamedTuple):
    """The state of the meta-RNN, which runs over the agent's lifetime.

    Attributes:
        hidden: [M].
        cell: [M].
    """

    hidden: Array
    cell: Array


def policies(e: Tensors) -> list[Array]:
    """Online, behaviour and target policy, [T, B, A] each, as constants."""
    sources = ("agent_out", "behaviour_out", "target_out")
    return [jax.lax.stop_gradient(jax.nn.softmax(e[f"{source}/logits"][:-1])) for source in sources]


def embedded(params: Tensors, net: str) -> Callable[[Array], Array]:
    """A prediction [..., P] as probabilities, through a small network: [..., E]."""
    return lambda logits: mlp(params, net, jax.nn.softmax(logits))


def scalar_features(e: Tensors) -> list[Array]:
    """The 9 features that are numbers: seven of [T, B, 1], and the values at t and t+1, [T, B, 2].

    Reference: disco_rl/update_rules/disco.py::get_input_option
    """
    taken = e["actions"][:-1]
    online, behaviour, target = (lookup(policy, taken)[..., None] for policy in policies(e))
    value, adv = (rlax.signed_logp1(e[name])[..., None] for name in ("v_scalar", "adv"))
    constants = jax.lax.stop_gradient([td_pair(value), adv, e["normalized_adv"][..., None]])
    reward = rlax.signed_logp1(e["rewards"])[..., None]
    continues = (1.0 - e["is_terminal"])[..., None]
    return [online, behaviour, reward, continues, *constants, target]


def y_features(e: Tensors, embed: Callable[[Array], Array]) -> list[Array]:
    """Both networks' y at t and t+1, [T, B, 2E] each.

    Reference: disco_rl/update_rules/disco.py::get_input_option
    """
    return [td_pair(embed(e[f"{net}/y"])) for net in NETS_OF_THE_AGENT]


def z_features(e: Tensors, embed: Callable[[Array], Array]) -> list[Array]:
    """Both networks' z: of the action taken [T, B, E]; policy's average and maximum at t and t+1, [T, B, 2E] each.

    Reference: disco_rl/update_rules/disco.py::get_input_option
    """
    policy = jax.lax.stop_gradient(jax.nn.softmax(e["agent_out/logits"]))  # [T+1, B, A], the online one for both
    features = []
    for net in NETS_OF_THE_AGENT:
        z = embed(e[f"{net}/z"])  # [T+1, B, A, E]
        features.append(lookup(z[:-1], e["actions"][:-1]))
        features += [td_pair(policy_average(z, policy)), td_pair(jnp.max(z, axis=2))]
    return features


def action_features(e: Tensors, embed: Callable[[Array], Array]) -> Array:
    """What is known of each action: policies, both z, action values and advantages, whether it was taken.

    Returns:
        [T, B, A, C] with C = 3 + 2E + 3 + 1.

    Reference: disco_rl/update_rules/disco.py::get_input_option
    """
    taken = jax.nn.one_hot(e["actions"][:-1], e["q"].shape[2], dtype=e["q"].dtype)
    values = [rlax.signed_logp1(e["q"]), rlax.signed_logp1(e["qv_adv"]), e["normalized_qv_adv"]]
    constants = [jax.lax.stop_gradient(value[:-1]) for value in values]
    z = [embed(e[f"{net}/z"][:-1]) for net in NETS_OF_THE_AGENT]
    before, after = ([x[..., None] for x in group] for group in (policies(e), [*constants, taken]))
    return jnp.concatenate([*before, *z, *after], axis=-1)


def inputs(params: Tensors, e: Tensors, nets: dict[str, str]) -> tuple[Array, Array]:
    """The experience as one vector for each transition [T, B, E], and the embedding of each action [T, B, A, C].

    The vector holds the mean of the actions' embeddings, and that of the action taken. `nets` names the networks that
    embed `y`, `z` and the action-conditional inputs (`policy`).

    Reference: disco_rl/networks/meta_nets.py::_construct_input
    """
    embed_y, embed_z = embedded(params, nets["y"]), embedded(params, nets["z"])
    actions = conv_net(params, nets["policy"], action_features(e, embed_z))
    pooled = [jnp.mean(actions, axis=2), lookup(actions, e["actions"][:-1])]
    features = [*scalar_features(e), *y_features(e, embed_y), *z_features(e, embed_z), *pooled]
    return jnp.concatenate(features, axis=-1), actions


def trajectory_rnn(params: Tensors, x: Array, is_terminal: Array) -> Array:
    """[T, B, E], [T, B] -> [T, B, H]: what is to come, as seen from each transition."""
    return unroll_backwards(x, is_terminal, params["lstm/lstm/linear/w"], params["lstm/lstm/linear/b"])


def gate(params: Tensors, x: Array, hidden: Array) -> Array:
    """[T, B, H], [M] -> [T, B, H]: the agent's past speaks by multiplying.

    Reference: disco_rl/networks/meta_nets.py::_multiplicative_interaction
    """
    return x * linear(params, GATE, hidden)


def heads(params: Tensors, x: Array, actions: Array) -> Tensors:
    """From `x` [T, B, H] and each action's embedding [T, B, A, C] to the targets.

    Returns:
        Logits `pi` [T, B, A], `y` and `z` (of the action taken) [T, B, P]; `meta_input_emb` [T, B, 1] for the meta-RNN.
    """
    lead, H = actions.shape[:-1], x.shape[-1]
    beside = jnp.concatenate([jnp.broadcast_to(x[:, :, None], (*lead, H)), actions], axis=-1)  # [T, B, A, H+C]
    return {
        "pi": linear(params, PI_HEAD, conv_net(params, "lstm/sequential_1", beside))[..., 0],
        "y": linear(params, Y_HEAD, x),
        "z": linear(params, Z_HEAD, x),
        "meta_input_emb": linear(params, EMBEDDING_HEAD, x),
    }


def lifetime_rnn(params: Tensors, e: Tensors, targets: Tensors, state: RnnState, axis: str | None = None) -> RnnState:
    """One step of the meta-RNN on the experience and the targets, averaged over all transitions, of all devices.

    Reference: disco_rl/networks/meta_nets.py::MetaLSTM.unroll
    """
    y = embedded(params, LIFETIME_NETS["y"])(targets["y"])
    x, _ = inputs(params, e, LIFETIME_NETS)
    x = mlp(params, f"{LIFETIME}/mlp_2", jnp.concatenate([x, targets["meta_input_emb"], y], axis=-1))
    core = f"{LIFETIME}/lstm/linear"
    seen = over_devices(jnp.mean(x, axis=(0, 1)), axis)
    return RnnState(*lstm_step(seen, *state, params[f"{core}/w"], params[f"{core}/b"]))


def meta_network(params: Tensors, e: Tensors, state: RnnState, axis: str | None = None) -> tuple[Tensors, RnnState]:
    """Experience in; targets and the next state of the meta-RNN out. The gate sees the state before this batch.

    Reference: disco_rl/networks/meta_nets.py::LSTM
    """
    x, actions = inputs(params, e, TRAJECTORY_NETS)
    x = gate(params, trajectory_rnn(params, x, e["is_terminal"]), state.hidden)
    targets = heads(params, x, actions)
    return targets, lifetime_rnn(params, e, targets, state, axis)


def initial_meta_params(noise: Tensors, s: Settings) -> Tensors:
    """Initial meta-parameters from noise; gate and heads have deviations of their own, named in the settings."""
    deviations = {
        GATE: s["state_stddev"],
        EMBEDDING_HEAD: s["output_stddev"],
        Y_HEAD: s["aux_stddev"],
        Z_HEAD: s["aux_stddev"],
        PI_HEAD: s["policy_target_stddev"],
    }
    return initial_params(noise, deviations)
