"""The value function of meta-training: it judges a validation rollout, and learns beside the agent.

It reads what an actor recorded, with the last step dropped, so that the reward that came with an observation counts for
the transition that leaves it. The agent shifts its rewards by one step; the original does not do so here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from port import distributed, moving_average, ops, optimizers, trees
from port.config import (
    check_decays,
    check_deviations,
    check_fractions,
    check_numbers,
    check_positive,
    check_widths,
)
from port.distributed import Averaging
from port.networks import agent_net, init, nets, param_names
from port.networks.param_names import ObsSpec
from port.types import AdamState, EmaState, Logs, Observations, Params, Rollout, ValueOuts
from port.value_fns import value_utils, vtrace


@dataclass(frozen=True)
class ValueFnConfig:
    """Network, optimiser and estimates; the defaults are those of the original's `meta_train` notebook.

    Reference: disco_rl/types.py::ValueFnConfig
    """

    dense: tuple[int, ...] = (256, 256)
    head_w_init_std: float | None = 1e-2
    learning_rate: float = 1e-3
    max_abs_update: float = 1.0
    discount_factor: float = 0.99
    td_lambda: float = 0.96
    outer_value_cost: float = 1.0
    ema_decay: float = 0.99
    ema_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_widths(self, "dense")
        check_positive(self, "learning_rate", "max_abs_update", "ema_eps")
        check_fractions(self, "discount_factor", "td_lambda")
        check_decays(self, "ema_decay")
        check_numbers(self, "outer_value_cost")
        check_deviations(self, "head_w_init_std")


class ValueState(NamedTuple):
    """Everything that an update of the value function reads and replaces."""

    params: Params
    opt_state: AdamState
    adv_ema: EmaState
    td_ema: EmaState


def init_value_params(
    config: ValueFnConfig, obs_spec: ObsSpec, generator: torch.Generator, dtype: torch.dtype
) -> Params:
    """Fresh parameters, by our names, on the generator's device."""
    shapes = param_names.value_shapes(config.dense, param_names.observation_size(obs_spec))
    stds = {name: init.fan_in_std(shape) for name, shape in shapes.items() if name.endswith("/w")}
    stds["heads/value/w"] = config.head_w_init_std or stds["heads/value/w"]
    return init.draw_params(shapes, stds, generator, dtype)


def init_state(params: Params) -> ValueState:
    """The state of a value function that starts from the given parameters.

    Reference: disco_rl/value_fns/value_fn.py::ValueFunction.initial_state
    """
    like = next(iter(params.values()))
    return ValueState(params, optimizers.init_adam(params), moving_average.init(like), moving_average.init(like))


def net(params: Params, observations: Observations) -> Tensor:
    """The network's output, a value in signed-hyperbolic units: observations [T+1, B, ...] to [T+1, B, 1].

    Reference: disco_rl/networks/nets.py::MLPHeadNet._head_pass
    """
    embedding, prefix = agent_net.embed(params, observations, 2)
    return nets.linear(params, "heads/value", embedding).view(*prefix, 1)


def value_settings(config: ValueFnConfig) -> value_utils.ValueSettings:
    """Of a scalar head in signed-hyperbolic units."""
    form = value_utils.ValueForm(categorical=False, nonlinear=True)
    return value_utils.ValueSettings(form, config.discount_factor, config.td_lambda, config.ema_decay, config.ema_eps)


def estimates(
    state: ValueState,
    rollout: Rollout,
    target_logits: Tensor,
    config: ValueFnConfig,
    averaging: Averaging | None = None,
) -> tuple[ValueOuts, Tensor, EmaState, EmaState]:
    """Values, targets and advantages of a rollout of T+1 steps.

    Args:
        state: of the value function.
        rollout: what an actor recorded.
        target_logits: [T+1, B, A], of the policy whose value is wanted.
        config: of the value function.
        averaging: over ranks, of the moments.

    Returns:
        The estimates, the network's output [T+1, B, 1], and the two new moving averages.

    Reference: disco_rl/value_fns/value_fn.py::ValueFunction.get_value_outs
    """
    net_out = net(state.params, rollout.observations)
    outs, adv_ema, td_ema = vtrace.value_outs(
        net_out,
        target_logits,
        rollout.agent_outs["logits"],
        rollout.actions,
        rollout.rewards.to(net_out.dtype),
        rollout.discounts,
        (state.adv_ema, state.td_ema),
        value_settings(config),
        drop_last=True,
        averaging=averaging,
    )
    return outs, net_out, adv_ema, td_ema


def update(
    state: ValueState,
    rollout: Rollout,
    target_logits: Tensor,
    config: ValueFnConfig,
    keep_graph: bool = False,
    averaging: Averaging | None = None,
) -> tuple[ValueState, ValueOuts, Logs]:
    """Moves the value function towards its V-trace targets.

    The loss is in the network's own units, although the error that it is built from is one of values: that is how
    the original has it.

    Args:
        state: of the value function.
        rollout: what an actor recorded, T+1 steps.
        target_logits: [T+1, B, A], of the policy whose value is learned; they enter by importance weights only, which
            carry no gradient.
        config: of the value function.
        keep_graph: whether the new state can be differentiated for the old one.
        averaging: over ranks, of the moments and of the gradients.

    Returns:
        The new state, the estimates before the update, and logs.

    Reference: disco_rl/value_fns/value_fn.py::ValueFunction.update
    """
    params = {k: p if keep_graph and p.requires_grad else p.detach().requires_grad_() for k, p in state.params.items()}
    with torch.enable_grad():
        tracked = state._replace(params=params)
        outs, net_out, adv_ema, td_ema = estimates(tracked, rollout, target_logits, config, averaging)
        own_units = value_utils.ValueForm(categorical=False, nonlinear=False)
        losses = value_utils.value_loss_from_td(net_out[:-1], outs.normalized_td, own_units)
        loss = ops.mean(config.outer_value_cost * losses)
        slopes = torch.autograd.grad(loss, list(params.values()), create_graph=keep_graph)
    with torch.set_grad_enabled(keep_graph):
        grads = distributed.averaged_params(averaging, dict(zip(params, slopes, strict=True)))
        speeds = (config.learning_rate, config.max_abs_update)
        new_params, _, opt_state = optimizers.update(params, grads, state.opt_state, *speeds)
        new = ValueState(new_params, opt_state, adv_ema, td_ema)
    logs = {"value_loss": loss, "value_td": outs.td, "value_normalized_td": outs.normalized_td}
    return (new, outs, logs) if keep_graph else (trees.detached(new), trees.detached(outs), trees.detached(logs))
