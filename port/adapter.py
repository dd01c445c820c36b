"""The port as the parity harness sees it: named layers over flat dicts of NumPy arrays.

This file is also the example of an adapter: `run` and `vjp` at the bottom are the whole contract, and each layer above
is a few lines that hand named tensors to a function of the port. It imports nothing of the harness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from port import agent_net, disco, init, meta_net, moving_average, names, nets, ops, optim, transforms, values
from port.agent import LAST_STEP, Agent
from port.config import AgentConfig, AgentNetConfig, DiscoConfig, HyperParams, MetaNetConfig, MetaRnnConfig
from port.types import (
    AdamState,
    EmaState,
    LearnerState,
    LstmState,
    MetaState,
    Params,
    Rollout,
    RuleInputs,
    Timestep,
)

Arrays = dict[str, np.ndarray]
Tensors = dict[str, Tensor]
Settings = Mapping[str, Any]
LayerFn = Callable[[Tensors, Settings], Tensors]

LAYERS: dict[str, LayerFn] = {}


def layer(name: str) -> Callable[[LayerFn], LayerFn]:
    """Registers a layer under its name."""

    def keep(fn: LayerFn) -> LayerFn:
        LAYERS[name] = fn
        return fn

    return keep


def under(prefix: str, x: Mapping[str, Tensor]) -> Tensors:
    """The entries below `prefix/`, without it."""
    return {name[len(prefix) + 1 :]: value for name, value in x.items() if name.startswith(prefix + "/")}


def below(prefix: str, x: Mapping[str, Tensor]) -> Tensors:
    """The inverse of `under`."""
    return {f"{prefix}/{name}": value for name, value in x.items()}


def meta_config(s: Settings) -> MetaNetConfig:
    """The meta-network's configuration for the harness's settings."""
    stds = ("output_stddev", "aux_stddev", "policy_target_stddev", "state_stddev")
    return MetaNetConfig(
        prediction_size=s["P"],
        hidden_size=s["H"],
        embedding_size=tuple(s["embedding_size"]),
        policy_channels=tuple(s["policy_channels"]),
        policy_target_channels=tuple(s["policy_target_channels"]),
        **{name: s[name] for name in stds if name in s},
        meta_rnn=MetaRnnConfig(
            policy_channels=tuple(s["meta_policy_channels"]),
            embedding_size=tuple(s["meta_embedding_size"]),
            pred_embedding_size=tuple(s["meta_pred_embedding_size"]),
            hidden_size=s["M"],
        ),
    )


def net_config(s: Settings) -> AgentNetConfig:
    """The agent network's configuration."""
    std = {"head_w_init_std": s["head_w_init_std"]} if "head_w_init_std" in s else {}
    return AgentNetConfig(
        dense=tuple(s["dense"]),
        head_mlp_hiddens=tuple(s["head_mlp_hiddens"]),
        lstm_size=s["lstm_size"],
        **std,
    )


def hyper_params(s: Settings) -> HyperParams:
    """Costs and speeds; what a layer does not set stays at its default."""
    return HyperParams(**{name: s[name] for name in HyperParams.__dataclass_fields__ if name in s})


def rule_config(s: Settings) -> DiscoConfig:
    """Value estimation inside the rule."""
    fields = {name: s[name] for name in DiscoConfig.__dataclass_fields__ if name in s}
    return DiscoConfig(**fields, num_bins=s["K"])


def agent(s: Settings) -> Agent:
    """An agent for the harness's settings."""
    speeds = {name: s[name] for name in ("learning_rate", "max_abs_update") if name in s}
    meta = meta_config(s) if "H" in s else MetaNetConfig(prediction_size=s["P"])
    config = AgentConfig(
        **speeds, hyper=hyper_params(s), rule=rule_config(s), meta_net=meta, net=net_config(s)
    )
    return Agent(config, obs_spec=tuple(s["obs"]), num_actions=s["A"])


def to_ours(prefix: str, x: Tensors, table: Mapping[str, str]) -> Params:
    """Parameters in our names, as many of them as there are."""
    given = under(prefix, x)
    return {ours: given[original] for ours, original in table.items() if original in given}


def to_original(prefix: str, params: Params, table: Mapping[str, str]) -> Tensors:
    """Parameters in the original's names."""
    return {f"{prefix}/{table[ours]}": value for ours, value in params.items()}


def agent_params(x: Tensors, s: Settings, prefix: str = "params") -> Params:
    """Agent parameters among the inputs."""
    return to_ours(prefix, x, names.agent_names(net_config(s)))


def meta_params(x: Tensors, s: Settings) -> Params:
    """Meta-parameters among the inputs."""
    return to_ours("meta_params", x, names.meta_names(meta_config(s)))


def ema(prefix: str, x: Tensors) -> EmaState:
    """A moving average among the inputs."""
    return EmaState(**{field: x[f"{prefix}/{field}"] for field in EmaState._fields})


def flat_ema(prefix: str, state: EmaState) -> Tensors:
    """A moving average as outputs."""
    return below(prefix, state._asdict())


def _transform(name: str) -> LayerFn:
    def run(x: Tensors, s: Settings) -> Tensors:
        policy = x.get("policy", torch.zeros((), dtype=s["torch_dtype"]))
        return {"out": transforms.apply(name, x["x"], x.get("actions", x["x"]), policy)}

    return run


LAYERS |= {f"transforms/{name}": _transform(name) for name in transforms.TRANSFORMS}


@layer("transforms/normalize")
def _normalize(x: Tensors, s: Settings) -> Tensors:
    def average(name: str) -> transforms.DebiasedAverage:
        hidden = x[f"state/{name}/hidden"]
        return transforms.DebiasedAverage(hidden, torch.zeros_like(hidden), x[f"state/{name}/counter"])

    out, state = transforms.normalize(x["x"], transforms.NormalizeState(average("m1"), average("m2")))
    new = {"m1": state.m1, "m2": state.m2}
    return {
        "out": out,
        **{f"state/{name}/hidden": value.hidden for name, value in new.items()},
        **{f"state/{name}/counter": value.counter for name, value in new.items()},
    }


LAYERS |= {
    "ops/lookup": lambda x, s: {"out": ops.batch_lookup(x["table"], x["index"])},
    "ops/signed_hyperbolic": lambda x, s: {"out": ops.signed_hyperbolic(x["x"])},
    "ops/signed_parabolic": lambda x, s: {"out": ops.signed_parabolic(x["x"])},
    "ops/two_hot": lambda x, s: {"probs": ops.two_hot(x["value"], s["K"], s["max_abs_value"])},
    "ops/from_two_hot": lambda x, s: {"value": ops.from_two_hot(x["probs"], s["max_abs_value"])},
    "ops/kl": lambda x, s: {"out": ops.categorical_kl(x["p_logits"], x["q_logits"])},
    "ops/entropy": lambda x, s: {"out": ops.categorical_entropy(x["p_logits"])},
    "ops/importance_weight": lambda x, s: {
        "rho": ops.importance_weights(x["pi_logits"], x["mu_logits"], x["actions"])
    },
    "moving_average/update": lambda x, s: flat_ema(
        "state", moving_average.update(ema("state", x), x["values"], s["decay"])
    ),
    "moving_average/normalize": lambda x, s: {
        "out": moving_average.normalize(
            x["values"], ema("state", x), s["eps"], subtract_mean=s["subtract_mean"]
        )
    },
}


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
    "nets/conv_block": lambda x, s: {
        "out": nets.conv_block({"conv/w": x["w"], "conv/b": x["b"]}, "conv", x["x"])
    },
    "nets/unroll": lambda x, s: {
        "hidden": nets.lstm_unroll(
            {"lstm/w": x["w"], "lstm/b": x["b"]}, "lstm", x["xs"], x["is_terminal"], reverse=True
        )
    },
    "nets/agent": lambda x, s: agent_net.unroll(agent_params(x, s), x["observations"]),
}


@layer("nets/action_model")
def _action_model(x: Tensors, s: Settings) -> Tensors:
    params = agent_params(x, s)
    return agent_net.action_model(params, agent_net.root_state(params, x["torso"]))


@layer("nets/agent_init")
def _agent_init(x: Tensors, s: Settings) -> Tensors:
    config, table = agent(s).config, names.agent_names(net_config(s))
    shapes = init.shapes_of_agent(config, tuple(s["obs"]), s["A"])
    made = init.params_from_noise(to_ours("noise", x, table), shapes, init.agent_stds(config, shapes))
    return to_original("params", made, table)


@layer("meta/init")
def _meta_init(x: Tensors, s: Settings) -> Tensors:
    config = meta_config(s)
    shapes, table = names.meta_shapes(config), names.meta_names(config)
    made = init.params_from_noise(to_ours("noise", x, table), shapes, init.meta_stds(config, shapes))
    return to_original("params", made, table)


def _net_options(s: Settings) -> dict[str, Any]:
    return {name: s[name] for name in ("max_abs_value", "categorical", "nonlinear")}


@layer("values/q_and_v")
def _q_and_v(x: Tensors, s: Settings) -> Tensors:
    q, v = values.q_and_v(x["q_logits"], x["pi_logits"], s["max_abs_value"])
    return {"q": q, "v": v}


@layer("values/estimate_q")
def _estimate_q(x: Tensors, s: Settings) -> Tensors:
    own = {"values": x["target_values"], "q_values": x["target_q_values"], **x}
    outs = values.estimate_q_values(**own, discount=s["discount"], lambda_=s["lambda"])
    return {name: getattr(outs, name) for name in ("q_target", "value_target", "adv", "td", "q_td", "qv_adv")}


@layer("values/outs")
def _value_outs(x: Tensors, s: Settings) -> Tensors:
    facts = ("pi_logits", "mu_logits", "actions", "rewards", "is_terminal")
    outs, adv_ema, td_ema = values.value_outs(
        q_net_out=x["q_logits"],
        target_q_net_out=x["target_q_logits"],
        **{name: x[name] for name in facts},
        adv_ema=ema("adv_ema", x),
        td_ema=ema("td_ema", x),
        lambda_=s["lambda"],
        **{name: s[name] for name in ("discount", "max_abs_value", "decay", "eps")},
    )
    return {**outs._asdict(), **flat_ema("adv_ema", adv_ema), **flat_ema("td_ema", td_ema)}


LAYERS |= {
    "values/from_logits": lambda x, s: {"value": values.values_from_logits(x["net_out"], **_net_options(s))},
    "values/retrace": lambda x, s: {"q_target": _estimate_q(x, s)["q_target"]},
    "values/loss_from_target": lambda x, s: {
        "loss": values.value_loss_from_target(x["net_out"], x["target"], **_net_options(s))
    },
    "values/loss_from_td": lambda x, s: {
        "loss": values.value_loss_from_td(x["net_out"], x["td"], **_net_options(s))
    },
}


def experience(x: Tensors) -> RuleInputs:
    """The rule's inputs among the layer's; what a layer does not have is left empty."""
    scalars = ("v_scalar", "adv", "normalized_adv", "q", "qv_adv", "normalized_qv_adv")
    extra: dict[str, Any] = {name: x[name] for name in scalars if name in x}
    agent_out, actions = under("agent_out", x), x["actions"]
    like = next(iter(agent_out.values()))
    return RuleInputs(
        observations=x.get("observations", like),
        actions=actions,
        rewards=x.get("rewards", like.new_zeros(actions[1:].shape)),
        is_terminal=x.get("is_terminal", torch.zeros_like(actions[1:], dtype=torch.bool)),
        agent_out=agent_out,
        behaviour_agent_out=under("behaviour_out", x),
        extra_from_rule={**extra, "target_out": under("target_out", x)},
    )


def _rnn(prefix: str, x: Tensors) -> LstmState:
    return LstmState(x[f"{prefix}/hidden"], x[f"{prefix}/cell"])


@layer("meta/inputs")
def _meta_inputs(x: Tensors, s: Settings) -> Tensors:
    features = meta_net.Features(experience(x))
    vector, embedding = meta_net.build_inputs(features, meta_config(s).inputs, meta_params(x, s))
    return {"x": vector, "policy_emb": embedding}


@layer("meta/gate")
def _gate(x: Tensors, s: Settings) -> Tensors:
    hidden = x["rnn/hidden"]
    return {"x": meta_net.gate(meta_params(x, s), x["x"], LstmState(hidden, torch.zeros_like(hidden)))}


@layer("meta/rnn")
def _meta_rnn(x: Tensors, s: Settings) -> Tensors:
    features, option = meta_net.Features(experience(x)), meta_config(s).inputs
    state = meta_net.meta_rnn(meta_params(x, s), features, option, under("meta_out", x), _rnn("rnn", x))
    return below("rnn", state._asdict())


@layer("meta/whole")
def _meta_whole(x: Tensors, s: Settings) -> Tensors:
    outs, state = meta_net.meta_net(meta_params(x, s), experience(x), _rnn("rnn", x), meta_config(s).inputs)
    return {**outs, **below("rnn", state._asdict())}


LAYERS |= {
    "meta/trajectory_rnn": lambda x, s: {
        "x": meta_net.trajectory_rnn(meta_params(x, s), x["x"], x["is_terminal"])
    },
    "meta/heads": lambda x, s: meta_net.heads(meta_params(x, s), x["x"], x["policy_emb"]),
}


def adam_state(x: Tensors, table: Mapping[str, str]) -> AdamState:
    """The optimiser's state among the inputs."""
    return AdamState(x["opt/count"], to_ours("opt/mu", x, table), to_ours("opt/nu", x, table))


def flat_adam(state: AdamState, table: Mapping[str, str]) -> Tensors:
    """The optimiser's state as outputs."""
    moments = {**to_original("opt/mu", state.mu, table), **to_original("opt/nu", state.nu, table)}
    return {"opt/count": state.count, **moments}


def _as_given(prefix: str, x: Tensors) -> dict[str, str]:
    """A table that leaves names as they are."""
    return {name: name for name in under(prefix, x)}


@layer("optim/adam")
def _adam(x: Tensors, s: Settings) -> Tensors:
    same = _as_given("grads", x)
    updates, state = optim.adam_sg(under("grads", x), adam_state(x, same), s["b1"], s["b2"], s["eps"])
    return {**below("updates", updates), **flat_adam(state, same)}


@layer("optim/update")
def _update(x: Tensors, s: Settings) -> Tensors:
    same = _as_given("grads", x)
    directions, state = optim.adam_sg(under("grads", x), adam_state(x, same))
    updates = optim.clip_and_scale(directions, s["max_abs_update"], s["learning_rate"])
    params = optim.apply_updates(under("params", x), updates)
    return {**below("params", params), **below("updates", updates), **flat_adam(state, same)}


@layer("optim/target_average")
def _target_average(x: Tensors, s: Settings) -> Tensors:
    return below(
        "target", optim.target_average(under("target", x), under("online", x), s["target_params_coeff"])
    )


def meta_state(x: Tensors, s: Settings) -> MetaState:
    """The rule's memory among the inputs."""
    targets = agent_params(x, s, "meta_state/target_params")
    return MetaState(
        _rnn("meta_state/rnn", x), ema("meta_state/adv_ema", x), ema("meta_state/td_ema", x), targets
    )


def flat_meta_state(state: MetaState, s: Settings) -> Tensors:
    """The rule's memory as outputs."""
    table = names.agent_names(net_config(s))
    return {
        **below("meta_state/rnn", state.rnn_state._asdict()),
        **flat_ema("meta_state/adv_ema", state.adv_ema),
        **flat_ema("meta_state/td_ema", state.td_ema),
        **to_original("meta_state/target_params", state.target_params, table),
    }


@layer("disco/unroll_meta_net")
def _unroll_meta_net(x: Tensors, s: Settings) -> Tensors:
    out, state = disco.unroll_meta_net(
        meta_params(x, s),
        agent_params(x, s),
        meta_state(x, s),
        experience(x),
        hyper_params(s),
        rule_config(s),
        meta_config(s),
    )
    target_out = below("meta_out/target_out", out.pop("target_out"))
    return {**below("meta_out", out), **target_out, **flat_meta_state(state, s)}


@layer("disco/agent_loss")
def _agent_loss(x: Tensors, s: Settings) -> Tensors:
    loss, logs = disco.agent_loss(experience(x), under("meta_out", x), hyper_params(s), s["backprop"])
    return {"loss": loss, **below("log", logs)}


@layer("disco/agent_loss_no_meta")
def _agent_loss_no_meta(x: Tensors, s: Settings) -> Tensors:
    loss, logs = disco.agent_loss_no_meta(
        experience(x), under("meta_out", x), hyper_params(s), rule_config(s)
    )
    return {"loss": loss, **below("log", logs)}


@layer("agent/actor_step")
def _actor_step(x: Tensors, s: Settings) -> Tensors:
    step_type = torch.where(x["is_last"], LAST_STEP, 1)
    seen = Timestep(x["observation"], step_type, x["gumbel"].new_zeros(step_type.shape))
    step = agent(s).actor_step(agent_params(x, s), seen, x["gumbel"])
    return {"actions": step.actions, "discounts": step.discounts, **step.agent_outs}


def rollout(x: Tensors) -> Rollout:
    """The rollout among the inputs."""
    fields = ("observations", "actions", "rewards", "discounts")
    return Rollout(
        **{name: x[f"rollout/{name}"] for name in fields}, agent_outs={"logits": x["rollout/logits"]}
    )


@layer("agent/loss")
def _loss(x: Tensors, s: Settings) -> Tensors:
    params, meta_out = agent_params(x, s), under("meta_out", x)
    grads, logs = agent(s).loss_and_grads(params, rollout(x), meta_out, is_meta_training=True)
    total = logs.pop("total_loss")
    return {
        "total_loss": total,
        **below("log", logs),
        **to_original("grads", grads, names.agent_names(net_config(s))),
    }


def _learner_state(x: Tensors, s: Settings) -> LearnerState:
    table = names.agent_names(net_config(s))
    return LearnerState(agent_params(x, s), adam_state(x, table), meta_state(x, s))


def _flat_learner_state(state: LearnerState, s: Settings) -> Tensors:
    table = names.agent_names(net_config(s))
    params = to_original("params", state.params, table)
    return {**params, **flat_adam(state.opt_state, table), **flat_meta_state(state.meta_state, s)}


@layer("agent/learner_step")
def _learner_step(x: Tensors, s: Settings) -> Tensors:
    state, logs = agent(s).learner_step(
        rollout(x), _learner_state(x, s), meta_params(x, s), s["is_meta_training"]
    )
    logs.pop("meta_out")
    return {**_flat_learner_state(state, s), **below("log", logs)}


@layer("agent/learner_steps")
def _learner_steps(x: Tensors, s: Settings) -> Tensors:
    learner, state, given = agent(s), _learner_state(x, s), meta_params(x, s)
    every: list[Tensors] = []
    for i in range(s["S"]):
        taken = rollout({name: value[i] for name, value in x.items() if name.startswith("rollout/")})
        state, logs = learner.learner_step(taken, state, given, s["is_meta_training"])
        logs.pop("meta_out")
        every.append(logs)
    stacked = {f"log/{name}": torch.stack([logs[name] for logs in every]) for name in every[0]}
    return {**_flat_learner_state(state, s), **stacked}


class TorchImplementation:
    """The contract: what the harness calls."""

    name = "port"
    description = f"PyTorch {torch.__version__}"
    layers = LAYERS

    def __init__(self, device: str = "cpu"):
        """Computes on the given device."""
        self.device = device

    def _tensors(self, arrays: Mapping[str, np.ndarray], dtype: torch.dtype) -> Tensors:
        tensors = {name: torch.from_numpy(np.array(value)).to(self.device) for name, value in arrays.items()}
        return {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}

    def _apply(self, layer: str, inputs: Tensors, settings: Settings, dtype: torch.dtype) -> Tensors:
        return self.layers[layer](inputs, {**settings, "torch_dtype": dtype})

    def run(self, layer: str, inputs: Arrays, settings: Settings, dtype: str) -> Arrays:
        """The layer's outputs."""
        precision = getattr(torch, dtype)
        outputs = self._apply(layer, self._tensors(inputs, precision), settings, precision)
        return {name: value.detach().cpu().numpy() for name, value in outputs.items()}

    def vjp(
        self,
        layer: str,
        inputs: Arrays,
        settings: Settings,
        dtype: str,
        cotangents: Arrays,
        wrt: Sequence[str],
    ) -> Arrays:
        """The vector-Jacobian product of the layer with respect to the inputs in `wrt`; zeros where none flows."""
        precision = getattr(torch, dtype)
        tensors = self._tensors(inputs, precision)
        for name in wrt:
            tensors[name].requires_grad_()
        outputs = self._apply(layer, tensors, settings, precision)
        reached = [name for name in cotangents if outputs[name].requires_grad]
        given = self._tensors({name: cotangents[name] for name in reached}, precision)
        sources = [tensors[name] for name in wrt]
        gradients: Sequence[Tensor] = [torch.zeros_like(x) for x in sources]
        if reached:
            flowing = torch.autograd.grad(
                [outputs[name] for name in reached],
                sources,
                [given[name] for name in reached],
                allow_unused=True,
                materialize_grads=True,
            )
            gradients = flowing
        return {name: value.detach().cpu().numpy() for name, value in zip(wrt, gradients, strict=True)}


implementation = TorchImplementation()
