"""The agent's network and the meta-network, whole and in parts, as layers."""

from __future__ import annotations

from typing import Any

import torch

from port.adapter.inputs import Settings, Tensors, agent, experience, layer, meta_config, registered, rnn_state
from port.network import shapes_of_agent
from port.networks import agent_net, init, meta_nets, nets, param_names
from port.types import LstmState


@layer("nets/mlp")
def _mlp(x: Tensors, s: Settings) -> Any:
    params = {name.replace("/~/linear_", "/"): value for name, value in x.under("params").items()}
    return nets.mlp(params, "mlp", x.x)


def _lstm(x: Tensors) -> dict[str, Any]:
    return {"lstm/w": x.w, "lstm/b": x.b}


@layer("nets/agent_init")
def _agent_init(x: Tensors, s: Settings) -> dict[str, Any]:
    config = agent(s).config
    shapes = shapes_of_agent(config, tuple(s["obs"]), s["A"])
    return {"params": init.params_from_noise(x.under("noise"), shapes, init.agent_stds(config, shapes))}


@layer("meta/init")
def _meta_init(x: Tensors, s: Settings) -> dict[str, Any]:
    config = meta_config(s)
    shapes = param_names.meta_shapes(config)
    return {"params": init.params_from_noise(x.under("noise"), shapes, init.meta_stds(config, shapes))}


@layer("meta/inputs")
def _meta_inputs(x: Tensors, s: Settings) -> Any:
    features = meta_nets.Features(experience(x))
    return meta_nets.build_inputs(features, meta_config(s).inputs, x.under("meta_params"))


@layer("meta/gate")
def _gate(x: Tensors, s: Settings) -> Any:
    hidden = x["rnn_state/hidden"]
    return meta_nets.gate(x.under("meta_params"), x.x, LstmState(hidden, torch.zeros_like(hidden)))


@layer("meta/rnn")
def _meta_rnn(x: Tensors, s: Settings) -> dict[str, Any]:
    params = x.under("meta_params")
    xs = meta_nets.meta_rnn_inputs(meta_nets.Features(experience(x)), meta_config(s).inputs, params)
    return {"rnn_state": meta_nets.meta_rnn(params, xs, x.under("meta_out"), rnn_state(x))}


@layer("meta/whole")
def _meta_whole(x: Tensors, s: Settings) -> dict[str, Any]:
    outs, state = meta_nets.meta_net(x.under("meta_params"), experience(x), rnn_state(x), meta_config(s).inputs)
    return {**outs, "rnn_state": state}


registered.layers |= {
    "nets/conv_block": lambda x, s: nets.conv_block({"conv/w": x.w, "conv/b": x.b}, "conv", x.x),
    "nets/lstm_step": lambda x, s: nets.lstm_step(_lstm(x), "lstm", x.x, x.record(LstmState)),
    "nets/unroll": lambda x, s: nets.lstm_unroll(_lstm(x), "lstm", x.xs, x.is_terminal, reverse=True),
    "nets/action_model": lambda x, s: agent_net.action_model(
        x.under("params"), agent_net.root_state(x.under("params"), x.torso)
    ),
    "nets/agent": lambda x, s: agent_net.unroll(x.under("params"), x.observations),
    "meta/trajectory_rnn": lambda x, s: meta_nets.trajectory_rnn(x.under("meta_params"), x.x, x.is_terminal),
    "meta/heads": lambda x, s: meta_nets.heads(x.under("meta_params"), x.x, x.policy_emb),
}
