"""Layers of meta-training: the value function's update, the outer loss with its meta-gradient, the meta-update."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.layers import edits, params
from parity.layers.learning import (
    COSTS,
    FRESH_LEARNER,
    ROLLOUT,
    RULE,
    TREE,
    fresh_optimiser,
    meta_state,
    optimiser_state,
    tree,
)
from parity.layers.learning import (
    FULL as FULL_SIZE,
)
from parity.layers.spec import Arrays, Case, Edit, Layer, Settings, Spec, fixed, register, smooth
from parity.layers.values import ema, fresh

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
    torso = params.mlp("value_fn/~_embedding_pass/torso", (int(np.prod(s["obs"])), *s["value_dense"]))
    return torso | params.mlp("value_fn/~_head_pass/torso_head", (s["value_dense"][-1], 1))


def rollout(s: Settings, prefix: str, lead: tuple[str | int, ...], steps: str) -> dict[str, Spec]:
    """Specs of a rollout of some steps, not differentiated."""
    seen = {"observations": Spec(("T+1", "B", *s["obs"]), draw="zero_one")}
    seen |= {name.removeprefix("rollout/"): spec for name, spec in ROLLOUT.items()}

    def placed(spec: Spec) -> Spec:
        return Spec((*lead, steps, *spec.dims[1:]), spec.kind, False, spec.draw, spec.scale, spec.below)

    return {f"{prefix}/{name}": placed(spec) for name, spec in seen.items()}


def alive(*prefixes: str) -> Edit:
    """Discounts as an actor gives them: true but at the last step of an episode (the generator draws few trues)."""

    def edit(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
        return {**inputs, **{f"{p}/discounts": ~inputs[f"{p}/discounts"] for p in prefixes}}

    return edit


def _value_state(s: Settings, prefix: str = "") -> dict[str, Spec]:
    shapes = value_params(s)
    state = {
        **params.specs("params", shapes),
        **optimiser_state(shapes, scale=0.01),
        **ema("adv_ema"),
        **ema("td_ema"),
    }
    return {f"{prefix}{name}": spec for name, spec in state.items()}


ALIVE = alive("rollout")
OTHER_VALUE: Settings = {
    **{"discount_factor": 0.9, "td_lambda": 0.5, "outer_value_cost": 0.3},
    **{"ema_decay": 0.9, "ema_eps": 1e-3},
}
register(
    Layer(
        "meta_train/value_fn",
        "One update of the value function on what an actor recorded; the last step is dropped, nothing is shifted.",
        lambda s: {
            **rollout(s, "rollout", (), "T+1"),
            "rollout/rewards": smooth("T+1 B"),
            "pi_logits": smooth("T+1 B A"),
            **_value_state(s),
        },
        lambda s: {
            **_value_state(s),
            "value_loss": fixed(""),
            "td": fixed("T B"),
            "normalized_td": fixed("T B"),
        },
        {"T": 5, "B": 3, "A": 3, "obs": (4, 3, 1), **VALUE},
        (
            Case("plain", edits=(ALIVE,)),
            Case("fresh_state", edits=(ALIVE, fresh_optimiser, *fresh("adv_ema", "td_ema"))),
            *(
                Case(f"terminal_{where}", edits=(edits.terminal(where, "rollout/discounts"), ALIVE))
                for where in ("first", "last", "every")
            ),
            Case("T1_B1", {"T": 1, "B": 1}, (ALIVE,)),
            Case("other_settings", OTHER_VALUE, (ALIVE,)),
            Case("clipped", {"value_max_abs_update": 0.25}, (ALIVE,)),
        ),
        ("nets/mlp", "values/outs_v", "values/loss_from_td", "optim/update"),
    )
)

META_LOG = ("adv", "normalized_adv", "entropy", "value", "val_importance_weight", "meta_loss", "pg_loss", "reg_loss")


def still(specs: dict[str, Spec]) -> dict[str, Spec]:
    """The same, not differentiated: the meta-gradient is an output already."""
    return {name: Spec(x.dims, x.kind, False, x.draw, x.scale, x.below) for name, x in specs.items()}


def _outer_inputs(s: Settings) -> dict[str, Spec]:
    shapes = params.agent(s)
    return still(
        {
            **rollout(s, "train", ("S",), "T+1"),
            **rollout(s, "valid", (), "2*T+2"),
            **params.specs("params", shapes),
            **optimiser_state(shapes, scale=0.01),
            **meta_state(s),
            **_value_state(s, "value/"),
            **params.specs("meta_params", params.meta(s)),
        }
    )


def _outer_outputs(s: Settings) -> dict[str, Spec]:
    shapes = params.agent(s)
    return {
        **tree("meta_grads", params.meta(s)),
        **params.specs("params", shapes),
        **optimiser_state(shapes),
        **meta_state(s),
        **_value_state(s, "value/"),
        **{f"log/{name}": fixed("") for name in META_LOG},
    }


def _fresh_value(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
    """The value function's optimiser and averages where they start."""
    opt = {name: np.zeros_like(x) for name, x in inputs.items() if name.startswith("value/opt/")}
    for edit in fresh("value/adv_ema", "value/td_ema"):
        inputs = edit(inputs, settings, rng)
    return {**inputs, **opt}


BOTH_ALIVE = alive("train", "valid")
FRESH = (BOTH_ALIVE, *FRESH_LEARNER, _fresh_value)
FULL: Settings = {**FULL_SIZE, "obs": (5, 5, 1), "T": 5, "B": 3}
REAL: dict[str, Any] = {"meta_params": "disco103", "stored": False, "gradients": False}
STEPS = {"one_step": 1, "five_steps": 5}
register(
    Layer(
        "meta_train/outer_loss",
        "S inner updates of agent and value function, the loss on a validation rollout, and its gradient for the "
        "meta-parameters through all of it.",
        _outer_inputs,
        _outer_outputs,
        {**RULE, **COSTS, "learning_rate": 0.01, "max_abs_update": 1.0, **VALUE, "S": 3, "T": 3, "B": 2},
        (
            Case("fresh_agent", {}, FRESH, gradients=False),
            Case("later_in_life", {}, (BOTH_ALIVE,), gradients=False),
            Case("one_inner_step", {"S": 1}, (BOTH_ALIVE,), gradients=False),
            *(Case(f"disco103_{name}", {**FULL, "S": steps}, FRESH, **REAL) for name, steps in STEPS.items()),
        ),
        ("agent/learner_step", "meta_train/value_fn", "ops/entropy", "ops/kl"),
        notebook="meta_train",
    )
)
register(
    Layer(
        "meta_train/second_derivative",
        "How the meta-gradient changes along a direction of the meta-parameters, by JVP of the gradient.",
        lambda s: {**_outer_inputs(s), **still(params.specs("direction", params.meta(s)))},
        lambda s: tree("meta_grads", params.meta(s)),
        {**RULE, **COSTS, "learning_rate": 0.01, "max_abs_update": 1.0, **VALUE, "S": 2, "T": 2, "B": 2},
        (Case("two_inner_steps", {}, (BOTH_ALIVE,), gradients=False),),
        ("meta_train/outer_loss",),
        notebook="meta_train",
    )
)
register(
    Layer(
        "meta_train/update",
        "A step of Adam on the meta-parameters along the mean of the agents' meta-gradients.",
        lambda s: {
            **tree("meta_params", TREE),
            **{k: v for i in range(s["N"]) for k, v in tree(f"grads/{i}", TREE, scale=0.3).items()},
            **still(optimiser_state(TREE)),
        },
        lambda s: {
            **tree("meta_params", TREE),
            **optimiser_state(TREE),
            **{f"log/{name}": fixed("") for name in ("meta_grad_norm", "meta_up_norm")},
        },
        {"N": 2, "meta_learning_rate": 5e-4},
        (
            Case("plain", gradients=False),
            Case("first_step", edits=(fresh_optimiser,), gradients=False),
            Case("past_the_agents_bound", edits=(edits.scaled(1e-3, "opt/nu/first/w"),), gradients=False),
            Case("one_agent", {"N": 1}, gradients=False),
            Case("three_agents", {"N": 3, "meta_learning_rate": 0.01}, gradients=False),
            Case("tiny_gradients", edits=(edits.scaled(1e-7, "grads/0/first/w", "grads/1/first/w"),), gradients=False),
        ),
        ("meta_train/outer_loss",),
        notebook="meta_train",
    )
)
