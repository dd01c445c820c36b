"""The records that travel between the modules of the port.

Letters: T transitions, so that a bootstrapped axis is T+1; B batch; A actions; P prediction size; K value bins;
H and M the hidden sizes of the trajectory RNN and of the meta-RNN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Params: TypeAlias = dict[str, Tensor]
Observations: TypeAlias = Tensor | Mapping[str, Any]
Outputs: TypeAlias = Mapping[str, Tensor]
Logs: TypeAlias = dict[str, Any]
MetaOut: TypeAlias = dict[str, Any]  # what a rule prepares for its loss: tensors, or a dict of tensors
FIRST_STEP, MID_STEP, LAST_STEP = 0, 1, 2  # types of steps of an episode
RuleState: TypeAlias = Any  # MetaState for Disco, ActorCriticState, or None: only the rule itself looks inside


class Heads(NamedTuple):
    """What an agent's network predicts: the width of each head by name.

    `flat` ones are given once per state [..., width], `model` ones once per action [..., A, width].
    """

    flat: dict[str, int]
    model: dict[str, int]


class LstmState(NamedTuple):
    """What an LSTM carries from one step to the next: both [..., size]."""

    hidden: Tensor
    cell: Tensor


class EmaState(NamedTuple):
    """Running moments of a stream of numbers, all scalars [].

    `decay_product` is the product of all decays so far, which the debiasing divides out.
    """

    moment1: Tensor
    moment2: Tensor
    decay_product: Tensor


@dataclass(frozen=True)
class AdamState:
    """Adam's moments; `count` is an integer scalar, the number of updates so far."""

    count: Tensor
    mu: Params
    nu: Params


class MetaState(NamedTuple):
    """What the update rule remembers over an agent's lifetime."""

    rnn_state: LstmState  # [M] each
    adv_ema: EmaState
    td_ema: EmaState
    target_params: Params


class ActorCriticState(NamedTuple):
    """What the actor-critic rule remembers: moments of its advantages and of its TD errors."""

    adv_ema: EmaState
    td_ema: EmaState


class LearnerState(NamedTuple):
    """Everything that a learner step reads and replaces."""

    params: Params
    opt_state: AdamState
    meta_state: RuleState


class Timestep(NamedTuple):
    """What an environment shows: observation [B, ...], step_type [B] (0 first, 1 middle, 2 last), reward [B]."""

    observation: Observations
    step_type: Tensor
    reward: Tensor


class ActorTimestep(NamedTuple):
    """One acted step, all [B, ...]; stacked over time it is a rollout."""

    observations: Observations
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    agent_outs: Outputs
    logits: Tensor


@dataclass(frozen=True)
class Rollout:
    """T+1 acted steps.

    Attributes:
        observations: [T+1, B, ...], a tensor or a dict of tensors.
        actions: [T+1, B], integers.
        rewards: [T+1, B], the reward that came with each observation, so that the first is not used.
        discounts: [T+1, B], zero (or False) at the last step of an episode.
        agent_outs: what the actor's network said; only `logits` [T+1, B, A] is needed.
    """

    observations: Observations
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    agent_outs: Outputs


@dataclass(frozen=True)
class RuleInputs:
    """What an update rule sees of a rollout.

    Attributes:
        observations: [T+1, B, ...].
        actions: [T+1, B].
        rewards: [T, B], reward of each transition.
        is_terminal: [T, B], whether the transition ended the episode.
        agent_out: outputs of the online network, [T+1, B, ...] each.
        behaviour_agent_out: outputs of the network that acted; only `logits` [T+1, B, A] is needed.
        extra_from_rule: what the rule computed for its meta-network (values, advantages, target outputs).
        value_out: estimates of a value function outside the agent; the policy-gradient rule needs them.
    """

    observations: Observations
    actions: Tensor
    rewards: Tensor
    is_terminal: Tensor
    agent_out: Outputs
    behaviour_agent_out: Outputs
    extra_from_rule: Mapping[str, Any] | None = None
    value_out: ValueOuts | None = None


class ValueOuts(NamedTuple):
    """Value estimates of a rollout; see `port.value_fns.value_utils.value_outs`."""

    value: Tensor  # [T+1, B]
    target_value: Tensor  # [T+1, B]
    rho: Tensor  # [T, B]
    adv: Tensor  # [T, B]
    normalized_adv: Tensor  # [T, B]
    value_target: Tensor  # [T, B]
    td: Tensor  # [T, B]
    normalized_td: Tensor  # [T, B], zero in the Q form
    qv_adv: Tensor  # [T+1, B, A]
    normalized_qv_adv: Tensor  # [T+1, B, A]
    q_value: Tensor  # [T+1, B, A]
    target_q_value: Tensor  # [T+1, B, A]
    q_target: Tensor  # [T, B]
    q_td: Tensor  # [T, B]
    normalized_q_td: Tensor  # [T, B]

    @classmethod
    def of(cls, **known: Tensor) -> ValueOuts:
        """Estimates of which only some are known, `adv` among them; all others are zero, [T, B]."""
        unset = torch.zeros_like(known["adv"])
        return cls(**{name: known.get(name, unset) for name in cls._fields})
