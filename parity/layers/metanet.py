"""Layers of the meta-network: its inputs, trajectory RNN, gate, heads and meta-RNN, and the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from parity.layers import edits, params
from parity.layers.elementary import constant
from parity.layers.networks import RESET_CASES, drawn_params, heads, initial_params, prefixed
from parity.layers.spec import Case, Layer, Settings, Spec, fixed, flag, index, register, smooth

META_SIZES: Settings = {"T": 5, "B": 3, "A": 3, **params.META}
EXPERIENCE: dict[str, Spec] = {
    **prefixed("agent_out", heads("T+1 B"), "logits", "y", "z"),
    "behaviour_out/logits": smooth("T+1 B A"),
    **prefixed("target_out", heads("T+1 B"), "logits", "y", "z"),
    "actions": index("T+1 B"),
    "rewards": smooth("T B"),
    "is_terminal": flag("T B"),
    "v_scalar": smooth("T+1 B"),
    "adv": smooth("T B"),
    "normalized_adv": smooth("T B"),
    "q": smooth("T+1 B A"),
    "qv_adv": smooth("T+1 B A"),
    "normalized_qv_adv": smooth("T+1 B A"),
}
RNN_STATE = {"rnn/hidden": smooth("M", scale=0.5), "rnn/cell": smooth("M")}
META_CASES = (
    Case("plain"),
    *(Case(f"terminal_{where}", edits=(edits.terminal(where),)) for where in ("first", "middle", "last", "every")),
    Case("T1", {"T": 1}),
    Case("B1", {"B": 1}),
    Case("A2", {"A": 2}),
    Case("A18", {"A": 18}),
    Case("saturated_logits", edits=(edits.scaled(30.0, "agent_out/logits", "behaviour_out/logits", "agent_out/y"),)),
)
FULL_META = {k: params.FULL_SIZE[k] for k in params.META}
WIDER = Case("wider_embeddings", {"embedding_size": (4, 3), "policy_channels": (5, 4, 3)})


def _meta_layer(
    name: str,
    summary: str,
    inputs: Callable[[Settings], Mapping[str, Spec]],
    outputs: Callable[[Settings], Mapping[str, Spec]],
    cases: tuple[Case, ...],
    upstream: tuple[str, ...],
) -> None:
    register(Layer(f"meta/{name}", summary, inputs, outputs, META_SIZES, cases, upstream))


def _feature_width(s: Settings) -> int:
    return params.features(s["embedding_size"][-1], s["policy_channels"][-1])


_meta_layer(
    "inputs",
    "The trajectory as vectors: 16 inputs, and an action-conditional embedding, pooled and of the action taken.",
    lambda s: {**EXPERIENCE, **params.specs("meta_params", params.meta_inputs(s))},
    lambda s: {
        "x": Spec(("T", "B", _feature_width(s))),
        "policy_emb": Spec(("T", "B", "A", s["policy_channels"][-1])),
    },
    (*META_CASES, WIDER, Case("tied_actions", edits=(edits.tied("agent_out/z", 2),), at_branch=True)),
    ("transforms/softmax", "nets/mlp", "nets/conv_block", "values/outs"),
)
_meta_layer(
    "trajectory_rnn",
    "The LSTM that runs backwards over each trajectory.",
    lambda s: {
        "x": Spec(("T", "B", _feature_width(s)), differentiable=True),
        "is_terminal": flag("T B"),
        **params.specs("meta_params", params.trajectory_rnn(s)),
    },
    constant({"x": fixed("T B H")}),
    RESET_CASES,
    ("meta/inputs", "nets/unroll"),
)
_meta_layer(
    "gate",
    "The trajectory RNN's output times a linear function of the meta-RNN's hidden state.",
    lambda s: {
        "x": smooth("T B H"),
        "rnn/hidden": RNN_STATE["rnn/hidden"],
        **params.specs("meta_params", params.gate(s)),
    },
    constant({"x": fixed("T B H")}),
    (Case("plain"), Case("T1_B1", {"T": 1, "B": 1}), Case("from_zero", edits=(edits.filled(0.0, "rnn/hidden"),))),
    ("meta/trajectory_rnn",),
)
TARGETS = {
    "pi": smooth("T B A"),
    "y": smooth("T B P"),
    "z": smooth("T B P"),
    "meta_input_emb": smooth("T B 1"),
}
_meta_layer(
    "heads",
    "Targets for policy, y and z, and an embedding for the meta-RNN.",
    lambda s: {
        "x": smooth("T B H"),
        "policy_emb": Spec(("T", "B", "A", s["policy_channels"][-1]), differentiable=True),
        **params.specs("meta_params", params.meta_heads(s)),
    },
    constant(TARGETS),
    (
        Case("plain"),
        Case("T1_B1", {"T": 1, "B": 1}),
        Case("A2", {"A": 2}),
        Case("A18", {"A": 18}),
        Case("two_blocks", {"policy_target_channels": (5, 4)}),
    ),
    ("meta/gate", "nets/conv_block"),
)
_meta_layer(
    "rnn",
    "One step of the RNN that lives as long as the agent, on the batch's and trajectory's mean.",
    lambda s: {
        **EXPERIENCE,
        **prefixed("meta_out", TARGETS, "y", "meta_input_emb"),
        **RNN_STATE,
        **params.specs("meta_params", params.meta_rnn(s)),
    },
    constant(RNN_STATE),
    (*META_CASES, Case("wider_embeddings", {"meta_pred_embedding_size": (4, 3), "meta_embedding_size": (6, 5)})),
    ("meta/heads", "nets/lstm_step"),
)
_meta_layer(
    "whole",
    "The whole meta-network: experience in; targets and the next state of the meta-RNN out.",
    lambda s: {**EXPERIENCE, **RNN_STATE, **params.specs("meta_params", params.meta(s))},
    constant({**TARGETS, **RNN_STATE}),
    (
        *META_CASES,
        WIDER,
        Case("full_size", FULL_META, stored=False, gradients=False),
        Case("disco103", FULL_META, meta_params="disco103", stored=False, gradients=False),
    ),
    ("meta/inputs", "meta/trajectory_rnn", "meta/gate", "meta/heads", "meta/rnn"),
)
register(
    Layer(
        "meta/init",
        "Initial meta-parameters from uniform noise.",
        lambda s: drawn_params(params.meta(s)),
        lambda s: initial_params(params.meta(s)),
        {**params.META, "output_stddev": 0.3, "aux_stddev": 0.2, "policy_target_stddev": 0.4, "state_stddev": 1.0},
        (Case("plain"), Case("wider_embeddings", {"embedding_size": (4, 3), "policy_channels": (5, 4, 3)})),
    )
)
