"""Layers that are one formula: input transforms, lookups, two-hot, KL and entropy, moving averages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from parity.layers import edits
from parity.layers.spec import Case, Layer, Settings, Spec, fixed, flag, index, register, smooth

SIZES: Settings = {"T": 5, "B": 3, "A": 3, "E": 4}

ORDINARY = (
    Case("plain"),
    Case("T1", {"T": 1}),
    Case("B1", {"B": 1}),
    Case("A2", {"A": 2}),
    Case("A18", {"A": 18}),
    Case("large", {"T": 19, "B": 7}),
)


def constant(specs: Mapping[str, Spec]) -> Callable[[Settings], Mapping[str, Spec]]:
    """Specs that do not depend on the settings."""
    return lambda settings: specs


def _transform(name, x, out, summary, cases=ORDINARY, more=None, states=None) -> None:  # type: ignore[no-untyped-def]
    register(
        Layer(
            name=f"transforms/{name}",
            summary=summary,
            inputs=constant({"x": x, **(more or {}), **(states or {})}),
            outputs=constant({"out": out, **(states or {})}),
            settings=SIZES,
            cases=cases,
        )
    )


KINK = Case("zeros", edits=(edits.holding("x", 0.0, -0.0, 1e-6, -1e-6),))
WIDE = Case("huge_and_tiny", edits=(edits.holding("x", 3e4, -3e4, 1e-8, -1e-8, 0.5, -0.5),))

_transform("identity", smooth("T B E"), fixed("T B E"), "The input, unchanged.")
_transform(
    "softmax",
    smooth("T+1 B A"),
    fixed("T+1 B A"),
    "Softmax over the last axis.",
    (*ORDINARY, Case("saturated", edits=(edits.scaled(60.0, "x"),)), Case("ties", edits=(edits.tied("x", 2),))),
)
_transform(
    "max_a",
    smooth("T+1 B A E"),
    fixed("T+1 B E"),
    "Maximum over the actions.",
    (*ORDINARY, Case("ties", edits=(edits.tied("x", 2),))),
)
_transform("stop_grad", smooth("T B E"), fixed("T B E"), "The input, with its gradient stopped.")
_transform(
    "clip",
    smooth("T B E", scale=2.0),
    fixed("T B E"),
    "Clipped to [-2, 2].",
    (*ORDINARY, Case("bounds", edits=(edits.holding("x", 2.0, -2.0, 2.5, -2.5),))),
)
_transform("sign", smooth("T B E"), fixed("T B E"), "Sign.", (*ORDINARY, KINK))
_transform("drop_last", smooth("T+1 B E"), fixed("T B E"), "Without the bootstrap step.")
_transform("td_pair", smooth("T+1 B E"), fixed("T B 2*E"), "The values at t beside those at t+1.")
_transform(
    "sign_log",
    smooth("T+1 B", scale=3.0),
    fixed("T+1 B"),
    "sign(x) log(1 + |x|).",
    (*ORDINARY, KINK, WIDE),
)
_transform(
    "sign_hyp",
    smooth("T+1 B", scale=3.0),
    fixed("T+1 B"),
    "Signed hyperbolic: sign(x) (sqrt(|x| + 1) - 1) + 0.001 x.",
    (*ORDINARY, KINK, WIDE),
)
_transform(
    "masks_to_discounts",
    flag("T B"),
    fixed("T B"),
    "1 - x: a terminal becomes a discount of 0.",
    (*ORDINARY, Case("every", edits=(edits.terminal("every", "x"),))),
)
_transform(
    "select_a",
    smooth("T B A E"),
    fixed("T B E"),
    "The entry of the action taken.",
    more={"actions": index("T B")},
)
_transform(
    "pi_weighted_avg",
    smooth("T+1 B A E"),
    fixed("T+1 B E"),
    "Average over the actions, weighted by the policy.",
    more={"policy": smooth("T+1 B A", draw="simplex")},
)
_transform(
    "normalize",
    smooth("T B E", scale=2.0),
    fixed("T B E"),
    "Normalised by debiased moving averages of mean and square over time and batch; keeps a state.",
    (
        *ORDINARY,
        Case(
            "fresh_state",
            edits=(edits.filled(0, *(f"state/{m}/{k}" for m in ("m1", "m2") for k in ("hidden", "counter"))),),
        ),
        Case("tiny_values", edits=(edits.scaled(1e-4, "x"),)),
    ),
    states={
        "state/m1/hidden": smooth("1 1 E", scale=0.3),
        "state/m1/counter": index("", below=40),
        "state/m2/hidden": smooth("1 1 E", draw="positive", scale=4.0),
        "state/m2/counter": index("", below=40),
    },
)


def _op(name, inputs, outputs, summary, cases, settings=SIZES, upstream=()) -> None:  # type: ignore[no-untyped-def]
    register(Layer(f"ops/{name}", summary, constant(inputs), constant(outputs), settings, cases, upstream))


BINS: Settings = {"T": 5, "B": 3, "K": 11, "max_abs_value": 4.0}
BIN_CASES = (
    Case("plain"),
    Case("T1", {"T": 1}),
    Case("B1", {"B": 1}),
    Case("K5", {"K": 5, "max_abs_value": 2.0}),
    Case("K601", {"K": 601, "max_abs_value": 300.0}),
    Case("past_the_range", edits=(edits.scaled(100.0, "value"),)),
    Case("bin_edges", {"K": 9}, (edits.holding("value", 0.0, 1.0, -1.0, 3.0, 4.0, -4.0),), at_branch=True),
    Case("range_bounds", {"K": 9}, edits=(edits.holding("value", 3.75, -3.75, 4.25, -4.25),)),
)


_op(
    "lookup",
    {"table": smooth("T B A E"), "index": index("T B")},
    {"out": fixed("T B E")},
    "table[t, b, index[t, b]].",
    ORDINARY,
)
SCALAR = (
    Case("plain"),
    Case("T1", {"T": 1}),
    Case("B1", {"B": 1}),
    Case("large", {"T": 19, "B": 7}),
    KINK,
    WIDE,
)
_op(
    "signed_hyperbolic",
    {"x": smooth("T B", scale=5.0)},
    {"out": fixed("T B")},
    "sign(x) (sqrt(|x| + 1) - 1) + 0.001 x.",
    SCALAR,
)
_op(
    "signed_parabolic",
    {"x": smooth("T B", scale=5.0)},
    {"out": fixed("T B")},
    "The inverse of the signed hyperbolic.",
    (*SCALAR[:-1], Case("small_and_large", edits=(edits.holding("x", 300.0, -300.0, 1e-4, -1e-4),))),
)
_op(
    "two_hot",
    {"value": smooth("T B", scale=1.5)},
    {"probs": fixed("T B K")},
    "A scalar as weights on its two nearest bins; 1e-5 stands in the denominator.",
    BIN_CASES,
    BINS,
)
_op(
    "from_two_hot",
    {"probs": smooth("T B K", draw="simplex")},
    {"value": fixed("T B")},
    "The mean of the bins.",
    tuple(case for case in BIN_CASES if not case.edits),
    BINS,
)
DISTRIBUTIONS = (
    *ORDINARY,
    Case("saturated", edits=(edits.scaled(40.0, "p_logits"),)),
    Case("underflow", edits=(edits.scaled(900.0, "p_logits"),)),
)
_op(
    "kl",
    {"p_logits": smooth("T B A"), "q_logits": smooth("T B A")},
    {"out": fixed("T B")},
    "KL(softmax p || softmax q).",
    (*DISTRIBUTIONS, Case("equal", edits=(edits.same_as("p_logits", "q_logits"),))),
)
_op(
    "entropy",
    {"p_logits": smooth("T B A")},
    {"out": fixed("T B")},
    "Entropy of softmax p.",
    (*DISTRIBUTIONS[:-1], replace(DISTRIBUTIONS[-1], at_branch=True)),
)
_op(
    "importance_weight",
    {"pi_logits": smooth("T B A"), "mu_logits": smooth("T B A"), "actions": index("T B")},
    {"rho": fixed("T B")},
    "pi(a) / mu(a); its gradient is stopped.",
    (
        *ORDINARY,
        Case("ratio_one", edits=(edits.same_as("pi_logits", "mu_logits"),)),
        Case("saturated", edits=(edits.scaled(12.0, "pi_logits"),)),
    ),
)

EMA: Settings = {"T": 5, "B": 3, "decay": 0.99, "eps": 1e-6, "subtract_mean": True}
EMA_STATE = {
    "state/moment1": smooth("", scale=0.3),
    "state/moment2": smooth("", draw="positive", scale=2.0),
    "state/decay_product": smooth("", draw="uniform", scale=0.9),
}
FRESH = (edits.filled(0.0, "state/moment1", "state/moment2"), edits.filled(1.0, "state/decay_product"))
register(
    Layer(
        "moving_average/update",
        "Decayed mean and mean square over all elements, and the product of the decays.",
        constant({"values": smooth("T B", scale=2.0), **EMA_STATE}),
        constant(EMA_STATE),
        {key: EMA[key] for key in ("T", "B", "decay", "eps")},
        (
            Case("plain"),
            Case("T1", {"T": 1}),
            Case("B1", {"B": 1}),
            Case("fresh_state", edits=FRESH),
            Case("other_decay", {"decay": 0.9}),
            Case("huge_values", edits=(edits.scaled(1e4, "values"),)),
        ),
    )
)
register(
    Layer(
        "moving_average/normalize",
        "(x - mean) / (sqrt(var + 1e-12) + 1e-6) with debiased moments.",
        constant({"values": smooth("T B", scale=2.0), **EMA_STATE}),
        constant({"out": fixed("T B")}),
        EMA,
        (
            Case("plain"),
            Case("T1", {"T": 1}),
            Case("B1", {"B": 1}),
            Case("keeps_the_mean", {"subtract_mean": False}),
            Case("other_eps", {"eps": 1e-3}),
            Case(
                "small_variance",
                edits=(
                    edits.filled(0.0, "state/moment1"),
                    edits.filled(2.0**-41, "state/moment2"),
                    edits.filled(0.5, "state/decay_product"),
                ),
            ),
            Case(
                "variance_below_zero",
                edits=(
                    edits.filled(0.5, "state/moment1"),
                    edits.filled(0.25, "state/moment2"),
                    edits.filled(0.5, "state/decay_product"),
                ),
            ),
        ),
        ("moving_average/update",),
    )
)
