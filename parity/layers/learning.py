"""Layers of learning: the Disco rule, the agent's loss and its learner step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from parity.layers import edits, params
from parity.layers.cases import K601, PLAIN, sized, terminals
from parity.layers.elementary import ema, fresh
from parity.layers.metanet import RNN_STATE, TARGETS
from parity.layers.networks import AGENT_SIZES, heads
from parity.layers.optim import FRESH_OPTIMISER, optimiser_state, zeroed
from parity.layers.params import tree
from parity.layers.spec import (
    Arrays,
    Case,
    Edit,
    Settings,
    Spec,
    each,
    fixed,
    flag,
    index,
    prefixed,
    register,
    smooth,
)


def targets_as_online(inputs: Arrays, settings: Settings) -> Arrays:
    """Target parameters equal to the online ones."""
    online = {name: value for name, value in inputs.items() if name.startswith("params/")}
    targets = {name.replace("params/", "meta_state/target_params/", 1): x.copy() for name, x in online.items()}
    return {**inputs, **targets}


RULE: Settings = {
    **AGENT_SIZES,
    **params.META,
    "max_abs_value": 4.0,
    "value_discount": 0.997,
    "moving_average_decay": 0.99,
    "moving_average_eps": 1e-6,
    "value_fn_td_lambda": 0.95,
    "target_params_coeff": 0.9,
}
COSTS: Settings = {"pi_cost": 1.0, "y_cost": 1.0, "z_cost": 1.0, "aux_policy_cost": 1.0}
UNEVEN_COSTS: Settings = {"pi_cost": 0.7, "y_cost": 1.3, "z_cost": 0.4, "aux_policy_cost": 1.6}
ALL_COSTS: Settings = {**COSTS, "value_cost": 0.2}
ALL_UNEVEN = Case("uneven_costs", {**UNEVEN_COSTS, "value_cost": 0.5})
EMAS = {**ema("meta_state/adv_ema"), **ema("meta_state/td_ema")}
FRESH_EMAS = fresh("meta_state/adv_ema", "meta_state/td_ema")


def meta_state(s: Settings) -> dict[str, Spec]:
    """Specs of what the rule carries from step to step."""
    return {
        **prefixed("meta_state", RNN_STATE),
        **EMAS,
        **params.specs("meta_state/target_params", params.agent(s)),
    }


FRESH_STATE: tuple[Edit, ...] = (targets_as_online, zeroed("meta_state/rnn/"), *FRESH_EMAS)
EACH_END = "first middle last every"
OTHER_SIZES = sized("T1_B1", "A2", "A18")
FULL: Settings = {**params.FULL_SIZE, "max_abs_value": 300.0}
UNSTORED: dict[str, Any] = {"stored": False, "gradients": False}
DISCO103: dict[str, Any] = {"meta_params": "disco103", **UNSTORED}

register(
    "disco/unroll_meta_net",
    "The rule's targets: target network, value outputs and meta-network; carries the meta-state on.",
    lambda s: {
        **prefixed("agent_out", heads("T+1 B")),
        "behaviour_out/logits": smooth("T+1 B A"),
        "observations": Spec(("T+1", "B", *s["obs"])),
        "actions": index("T+1 B"),
        "rewards": smooth("T B"),
        "is_terminal": flag("T B"),
        **params.specs("params", params.agent(s)),
        **meta_state(s),
        **params.specs("meta_params", params.meta(s)),
    },
    lambda s: {
        **prefixed("meta_out", TARGETS),
        **prefixed("meta_out", each("q_target adv normalized_adv q_td normalized_q_td", fixed("T B"))),
        **prefixed("meta_out", each("qv_adv normalized_qv_adv q_value", fixed("T+1 B A"))),
        **prefixed("meta_out/target_out", heads("T+1 B")),
        **meta_state(s),
    },
    RULE,
    (
        PLAIN,
        Case("fresh_state", edits=FRESH_STATE),
        *terminals(EACH_END),
        *OTHER_SIZES,
        Case("huge_rewards", edits=(edits.scaled(1e3, "rewards"),)),
        Case("disco103", FULL, **DISCO103),
    ),
    ("nets/agent", "values/outs", "meta/whole", "optim/target_average"),
)

LOGS = (
    "logits y z entropy y_entropy z_entropy pi_loss aux_kl_loss pi_hat y_hat z_hat "
    "pi_hat_entropy aux_policy_entropy aux_target_entropy"
)
VALUE_LOGS = "q_target agent_q_mean q_loss td normalized_td"
STEP_LOGS = "global_gradient_norm global_update_norm"


def logs(names: str, dims: str = "") -> dict[str, Spec]:
    """Specs of logged numbers."""
    return prefixed("log", each(names, fixed(dims)))


VALUE_OUTS = {
    **prefixed("meta_out", each("q_td q_target normalized_q_td", smooth("T B"))),
    "meta_out/q_value": smooth("T+1 B A"),
}
register(
    "disco/agent_loss",
    "KL of policy, y and z to their targets, and the auxiliary one-step policy loss, per step.",
    {
        **prefixed("agent_out", heads("T+1 B"), "logits y z aux_pi"),
        "actions": index("T+1 B"),
        "is_terminal": flag("T B"),
        **prefixed("meta_out", TARGETS, "pi y z"),
    },
    {"loss": fixed("T B"), **logs(LOGS)},
    {"T": 5, "B": 3, "A": 3, "P": 7, **COSTS, "backprop": True},
    (
        PLAIN,
        Case("targets_stopped", {"backprop": False}),
        Case("uneven_costs", UNEVEN_COSTS),
        *terminals(EACH_END),
        *OTHER_SIZES,
        Case("saturated", edits=(edits.scaled(40.0, "agent_out/logits", "meta_out/pi"),)),
    ),
    ("disco/unroll_meta_net", "ops/kl", "ops/entropy"),
)
register(
    "disco/agent_loss_no_meta",
    "The value loss, which meta-gradients do not pass through.",
    {"agent_out/q": smooth("T+1 B A K"), "actions": index("T+1 B"), **VALUE_OUTS},
    {"loss": fixed("T B"), **logs(VALUE_LOGS)},
    {"T": 5, "B": 3, "A": 3, "K": 11, "max_abs_value": 4.0, "value_cost": 0.2},
    (
        PLAIN,
        *OTHER_SIZES,
        K601,
        Case("past_the_range", edits=(edits.scaled(1e4, "meta_out/q_td"),)),
        Case("other_cost", {"value_cost": 1.5}),
    ),
    ("disco/unroll_meta_net", "values/loss_from_td"),
)

EXPERIENCE = {
    "actions": index("T+1 B"),
    "rewards": smooth("T+1 B"),
    "discounts": flag("T+1 B"),
    "logits": smooth("T+1 B A"),
}


def rollout(s: Settings) -> dict[str, Spec]:
    """Specs of what an actor records."""
    observations = Spec(("T+1", "B", *s["obs"]), draw="zero_one")
    return prefixed("rollout", {"observations": observations, **EXPERIENCE})


def alive(*prefixes: str) -> Edit:
    """Discounts as an actor gives them: true but at the last step of an episode (the generator draws few trues)."""
    return edits.changed(np.logical_not, *(f"{prefix}/discounts" for prefix in prefixes))


ALIVE = alive("rollout")


def learner_cases(*cases: Case) -> tuple[Case, ...]:
    """Cases whose rollouts look as the actor makes them."""
    return tuple(replace(case, edits=(ALIVE, *case.edits)) for case in cases)


ENDS = terminals(EACH_END, "rollout/discounts", then=(ALIVE,))

register(
    "agent/actor_step",
    "Actions from the policy's logits and given Gumbel noise, with what the learner will need.",
    lambda s: {
        "observation": Spec(("B", *s["obs"])),
        "is_last": flag("B"),
        "gumbel": fixed("B A"),
        **params.specs("params", params.agent(s), differentiable=False),
    },
    {"actions": index("B"), "discounts": flag("B"), **heads("B")},
    {k: v for k, v in AGENT_SIZES.items() if k != "T"},
    (
        Case("plain", {"B": 9}),
        *sized("B1", "A2"),
        Case("A18", {"A": 18, "B": 9}),
        Case("greedy", edits=(edits.filled(0.0, "gumbel"),)),
    ),
    ("nets/agent",),
)
register(
    "agent/loss",
    "The agent's loss, weighted away from the first step of each episode, and its gradient; targets given.",
    lambda s: {
        **rollout(s),
        **prefixed("meta_out", TARGETS, "pi y z"),
        **VALUE_OUTS,
        **params.specs("params", params.agent(s)),
    },
    lambda s: {
        "total_loss": fixed(""),
        **logs(f"{LOGS} {VALUE_LOGS}"),
        **tree("grads", params.agent(s)),
    },
    {**AGENT_SIZES, "max_abs_value": 4.0, **ALL_COSTS},
    learner_cases(PLAIN, ALL_UNEVEN, *ENDS, *OTHER_SIZES),
    ("nets/agent", "disco/agent_loss", "disco/agent_loss_no_meta"),
)


def agent_state(s: Settings) -> dict[str, Spec]:
    """Specs of all that a Disco agent carries from step to step."""
    shapes = params.agent(s)
    return {**params.specs("params", shapes), **optimiser_state(shapes, scale=0.01), **meta_state(s)}


def _learner_inputs(s: Settings, lead: tuple[str, ...] = ()) -> dict[str, Spec]:
    recorded = {name: replace(spec, dims=(*lead, *spec.dims)) for name, spec in rollout(s).items()}
    return {**recorded, **agent_state(s), **params.specs("meta_params", params.meta(s))}


def _learner_outputs(s: Settings, lead: str = "") -> dict[str, Spec]:
    return {**agent_state(s), **logs(f"total_loss {LOGS} {VALUE_LOGS} {STEP_LOGS}", lead)}


STEP: Settings = {"learning_rate": 0.01, "max_abs_update": 1.0}
LEARNER: Settings = {**RULE, **ALL_COSTS, **STEP, "is_meta_training": True}
FRESH_LEARNER: tuple[Edit, ...] = (FRESH_OPTIMISER, *FRESH_STATE)
FULL_STEP: Settings = {**FULL, "is_meta_training": False}
FULL_STEPS: Settings = {**FULL, "S": 20, "T": 6, "B": 4}
register(
    "agent/learner_step",
    "One whole learner step: experience in; parameters, optimiser, meta-state and logs out.",
    _learner_inputs,
    _learner_outputs,
    LEARNER,
    learner_cases(
        PLAIN,
        Case("fresh_state", edits=FRESH_LEARNER),
        Case("not_meta_training", {"is_meta_training": False}, gradients=False),
        ALL_UNEVEN,
        *ENDS,
        *OTHER_SIZES,
        Case("full_size", FULL_STEP, FRESH_LEARNER, **UNSTORED),
        Case("disco103", {**FULL_STEP, "T": 9, "B": 5}, FRESH_LEARNER, **DISCO103),
    ),
    ("nets/agent", "disco/unroll_meta_net", "agent/loss", "optim/update"),
)
register(
    "agent/learner_steps",
    "S learner steps in a row, each on its own rollout.",
    lambda s: _learner_inputs(s, lead=("S",)),
    lambda s: _learner_outputs(s, lead="S"),
    {**LEARNER, "S": 4, "is_meta_training": False},
    learner_cases(
        Case("four_steps", gradients=False),
        Case("from_the_start", edits=FRESH_LEARNER, gradients=False),
        Case("seeded_20_steps", FULL_STEPS, FRESH_LEARNER, **UNSTORED),
        Case("disco103_20_steps", FULL_STEPS, FRESH_LEARNER, **DISCO103),
    ),
    ("agent/learner_step",),
)
