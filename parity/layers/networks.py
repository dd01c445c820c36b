"""Layers of the networks: dense and convolutional blocks, LSTM, and the agent's network with its action model."""

from __future__ import annotations

from parity.layers import edits, params
from parity.layers.cases import PLAIN, sized, terminals
from parity.layers.spec import Case, Settings, Spec, fixed, flag, register, smooth

register(
    "nets/mlp",
    "Dense layers with ReLU between them, none after the last.",
    lambda s: {"x": smooth("B E"), **params.specs("params", params.mlp("mlp", (s["E"], *s["sizes"])))},
    lambda s: {"out": Spec(("B", s["sizes"][-1]))},
    {"B": 4, "E": 5, "sizes": (6, 3)},
    (
        PLAIN,
        Case("single_row", {"B": 1}),
        Case("one_layer", {"sizes": (3,)}),
        Case("three_layers", {"sizes": (7, 6, 2)}),
        Case("wide", {"B": 33, "E": 64, "sizes": (96, 40)}),
    ),
)
register(
    "nets/conv_block",
    "A 1x1 convolution over actions on the input beside its mean over the actions, then ReLU.",
    {"x": smooth("T B A C"), "w": smooth("1 2*C E", scale=0.4), "b": smooth("E", scale=0.2)},
    {"out": fixed("T B A E")},
    {"T": 4, "B": 3, "A": 3, "C": 5, "E": 6},
    (
        PLAIN,
        *sized("T1_B1", "A2", "A18"),
        Case("wide", {"C": 18, "E": 16}),
        Case("tied_actions", edits=(edits.tied("x", 2),)),
    ),
)
STATE = {"hidden": smooth("B H", scale=0.5), "cell": smooth("B H")}
LSTM = {"w": smooth("E+H 4*H", scale=0.4), "b": smooth("4*H", scale=0.2)}
register(
    "nets/lstm_step",
    "One LSTM step; gates in the order input, cell, forget, output, 1 added to the forget gate.",
    {"x": smooth("B E"), **STATE, **LSTM},
    STATE,
    {"B": 3, "E": 4, "H": 5},
    (
        PLAIN,
        *sized("B1"),
        Case("wide", {"B": 8, "E": 27, "H": 32}),
        Case("saturated", edits=(edits.scaled(30.0, "x"),)),
        Case("from_zero", edits=(edits.filled(0.0, "hidden", "cell"),)),
    ),
)

RESET_CASES = (PLAIN, *terminals("first middle last every none"), *sized("T1", "B1"))
register(
    "nets/unroll",
    "LSTM over time from the last step to the first; the state is set to zero before a terminal step.",
    {"xs": smooth("T B E"), "is_terminal": flag("T B"), **LSTM},
    {"hidden": fixed("T B H")},
    {"T": 5, "B": 3, "E": 4, "H": 5},
    (*RESET_CASES, Case("large", {"T": 28, "B": 8, "E": 27, "H": 32})),
    ("nets/lstm_step",),
)

AGENT_SIZES: Settings = {"T": 4, "B": 3, **params.AGENT}
DEEPER = Case("deeper", {"dense": (7, 8, 6), "head_mlp_hiddens": (5, 4)})
FULL_AGENT: Settings = {k: params.FULL_SIZE[k] for k in params.AGENT if k != "A"}


def model_heads(lead: str) -> dict[str, Spec]:
    """Specs of the three heads of the action model."""
    return {"z": smooth(f"{lead} A P"), "aux_pi": smooth(f"{lead} A A"), "q": smooth(f"{lead} A K")}


def heads(lead: str) -> dict[str, Spec]:
    """Specs of the agent's five heads."""
    return {"logits": smooth(f"{lead} A"), "y": smooth(f"{lead} P"), **model_heads(lead)}


register(
    "nets/action_model",
    "From the torso's output: a root state, one LSTM step for each action, and the heads z, aux_pi and q.",
    lambda s: {
        "torso": Spec(("B", s["dense"][-1]), differentiable=True),
        **params.specs("params", params.action_model(s)),
    },
    model_heads("B"),
    {"B": 3, **{k: v for k, v in params.AGENT.items() if k != "obs"}},
    (PLAIN, *sized("B1", "A2", "A18"), Case("two_hiddens", {"head_mlp_hiddens": (5, 4)})),
    ("nets/mlp", "nets/lstm_step"),
)
register(
    "nets/agent",
    "The agent's network over a rollout: torso, heads logits and y, and the action-conditional heads.",
    lambda s: {
        "observations": Spec(("T+1", "B", *s["obs"]), differentiable=True),
        **params.specs("params", params.agent(s)),
    },
    heads("T+1 B"),
    AGENT_SIZES,
    (PLAIN, *sized("T1_B1", "A2", "A18"), DEEPER, Case("full_size", FULL_AGENT, stored=False, gradients=False)),
    ("nets/mlp", "nets/action_model"),
)


def drawn_params(shapes: params.Shapes) -> dict[str, Spec]:
    """Specs of the uniform noise that each weight is made of."""
    return {f"noise/{name}": Spec(shape, draw="uniform") for name, shape in shapes.items() if name.endswith("/w")}


register(
    "nets/agent_init",
    "Initial agent parameters from uniform noise: normal, cut off at two standard deviations.",
    lambda s: drawn_params(params.agent(s)),
    lambda s: params.tree("params", params.agent(s)),
    {**params.AGENT, "head_w_init_std": 0.01},
    (PLAIN, *sized("A18"), DEEPER, Case("other_head_std", {"head_w_init_std": 0.5})),
)
