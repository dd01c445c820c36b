"""What an update rule is to an agent, and what all rules share.

A rule says which heads the agent's network has, keeps a memory over the agent's life, prepares targets from a rollout
and gives the loss against them. Each rule is a frozen dataclass in a module of its own; `make` chooses one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from port import ops, trees
from port.networks import agent_net
from port.types import Heads, Logs, MetaOut, Params, RuleInputs, RuleState


class UpdateRule(Protocol):
    """An update rule; it holds configuration only.

    Reference: disco_rl/update_rules/base.py::UpdateRule
    """

    def heads(self, num_actions: int) -> Heads:
        """The heads that an agent needs to learn by this rule.

        Reference: disco_rl/update_rules/base.py::UpdateRule.agent_output_spec
        """
        ...

    def init_meta_state(self, params: Params) -> RuleState:
        """What the rule remembers at the start of the life of an agent with these parameters.

        Reference: disco_rl/update_rules/base.py::UpdateRule.init_meta_state
        """
        ...

    def check_meta_params(self, meta_params: Params | None) -> None:
        """Raises ValueError where these cannot be the rule's meta-parameters."""
        ...

    def check_meta_state(self, meta_state: RuleState, params: Params) -> None:
        """Raises ValueError or TypeError where this is not what the rule remembers of an agent with such parameters."""
        ...

    def unroll_meta_net(
        self, meta_params: Params, params: Params, meta_state: RuleState, inputs: RuleInputs
    ) -> tuple[MetaOut, RuleState]:
        """What the loss needs, and what the rule remembers from here on; nothing that is given is changed.

        Reference: disco_rl/update_rules/base.py::UpdateRule.unroll_meta_net
        """
        ...

    def agent_loss(self, inputs: RuleInputs, meta_out: Mapping[str, Any], backprop: bool) -> tuple[Tensor, Logs]:
        """Loss per step [T, B] and logs; `backprop` lets gradients into the meta-network.

        Reference: disco_rl/update_rules/base.py::UpdateRule.agent_loss
        """
        ...

    def agent_loss_no_meta(self, inputs: RuleInputs, meta_out: Mapping[str, Any]) -> tuple[Tensor, Logs]:
        """The part of the loss per step [T, B] that lets no gradient into the meta-network, and logs.

        Reference: disco_rl/update_rules/base.py::UpdateRule.agent_loss_no_meta
        """
        ...


class WithoutMetaNet:
    """What rules without a meta-network have in common.

    Reference: disco_rl/update_rules/base.py::UpdateRule.agent_loss_no_meta
    """

    def check_meta_params(self, meta_params: Params | None) -> None:
        """There is no meta-network, so anything but None (or nothing at all) was meant for another rule."""
        if meta_params:
            raise ValueError(f"{type(self).__name__} has no meta-network, so it takes no meta-parameters; pass None.")

    def agent_loss_no_meta(self, inputs: RuleInputs, meta_out: Mapping[str, Any]) -> tuple[Tensor, Logs]:
        """Nothing: all of the loss is in `agent_loss`."""
        return torch.zeros_like(inputs.rewards), {}


def apply(
    rule: UpdateRule,
    meta_params: Params | None,
    params: Params,
    meta_state: RuleState,
    inputs: RuleInputs,
    backprop: bool = False,
) -> tuple[Tensor, RuleState, Logs]:
    """A rule by itself, without an agent: from a rollout to the loss.

    Args:
        rule: which one.
        meta_params: of its meta-network, if it has one.
        params: of the agent.
        meta_state: what the rule remembers.
        inputs: the rollout.
        backprop: whether gradients flow into the meta-network.

    Returns:
        Loss per step [T, B], what the rule remembers from here on, and logs.

    Reference: disco_rl/update_rules/base.py::UpdateRule.__call__
    """
    rule.check_meta_params(meta_params)
    rule.check_meta_state(meta_state, params)
    meta_out, new_state = rule.unroll_meta_net(meta_params or {}, params, meta_state, inputs)
    loss, logs = rule.agent_loss(inputs, meta_out, backprop)
    other, other_logs = rule.agent_loss_no_meta(inputs, meta_out)
    return loss + other, new_state, {**logs, **other_logs}


def check_memory(got: RuleState, fresh: NamedTuple, rule: str) -> None:
    """Raises an error where what a rule should remember is of another rule, another agent or another dtype.

    Types, names, shapes and dtypes are looked at, never the numbers.

    Args:
        got: what was given, TypeError if it is another record.
        fresh: what the rule would remember of this agent at the start of its life.
        rule: its name.
    """
    remedy = "begin with Agent.learner_state or the rule's init_meta_state"
    if type(got) is not type(fresh):
        kinds = (type(x).__name__.replace("NoneType", "None") for x in (fresh, got))
        raise TypeError("{} remembers {}, but was given {}; {}.".format(rule, *kinds, remedy))
    have, want = trees.flatten(got), trees.flatten(fresh)
    if odd := sorted(have.keys() ^ want.keys()):
        raise ValueError(f"What {rule} was given to remember is of another agent ({', '.join(odd[:3])}); {remedy}.")
    for name, x in want.items():
        if have[name].shape != x.shape or have[name].dtype != x.dtype:
            was, needs = (f"{t.dtype} {tuple(t.shape)}" for t in (have[name], x))
            raise ValueError(f"{rule} was given {name} as {was} to remember; it must be {needs}: {remedy}.")


def check_inputs(inputs: RuleInputs, heads: tuple[str, ...], rule: str, is_off_policy: bool = False) -> None:
    """Raises ValueError, KeyError or TypeError where the inputs of a rule do not fit together.

    Args:
        inputs: the rollout.
        heads: what the rule reads of the agent's outputs.
        rule: its name.
        is_off_policy: whether it also reads the logits of the policy that acted.
    """
    ops.check_tensors(rewards=inputs.rewards, actions=inputs.actions, is_terminal=inputs.is_terminal)
    if inputs.rewards.ndim != 2 or inputs.rewards.shape[0] < 1:
        raise ValueError(f"Rewards must be [T, B] with T at least 1; got {tuple(inputs.rewards.shape)}.")
    T, B = inputs.rewards.shape
    missing = [head for head in heads if head not in inputs.agent_out]
    if missing:
        raise KeyError(f"The agent's outputs lack {', '.join(missing)}; {rule} needs {', '.join(heads)}.")
    if is_off_policy and "logits" not in inputs.behaviour_agent_out:
        raise KeyError("The outputs of the acting network lack logits; the importance weights need them.")
    A = inputs.agent_out["logits"].shape[-1]
    leads: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for head in heads:
        wanted = (T + 1, B, A)[: 2 + (head in agent_net.MODEL_HEADS)]
        leads[f"agent_out/{head}"] = (tuple(inputs.agent_out[head].shape), wanted)
    if "logits" in inputs.behaviour_agent_out:
        leads["behaviour_agent_out/logits"] = (tuple(inputs.behaviour_agent_out["logits"].shape), (T + 1, B, A))
    leads["actions"] = (tuple(inputs.actions.shape), (T + 1, B))
    leads["is_terminal"] = (tuple(inputs.is_terminal.shape), (T, B))
    for name, (shape, lead) in leads.items():
        if shape[: len(lead)] != lead:
            raise ValueError(f"With {T} transitions of {B}, {name} must start with {lead}; got {shape}.")
    ops.check_actions(inputs.actions, A)
