"""Networks as formulas over flat dicts of parameters in Haiku's names: blocks, the agent's network, initial values.

A name such as `mlp/linear` stands for a weight `mlp/linear/w` [in, out] and a bias `mlp/linear/b` [out].
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from reference.flat_dict import Array, Tensors

FLAT_HEADS = {"logits": "mlp/~_head_pass/torso_head", "y": "mlp/~_head_pass/torso_head_1"}
MODEL_HEADS = {"z": "mlp/mlp", "aux_pi": "mlp/mlp_1", "q": "mlp/mlp_2"}
CUT_OFF = 2.0  # initial weights stay within this many deviations


def linear(params: Tensors, name: str, x: Array) -> Array:
    """[..., in] -> [..., out]."""
    return x @ params[f"{name}/w"] + params[f"{name}/b"]


def mlp(params: Tensors, name: str, x: Array) -> Array:
    """[..., in] -> [..., out]: `name/~/linear_0`, `linear_1`, ... with ReLU between them, none after the last."""
    x = linear(params, f"{name}/~/linear_0", x)
    i = 1
    while f"{name}/~/linear_{i}/w" in params:
        x = linear(params, f"{name}/~/linear_{i}", jax.nn.relu(x))
        i += 1
    return x


def conv_block(x: Array, w: Array, b: Array) -> Array:
    """The same dense layer on every action, which also sees the mean over the actions; then a ReLU.

    `x` [T, B, A, C], `w` [1, 2C, E] and `b` [E] to [T, B, A, E].

    Reference: disco_rl/networks/meta_nets.py::_conv1d_block
    """
    mean = jnp.broadcast_to(jnp.mean(x, axis=2, keepdims=True), x.shape)
    return jax.nn.relu(jnp.concatenate([x, mean], axis=-1) @ w[0] + b)


def conv_net(params: Tensors, name: str, x: Array) -> Array:
    """[T, B, A, C] -> [T, B, A, E]: the blocks `name/conv1_d`, `name/conv1_d_1`, ...

    Reference: disco_rl/networks/meta_nets.py::_conv1d_net
    """
    block, i = f"{name}/conv1_d", 0
    while f"{block}/w" in params:
        x = conv_block(x, params[f"{block}/w"], params[f"{block}/b"])
        i += 1
        block = f"{name}/conv1_d_{i}"
    return x


def lstm_step(x: Array, hidden: Array, cell: Array, w: Array, b: Array) -> tuple[Array, Array]:
    """One step of an LSTM with a forget gate that is open at the start; `hidden` and `cell` [..., H].

    `w` [E+H, 4H] and `b` [4H] hold input, cell, forget and output gate in this order.
    """
    gates = jnp.concatenate([x, hidden], axis=-1) @ w + b
    i, g, f, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f + 1.0) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def unroll_backwards(xs: Array, is_terminal: Array, w: Array, b: Array) -> Array:
    """An LSTM from the last step to the first, which forgets what came later where an episode ends.

    `xs` [T, B, E] to hidden states [T, B, H]; `is_terminal` [T, B] says which transitions ended an episode.

    Reference: disco_rl/networks/meta_nets.py::LSTM
    """
    B, H = xs.shape[1], b.shape[0] // 4
    zeros = jnp.zeros((B, H), xs.dtype)

    def step(state: tuple[Array, Array], at_t: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        x, ends = at_t
        hidden, cell = (jnp.where(ends[:, None], zeros, part) for part in state)
        hidden, cell = lstm_step(x, hidden, cell, w, b)
        return (hidden, cell), hidden

    return jax.lax.scan(step, (zeros, zeros), (xs, is_terminal), reverse=True)[1]


def action_model(params: Tensors, torso_out: Array) -> Tensors:
    """`z` [..., A, P], `aux_pi` [..., A, A] and `q` [..., A, K]: one LSTM step per action, from the torso's output.

    Reference: disco_rl/networks/action_models.py::LSTMModel
    """
    w, b = params["mlp/action_cond/linear/w"], params["mlp/action_cond/linear/b"]
    lead, H = torso_out.shape[:-1], b.shape[0] // 4
    A = w.shape[0] - H
    root = linear(params, "mlp/linear", torso_out)  # [..., H]
    hidden, cell = (jnp.broadcast_to(part[..., None, :], (*lead, A, H)) for part in (jnp.tanh(root), root))
    actions = jnp.broadcast_to(jnp.eye(A, dtype=root.dtype), (*lead, A, A))
    after, _ = lstm_step(actions, hidden, cell, w, b)  # [..., A, H]
    return {head: mlp(params, name, after) for head, name in MODEL_HEADS.items()}


def agent_network(params: Tensors, observations: Array, num_lead: int = 2) -> Tensors:
    """The agent's network.

    Args:
        params: of the agent's network.
        observations: [..., *O]; only the first `num_lead` axes are kept, the others are one vector to the network.
        num_lead: 2 for steps and batch, 1 for a batch.

    Returns:
        `logits` [..., A] and `y` [..., P], and what `action_model` gives.

    Reference: disco_rl/networks/nets.py::MLP
    """
    vectors = observations.reshape(*observations.shape[:num_lead], -1)
    torso_out = mlp(params, "mlp/~_embedding_pass/torso", vectors)
    flat = {head: mlp(params, name, torso_out) for head, name in FLAT_HEADS.items()}
    return {**flat, **action_model(params, torso_out)}


def truncated_normal(uniform: Array) -> Array:
    """Standard normal within two deviations, by the inverse distribution function: [...] in [0, 1) -> [...]."""
    root2 = jnp.asarray(math.sqrt(2.0), uniform.dtype)
    bound = jnp.asarray(CUT_OFF, uniform.dtype)
    low, high = jax.lax.erf(-bound / root2), jax.lax.erf(bound / root2)
    normal = root2 * jax.lax.erf_inv(low + uniform * (high - low))
    inside = jnp.nextafter(bound, jnp.zeros_like(bound))
    return jnp.clip(normal, -inside, inside)


def initial_params(noise: Tensors, deviations: dict[str, float]) -> Tensors:
    """Parameters before learning: biases zero, weights normal with a variance of one over their number of inputs.

    Args:
        noise: numbers in [0, 1) of the shape of each weight, by name (`.../w`).
        deviations: of the weights in layers that are an exception, by the layer's name.

    Returns:
        Weights and biases, by name.
    """
    params = {}
    for name, uniform in noise.items():
        layer = name.removesuffix("/w")
        deviation = deviations.get(layer, 1.0 / math.sqrt(math.prod(uniform.shape[:-1])))
        params[name] = deviation * truncated_normal(uniform)
        params[f"{layer}/b"] = jnp.zeros(uniform.shape[-1:], uniform.dtype)
    return params


def initial_agent(noise: Tensors, head_deviation: float) -> Tensors:
    """Initial parameters of the agent's network; its flat heads have a deviation of their own."""
    return initial_params(noise, {f"{name}/~/linear_0": head_deviation for name in FLAT_HEADS.values()})
