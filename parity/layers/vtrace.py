"""Layers of the value path without action values: V-trace, and the V form of the value outputs."""

from __future__ import annotations

from parity.layers import edits
from parity.layers.cases import PLAIN, sized, terminals
from parity.layers.spec import Case, each, fixed, flag, index, register, smooth
from parity.layers.values import DISCOUNTING, EMAS, FACTS, FRESH_EMAS, HUGE_REWARDS, trace_cases

register(
    "values/vtrace",
    "V-trace targets, advantages for a policy gradient, and TD errors; the targets' gradient is stopped.",
    {
        **{name: spec for name, spec in FACTS.items() if name != "actions"},
        **each("values target_values", smooth("T+1 B", scale=2.0)),
    },
    each("value_target adv td", fixed("T B")),
    DISCOUNTING,
    trace_cases(),
)
register(
    "values/outs_v",
    "All value outputs in the V form, normalised, with both moving averages carried on.",
    lambda s: {
        **each("value_out target_value_out", smooth("T+1 B K")),
        **each("pi_logits mu_logits", smooth("T+1 B A")),
        "actions": index("T+1 B"),
        "rewards": smooth("T+1 B" if s["drop_last"] else "T B"),
        "is_terminal": flag("T+1 B" if s["drop_last"] else "T B"),
        **EMAS,
    },
    {
        **each("value target_value", fixed("T+1 B")),
        **each("rho adv normalized_adv value_target td normalized_td normalized_qv_adv", fixed("T B")),
        **EMAS,
    },
    {
        **{"T": 5, "B": 3, "A": 3, "K": 1, "max_abs_value": 4.0, "categorical": False, "nonlinear": True},
        **{"discount": 0.99, "lambda": 0.96, "decay": 0.99, "eps": 1e-6, "drop_last": True},
    },
    (
        PLAIN,
        Case("fresh_state", edits=FRESH_EMAS),
        *terminals("first middle last"),
        Case("transitions", {"drop_last": False}),
        Case("categorical", {"drop_last": False, "categorical": True, "K": 11}),
        Case("linear", {"nonlinear": False}),
        *sized("T1", "B1", "A18"),
        HUGE_REWARDS,
        Case("saturated", edits=(edits.scaled(30.0, "pi_logits"),)),
    ),
    ("values/from_logits", "ops/importance_weight", "values/vtrace", "moving_average/normalize"),
)
