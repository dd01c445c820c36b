"""Layers of meta-training: the value function's update, the outer loss with its meta-gradient, the meta-update."""

from __future__ import annotations

import math
from dataclasses import replace

from parity.layers import edits, learning, params
from parity.layers.cases import PLAIN, sized, terminals
from parity.layers.elementary import fresh
from parity.layers.optim import FRESH_OPTIMISER, TREE, optimiser_state, zeroed
from parity.layers.params import tree
from parity.layers.spec import Case, Settings, Spec, each, fixed, prefixed, register, smooth
from parity.layers.values import EMAS, FRESH_EMAS

VALUE: Settings = {
    "value_dense": (7, 5),
    "value_learning_rate": 0.001,
    "value_max_abs_update": 1.0,
    "discount_factor": 0.99,
    "td_lambda": 0.96,
    "outer_value_cost": 1.0,
    "ema_decay": 0.99,
    "ema_eps": 1e-6,
}


def value_params(s: Settings) -> params.Shapes:
    """Shapes of the value function's parameters, in the original's names."""
    torso = params.mlp("value_fn/~_embedding_pass/torso", (math.prod(s["obs"]), *s["value_dense"]))
    return torso | params.mlp("value_fn/~_head_pass/torso_head", (s["value_dense"][-1], 1))


def still(specs: dict[str, Spec]) -> dict[str, Spec]:
    """The same, not differentiated."""
    return {name: replace(spec, differentiable=False) for name, spec in specs.items()}


def _rollouts(s: Settings, prefix: str, *lead: str) -> dict[str, Spec]:
    """Specs of rollouts, not differentiated, with other axes in the place of `T+1`."""
    recorded = {name.replace("rollout", prefix, 1): spec for name, spec in learning.rollout(s).items()}
    return {name: replace(x, dims=(*lead, *x.dims[1:]), differentiable=False) for name, x in recorded.items()}


def _value_state(s: Settings) -> dict[str, Spec]:
    shapes = value_params(s)
    return {**params.specs("params", shapes), **optimiser_state(shapes, scale=0.01), **EMAS}


OTHER_VALUE: Settings = {
    **{"discount_factor": 0.9, "td_lambda": 0.5, "outer_value_cost": 0.3},
    **{"ema_decay": 0.9, "ema_eps": 1e-3},
}
register(
    "meta_train/value_fn",
    "One update of the value function on what an actor recorded; the last step is dropped, nothing is shifted.",
    lambda s: {
        **_rollouts(s, "rollout", "T+1"),
        "rollout/rewards": smooth("T+1 B"),
        "pi_logits": smooth("T+1 B A"),
        **_value_state(s),
    },
    lambda s: {**_value_state(s), "value_loss": fixed(""), **each("td normalized_td", fixed("T B"))},
    {"T": 5, "B": 3, "A": 3, "obs": (4, 3, 1), **VALUE},
    (
        *learning.learner_cases(PLAIN, Case("fresh_state", edits=(FRESH_OPTIMISER, *FRESH_EMAS))),
        *terminals("first last every", "rollout/discounts", then=(learning.ALIVE,)),
        *learning.learner_cases(
            *sized("T1_B1"),
            Case("other_settings", OTHER_VALUE),
            Case("clipped", {"value_max_abs_update": 0.25}),
        ),
    ),
    ("nets/mlp", "values/outs_v", "values/loss_from_td", "optim/update"),
)

META_LOG = "adv normalized_adv entropy value val_importance_weight meta_loss pg_loss reg_loss"


def _outer_inputs(s: Settings) -> dict[str, Spec]:
    """Nothing is differentiated by them: the meta-gradient is an output already."""
    state = {
        **learning.agent_state(s),
        **prefixed("value", _value_state(s)),
        **params.specs("meta_params", params.meta(s)),
    }
    return {**_rollouts(s, "train", "S", "T+1"), **_rollouts(s, "valid", "2*T+2"), **still(state)}


def _outer_outputs(s: Settings) -> dict[str, Spec]:
    return {
        **tree("meta_grads", params.meta(s)),
        **learning.agent_state(s),
        **prefixed("value", _value_state(s)),
        **learning.logs(META_LOG),
    }


BOTH_ALIVE = learning.alive("train", "valid")
FRESH = (BOTH_ALIVE, *learning.FRESH_LEARNER, *fresh("value/adv_ema", "value/td_ema"), zeroed("value/opt/"))
FULL: Settings = {**learning.FULL, "obs": (5, 5, 1), "T": 5, "B": 3}
META_TRAINING: Settings = {**learning.RULE, **learning.ALL_COSTS, **learning.STEP, **VALUE}
register(
    "meta_train/outer_loss",
    "S inner updates of agent and value function, the loss on a validation rollout, and its gradient for the "
    "meta-parameters through all of it.",
    _outer_inputs,
    _outer_outputs,
    {**META_TRAINING, "S": 3, "T": 3, "B": 2},
    (
        Case("fresh_agent", {}, FRESH, gradients=False),
        Case("later_in_life", {}, (BOTH_ALIVE,), gradients=False),
        Case("one_inner_step", {"S": 1}, (BOTH_ALIVE,), gradients=False),
        Case("disco103_one_step", {**FULL, "S": 1}, FRESH, **learning.DISCO103),
        Case("disco103_five_steps", {**FULL, "S": 5}, FRESH, **learning.DISCO103),
    ),
    ("agent/learner_step", "meta_train/value_fn", "ops/entropy", "ops/kl"),
    notebook="meta_train",
)
register(
    "meta_train/second_derivative",
    "How the meta-gradient changes along a direction of the meta-parameters, by JVP of the gradient.",
    lambda s: {**_outer_inputs(s), **still(params.specs("direction", params.meta(s)))},
    lambda s: tree("meta_grads", params.meta(s)),
    {**META_TRAINING, "S": 2, "T": 2, "B": 2},
    (Case("two_inner_steps", {}, (BOTH_ALIVE,), gradients=False),),
    ("meta_train/outer_loss",),
    notebook="meta_train",
)
META_UPDATES = (
    PLAIN,
    Case("first_step", edits=(FRESH_OPTIMISER,)),
    Case("past_the_agents_bound", edits=(edits.scaled(1e-3, "opt/nu/first/w"),)),
    Case("one_agent", {"N": 1}),
    Case("three_agents", {"N": 3, "meta_learning_rate": 0.01}),
    Case("tiny_gradients", edits=(edits.scaled(1e-7, "grads/0/first/w", "grads/1/first/w"),)),
)
register(
    "meta_train/update",
    "A step of Adam on the meta-parameters along the mean of the agents' meta-gradients.",
    lambda s: {
        **tree("meta_params", TREE),
        **{k: v for i in range(s["N"]) for k, v in tree(f"grads/{i}", TREE, scale=0.3).items()},
        **still(optimiser_state(TREE)),
    },
    {**tree("meta_params", TREE), **optimiser_state(TREE), **learning.logs("meta_grad_norm meta_up_norm")},
    {"N": 2, "meta_learning_rate": 5e-4},
    tuple(replace(case, gradients=False) for case in META_UPDATES),
    ("meta_train/outer_loss",),
    notebook="meta_train",
)
