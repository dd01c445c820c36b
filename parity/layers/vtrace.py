"""Layers of the value path without action values: V-trace, and the V form of the value outputs."""

from __future__ import annotations

from parity.layers import edits
from parity.layers.elementary import constant
from parity.layers.spec import Case, Layer, fixed, flag, index, register, smooth
from parity.layers.values import TRACE, ema, fresh

ENDS = ("first", "middle", "last", "every", "none")

register(
    Layer(
        "values/vtrace",
        "V-trace targets, advantages for a policy gradient, and TD errors; the targets' gradient is stopped.",
        constant(
            {
                "rewards": smooth("T B"),
                "continues": smooth("T B", draw="zero_one"),
                "rho": smooth("T B", draw="positive", scale=1.5),
                "values": smooth("T+1 B", scale=2.0),
                "target_values": smooth("T+1 B", scale=2.0),
            }
        ),
        constant({name: fixed("T B") for name in ("value_target", "adv", "td")}),
        {name: value for name, value in TRACE.items() if name != "A"},
        (
            Case("plain"),
            *(Case(f"terminal_{where}", edits=(edits.terminal(where, "continues"),)) for where in ENDS),
            Case("T1", {"T": 1}),
            Case("T2", {"T": 2}),
            Case("B1", {"B": 1}),
            Case("large", {"T": 28, "B": 9}),
            Case("ratio_one", edits=(edits.filled(1.0, "rho"),)),
            Case("huge_rewards", edits=(edits.scaled(1e4, "rewards"),)),
            Case("other_discounting", {"discount": 0.9, "lambda": 0.5}),
        ),
        (),
    )
)
register(
    Layer(
        "values/outs_v",
        "All value outputs in the V form, normalised, with both moving averages carried on.",
        lambda s: {
            "value_out": smooth("T+1 B K"),
            "target_value_out": smooth("T+1 B K"),
            "pi_logits": smooth("T+1 B A"),
            "mu_logits": smooth("T+1 B A"),
            "actions": index("T+1 B"),
            "rewards": smooth("T+1 B" if s["drop_last"] else "T B"),
            "is_terminal": flag("T+1 B" if s["drop_last"] else "T B"),
            **ema("adv_ema"),
            **ema("td_ema"),
        },
        constant(
            {
                **{name: fixed("T+1 B") for name in ("value", "target_value")},
                **{name: fixed("T B") for name in ("rho", "adv", "normalized_adv", "value_target", "td")},
                **{name: fixed("T B") for name in ("normalized_td", "normalized_qv_adv")},
                **ema("adv_ema"),
                **ema("td_ema"),
            }
        ),
        {
            **{"T": 5, "B": 3, "A": 3, "K": 1, "max_abs_value": 4.0, "categorical": False, "nonlinear": True},
            **{"discount": 0.99, "lambda": 0.96, "decay": 0.99, "eps": 1e-6, "drop_last": True},
        },
        (
            Case("plain"),
            Case("fresh_state", edits=fresh("adv_ema", "td_ema")),
            *(Case(f"terminal_{where}", edits=(edits.terminal(where),)) for where in ("first", "middle", "last")),
            Case("transitions", {"drop_last": False}),
            Case("categorical", {"drop_last": False, "categorical": True, "K": 11}),
            Case("linear", {"nonlinear": False}),
            Case("T1", {"T": 1}),
            Case("B1", {"B": 1}),
            Case("A18", {"A": 18}),
            Case("huge_rewards", edits=(edits.scaled(1e4, "rewards"),)),
            Case("saturated", edits=(edits.scaled(30.0, "pi_logits"),)),
        ),
        ("values/from_logits", "ops/importance_weight", "values/vtrace", "moving_average/normalize"),
    )
)
