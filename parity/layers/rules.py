"""Layers of the two update rules without a meta-network, actor-critic and policy gradient, and of agents with them."""

from __future__ import annotations

from parity.layers import edits, learning, params
from parity.layers.cases import K601, PLAIN, sized, terminals
from parity.layers.elementary import ORDINARY, SIZES
from parity.layers.optim import FRESH_OPTIMISER, optimiser_state
from parity.layers.spec import Case, Settings, Spec, each, fixed, flag, index, prefixed, register, smooth
from parity.layers.values import HUGE_REWARDS

register(
    "ops/policy_gradient_loss",
    "Minus the log-probability of the action taken, times its advantage.",
    {"logits": smooth("T B A"), "actions": index("T B"), "advantages": smooth("T B")},
    {"loss": fixed("T B")},
    {**SIZES, "backprop": True},
    (
        *ORDINARY,
        Case("saturated", edits=(edits.scaled(40.0, "logits"),)),
        Case("underflow", edits=(edits.scaled(900.0, "logits"),)),
        Case("advantages_stopped", {"backprop": False}),
    ),
    ("ops/lookup",),
)

VALUE_HEAD: Settings = {
    **{"T": 4, "B": 3, "A": 3, "K": 11, "max_abs_value": 4.0},
    **{"categorical_value": True, "nonlinear_value_transform": True},
}
SCALAR: Settings = {"K": 1, "categorical_value": False}
LINEAR: Settings = {"nonlinear_value_transform": False}
TRACES: Settings = {"discount_factor": 0.997, "vtrace_lambda": 0.95}
AVERAGES: Settings = {"moving_average_decay": 0.99, "moving_average_eps": 1e-6}
HEADS = {"agent_out/logits": smooth("T+1 B A"), "agent_out/v": smooth("T+1 B K")}
SATURATED = Case("saturated", edits=(edits.scaled(40.0, "agent_out/logits"),))
register(
    "actor_critic/unroll",
    "Advantages and TD errors by V-trace, raw and normalised; carries both moving averages on.",
    {
        **HEADS,
        "behaviour_out/logits": smooth("T+1 B A"),
        "actions": index("T+1 B"),
        "rewards": smooth("T B"),
        "is_terminal": flag("T B"),
        **learning.EMAS,
    },
    {
        **prefixed("meta_out", each("raw_advs normalized_advs value_target tds normalized_tds", fixed("T B"))),
        "meta_out/values": fixed("T+1 B"),
        **learning.EMAS,
    },
    {**VALUE_HEAD, **TRACES, **AVERAGES},
    (
        PLAIN,
        Case("fresh_state", edits=learning.FRESH_EMAS),
        *terminals(learning.EACH_END),
        *sized("T1_B1", "A18"),
        Case("scalar", SCALAR),
        Case("scalar_linear", {**SCALAR, **LINEAR}),
        K601,
        Case("ratio_one", edits=(edits.same_as("agent_out/logits", "behaviour_out/logits"),)),
        HUGE_REWARDS,
        Case("other_discounting", {"discount_factor": 0.9, "vtrace_lambda": 0.5}),
        Case("other_averages", {"moving_average_decay": 0.9, "moving_average_eps": 1e-3}),
    ),
    ("values/outs_v",),
)

AC_COSTS: Settings = {"pg_cost": 1.0, "value_cost": 0.5, "entropy_cost": 0.2}
NOT_NORMALIZED: Settings = {"normalize_adv": False, "normalize_td": False}
NORMALIZED = Case("normalized", {**SCALAR, "normalize_adv": True, "normalize_td": True})
AC_LOGS = "logits entropy pg_advs raw_advs avg_value"
register(
    "actor_critic/agent_loss",
    "Policy gradient, value loss and entropy bonus per step; advantages and TD errors are constants.",
    {
        **HEADS,
        "actions": index("T+1 B"),
        **prefixed("meta_out", each("raw_advs normalized_advs tds normalized_tds", smooth("T B"))),
        "meta_out/values": smooth("T+1 B"),
    },
    {"loss": fixed("T B"), **learning.logs(AC_LOGS)},
    {**VALUE_HEAD, **NOT_NORMALIZED, **AC_COSTS},
    (
        PLAIN,
        Case("uneven_costs", {"pg_cost": 1.7, "value_cost": 0.3, "entropy_cost": 0.9}),
        Case("normalized_advantages", {"normalize_adv": True}),
        NORMALIZED,
        Case("scalar", SCALAR),
        Case("linear", LINEAR),
        Case("scalar_linear", {**SCALAR, **LINEAR}),
        *sized("T1_B1", "A18"),
        Case("past_the_range", edits=(edits.scaled(1e4, "meta_out/tds"),)),
        SATURATED,
    ),
    ("actor_critic/unroll", "ops/policy_gradient_loss", "ops/entropy", "values/loss_from_td"),
)
register(
    "policy_gradient/loss",
    "Policy gradient with a value function's advantages, which are constants, and entropy bonus, per step.",
    {
        "agent_out/logits": smooth("T+1 B A"),
        "actions": index("T+1 B"),
        **prefixed("value_out", each("adv normalized_adv", smooth("T B"))),
    },
    {"loss": fixed("T B"), **learning.logs("entropy pg_advs")},
    {"T": 5, "B": 3, "A": 3, "normalize_adv": True, "pg_cost": 1.0, "entropy_cost": 0.01},
    (
        PLAIN,
        Case("raw_advantages", {"normalize_adv": False}),
        Case("uneven_costs", {"pg_cost": 1.7, "entropy_cost": 0.9}),
        *sized("T1_B1", "A2", "A18"),
        SATURATED,
    ),
    ("ops/policy_gradient_loss", "ops/entropy"),
)


def network(s: Settings) -> params.Shapes:
    """The network of an actor-critic agent: torso, and the heads logits and v."""
    return params.torso(s) | params.torso_heads(s["dense"][-1], s["A"], s["K"])


LEARNER: Settings = {
    **VALUE_HEAD,
    **{"obs": (4, 3, 1), "dense": (10, 9)},
    **NOT_NORMALIZED,
    **TRACES,
    **AVERAGES,
    **AC_COSTS,
    **learning.STEP,
    "is_meta_training": True,
}
FULL_SIZE: Settings = {
    **{"K": 601, "max_abs_value": 300.0, "obs": (8, 8, 1), "dense": (64, 32, 32), "learning_rate": 5e-4},
    "is_meta_training": False,
}


def learner(s: Settings) -> dict[str, Spec]:
    """Specs of parameters, optimiser and moving averages."""
    return {**params.specs("params", network(s)), **optimiser_state(network(s), scale=0.01), **learning.EMAS}


FRESH_LEARNER = (FRESH_OPTIMISER, *learning.FRESH_EMAS)
register(
    "agent/actor_critic_step",
    "One whole learner step by the actor-critic rule: parameters, optimiser, moving averages and logs.",
    lambda s: {**learning.rollout(s), **learner(s)},
    lambda s: {**learner(s), **learning.logs(f"total_loss {AC_LOGS} {learning.STEP_LOGS}")},
    LEARNER,
    learning.learner_cases(
        PLAIN,
        Case("fresh_state", edits=FRESH_LEARNER),
        *learning.ENDS,
        NORMALIZED,
        Case("not_meta_training", {"is_meta_training": False, "T": 1, "B": 1}, gradients=False),
        Case("full_size", FULL_SIZE, FRESH_LEARNER, **learning.UNSTORED),
    ),
    ("nets/mlp", "actor_critic/unroll", "actor_critic/agent_loss", "optim/update"),
)
