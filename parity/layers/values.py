"""Layers of the value path: scalar values from logits, Retrace, the Q form of the value outputs, value losses."""

from __future__ import annotations

from parity.layers import edits
from parity.layers.elementary import constant
from parity.layers.spec import Case, Edit, Layer, Settings, Spec, fixed, flag, index, register, smooth

NET: Settings = {"T": 5, "B": 3, "K": 11, "max_abs_value": 4.0, "categorical": True, "nonlinear": True}
NET_CASES = (
    Case("plain"),
    Case("T1", {"T": 1}),
    Case("B1", {"B": 1}),
    Case("K601", {"K": 601, "max_abs_value": 300.0}),
    Case("saturated", edits=(edits.scaled(60.0, "net_out"),)),
    Case("linear", {"nonlinear": False}),
    Case("scalar", {"K": 1, "categorical": False}),
)

register(
    Layer(
        "values/from_logits",
        "The scalar value behind a network's output: mean of the bins, then the signed parabolic.",
        constant({"net_out": smooth("T B K")}),
        constant({"value": fixed("T B")}),
        NET,
        NET_CASES,
        ("ops/from_two_hot", "ops/signed_parabolic"),
    )
)
register(
    Layer(
        "values/q_and_v",
        "Q of every action, and V as the average of Q under the online policy.",
        constant({"q_logits": smooth("T+1 B A K"), "pi_logits": smooth("T+1 B A")}),
        constant({"q": fixed("T+1 B A"), "v": fixed("T+1 B")}),
        {"T": 5, "B": 3, "A": 3, "K": 11, "max_abs_value": 4.0},
        (
            Case("plain"),
            Case("T1_B1", {"T": 1, "B": 1}),
            Case("A2", {"A": 2}),
            Case("A18", {"A": 18}),
            Case("K601", {"K": 601, "max_abs_value": 300.0}),
            Case("saturated_policy", edits=(edits.scaled(60.0, "pi_logits"),)),
        ),
        ("values/from_logits",),
    )
)

TRACE: Settings = {"T": 5, "B": 3, "A": 3, "discount": 0.997, "lambda": 0.95}
TRACE_INPUTS = {
    "rewards": smooth("T B"),
    "actions": index("T B"),
    "continues": smooth("T B", draw="zero_one"),
    "rho": smooth("T B", draw="positive", scale=1.5),
    "target_values": smooth("T+1 B", scale=2.0),
    "target_q_values": smooth("T+1 B A", scale=2.0),
}
TRACE_CASES = (
    Case("plain"),
    *(
        Case(f"terminal_{where}", edits=(edits.terminal(where, "continues"),))
        for where in ("first", "middle", "last", "every", "none")
    ),
    Case("T1", {"T": 1}),
    Case("T2", {"T": 2}),
    Case("B1", {"B": 1}),
    Case("A2", {"A": 2}),
    Case("A18", {"A": 18}),
    Case("large", {"T": 28, "B": 9}),
    Case("ratio_one", edits=(edits.filled(1.0, "rho"),)),
    Case("huge_rewards", edits=(edits.scaled(1e4, "rewards"),)),
    Case("other_discounting", {"discount": 0.9, "lambda": 0.5}),
)
register(
    Layer(
        "values/retrace",
        "Retrace targets of the actions taken, from the target network's values; the gradient is stopped.",
        constant(TRACE_INPUTS),
        constant({"q_target": fixed("T B")}),
        TRACE,
        TRACE_CASES,
        ("ops/importance_weight", "ops/lookup", "values/q_and_v"),
    )
)
register(
    Layer(
        "values/estimate_q",
        "Targets, advantages and TD errors from Q-values, before normalisation.",
        constant({**TRACE_INPUTS, "values": smooth("T+1 B", scale=2.0), "q_values": smooth("T+1 B A", scale=2.0)}),
        constant(
            {
                "q_target": fixed("T B"),
                "value_target": fixed("T B"),
                "adv": fixed("T B"),
                "td": fixed("T B"),
                "q_td": fixed("T B"),
                "qv_adv": fixed("T+1 B A"),
            }
        ),
        TRACE,
        TRACE_CASES,
        ("values/retrace",),
    )
)


def ema(name: str) -> dict[str, Spec]:
    """Specs of one moving average's state."""
    return {
        f"{name}/moment1": smooth("", scale=0.1),
        f"{name}/moment2": smooth("", draw="positive"),
        f"{name}/decay_product": smooth("", draw="uniform", scale=0.9),
    }


def fresh(*names: str) -> tuple[Edit, ...]:
    """Edits that set moving averages to where they start."""
    return (
        edits.filled(0.0, *(f"{name}/{moment}" for name in names for moment in ("moment1", "moment2"))),
        edits.filled(1.0, *(f"{name}/decay_product" for name in names)),
    )


register(
    Layer(
        "values/outs",
        "All value outputs in the Q form, normalised, with both moving averages carried on.",
        constant(
            {
                "q_logits": smooth("T+1 B A K"),
                "target_q_logits": smooth("T+1 B A K"),
                "pi_logits": smooth("T+1 B A"),
                "mu_logits": smooth("T+1 B A"),
                "actions": index("T+1 B"),
                "rewards": smooth("T B"),
                "is_terminal": flag("T B"),
                **ema("adv_ema"),
                **ema("td_ema"),
            }
        ),
        constant(
            {
                **{name: fixed("T+1 B") for name in ("value", "target_value")},
                **{
                    name: fixed("T B")
                    for name in (
                        *("rho", "adv", "normalized_adv", "value_target", "td", "normalized_td"),
                        *("q_target", "q_td", "normalized_q_td"),
                    )
                },
                **{name: fixed("T+1 B A") for name in ("qv_adv", "normalized_qv_adv", "q_value", "target_q_value")},
                **ema("adv_ema"),
                **ema("td_ema"),
            }
        ),
        {
            **{"T": 5, "B": 3, "A": 3, "K": 11, "max_abs_value": 4.0, "discount": 0.997, "lambda": 0.95},
            **{"decay": 0.99, "eps": 1e-6},
        },
        (
            Case("plain"),
            Case("fresh_state", edits=fresh("adv_ema", "td_ema")),
            *(
                Case(f"terminal_{where}", edits=(edits.terminal(where),))
                for where in ("first", "middle", "last", "every")
            ),
            Case("T1", {"T": 1}),
            Case("B1", {"B": 1}),
            Case("A2", {"A": 2}),
            Case("A18", {"A": 18}),
            Case("K601", {"K": 601, "max_abs_value": 300.0}),
            Case("huge_rewards", edits=(edits.scaled(1e4, "rewards"),)),
            Case("saturated", edits=(edits.scaled(30.0, "pi_logits", "q_logits"),)),
        ),
        ("values/estimate_q", "moving_average/normalize"),
    )
)

LOSS_CASES = (*NET_CASES, Case("past_the_range", edits=(edits.scaled(1e4, "target"),)))
register(
    Layer(
        "values/loss_from_target",
        "Cross-entropy to the two-hot target (or half the squared error), per step.",
        constant({"net_out": smooth("T B K"), "target": smooth("T B", scale=2.0)}),
        constant({"loss": fixed("T B")}),
        NET,
        LOSS_CASES,
        ("ops/two_hot", "ops/signed_hyperbolic"),
    )
)
register(
    Layer(
        "values/loss_from_td",
        "The same, to the value that the TD error asks for; the target is stopped.",
        constant({"net_out": smooth("T B K"), "td": smooth("T B")}),
        constant({"loss": fixed("T B")}),
        NET,
        (
            *NET_CASES,
            Case("past_the_range", edits=(edits.scaled(1e4, "td"),)),
            Case("no_error", edits=(edits.filled(0.0, "td"),)),
        ),
        ("values/loss_from_target",),
    )
)
