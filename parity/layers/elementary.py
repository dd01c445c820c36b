"""Layers that are one formula: input transforms, lookups, two-hot, KL and entropy, moving averages."""

from __future__ import annotations

from dataclasses import replace

from parity.layers import edits
from parity.layers.cases import K601, PLAIN, sized
from parity.layers.spec import Case, Edit, Settings, Spec, fixed, flag, index, register, smooth

SIZES: Settings = {"T": 5, "B": 3, "A": 3, "E": 4}
LARGE = Case("large", {"T": 19, "B": 7})
ORDINARY = (PLAIN, *sized("T1", "B1", "A2", "A18"), LARGE)
KINK = Case("zeros", edits=(edits.holding("x", 0.0, -0.0, 1e-6, -1e-6),))
WIDE = Case("huge_and_tiny", edits=(edits.holding("x", 3e4, -3e4, 1e-8, -1e-8, 0.5, -0.5),))
TIES = Case("ties", edits=(edits.tied("x", 2),))


def _transform(name: str, summary: str, x: Spec, out: Spec, *awkward: Case, **more: Spec) -> None:
    register(f"transforms/{name}", summary, {"x": x, **more}, {"out": out}, SIZES, (*ORDINARY, *awkward))


_transform("identity", "The input, unchanged.", smooth("T B E"), fixed("T B E"))
SATURATED = Case("saturated", edits=(edits.scaled(60.0, "x"),))
_transform("softmax", "Softmax over the last axis.", smooth("T+1 B A"), fixed("T+1 B A"), SATURATED, TIES)
_transform("max_a", "Maximum over the actions.", smooth("T+1 B A E"), fixed("T+1 B E"), TIES)
_transform("stop_grad", "The input, with its gradient stopped.", smooth("T B E"), fixed("T B E"))
BOUNDS = Case("bounds", edits=(edits.holding("x", 2.0, -2.0, 2.5, -2.5),))
_transform("clip", "Clipped to [-2, 2].", smooth("T B E", scale=2.0), fixed("T B E"), BOUNDS)
_transform("sign", "Sign.", smooth("T B E"), fixed("T B E"), KINK)
_transform("drop_last", "Without the bootstrap step.", smooth("T+1 B E"), fixed("T B E"))
_transform("td_pair", "The values at t beside those at t+1.", smooth("T+1 B E"), fixed("T B 2*E"))
_transform("sign_log", "sign(x) log(1 + |x|).", smooth("T+1 B", scale=3.0), fixed("T+1 B"), KINK, WIDE)
SIGN_HYP = "Signed hyperbolic: sign(x) (sqrt(|x| + 1) - 1) + 0.001 x."
_transform("sign_hyp", SIGN_HYP, smooth("T+1 B", scale=3.0), fixed("T+1 B"), KINK, WIDE)
EVERY = Case("every", edits=(edits.terminal("every", "x"),))
_transform("masks_to_discounts", "1 - x: a terminal becomes a discount of 0.", flag("T B"), fixed("T B"), EVERY)
_transform("select_a", "The entry of the action taken.", smooth("T B A E"), fixed("T B E"), actions=index("T B"))
_transform(
    "pi_weighted_avg",
    "Average over the actions, weighted by the policy.",
    smooth("T+1 B A E"),
    fixed("T+1 B E"),
    policy=smooth("T+1 B A", draw="simplex"),
)
AVERAGES = {
    "state/m1/hidden": smooth("1 1 E", scale=0.3),
    "state/m1/counter": index("", below=40),
    "state/m2/hidden": smooth("1 1 E", draw="positive", scale=4.0),
    "state/m2/counter": index("", below=40),
}
FRESH_AVERAGES = Case("fresh_state", edits=(edits.filled(0, *AVERAGES),))
register(
    "transforms/normalize",
    "Normalised by debiased moving averages of mean and square over time and batch; keeps a state.",
    {"x": smooth("T B E", scale=2.0), **AVERAGES},
    {"out": fixed("T B E"), **AVERAGES},
    SIZES,
    (*ORDINARY, FRESH_AVERAGES, Case("tiny_values", edits=(edits.scaled(1e-4, "x"),))),
)

register(
    "ops/lookup",
    "table[t, b, index[t, b]].",
    {"table": smooth("T B A E"), "index": index("T B")},
    {"out": fixed("T B E")},
    SIZES,
    ORDINARY,
)
SCALAR = (PLAIN, *sized("T1", "B1"), LARGE, KINK)
register(
    "ops/signed_hyperbolic",
    "sign(x) (sqrt(|x| + 1) - 1) + 0.001 x.",
    {"x": smooth("T B", scale=5.0)},
    {"out": fixed("T B")},
    SIZES,
    (*SCALAR, WIDE),
)
register(
    "ops/signed_parabolic",
    "The inverse of the signed hyperbolic.",
    {"x": smooth("T B", scale=5.0)},
    {"out": fixed("T B")},
    SIZES,
    (*SCALAR, Case("small_and_large", edits=(edits.holding("x", 300.0, -300.0, 1e-4, -1e-4),))),
)
BINS: Settings = {"T": 5, "B": 3, "K": 11, "max_abs_value": 4.0}
BIN_CASES = (PLAIN, *sized("T1", "B1"), Case("K5", {"K": 5, "max_abs_value": 2.0}), K601)
register(
    "ops/two_hot",
    "A scalar as weights on its two nearest bins; 1e-5 stands in the denominator.",
    {"value": smooth("T B", scale=1.5)},
    {"probs": fixed("T B K")},
    BINS,
    (
        *BIN_CASES,
        Case("past_the_range", edits=(edits.scaled(100.0, "value"),)),
        Case("bin_edges", {"K": 9}, (edits.holding("value", 0.0, 1.0, -1.0, 3.0, 4.0, -4.0),), at_branch=True),
        Case("range_bounds", {"K": 9}, (edits.holding("value", 3.75, -3.75, 4.25, -4.25),)),
    ),
)
register(
    "ops/from_two_hot",
    "The mean of the bins.",
    {"probs": smooth("T B K", draw="simplex")},
    {"value": fixed("T B")},
    BINS,
    BIN_CASES,
)
LOGITS_SATURATED = Case("saturated", edits=(edits.scaled(40.0, "p_logits"),))
LOGITS_UNDERFLOW = Case("underflow", edits=(edits.scaled(900.0, "p_logits"),))
LOGITS_EQUAL = Case("equal", edits=(edits.same_as("p_logits", "q_logits"),))
register(
    "ops/kl",
    "KL(softmax p || softmax q).",
    {"p_logits": smooth("T B A"), "q_logits": smooth("T B A")},
    {"out": fixed("T B")},
    SIZES,
    (*ORDINARY, LOGITS_SATURATED, LOGITS_UNDERFLOW, LOGITS_EQUAL),
)
register(
    "ops/entropy",
    "Entropy of softmax p.",
    {"p_logits": smooth("T B A")},
    {"out": fixed("T B")},
    SIZES,
    (*ORDINARY, LOGITS_SATURATED, replace(LOGITS_UNDERFLOW, at_branch=True)),
)
register(
    "ops/importance_weight",
    "pi(a) / mu(a); its gradient is stopped.",
    {"pi_logits": smooth("T B A"), "mu_logits": smooth("T B A"), "actions": index("T B")},
    {"rho": fixed("T B")},
    SIZES,
    (
        *ORDINARY,
        Case("ratio_one", edits=(edits.same_as("pi_logits", "mu_logits"),)),
        Case("saturated", edits=(edits.scaled(12.0, "pi_logits"),)),
    ),
)


def ema(name: str, mean: float = 0.1, square: float = 1.0) -> dict[str, Spec]:
    """Specs of one moving average's state, with moments drawn at these scales."""
    return {
        f"{name}/moment1": smooth("", scale=mean),
        f"{name}/moment2": smooth("", draw="positive", scale=square),
        f"{name}/decay_product": smooth("", draw="uniform", scale=0.9),
    }


def averages_at(mean: float, square: float, decay_product: float, *names: str) -> tuple[Edit, ...]:
    """Edits that set moving averages to a state."""
    state = {"moment1": mean, "moment2": square, "decay_product": decay_product}
    return tuple(edits.filled(value, *(f"{name}/{part}" for name in names)) for part, value in state.items())


def fresh(*names: str) -> tuple[Edit, ...]:
    """Edits that set moving averages to where they start."""
    return averages_at(0.0, 0.0, 1.0, *names)


EMA: Settings = {"T": 5, "B": 3, "decay": 0.99, "eps": 1e-6}
EMA_STATE = ema("state", mean=0.3, square=2.0)
register(
    "moving_average/update",
    "Decayed mean and mean square over all elements, and the product of the decays.",
    {"values": smooth("T B", scale=2.0), **EMA_STATE},
    EMA_STATE,
    EMA,
    (
        PLAIN,
        *sized("T1", "B1"),
        Case("fresh_state", edits=fresh("state")),
        Case("other_decay", {"decay": 0.9}),
        Case("huge_values", edits=(edits.scaled(1e4, "values"),)),
    ),
)
register(
    "moving_average/normalize",
    "(x - mean) / (sqrt(var + 1e-12) + 1e-6) with debiased moments.",
    {"values": smooth("T B", scale=2.0), **EMA_STATE},
    {"out": fixed("T B")},
    {**EMA, "subtract_mean": True},
    (
        PLAIN,
        *sized("T1", "B1"),
        Case("keeps_the_mean", {"subtract_mean": False}),
        Case("other_eps", {"eps": 1e-3}),
        Case("small_variance", edits=averages_at(0.0, 2.0**-41, 0.5, "state")),
        Case("variance_below_zero", edits=averages_at(0.5, 0.25, 0.5, "state")),
    ),
    ("moving_average/update",),
)
