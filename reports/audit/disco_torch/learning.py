"""The rule, the losses, the optimiser and the learner step of `disco-torch` as layers.

Its learner step is `DiscoTrainer._gradient_step`; the trainer is made without its constructor, which would load
Disco103 at full size, and given the parts that the constructor makes.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from disco_torch import update_rule
from disco_torch.types import EmaState
from torch import Tensor, nn

from port.networks import agent_net
from port.types import AdamState
from reports.audit.disco_torch.inputs import LayerFn, Settings, Tensors, rollout
from reports.audit.disco_torch.metanet import blank, memory, network, no_memory

try:
    from disco_torch import trainer as trainer
except ImportError:  # the first release has none
    trainer = None

Flat = dict[str, Tensor]
WITHOUT_GRADIENTS = ("optim/adam", "optim/update", "agent/loss", "agent/learner_step", "agent/learner_steps")
HYPER = ("pi_cost", "y_cost", "z_cost", "aux_policy_cost", "value_cost", "value_fn_td_lambda", "target_params_coeff")
OPTIONS = ("value_discount", "max_abs_value", "moving_average_decay", "moving_average_eps")
LOGS = {"total_loss": "total_loss", "pi_loss": "pi_loss", "aux_loss": "aux_kl_loss", "q_loss": "q_loss"}


class UsersAgent(nn.Module):
    """The agent network that the package expects of its user: this project's, with parameters by our names."""

    def __init__(self, params: Flat):
        super().__init__()
        for name, value in params.items():
            self.register_parameter(name, nn.Parameter(value.detach().clone()))

    def forward(self, observations: Tensor, should_reset: Tensor) -> Flat:
        """The heads over a rollout; the network keeps no state from step to step."""
        return agent_net.step(dict(self._parameters), observations, lead=2)  # type: ignore[arg-type]


def hyper(s: Settings) -> dict[str, float]:
    """Costs and speeds that a case sets."""
    return {name: s[name] for name in HYPER if name in s}


def rule(s: Settings, meta: nn.Module | None = None) -> update_rule.DiscoUpdateRule:
    """The package's rule with the settings of a case."""
    options = {name: s[name] for name in OPTIONS if name in s}
    made = update_rule.DiscoUpdateRule(prediction_size=s.get("P", 1), num_bins=s.get("K", 601), **options)
    if meta is not None:
        made.meta_net = meta
    return made


def meta_state(x: Tensors) -> dict[str, Any]:
    """The rule's memory in the package's form."""
    return {
        "rnn_state": memory(x, "meta_state/"),
        "adv_ema_state": x.record(EmaState, "meta_state/adv_ema_state"),
        "td_ema_state": x.record(EmaState, "meta_state/td_ema_state"),
        "target_params": x.under("meta_state/target_params"),
    }


def _unroll_meta_net(x: Tensors, s: Settings) -> Any:
    outs, state = rule(s, network(x, s)).unroll_meta_net(
        rollout(x),
        x.under("params"),
        meta_state(x),
        lambda params, observations, reset: (agent_net.step(params, observations, lead=2), None),
        hyper(s),
    )
    return {"meta_out": outs, "meta_state": state}


def _agent_loss(x: Tensors, s: Settings) -> Any:
    loss, logs = rule(s).agent_loss(rollout(x), x.under("meta_out"), hyper(s), s["backprop"])
    return {"loss": loss, "log": {"pi_loss": logs["pi_loss"], "aux_kl_loss": logs["aux_loss"]}}


def _agent_loss_no_meta(x: Tensors, s: Settings) -> Any:
    loss, logs = rule(s).agent_loss_no_meta(rollout(x), x.under("meta_out"), hyper(s))
    return {"loss": loss, "log": {"q_loss": logs["q_loss"], "td": logs["q_td"]}}


def _target_average(x: Tensors, s: Settings) -> Any:
    """Target averaging has no function of its own: it is the end of `unroll_meta_net`, here on a blank rollout."""
    sizes = {**s, "T": 1, "B": 1, "A": 2, "P": 2, "K": 3, "M": 128}
    made, nothing = rule(sizes), blank(sizes, x.dtype)
    heads = {**nothing.under("agent_out"), "q": torch.zeros(2, 1, 2, 3)}
    fresh = made.adv_ema.init_state()
    state = {"rnn_state": no_memory(sizes), "adv_ema_state": fresh, "td_ema_state": fresh}
    state["target_params"] = x.under("target")
    taken = rollout(nothing, agent_out=heads)
    _, new = made.unroll_meta_net(taken, x.under("online"), state, lambda *unused: (heads, None), hyper(s))
    return {"target": new["target_params"]}


def optimiser(agent: nn.Module, learning_rate: float, max_abs_update: float, state: AdamState) -> Any:
    """The optimiser that the release's trainer makes, in a given state."""
    count, every = int(state.count), dict(agent.named_parameters())
    mu, nu = ([moments[name].detach().clone() for name in every] for moments in (state.mu, state.nu))
    if hasattr(trainer, "ClippedAdam"):
        made = trainer.ClippedAdam(agent.parameters(), lr=learning_rate, max_delta=max_abs_update)
        made.load_state_dict({"t": count, "m": mu, "v": nu})
        return made
    adam = torch.optim.Adam(agent.parameters(), lr=learning_rate)
    for parameter, first, second in zip(every.values(), mu, nu, strict=True):
        adam.state[parameter] = {"step": torch.tensor(float(count)), "exp_avg": first, "exp_avg_sq": second}
    return adam


def optimiser_state(made: Any, agent: nn.Module) -> AdamState:
    """Count and moments of either optimiser."""
    every = dict(agent.named_parameters())
    if hasattr(trainer, "ClippedAdam"):
        count, moments = made.t, [made.m, made.v]
    else:
        states = [made.state[parameter] for parameter in every.values()]
        count, moments = states[0]["step"], [[x[key] for x in states] for key in ("exp_avg", "exp_avg_sq")]
    mu, nu = (dict(zip(every, values, strict=True)) for values in moments)
    return AdamState(torch.tensor(int(count)), mu, nu)


def make_trainer(agent: nn.Module, made_rule: Any, made_optimiser: Any, state: dict[str, Any], s: Settings) -> Any:
    """A `DiscoTrainer` with the given parts in place of those its constructor makes."""
    made = trainer.DiscoTrainer.__new__(trainer.DiscoTrainer)
    made.agent, made.rule, made.optimizer, made._meta_state = agent, made_rule, made_optimiser, state
    made.hyper_params, made.max_grad_value = hyper(s), s.get("max_abs_update", math.inf)
    made._unroll_fn = made._make_unroll_fn()
    return made


def batch(rollout: Flat, dtype: torch.dtype) -> dict[str, Any]:
    """A rollout as the trainer keeps it: T rewards and discounts, each of the step that follows an action.

    It has no place for the discount at the first observation; `previous_discounts` is not read by the package, only
    by the corrected copies that `reports.audit` makes to find out what a line of it changes.
    """
    return {
        "observations": rollout["observations"],
        "actions": rollout["actions"],
        "rewards": rollout["rewards"][1:],
        "discounts": rollout["discounts"][1:].to(dtype),
        "agent_out": {"logits": rollout["logits"]},
        "previous_discounts": rollout["discounts"][:-1],
    }


def flat_logs(logs: dict[str, float], dtype: torch.dtype) -> Flat:
    """The logs that have a counterpart in the original."""
    return {ours: torch.tensor(logs[theirs], dtype=dtype) for theirs, ours in LOGS.items()}


def _loss(x: Tensors, s: Settings) -> Any:
    """Loss and gradient with the targets given: the trainer's step with an idle optimiser and no clipping."""
    agent, made, targets = UsersAgent(x.under("params")), rule(s), x.under("meta_out")
    idle = SimpleNamespace(zero_grad=lambda: None, step=lambda: None)
    made.unroll_meta_net = lambda *unused: (targets, {"target_params": {}})
    step = make_trainer(agent, made, idle, {}, s)._gradient_step
    logs = flat_logs(step(batch(x.under("rollout"), x.dtype)), x.dtype)
    grads = {name: value.grad for name, value in agent.named_parameters()}
    return {"total_loss": logs.pop("total_loss"), "log": logs, "grads": grads}


def _learner_steps(x: Tensors, s: Settings) -> Any:
    """A step of the trainer, or S of them, each on its own rollout."""
    agent, taken = UsersAgent(x.under("params")), x.under("rollout")
    adam = optimiser(agent, s["learning_rate"], s["max_abs_update"], x.record(AdamState, "opt_state"))
    learner = make_trainer(agent, rule(s, network(x, s)), adam, meta_state(x), s)

    def step(rollout: Flat) -> Flat:
        return flat_logs(learner._gradient_step(batch(rollout, x.dtype)), x.dtype)

    if "S" in s:
        every = [step({name: value[i] for name, value in taken.items()}) for i in range(s["S"])]
        logs = {name: torch.stack([log[name] for log in every]) for name in every[0]}
    else:
        logs = step(taken)
    state = {"params": dict(agent.named_parameters()), "opt_state": optimiser_state(adam, agent)}
    return {**state, "meta_state": learner._meta_state, "log": logs}


def _stepped(start: Flat, x: Tensors, s: Settings) -> tuple[Flat, AdamState]:
    """Parameters after the trainer's step on a loss whose gradient is as given, to the last bit."""
    agent, made, grads = UsersAgent(start), rule({**s, "P": 1, "K": 3}), x.under("grads")
    agent.forward = lambda *unused: {}  # type: ignore[method-assign]
    for name, value in agent.named_parameters():
        value.register_hook(lambda _, name=name: grads[name].clone())
    loss, one = sum(value.sum() for value in agent.parameters()), torch.ones(1, 1)
    made.unroll_meta_net = lambda *unused: ({}, {"target_params": {}})
    made.agent_loss = lambda *unused: (loss.reshape(1, 1), {})  # type: ignore[union-attr]
    made.agent_loss_no_meta = lambda *unused: (torch.zeros(1, 1), {})
    adam = optimiser(agent, s["learning_rate"], s["max_abs_update"], x.record(AdamState, "opt_state"))
    fields = ("observations", "actions", "rewards", "discounts", "previous_discounts")
    make_trainer(agent, made, adam, {}, s)._gradient_step({**dict.fromkeys(fields, one), "agent_out": {}})
    return dict(agent.named_parameters()), optimiser_state(adam, agent)


def _update(x: Tensors, s: Settings) -> Any:
    """What the step added is read off parameters that start at zero."""
    start = x.under("params")
    params, state = _stepped(start, x, s)
    updates, _ = _stepped({name: torch.zeros_like(value) for name, value in start.items()}, x, s)
    return {"params": params, "updates": updates, "opt_state": state}


def _adam(x: Tensors, s: Settings) -> Any:
    """Adam's direction: one step with the clip wide open, a learning rate of -1, from zero."""
    grads = x.under("grads")
    agent = UsersAgent({name: torch.zeros_like(value) for name, value in grads.items()})
    for name, parameter in agent.named_parameters():
        parameter.grad = grads[name].clone()
    made = optimiser(agent, -1.0, math.inf, x.record(AdamState, "opt_state"))
    made.beta1, made.beta2, made.eps = s["b1"], s["b2"], s["eps"]
    made.step()
    return {"updates": dict(agent.named_parameters()), "opt_state": optimiser_state(made, agent)}


def layers() -> dict[str, LayerFn]:
    """The layers of this module that the installed release has."""
    found: dict[str, LayerFn] = {
        "optim/target_average": _target_average,
        "disco/unroll_meta_net": _unroll_meta_net,
        "disco/agent_loss": _agent_loss,
        "disco/agent_loss_no_meta": _agent_loss_no_meta,
    }
    if hasattr(trainer, "ClippedAdam"):
        found |= {"optim/adam": _adam}
    if hasattr(trainer, "DiscoTrainer"):
        found |= {"optim/update": _update, "agent/loss": _loss}
        found |= dict.fromkeys(("agent/learner_step", "agent/learner_steps"), _learner_steps)
    return found
