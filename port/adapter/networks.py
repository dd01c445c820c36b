"""The agent's network and the meta-network, whole and in parts, as layers."""

from __future__ import annotations

import torch

from port.adapter.inputs import (
    LAYERS,
    Settings,
    Tensors,
    agent,
    agent_params,
    below,
    experience,
    layer,
    meta_config,
    meta_params,
    net_config,
    rnn_state,
    to_original,
    to_ours,
    under,
)
from port.network import shapes_of_agent
from port.networks import agent_net, init, meta_nets, nets, param_names
from port.types import LstmState


@layer("nets/mlp")
def _mlp(x: Tensors, s: Settings) -> Tensors:
    params = {name.replace("/~/linear_", "/"): value for name, value in under("params", x).items()}
    return {"out": nets.mlp(params, "mlp", x["x"])}


@layer("nets/lstm_step")
def _lstm_step(x: Tensors, s: Settings) -> Tensors:
    params = {"lstm/w": x["w"], "lstm/b": x["b"]}
    state = nets.lstm_step(params, "lstm", x["x"], LstmState(x["hidden"], x["cell"]))
    return {"hidden": state.hidden, "cell": state.cell}


LAYERS |= {
    "nets/conv_block": lambda x, s: {"out": nets.conv_block({"conv/w": x["w"], "conv/b": x["b"]}, "conv", x["x"])},
    "nets/unroll": lambda x, s: {
        "hidden": nets.lstm_unroll(
            {"lstm/w": x["w"], "lstm/b": x["b"]}, "lstm", x["xs"], x["is_terminal"], reverse=True
        )
    },
    "nets/agent": lambda x, s: dict(agent_net.unroll(agent_params(x, s), x["observations"])),
}


@layer("nets/action_model")
def _action_model(x: Tensors, s: Settings) -> Tensors:
    params = agent_params(x, s)
    return agent_net.action_model(params, agent_net.root_state(params, x["torso"]))


@layer("nets/agent_init")
def _agent_init(x: Tensors, s: Settings) -> Tensors:
    config, table = agent(s).config, param_names.agent_names(net_config(s))
    shapes = shapes_of_agent(config, tuple(s["obs"]), s["A"])
    made = init.params_from_noise(to_ours("noise", x, table), shapes, init.agent_stds(config, shapes))
    return to_original("params", made, table)


@layer("meta/init")
def _meta_init(x: Tensors, s: Settings) -> Tensors:
    config = meta_config(s)
    shapes, table = param_names.meta_shapes(config), param_names.meta_names(config)
    made = init.params_from_noise(to_ours("noise", x, table), shapes, init.meta_stds(config, shapes))
    return to_original("params", made, table)


@layer("meta/inputs")
def _meta_inputs(x: Tensors, s: Settings) -> Tensors:
    features = meta_nets.Features(experience(x))
    vector, embedding = meta_nets.build_inputs(features, meta_config(s).inputs, meta_params(x, s))
    return {"x": vector, "policy_emb": embedding}


@layer("meta/gate")
def _gate(x: Tensors, s: Settings) -> Tensors:
    hidden = x["rnn/hidden"]
    return {"x": meta_nets.gate(meta_params(x, s), x["x"], LstmState(hidden, torch.zeros_like(hidden)))}


@layer("meta/rnn")
def _meta_rnn(x: Tensors, s: Settings) -> Tensors:
    features, option = meta_nets.Features(experience(x)), meta_config(s).inputs
    params = meta_params(x, s)
    xs = meta_nets.meta_rnn_inputs(features, option, params)
    state = meta_nets.meta_rnn(params, xs, under("meta_out", x), rnn_state("rnn", x))
    return below("rnn", state._asdict())


@layer("meta/whole")
def _meta_whole(x: Tensors, s: Settings) -> Tensors:
    outs, state = meta_nets.meta_net(meta_params(x, s), experience(x), rnn_state("rnn", x), meta_config(s).inputs)
    return {**outs, **below("rnn", state._asdict())}


LAYERS |= {
    "meta/trajectory_rnn": lambda x, s: {"x": meta_nets.trajectory_rnn(meta_params(x, s), x["x"], x["is_terminal"])},
    "meta/heads": lambda x, s: dict(meta_nets.heads(meta_params(x, s), x["x"], x["policy_emb"])),
}
