"""Layers of the meta-network: its inputs, trajectory RNN, gate, heads and meta-RNN, and the whole of it."""

from __future__ import annotations

from parity.layers import edits, params
from parity.layers.cases import PLAIN, sized, terminals
from parity.layers.networks import RESET_CASES, drawn_params, heads
from parity.layers.spec import Case, Settings, Spec, each, fixed, flag, index, prefixed, register, smooth

META_SIZES: Settings = {"T": 5, "B": 3, "A": 3, **params.META}
EXPERIENCE: dict[str, Spec] = {
    **prefixed("agent_out", heads("T+1 B"), "logits y z"),
    "behaviour_out/logits": smooth("T+1 B A"),
    **prefixed("target_out", heads("T+1 B"), "logits y z"),
    "actions": index("T+1 B"),
    "rewards": smooth("T B"),
    "is_terminal": flag("T B"),
    "v_scalar": smooth("T+1 B"),
    **each("adv normalized_adv", smooth("T B")),
    **each("q qv_adv normalized_qv_adv", smooth("T+1 B A")),
}
RNN_STATE = {"rnn/hidden": smooth("M", scale=0.5), "rnn/cell": smooth("M")}
META_CASES = (
    PLAIN,
    *terminals("first middle last every"),
    *sized("T1", "B1", "A2", "A18"),
    Case("saturated_logits", edits=(edits.scaled(30.0, "agent_out/logits", "behaviour_out/logits", "agent_out/y"),)),
)
FULL_META = {k: params.FULL_SIZE[k] for k in params.META}
WIDER = Case("wider_embeddings", {"embedding_size": (4, 3), "policy_channels": (5, 4, 3)})


def _features(s: Settings, differentiable: bool = False) -> Spec:
    width = params.features(s["embedding_size"][-1], s["policy_channels"][-1])
    return Spec(("T", "B", width), differentiable=differentiable)


def _policy_embedding(s: Settings, differentiable: bool = False) -> Spec:
    return Spec(("T", "B", "A", s["policy_channels"][-1]), differentiable=differentiable)


register(
    "meta/inputs",
    "The trajectory as vectors: 16 inputs, and an action-conditional embedding, pooled and of the action taken.",
    lambda s: {**EXPERIENCE, **params.specs("meta_params", params.meta_inputs(s))},
    lambda s: {"x": _features(s), "policy_emb": _policy_embedding(s)},
    META_SIZES,
    (*META_CASES, WIDER, Case("tied_actions", edits=(edits.tied("agent_out/z", 2),), at_branch=True)),
    ("transforms/softmax", "nets/mlp", "nets/conv_block", "values/outs"),
)
register(
    "meta/trajectory_rnn",
    "The LSTM that runs backwards over each trajectory.",
    lambda s: {
        "x": _features(s, differentiable=True),
        "is_terminal": flag("T B"),
        **params.specs("meta_params", params.trajectory_rnn(s)),
    },
    {"x": fixed("T B H")},
    META_SIZES,
    RESET_CASES,
    ("meta/inputs", "nets/unroll"),
)
register(
    "meta/gate",
    "The trajectory RNN's output times a linear function of the meta-RNN's hidden state.",
    lambda s: {
        "x": smooth("T B H"),
        "rnn/hidden": RNN_STATE["rnn/hidden"],
        **params.specs("meta_params", params.gate(s)),
    },
    {"x": fixed("T B H")},
    META_SIZES,
    (PLAIN, *sized("T1_B1"), Case("from_zero", edits=(edits.filled(0.0, "rnn/hidden"),))),
    ("meta/trajectory_rnn",),
)
TARGETS = {
    "pi": smooth("T B A"),
    "y": smooth("T B P"),
    "z": smooth("T B P"),
    "meta_input_emb": smooth("T B 1"),
}
register(
    "meta/heads",
    "Targets for policy, y and z, and an embedding for the meta-RNN.",
    lambda s: {
        "x": smooth("T B H"),
        "policy_emb": _policy_embedding(s, differentiable=True),
        **params.specs("meta_params", params.meta_heads(s)),
    },
    TARGETS,
    META_SIZES,
    (PLAIN, *sized("T1_B1", "A2", "A18"), Case("two_blocks", {"policy_target_channels": (5, 4)})),
    ("meta/gate", "nets/conv_block"),
)
register(
    "meta/rnn",
    "One step of the meta-RNN, which runs over the agent's lifetime, on the mean over batch and trajectory.",
    lambda s: {
        **EXPERIENCE,
        **prefixed("meta_out", TARGETS, "y meta_input_emb"),
        **RNN_STATE,
        **params.specs("meta_params", params.meta_rnn(s)),
    },
    RNN_STATE,
    META_SIZES,
    (*META_CASES, Case("wider_embeddings", {"meta_pred_embedding_size": (4, 3), "meta_embedding_size": (6, 5)})),
    ("meta/heads", "nets/lstm_step"),
)
register(
    "meta/whole",
    "The whole meta-network: experience in; targets and the next state of the meta-RNN out.",
    lambda s: {**EXPERIENCE, **RNN_STATE, **params.specs("meta_params", params.meta(s))},
    {**TARGETS, **RNN_STATE},
    META_SIZES,
    (
        *META_CASES,
        WIDER,
        Case("full_size", FULL_META, stored=False, gradients=False),
        Case("disco103", FULL_META, meta_params="disco103", stored=False, gradients=False),
    ),
    ("meta/inputs", "meta/trajectory_rnn", "meta/gate", "meta/heads", "meta/rnn"),
)
register(
    "meta/init",
    "Initial meta-parameters from uniform noise.",
    lambda s: drawn_params(params.meta(s)),
    lambda s: params.tree("params", params.meta(s)),
    {**params.META, "output_stddev": 0.3, "aux_stddev": 0.2, "policy_target_stddev": 0.4, "state_stddev": 1.0},
    (PLAIN, WIDER),
)
