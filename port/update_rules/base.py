"""What an update rule is to an agent, and what all rules share.

A rule says which heads the agent's network has, keeps a memory over the agent's lifetime, prepares targets from a
rollout and gives the loss against them. Each rule is a frozen dataclass in a module of its own; `make` chooses one.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from port import ops, trees
from port.networks import agent_net
from port.types import Heads, Logs, MetaOut, Params, RuleInputs, RuleState


class UpdateRule(abc.ABC):
    """An update rule; it holds configuration only. Unless it says otherwise, a rule has no meta-network.

    Reference: disco_rl/update_rules/base.py::UpdateRule
    """

    @abc.abstractmethod
    def heads(self, num_actions: int) -> Heads:
        """The heads that an agent needs to learn by this rule.

        Reference: disco_rl/update_rules/base.py::UpdateRule.agent_output_spec
        """

    @abc.abstractmethod
    def init_meta_state(self, params: Params) -> RuleState:
        """What the rule remembers at the start of the lifetime of an agent with these parameters.

        Reference: disco_rl/update_rules/base.py::UpdateRule.init_meta_state
        """

    @abc.abstractmethod
    def unroll_meta_net(
        self, meta_params: Params, params: Params, meta_state: RuleState, inputs: RuleInputs
    ) -> tuple[MetaOut, RuleState]:
        """What the loss needs, and what the rule remembers from here on; no argument is changed.

        Reference: disco_rl/update_rules/base.py::UpdateRule.unroll_meta_net
        """

    @abc.abstractmethod
    def agent_loss(self, inputs: RuleInputs, meta_out: Mapping[str, Any], backprop: bool) -> tuple[Tensor, Logs]:
        """Loss per step [T, B] and logs; `backprop` lets gradients into the meta-network.

        Reference: disco_rl/update_rules/base.py::UpdateRule.agent_loss
        """

    def agent_loss_no_meta(self, inputs: RuleInputs, meta_out: Mapping[str, Any]) -> tuple[Tensor, Logs]:
        """The part of the loss per step [T, B] that lets no gradient into the meta-network, and logs; here, nothing.

        Reference: disco_rl/update_rules/base.py::UpdateRule.agent_loss_no_meta
        """
        return torch.zeros_like(inputs.rewards), {}

    def check_meta_params(self, meta_params: Params | None) -> None:
        """Raises ValueError where these cannot be the rule's meta-parameters; here, where there are any."""
        if meta_params:
            raise ValueError(f"{type(self).__name__} has no meta-network, so it takes no meta-parameters; pass None.")

    def check_meta_state(self, meta_state: RuleState, params: Params) -> None:
        """Raises an error where a memory is of another rule, another agent or another dtype.

        Types, names, shapes and dtypes are looked at, never the numbers.
        """
        rule, fresh = type(self).__name__, self.init_meta_state(params)
        remedy = "; begin with Agent.learner_state or the rule's init_meta_state"
        if type(meta_state) is not type(fresh):
            needed = "nothing" if fresh is None else type(fresh).__name__
            got = "None" if meta_state is None else type(meta_state).__name__
            raise TypeError(f"{rule} remembers {needed}, but was given {got}{remedy}.")
        if fresh is not None:
            trees.check_same(trees.flatten(meta_state), trees.flatten(fresh), f"What {rule} remembers", remedy)

    def check_inputs(self, inputs: RuleInputs, heads: tuple[str, ...], is_off_policy: bool = False) -> None:
        """Raises ValueError, KeyError or TypeError where the inputs of a rule do not fit together.

        Args:
            inputs: the rollout.
            heads: what the rule reads of the agent's outputs.
            is_off_policy: whether it also reads the logits of the policy that acted.
        """
        ops.check_tensors(rewards=inputs.rewards, actions=inputs.actions, is_terminal=inputs.is_terminal)
        if inputs.rewards.ndim != 2 or inputs.rewards.shape[0] < 1:
            raise ValueError(f"Rewards must be [T, B] with T at least 1; got {tuple(inputs.rewards.shape)}.")
        T, B = inputs.rewards.shape
        missing = [head for head in heads if head not in inputs.agent_out]
        if missing:
            needs = f"{type(self).__name__} needs {', '.join(heads)}"
            raise KeyError(f"The agent's outputs lack {', '.join(missing)}; {needs}.")
        if is_off_policy and "logits" not in inputs.behaviour_agent_out:
            raise KeyError("The outputs of the acting network lack logits; the importance weights need them.")
        A = inputs.agent_out["logits"].shape[-1]
        leads: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
        for head in heads:
            leads[f"agent_out/{head}"] = (inputs.agent_out[head], (T + 1, B, A)[: 2 + (head in agent_net.MODEL_HEADS)])
        if "logits" in inputs.behaviour_agent_out:
            leads["behaviour_agent_out/logits"] = (inputs.behaviour_agent_out["logits"], (T + 1, B, A))
        leads |= {"actions": (inputs.actions, (T + 1, B)), "is_terminal": (inputs.is_terminal, (T, B))}
        for name, (x, lead) in leads.items():
            if x.shape[: len(lead)] != lead:
                raise ValueError(f"With {T} transitions of {B}, {name} must start with {lead}; got {tuple(x.shape)}.")
        ops.check_actions(inputs.actions, A)


def apply(
    rule: UpdateRule,
    meta_params: Params | None,
    params: Params,
    meta_state: RuleState,
    inputs: RuleInputs,
    backprop: bool = False,
) -> tuple[Tensor, RuleState, Logs]:
    """A rule by itself, without an agent: from a rollout to the loss.

    Returns:
        Loss per step [T, B], the new state of the rule, and logs.

    Reference: disco_rl/update_rules/base.py::UpdateRule.__call__
    """
    rule.check_meta_params(meta_params)
    rule.check_meta_state(meta_state, params)
    meta_out, new_state = rule.unroll_meta_net(meta_params or {}, params, meta_state, inputs)
    loss, logs = rule.agent_loss(inputs, meta_out, backprop)
    other, other_logs = rule.agent_loss_no_meta(inputs, meta_out)
    return loss + other, new_state, {**logs, **other_logs}
