"""The rule, the losses, the optimiser and the learner step of `disco-torch` as layers.

Its learner step is `DiscoTrainer._gradient_step`; the trainer is made without its constructor, which would load
Disco103 at full size, and given the parts that the constructor makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from disco_torch import update_rule
from torch import Tensor, nn

from port.adapter.inputs import net_config, to_original, to_ours
from port.networks import agent_net, param_names
from reports.audit.disco_torch.inputs import Settings, Tensors, below, ema, flat_ema, rollout, under
from reports.audit.disco_torch.metanet import blank, network, no_memory

try:
    from disco_torch import trainer as trainer
except ImportError:  # the first release has none
    trainer = None

WITHOUT_GRADIENTS = ("optim/adam", "optim/update", "agent/loss", "agent/learner_step", "agent/learner_steps")
HYPER = ("pi_cost", "y_cost", "z_cost", "aux_policy_cost", "value_cost", "value_fn_td_lambda", "target_params_coeff")
LOGS = {"total_loss": "total_loss", "pi_loss": "pi_loss", "aux_loss": "aux_kl_loss", "q_loss": "q_loss"}
META_OUT = ("q_target", "adv", "normalized_adv", "q_td", "normalized_q_td", "qv_adv", "normalized_qv_adv", "q_value")


class UsersAgent(nn.Module):
    """The agent network that the package expects of its user: this project's, with parameters by our names."""

    def __init__(self, params: Tensors):
        super().__init__()
        for name, value in params.items():
            self.register_parameter(name, nn.Parameter(value.detach().clone()))

    def forward(self, observations: Tensor, should_reset: Tensor) -> Tensors:
        """The heads over a rollout; the network keeps no state from step to step."""
        return agent_net.step(dict(self._parameters), observations, lead=2)  # type: ignore[arg-type]


def hyper(s: Settings) -> dict[str, float]:
    """Costs and speeds that a case sets."""
    return {name: s[name] for name in HYPER if name in s}


def rule(s: Settings, meta: nn.Module | None = None) -> update_rule.DiscoUpdateRule:
    """The package's rule with the settings of a case."""
    options = {name: s[name] for name in ("value_discount", "moving_average_decay", "moving_average_eps") if name in s}
    sizes = {"prediction_size": s.get("P", 1), "num_bins": s.get("K", 601)}
    made = update_rule.DiscoUpdateRule(**sizes, max_abs_value=s.get("max_abs_value", 300.0), **options)
    if meta is not None:
        made.meta_net = meta
    return made


def table(s: Settings) -> dict[str, str]:
    """Our names of the agent's parameters to the original's."""
    return param_names.agent_names(net_config(s))


def meta_state(x: Tensors, s: Settings) -> dict[str, Any]:
    """The rule's memory in the package's form."""
    return {
        "rnn_state": (x["meta_state/rnn/hidden"], x["meta_state/rnn/cell"]),
        "adv_ema_state": ema("meta_state/adv_ema", x),
        "td_ema_state": ema("meta_state/td_ema", x),
        "target_params": to_ours("meta_state/target_params", x, table(s)),
    }


def flat_meta_state(state: dict[str, Any], s: Settings) -> Tensors:
    """The rule's memory as outputs."""
    hidden, cell = state["rnn_state"]
    return {
        **{"meta_state/rnn/hidden": hidden, "meta_state/rnn/cell": cell},
        **flat_ema("meta_state/adv_ema", state["adv_ema_state"]),
        **flat_ema("meta_state/td_ema", state["td_ema_state"]),
        **to_original("meta_state/target_params", state["target_params"], table(s)),
    }


def _unroll_meta_net(x: Tensors, s: Settings) -> Tensors:
    outs, state = rule(s, network(x, s)).unroll_meta_net(
        rollout(x, s),
        to_ours("params", x, table(s)),
        meta_state(x, s),
        lambda params, observations, reset: (agent_net.step(params, observations, lead=2), None),
        hyper(s),
    )
    targets = {name: outs[name] for name in ("pi", "y", "z", "meta_input_emb", *META_OUT)}
    return {
        **below("meta_out", targets),
        **below("meta_out/target_out", outs["target_out"]),
        **flat_meta_state(state, s),
    }


def _agent_loss(x: Tensors, s: Settings) -> Tensors:
    loss, logs = rule(s).agent_loss(rollout(x, s), under("meta_out", x), hyper(s), s["backprop"])
    return {"loss": loss, "log/pi_loss": logs["pi_loss"], "log/aux_kl_loss": logs["aux_loss"]}


def _agent_loss_no_meta(x: Tensors, s: Settings) -> Tensors:
    loss, logs = rule(s).agent_loss_no_meta(rollout(x, s), under("meta_out", x), hyper(s))
    return {"loss": loss, "log/q_loss": logs["q_loss"], "log/td": logs["q_td"]}


def _target_average(x: Tensors, s: Settings) -> Tensors:
    """Target averaging has no function of its own: it is the end of `unroll_meta_net`, here on a blank rollout."""
    sizes = {**s, "T": 1, "B": 1, "A": 2, "P": 2, "K": 3, "M": 128}
    made, given = rule(sizes), blank(sizes)
    heads = {**under("agent_out", given), "q": torch.zeros(2, 1, 2, 3)}
    fresh = made.adv_ema.init_state()
    state = {
        **{"rnn_state": no_memory(sizes), "adv_ema_state": fresh, "td_ema_state": fresh},
        "target_params": under("target", x),
    }
    taken = rollout(given, sizes, agent_out=heads)
    _, new = made.unroll_meta_net(taken, under("online", x), state, lambda *unused: (heads, None), hyper(s))
    return below("target", new["target_params"])


class Idle:
    """An optimiser that leaves parameters as they are, to look at gradients."""

    def zero_grad(self) -> None:
        """Nothing has been accumulated."""

    def step(self) -> None:
        """Does nothing."""


def optimiser(agent: nn.Module, s: Settings, count: int, mu: Tensors, nu: Tensors) -> Any:
    """The optimiser that the release's trainer makes, in a given state."""
    every = dict(agent.named_parameters())
    moments = {name: (mu[name].detach().clone(), nu[name].detach().clone()) for name in every}
    if hasattr(trainer, "ClippedAdam"):
        made = trainer.ClippedAdam(agent.parameters(), lr=s["learning_rate"], max_delta=s["max_abs_update"])
        first, second = zip(*moments.values(), strict=True)
        made.load_state_dict({"t": count, "m": list(first), "v": list(second)})
        return made
    adam = torch.optim.Adam(agent.parameters(), lr=s["learning_rate"])
    for name, parameter in every.items():
        step = torch.tensor(float(count))
        adam.state[parameter] = {"step": step, "exp_avg": moments[name][0], "exp_avg_sq": moments[name][1]}
    return adam


def optimiser_state(made: Any, agent: nn.Module) -> tuple[int, Tensors, Tensors]:
    """Count and moments of either optimiser."""
    every = dict(agent.named_parameters())
    if hasattr(trainer, "ClippedAdam"):
        return made.t, dict(zip(every, made.m, strict=True)), dict(zip(every, made.v, strict=True))
    states = {name: made.state[parameter] for name, parameter in every.items()}
    first, second = ({name: state[key] for name, state in states.items()} for key in ("exp_avg", "exp_avg_sq"))
    return int(next(iter(states.values()))["step"]), first, second


def make_trainer(agent: nn.Module, made_rule: Any, made_optimiser: Any, state: dict[str, Any], s: Settings) -> Any:
    """A `DiscoTrainer` with the given parts in place of those its constructor makes."""
    made = trainer.DiscoTrainer.__new__(trainer.DiscoTrainer)
    made.agent, made.rule, made.optimizer, made._meta_state = agent, made_rule, made_optimiser, state
    made.hyper_params, made.max_grad_value = hyper(s), s.get("max_abs_update", math.inf)
    made._unroll_fn = made._make_unroll_fn()
    return made


def batch(x: Tensors, s: Settings) -> dict[str, Any]:
    """A rollout as the trainer keeps it: T rewards and discounts, each of the step that follows an action.

    It has no place for the discount at the first observation; `previous_discounts` is not read by the package, only
    by the corrected copies that `reports.audit` makes to find out what a line of it changes.
    """
    return {
        "observations": x["rollout/observations"],
        "actions": x["rollout/actions"],
        "rewards": x["rollout/rewards"][1:],
        "discounts": x["rollout/discounts"][1:].to(s["torch_dtype"]),
        "agent_out": {"logits": x["rollout/logits"]},
        "previous_discounts": x["rollout/discounts"][:-1],
    }


def flat_logs(logs: dict[str, float], like: torch.dtype) -> Tensors:
    """The logs that have a counterpart in the original."""
    return {f"log/{ours}": torch.tensor(logs[theirs], dtype=like) for theirs, ours in LOGS.items()}


def _loss(x: Tensors, s: Settings) -> Tensors:
    """Loss and gradient with the targets given: the trainer's step with an idle optimiser and no clipping."""
    agent, made = UsersAgent(to_ours("params", x, table(s))), rule(s)
    targets = under("meta_out", x)
    made.unroll_meta_net = lambda *unused: (targets, {"target_params": {}})
    logs = flat_logs(make_trainer(agent, made, Idle(), {}, s)._gradient_step(batch(x, s)), s["torch_dtype"])
    total = logs.pop("log/total_loss")
    grads = {name: value.grad for name, value in agent.named_parameters()}
    return {"total_loss": total, **logs, **to_original("grads", grads, table(s))}  # type: ignore[arg-type]


def _learner_steps(x: Tensors, s: Settings, rollouts: list[Tensors]) -> tuple[Tensors, list[Tensors]]:
    ours = table(s)
    agent = UsersAgent(to_ours("params", x, ours))
    mu, nu = to_ours("opt/mu", x, ours), to_ours("opt/nu", x, ours)
    adam = optimiser(agent, s, int(x["opt/count"]), mu, nu)
    learner = make_trainer(agent, rule(s, network(x, s)), adam, meta_state(x, s), s)
    logs = [flat_logs(learner._gradient_step(batch(taken, s)), s["torch_dtype"]) for taken in rollouts]
    count, first, second = optimiser_state(adam, agent)
    state = {
        **to_original("params", dict(agent.named_parameters()), ours),
        **{"opt/count": torch.tensor(count)},
        **to_original("opt/mu", first, ours),
        **to_original("opt/nu", second, ours),
        **flat_meta_state(learner._meta_state, s),
    }
    return state, logs


def _learner_step(x: Tensors, s: Settings) -> Tensors:
    state, logs = _learner_steps(x, s, [x])
    return {**state, **logs[0]}


def _several_learner_steps(x: Tensors, s: Settings) -> Tensors:
    every = {name: value for name, value in x.items() if name.startswith("rollout/")}
    state, logs = _learner_steps(x, s, [{name: value[i] for name, value in every.items()} for i in range(s["S"])])
    return {**state, **{name: torch.stack([log[name] for log in logs]) for name in logs[0]}}


def _stepped(start: Tensors, x: Tensors, s: Settings) -> tuple[Tensors, tuple[int, Tensors, Tensors]]:
    """Parameters after the trainer's step on a loss whose gradient is as given, to the last bit."""
    agent, made = UsersAgent(start), rule({**s, "P": 1, "K": 3})
    agent.forward = lambda *unused: {}  # type: ignore[method-assign]
    grads = under("grads", x)
    for name, value in agent.named_parameters():
        value.register_hook(lambda _, name=name: grads[name].clone())
    loss = sum(value.sum() for value in agent.parameters())
    made.unroll_meta_net = lambda *unused: ({}, {"target_params": {}})
    made.agent_loss = lambda *unused: (loss.reshape(1, 1), {})  # type: ignore[union-attr]
    made.agent_loss_no_meta = lambda *unused: (torch.zeros(1, 1), {})
    adam = optimiser(agent, s, int(x["opt/count"]), under("opt/mu", x), under("opt/nu", x))
    one = torch.ones(1, 1)
    given: dict[str, Any] = dict.fromkeys(("observations", "actions", "rewards", "discounts"), one)
    given |= {"agent_out": {}, "previous_discounts": one}
    make_trainer(agent, made, adam, {}, s)._gradient_step(given)
    return dict(agent.named_parameters()), optimiser_state(adam, agent)


def flat_optimiser(state: tuple[int, Tensors, Tensors]) -> Tensors:
    """The optimiser's state as outputs."""
    count, mu, nu = state
    return {"opt/count": torch.tensor(count), **below("opt/mu", mu), **below("opt/nu", nu)}


def _update(x: Tensors, s: Settings) -> Tensors:
    """What the step added is read off parameters that start at zero."""
    start = under("params", x)
    params, state = _stepped(start, x, s)
    updates, _ = _stepped({name: torch.zeros_like(value) for name, value in start.items()}, x, s)
    return {**below("params", params), **below("updates", updates), **flat_optimiser(state)}


def _adam(x: Tensors, s: Settings) -> Tensors:
    """Adam's direction: one step with the clip wide open, a learning rate of -1, from zero."""
    grads = under("grads", x)
    agent = UsersAgent({name: torch.zeros_like(value) for name, value in grads.items()})
    for name, parameter in agent.named_parameters():
        parameter.grad = grads[name].clone()
    made = optimiser(
        agent,
        {"learning_rate": -1.0, "max_abs_update": math.inf},
        int(x["opt/count"]),
        under("opt/mu", x),
        under("opt/nu", x),
    )
    made.beta1, made.beta2, made.eps = s["b1"], s["b2"], s["eps"]
    made.step()
    return {**below("updates", dict(agent.named_parameters())), **flat_optimiser(optimiser_state(made, agent))}


def layers() -> dict[str, Callable[[Tensors, Settings], Tensors]]:
    """The layers of this module that the installed release has."""
    found: dict[str, Callable[[Tensors, Settings], Tensors]] = {
        "optim/target_average": _target_average,
        "disco/unroll_meta_net": _unroll_meta_net,
        "disco/agent_loss": _agent_loss,
        "disco/agent_loss_no_meta": _agent_loss_no_meta,
    }
    if hasattr(trainer, "ClippedAdam"):
        found |= {"optim/adam": _adam}
    if hasattr(trainer, "DiscoTrainer"):
        found |= {"optim/update": _update, "agent/loss": _loss}
        found |= {"agent/learner_step": _learner_step, "agent/learner_steps": _several_learner_steps}
    return found
