"""Layers of the two update rules without a meta-network, actor-critic and policy gradient, and of agents with them."""

from __future__ import annotations

from parity.layers import edits, params
from parity.layers.elementary import ORDINARY, SIZES, constant
from parity.layers.learning import (
    ENDS,
    ROLLOUT,
    TERMINALS,
    fresh_optimiser,
    learner_cases,
    observations,
    optimiser_state,
)
from parity.layers.spec import Case, Layer, Settings, Spec, fixed, flag, index, register, smooth
from parity.layers.values import ema, fresh

register(
    Layer(
        "ops/policy_gradient_loss",
        "Minus the log-probability of the action taken, times its advantage.",
        constant({"logits": smooth("T B A"), "actions": index("T B"), "advantages": smooth("T B")}),
        constant({"loss": fixed("T B")}),
        {**SIZES, "backprop": True},
        (
            *ORDINARY,
            Case("saturated", edits=(edits.scaled(40.0, "logits"),)),
            Case("underflow", edits=(edits.scaled(900.0, "logits"),)),
            Case("advantages_stopped", {"backprop": False}),
        ),
        ("ops/lookup",),
    )
)

VALUE_HEAD: Settings = {
    **{"T": 4, "B": 3, "A": 3, "K": 11, "max_abs_value": 4.0},
    **{"categorical_value": True, "nonlinear_value_transform": True},
}
SCALAR: Settings = {"K": 1, "categorical_value": False}
TRACES: Settings = {"discount_factor": 0.997, "vtrace_lambda": 0.95}
AVERAGES: Settings = {"moving_average_decay": 0.99, "moving_average_eps": 1e-6}
STATE = {**ema("meta_state/adv_ema"), **ema("meta_state/td_ema")}
FRESH_STATE = fresh("meta_state/adv_ema", "meta_state/td_ema")
HEADS = {"agent_out/logits": smooth("T+1 B A"), "agent_out/v": smooth("T+1 B K")}
register(
    Layer(
        "actor_critic/unroll",
        "Advantages and TD errors by V-trace, raw and normalised; carries both moving averages on.",
        constant(
            {
                **HEADS,
                "behaviour_out/logits": smooth("T+1 B A"),
                "actions": index("T+1 B"),
                "rewards": smooth("T B"),
                "is_terminal": flag("T B"),
                **STATE,
            }
        ),
        constant(
            {
                **{f"meta_out/{n}": fixed("T B") for n in ("raw_advs", "normalized_advs", "value_target")},
                **{f"meta_out/{n}": fixed("T B") for n in ("tds", "normalized_tds")},
                "meta_out/values": fixed("T+1 B"),
                **STATE,
            }
        ),
        {**VALUE_HEAD, **TRACES, **AVERAGES},
        (
            Case("plain"),
            Case("fresh_state", edits=FRESH_STATE),
            *(Case(f"terminal_{where}", edits=(edits.terminal(where),)) for where in TERMINALS),
            Case("T1_B1", {"T": 1, "B": 1}),
            Case("A18", {"A": 18}),
            Case("scalar", SCALAR),
            Case("scalar_linear", {**SCALAR, "nonlinear_value_transform": False}),
            Case("K601", {"K": 601, "max_abs_value": 300.0}),
            Case("ratio_one", edits=(edits.same_as("agent_out/logits", "behaviour_out/logits"),)),
            Case("huge_rewards", edits=(edits.scaled(1e4, "rewards"),)),
            Case("other_discounting", {"discount_factor": 0.9, "vtrace_lambda": 0.5}),
            Case("other_averages", {"moving_average_decay": 0.9, "moving_average_eps": 1e-3}),
        ),
        ("values/outs_v",),
    )
)

AC_COSTS: Settings = {"pg_cost": 1.0, "value_cost": 0.5, "entropy_cost": 0.2}
UNEVEN_COSTS: Settings = {"pg_cost": 1.7, "value_cost": 0.3, "entropy_cost": 0.9}
NORMALIZED: Settings = {**SCALAR, "normalize_adv": True, "normalize_td": True}
AC_LOGS = ("logits", "entropy", "pg_advs", "raw_advs", "avg_value")
register(
    Layer(
        "actor_critic/agent_loss",
        "Policy gradient, value loss and entropy bonus per step; advantages and TD errors are constants.",
        constant(
            {
                **HEADS,
                "actions": index("T+1 B"),
                **{f"meta_out/{n}": smooth("T B") for n in ("raw_advs", "normalized_advs", "tds", "normalized_tds")},
                "meta_out/values": smooth("T+1 B"),
            }
        ),
        constant({"loss": fixed("T B"), **{f"log/{name}": fixed("") for name in AC_LOGS}}),
        {**VALUE_HEAD, "normalize_adv": False, "normalize_td": False, **AC_COSTS},
        (
            Case("plain"),
            Case("uneven_costs", UNEVEN_COSTS),
            Case("normalized_advantages", {"normalize_adv": True}),
            Case("normalized", NORMALIZED),
            Case("scalar", SCALAR),
            Case("linear", {"nonlinear_value_transform": False}),
            Case("scalar_linear", {**SCALAR, "nonlinear_value_transform": False}),
            Case("T1_B1", {"T": 1, "B": 1}),
            Case("A18", {"A": 18}),
            Case("past_the_range", edits=(edits.scaled(1e4, "meta_out/tds"),)),
            Case("saturated", edits=(edits.scaled(40.0, "agent_out/logits"),)),
        ),
        ("actor_critic/unroll", "ops/policy_gradient_loss", "ops/entropy", "values/loss_from_td"),
    )
)
register(
    Layer(
        "policy_gradient/loss",
        "Policy gradient with a value function's advantages, which are constants, and entropy bonus, per step.",
        constant(
            {
                "agent_out/logits": smooth("T+1 B A"),
                "actions": index("T+1 B"),
                **{f"value_out/{name}": smooth("T B") for name in ("adv", "normalized_adv")},
            }
        ),
        constant({"loss": fixed("T B"), "log/entropy": fixed(""), "log/pg_advs": fixed("")}),
        {"T": 5, "B": 3, "A": 3, "normalize_adv": True, "pg_cost": 1.0, "entropy_cost": 0.01},
        (
            Case("plain"),
            Case("raw_advantages", {"normalize_adv": False}),
            Case("uneven_costs", {"pg_cost": 1.7, "entropy_cost": 0.9}),
            Case("T1_B1", {"T": 1, "B": 1}),
            Case("A2", {"A": 2}),
            Case("A18", {"A": 18}),
            Case("saturated", edits=(edits.scaled(40.0, "agent_out/logits"),)),
        ),
        ("ops/policy_gradient_loss", "ops/entropy"),
    )
)


def network(s: Settings) -> params.Shapes:
    """The network of an actor-critic agent: torso, and the heads logits and v."""
    heads = params.mlp("mlp/~_head_pass/torso_head", (s["dense"][-1], s["A"]))
    return params.torso(s) | heads | params.mlp("mlp/~_head_pass/torso_head_1", (s["dense"][-1], s["K"]))


LEARNER: Settings = {
    **{"T": 4, "B": 3, "A": 3, "K": 11, "max_abs_value": 4.0, "obs": (4, 3, 1), "dense": (10, 9)},
    **{"categorical_value": True, "nonlinear_value_transform": True, "normalize_adv": False, "normalize_td": False},
    **TRACES,
    **AVERAGES,
    **AC_COSTS,
    **{"learning_rate": 0.01, "max_abs_update": 1.0, "is_meta_training": True},
}
FULL_SIZE: Settings = {
    **{"K": 601, "max_abs_value": 300.0, "obs": (8, 8, 1), "dense": (64, 32, 32), "learning_rate": 5e-4},
    "is_meta_training": False,
}


def learner(s: Settings) -> dict[str, Spec]:
    """Specs of parameters, optimiser and moving averages."""
    return {**params.specs("params", network(s)), **optimiser_state(network(s), scale=0.01), **STATE}


register(
    Layer(
        "agent/actor_critic_step",
        "One whole learner step by the actor-critic rule: parameters, optimiser, moving averages and logs.",
        lambda s: {**observations(s), **ROLLOUT, **learner(s)},
        lambda s: {
            **learner(s),
            **{
                f"log/{name}": fixed("")
                for name in ("total_loss", *AC_LOGS, "global_gradient_norm", "global_update_norm")
            },
        },
        LEARNER,
        learner_cases(
            Case("plain"),
            Case("fresh_state", edits=(fresh_optimiser, *FRESH_STATE)),
            *ENDS,
            Case("normalized", NORMALIZED),
            Case("not_meta_training", {"is_meta_training": False, "T": 1, "B": 1}, gradients=False),
            Case("full_size", FULL_SIZE, (fresh_optimiser, *FRESH_STATE), stored=False, gradients=False),
        ),
        ("nets/mlp", "actor_critic/unroll", "actor_critic/agent_loss", "optim/update"),
    )
)
