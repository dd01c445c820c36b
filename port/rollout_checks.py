"""What a learner step takes, and what it may leave; anything else is an error in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from port import ops, trees
from port.networks import agent_net
from port.types import LearnerState, Logs, Params, Rollout


def check_rollout(rollout: Rollout) -> None:
    """Raises an error where the fields of a rollout do not have the same T+1 and B, or hold what teaches nothing.

    ValueError, KeyError where there are no logits, TypeError where a field is no tensor.
    """
    fields: dict[str, Tensor] = {"actions": rollout.actions, "discounts": rollout.discounts}
    fields |= {f"observations[{i}]": x for i, x in enumerate(agent_net.leaves(rollout.observations))}
    fields |= {f"agent_outs/{name}": x for name, x in rollout.agent_outs.items()}
    ops.check_tensors(rewards=rollout.rewards, **fields)
    lead = tuple(rollout.rewards.shape)
    if len(lead) != 2 or lead[0] < 2 or lead[1] < 1:
        raise ValueError(f"Rewards of a rollout must be [T+1, B] with at least 2 steps of 1 environment; got {lead}.")
    if "logits" not in rollout.agent_outs:
        raise KeyError("The rollout's agent_outs lack logits; keep those of the network that acted.")
    for name, x in fields.items():
        if tuple(x.shape[:2]) != lead:
            raise ValueError(f"Rewards are [T+1, B] = {lead}, but {name} is {tuple(x.shape)}.")
        if bool(x.isnan().any()):  # minus infinity may stand in logits, for what cannot be chosen
            raise ValueError(f"The rollout's {name} holds NaN; look at what made it.")
    if not bool(rollout.rewards.isfinite().all()):
        raise ValueError("The rollout's rewards are not all finite; look at what made them.")
    if not bool(((rollout.discounts >= 0) & (rollout.discounts <= 1)).all()):
        raise ValueError("The rollout's discounts are not all between 0 and 1; give 0 at the last step of an episode.")
    if not bool(rollout.agent_outs["logits"].logsumexp(-1).isfinite().all()):
        raise ValueError("The rollout's agent_outs/logits hold rows that give no distribution; look at what made them.")


def check_params(rollout: Rollout, params: Params, meta_params: Params | None) -> None:
    """Raises ValueError where not all is in the dtype of the agent's parameters, or where these are not finite."""
    dtype = next(iter(params.values())).dtype
    learned = {f"parameter {name}": x for name, x in params.items()}
    learned |= {f"meta-parameter {name}": x for name, x in (meta_params or {}).items()}
    others = {"agent_outs/logits of the rollout": rollout.agent_outs["logits"]}
    if rollout.rewards.is_floating_point():
        others |= {"rewards of the rollout": rollout.rewards}
    for name, x in (learned | others).items():
        if x.dtype != dtype:
            raise ValueError(f"The agent learns in {dtype}, but {name} is {x.dtype}; make all of one dtype.")
    if name := not_finite(learned):
        raise ValueError(f"The {name} holds numbers that are not finite; go back to a state before they appeared.")


def check_learned(state: LearnerState, logs: Logs, when: str) -> None:
    """Raises FloatingPointError where a learner step has overflowed: in its gradient, its update or the rule's memory.

    Finite norms leave Adam's moments finite. `when` says which step it was.
    """
    made = {name: logs[name] for name in ("global_gradient_norm", "global_update_norm")}
    if name := not_finite(made | trees.flatten(state.meta_state or {})):
        raise FloatingPointError(
            f"The learner step overflowed {when}: {name} is not finite. Nothing was learned from it, and no checkpoint "
            "was written. Lower the learning rate, or the scale of the rewards."
        )


def not_finite(tensors: Mapping[str, Tensor]) -> str:
    """The name of the first tensor that holds NaN or infinity; empty if there is none.

    A sum is finite only where all its terms are; each tensor is searched only where a sum is not.
    """
    with torch.no_grad():
        if bool(torch.stack([x.sum() for x in tensors.values()]).isfinite().all()):
            return ""
        return next((name for name, x in tensors.items() if not bool(x.isfinite().all())), "")


def check_policy(rollout: Rollout, num_actions: int) -> None:
    """Raises ValueError where a rollout comes from a policy over another number of actions."""
    if rollout.agent_outs["logits"].shape[2:] != (num_actions,):
        got = tuple(rollout.agent_outs["logits"].shape)
        raise ValueError(f"The rollout's agent_outs/logits are {got}; the agent has {num_actions} actions.")
    ops.check_actions(rollout.actions, num_actions)
