"""Layers of the value path: scalar values from logits, Retrace, the Q form of the value outputs, value losses."""

from __future__ import annotations

from parity.layers import edits
from parity.layers.cases import K601, PLAIN, sized, terminals
from parity.layers.elementary import ema, fresh
from parity.layers.spec import Case, Settings, each, fixed, flag, index, register, smooth

NET: Settings = {"T": 5, "B": 3, "K": 11, "max_abs_value": 4.0, "categorical": True, "nonlinear": True}
NET_CASES = (
    PLAIN,
    *sized("T1", "B1"),
    K601,
    Case("saturated", edits=(edits.scaled(60.0, "net_out"),)),
    Case("linear", {"nonlinear": False}),
    Case("scalar", {"K": 1, "categorical": False}),
)

register(
    "values/from_logits",
    "The scalar value behind a network's output: mean of the bins, then the signed parabolic.",
    {"net_out": smooth("T B K")},
    {"value": fixed("T B")},
    NET,
    NET_CASES,
    ("ops/from_two_hot", "ops/signed_parabolic"),
)
register(
    "values/q_and_v",
    "Q of every action, and V as the average of Q under the online policy.",
    {"q_logits": smooth("T+1 B A K"), "pi_logits": smooth("T+1 B A")},
    {"q": fixed("T+1 B A"), "v": fixed("T+1 B")},
    {"T": 5, "B": 3, "A": 3, "K": 11, "max_abs_value": 4.0},
    (
        PLAIN,
        *sized("T1_B1", "A2", "A18"),
        K601,
        Case("saturated_policy", edits=(edits.scaled(60.0, "pi_logits"),)),
    ),
    ("values/from_logits",),
)

DISCOUNTING: Settings = {"T": 5, "B": 3, "discount": 0.997, "lambda": 0.95}
TRACE: Settings = {**DISCOUNTING, "A": 3}
FACTS = {
    "rewards": smooth("T B"),
    "actions": index("T B"),
    "continues": smooth("T B", draw="zero_one"),
    "rho": smooth("T B", draw="positive", scale=1.5),
}
TRACE_INPUTS = {
    **FACTS,
    "target_values": smooth("T+1 B", scale=2.0),
    "target_q_values": smooth("T+1 B A", scale=2.0),
}
HUGE_REWARDS = Case("huge_rewards", edits=(edits.scaled(1e4, "rewards"),))


def trace_cases(*sizes: str) -> tuple[Case, ...]:
    """Cases of everything that goes back over a trajectory."""
    return (
        PLAIN,
        *terminals("first middle last every none", "continues"),
        *sized("T1", "T2", "B1", *sizes),
        Case("large", {"T": 28, "B": 9}),
        Case("ratio_one", edits=(edits.filled(1.0, "rho"),)),
        HUGE_REWARDS,
        Case("other_discounting", {"discount": 0.9, "lambda": 0.5}),
    )


register(
    "values/retrace",
    "Retrace targets of the actions taken, from the target network's values; the gradient is stopped.",
    TRACE_INPUTS,
    {"q_target": fixed("T B")},
    TRACE,
    trace_cases("A2", "A18"),
    ("ops/importance_weight", "ops/lookup", "values/q_and_v"),
)
register(
    "values/estimate_q",
    "Targets, advantages and TD errors from Q-values, before normalisation.",
    {**TRACE_INPUTS, "values": smooth("T+1 B", scale=2.0), "q_values": smooth("T+1 B A", scale=2.0)},
    {**each("q_target value_target adv td q_td", fixed("T B")), "qv_adv": fixed("T+1 B A")},
    TRACE,
    trace_cases("A2", "A18"),
    ("values/retrace",),
)

EMAS = {**ema("adv_ema"), **ema("td_ema")}
FRESH_EMAS = fresh("adv_ema", "td_ema")
register(
    "values/outs",
    "All value outputs in the Q form, normalised, with both moving averages carried on.",
    {
        **each("q_logits target_q_logits", smooth("T+1 B A K")),
        **each("pi_logits mu_logits", smooth("T+1 B A")),
        "actions": index("T+1 B"),
        "rewards": smooth("T B"),
        "is_terminal": flag("T B"),
        **EMAS,
    },
    {
        **each("value target_value", fixed("T+1 B")),
        **each("rho adv normalized_adv value_target td normalized_td q_target q_td normalized_q_td", fixed("T B")),
        **each("qv_adv normalized_qv_adv q_value target_q_value", fixed("T+1 B A")),
        **EMAS,
    },
    {**TRACE, "K": 11, "max_abs_value": 4.0, "decay": 0.99, "eps": 1e-6},
    (
        PLAIN,
        Case("fresh_state", edits=FRESH_EMAS),
        *terminals("first middle last every"),
        *sized("T1", "B1", "A2", "A18"),
        K601,
        HUGE_REWARDS,
        Case("saturated", edits=(edits.scaled(30.0, "pi_logits", "q_logits"),)),
    ),
    ("values/estimate_q", "moving_average/normalize"),
)

register(
    "values/loss_from_target",
    "Cross-entropy to the two-hot target (or half the squared error), per step.",
    {"net_out": smooth("T B K"), "target": smooth("T B", scale=2.0)},
    {"loss": fixed("T B")},
    NET,
    (*NET_CASES, Case("past_the_range", edits=(edits.scaled(1e4, "target"),))),
    ("ops/two_hot", "ops/signed_hyperbolic"),
)
register(
    "values/loss_from_td",
    "The same, to the value that the TD error asks for; the target is stopped.",
    {"net_out": smooth("T B K"), "td": smooth("T B")},
    {"loss": fixed("T B")},
    NET,
    (
        *NET_CASES,
        Case("past_the_range", edits=(edits.scaled(1e4, "td"),)),
        Case("no_error", edits=(edits.filled(0.0, "td"),)),
    ),
    ("values/loss_from_target",),
)
