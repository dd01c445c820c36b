"""What a rollout must be before anything is learned from it; what is not is said in a sentence."""

from __future__ import annotations

from torch import Tensor

from port import ops
from port.networks import agent_net
from port.types import Params, Rollout


def check_rollout(rollout: Rollout) -> None:
    """Raises an error where the fields of a rollout do not have the same T+1 and B, or hold what is no number.

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


def check_dtypes(rollout: Rollout, params: Params, meta_params: Params | None) -> None:
    """Raises ValueError where what is computed with is not all in the dtype of the agent's parameters."""
    dtype = next(iter(params.values())).dtype
    found = {f"parameter {name}": x.dtype for name, x in params.items()}
    found |= {f"meta-parameter {name}": x.dtype for name, x in (meta_params or {}).items()}
    found |= {"agent_outs/logits of the rollout": rollout.agent_outs["logits"].dtype}
    if rollout.rewards.is_floating_point():
        found |= {"rewards of the rollout": rollout.rewards.dtype}
    for name, other in found.items():
        if other != dtype:
            raise ValueError(f"The agent learns in {dtype}, but {name} is {other}; make all of one dtype.")


def check_policy(rollout: Rollout, num_actions: int) -> None:
    """Raises ValueError where a rollout comes from a policy over another number of actions."""
    if rollout.agent_outs["logits"].shape[2:] != (num_actions,):
        got = tuple(rollout.agent_outs["logits"].shape)
        raise ValueError(f"The rollout's agent_outs/logits are {got}; the agent has {num_actions} actions.")
    ops.check_actions(rollout.actions, num_actions)
