"""Layers of learning: optimiser, target averaging, the Disco rule, the agent's loss and its learner step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parity.layers import edits, params
from parity.layers.elementary import constant
from parity.layers.metanet import RNN_STATE, TARGETS
from parity.layers.networks import AGENT_SIZES, heads, prefixed
from parity.layers.spec import Arrays, Case, Edit, Layer, Settings, Spec, fixed, flag, index, register, smooth
from parity.layers.values import ema, fresh

TREE: params.Shapes = {"first/w": (4, 3), "first/b": (3,), "second/w": (2, 5)}


def tree(prefix: str, shapes: params.Shapes, **options: object) -> dict[str, Spec]:
    """Specs of a parameter-shaped tree."""
    return {f"{prefix}/{name}": Spec(shape, **options) for name, shape in shapes.items()}  # type: ignore[arg-type]


def optimiser_state(shapes: params.Shapes, scale: float = 0.1) -> dict[str, Spec]:
    """Specs of Adam's state: step count and both moments."""
    return {
        "opt/count": index("", below=30),
        **tree("opt/mu", shapes, differentiable=True, scale=scale),
        **tree("opt/nu", shapes, differentiable=True, draw="positive", scale=scale**2),
    }


def fresh_optimiser(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
    """Adam's state where it starts: all zeros."""
    return {**inputs, **{name: np.zeros_like(value) for name, value in inputs.items() if name.startswith("opt/")}}


def fresh_targets(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
    """Target parameters equal to the online ones, and the meta-RNN's state at zero."""
    targets = {
        f"meta_state/target_params/{name.removeprefix('params/')}": value.copy()
        for name, value in inputs.items()
        if name.startswith("params/")
    }
    rest = {name: np.zeros_like(inputs[name]) for name in ("meta_state/rnn/hidden", "meta_state/rnn/cell")}
    return {**inputs, **targets, **rest}


register(
    Layer(
        "optim/adam",
        "Adam's direction with debiased moments; the denominator's gradient is stopped.",
        constant({**tree("grads", TREE, differentiable=True, scale=0.3), **optimiser_state(TREE)}),
        constant({**tree("updates", TREE), **optimiser_state(TREE)}),
        {"b1": 0.9, "b2": 0.999, "eps": 1e-8},
        (
            Case("plain"),
            Case("first_step", edits=(fresh_optimiser,)),
            Case("zero_gradient", edits=(edits.filled(0.0, "grads/first/w"), fresh_optimiser)),
            Case("tiny_gradient", edits=(edits.scaled(1e-7, "grads/first/w", "grads/first/b"), fresh_optimiser)),
            Case("other_decays", {"b1": 0.5, "b2": 0.9, "eps": 1e-4}),
        ),
    )
)
register(
    Layer(
        "optim/update",
        "Adam's direction, clipped, times minus the learning rate, added to the parameters.",
        constant(
            {
                **tree("params", TREE, differentiable=True),
                **tree("grads", TREE, differentiable=True, scale=0.3),
                **optimiser_state(TREE),
            }
        ),
        constant({**tree("params", TREE), **tree("updates", TREE), **optimiser_state(TREE)}),
        {"learning_rate": 0.01, "max_abs_update": 1.0},
        (
            Case("plain"),
            Case("first_step", edits=(fresh_optimiser,)),
            Case("clipped", {"max_abs_update": 0.25}),
            Case("large_gradient", edits=(edits.scaled(1e4, "grads/first/w"),)),
        ),
        ("optim/adam",),
    )
)
register(
    Layer(
        "optim/target_average",
        "coeff times the target parameters plus (1 - coeff) times the online ones.",
        constant({**tree("target", TREE, differentiable=True), **tree("online", TREE, differentiable=True)}),
        constant(tree("target", TREE)),
        {"target_params_coeff": 0.9},
        (Case("plain"), Case("slow", {"target_params_coeff": 0.995}), Case("copy", {"target_params_coeff": 0.0})),
    )
)

RULE: Settings = {
    **AGENT_SIZES,
    **params.META,
    "max_abs_value": 4.0,
    "value_discount": 0.997,
    "moving_average_decay": 0.99,
    "moving_average_eps": 1e-6,
    "value_fn_td_lambda": 0.95,
    "target_params_coeff": 0.9,
}
COSTS: Settings = {"pi_cost": 1.0, "y_cost": 1.0, "z_cost": 1.0, "aux_policy_cost": 1.0, "value_cost": 0.2}
UNEVEN_COSTS: Settings = {"pi_cost": 0.7, "y_cost": 1.3, "z_cost": 0.4, "aux_policy_cost": 1.6, "value_cost": 0.5}


def meta_state(s: Settings) -> dict[str, Spec]:
    """Specs of what the rule carries from step to step."""
    return {
        **prefixed("meta_state", RNN_STATE),
        **ema("meta_state/adv_ema"),
        **ema("meta_state/td_ema"),
        **params.specs("meta_state/target_params", params.agent(s)),
    }


FRESH_STATE: tuple[Edit, ...] = (fresh_targets, *fresh("meta_state/adv_ema", "meta_state/td_ema"))
TERMINALS = ("first", "middle", "last", "every")
FULL: Settings = {**params.FULL_SIZE, "max_abs_value": 300.0}

register(
    Layer(
        "disco/unroll_meta_net",
        "The rule's targets: target network, value outputs and meta-network; carries the meta-state on.",
        lambda s: {
            **prefixed("agent_out", heads("T+1 B")),
            "behaviour_out/logits": smooth("T+1 B A"),
            "observations": Spec(("T+1", "B", *s["obs"])),
            "actions": index("T+1 B"),
            "rewards": smooth("T B"),
            "is_terminal": flag("T B"),
            **params.specs("params", params.agent(s)),
            **meta_state(s),
            **params.specs("meta_params", params.meta(s)),
        },
        lambda s: {
            **prefixed("meta_out", TARGETS),
            **{f"meta_out/{n}": fixed("T B") for n in ("q_target", "adv", "normalized_adv", "q_td", "normalized_q_td")},
            **{f"meta_out/{n}": fixed("T+1 B A") for n in ("qv_adv", "normalized_qv_adv", "q_value")},
            **prefixed("meta_out/target_out", heads("T+1 B")),
            **meta_state(s),
        },
        RULE,
        (
            Case("plain"),
            Case("fresh_state", edits=FRESH_STATE),
            *(Case(f"terminal_{where}", edits=(edits.terminal(where),)) for where in TERMINALS),
            Case("T1_B1", {"T": 1, "B": 1}),
            Case("A2", {"A": 2}),
            Case("A18", {"A": 18}),
            Case("huge_rewards", edits=(edits.scaled(1e3, "rewards"),)),
            Case("disco103", FULL, meta_params="disco103", stored=False, gradients=False),
        ),
        ("nets/agent", "values/outs", "meta/whole", "optim/target_average"),
    )
)

LOGS = (
    *("logits", "y", "z", "entropy", "y_entropy", "z_entropy", "pi_loss", "aux_kl_loss", "pi_hat", "y_hat", "z_hat"),
    *("pi_hat_entropy", "aux_policy_entropy", "aux_target_entropy"),
)
VALUE_LOGS = ("q_target", "agent_q_mean", "q_loss", "td", "normalized_td")
register(
    Layer(
        "disco/agent_loss",
        "KL of policy, y and z to their targets, and the auxiliary one-step policy loss, per step.",
        constant(
            {
                **prefixed("agent_out", heads("T+1 B"), "logits", "y", "z", "aux_pi"),
                "actions": index("T+1 B"),
                "is_terminal": flag("T B"),
                **prefixed("meta_out", TARGETS, "pi", "y", "z"),
            }
        ),
        constant({"loss": fixed("T B"), **{f"log/{name}": fixed("") for name in LOGS}}),
        {"T": 5, "B": 3, "A": 3, "P": 7, **{k: v for k, v in COSTS.items() if k != "value_cost"}, "backprop": True},
        (
            Case("plain"),
            Case("targets_stopped", {"backprop": False}),
            Case("uneven_costs", {k: v for k, v in UNEVEN_COSTS.items() if k != "value_cost"}),
            *(Case(f"terminal_{where}", edits=(edits.terminal(where),)) for where in TERMINALS),
            Case("T1_B1", {"T": 1, "B": 1}),
            Case("A2", {"A": 2}),
            Case("A18", {"A": 18}),
            Case("saturated", edits=(edits.scaled(40.0, "agent_out/logits", "meta_out/pi"),)),
        ),
        ("disco/unroll_meta_net", "ops/kl", "ops/entropy"),
    )
)
register(
    Layer(
        "disco/agent_loss_no_meta",
        "The value loss, which meta-gradients do not pass through.",
        constant(
            {
                "agent_out/q": smooth("T+1 B A K"),
                "actions": index("T+1 B"),
                **{f"meta_out/{name}": smooth("T B") for name in ("q_td", "q_target", "normalized_q_td")},
                "meta_out/q_value": smooth("T+1 B A"),
            }
        ),
        constant({"loss": fixed("T B"), **{f"log/{name}": fixed("") for name in VALUE_LOGS}}),
        {"T": 5, "B": 3, "A": 3, "K": 11, "max_abs_value": 4.0, "value_cost": 0.2},
        (
            Case("plain"),
            Case("T1_B1", {"T": 1, "B": 1}),
            Case("A2", {"A": 2}),
            Case("A18", {"A": 18}),
            Case("K601", {"K": 601, "max_abs_value": 300.0}),
            Case("past_the_range", edits=(edits.scaled(1e4, "meta_out/q_td"),)),
            Case("other_cost", {"value_cost": 1.5}),
        ),
        ("disco/unroll_meta_net", "values/loss_from_td"),
    )
)

ROLLOUT = {
    "rollout/actions": index("T+1 B"),
    "rollout/rewards": smooth("T+1 B"),
    "rollout/discounts": flag("T+1 B"),
    "rollout/logits": smooth("T+1 B A"),
}


def observations(s: Settings, lead: tuple[str | int, ...] = ("T+1", "B")) -> dict[str, Spec]:
    """Spec of a rollout's observations."""
    return {"rollout/observations": Spec((*lead, *s["obs"]), draw="zero_one", scale=1.0)}


def _alive(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
    """Discounts as the actor gives them: true but at the last step of an episode (the generator draws few trues)."""
    return {**inputs, "rollout/discounts": ~inputs["rollout/discounts"]}


def learner_cases(*cases: Case) -> tuple[Case, ...]:
    """Cases whose rollouts look as the actor makes them."""
    return tuple(replace(case, edits=(_alive, *case.edits)) for case in cases)


ENDS = tuple(
    Case(f"terminal_{where}", edits=(edits.terminal(where, "rollout/discounts"), _alive)) for where in TERMINALS
)
AWKWARD = (
    Case("T1_B1", {"T": 1, "B": 1}),
    Case("A2", {"A": 2}),
    Case("A18", {"A": 18}),
)

register(
    Layer(
        "agent/actor_step",
        "Actions from the policy's logits and given Gumbel noise, with what the learner will need.",
        lambda s: {
            "observation": Spec(("B", *s["obs"])),
            "is_last": flag("B"),
            "gumbel": fixed("B A"),
            **params.specs("params", params.agent(s), differentiable=False),
        },
        constant({"actions": index("B"), "discounts": flag("B"), **heads("B")}),
        {k: v for k, v in AGENT_SIZES.items() if k != "T"},
        (
            Case("plain", {"B": 9}),
            Case("B1", {"B": 1}),
            Case("A2", {"A": 2}),
            Case("A18", {"A": 18, "B": 9}),
            Case("greedy", edits=(edits.filled(0.0, "gumbel"),)),
        ),
        ("nets/agent",),
    )
)
register(
    Layer(
        "agent/loss",
        "The agent's loss, weighted away from the first step of each episode, and its gradient; targets given.",
        lambda s: {
            **observations(s),
            **ROLLOUT,
            **prefixed("meta_out", TARGETS, "pi", "y", "z"),
            **{f"meta_out/{name}": smooth("T B") for name in ("q_td", "q_target", "normalized_q_td")},
            "meta_out/q_value": smooth("T+1 B A"),
            **params.specs("params", params.agent(s)),
        },
        lambda s: {
            "total_loss": fixed(""),
            **{f"log/{name}": fixed("") for name in (*LOGS, *VALUE_LOGS)},
            **tree("grads", params.agent(s)),
        },
        {**AGENT_SIZES, "max_abs_value": 4.0, **COSTS},
        learner_cases(
            Case("plain"),
            Case("uneven_costs", UNEVEN_COSTS),
            *ENDS,
            *AWKWARD,
        ),
        ("nets/agent", "disco/agent_loss", "disco/agent_loss_no_meta"),
    )
)


def _learner_inputs(s: Settings, lead: tuple[str | int, ...] = ()) -> dict[str, Spec]:
    shapes = params.agent(s)
    rollout = {
        name: Spec((*lead, *spec.dims), spec.kind, spec.differentiable, spec.draw, spec.scale, spec.below)
        for name, spec in {**observations(s), **ROLLOUT}.items()
    }
    return {
        **rollout,
        **params.specs("params", shapes),
        **optimiser_state(shapes, scale=0.01),
        **meta_state(s),
        **params.specs("meta_params", params.meta(s)),
    }


def _learner_outputs(s: Settings, logs: str = "") -> dict[str, Spec]:
    shapes = params.agent(s)
    names = ("total_loss", *LOGS, *VALUE_LOGS, "global_gradient_norm", "global_update_norm")
    return {
        **params.specs("params", shapes),
        **optimiser_state(shapes),
        **meta_state(s),
        **{f"log/{name}": fixed(logs) for name in names},
    }


LEARNER: Settings = {**RULE, **COSTS, "learning_rate": 0.01, "max_abs_update": 1.0, "is_meta_training": True}
FRESH_LEARNER: tuple[Edit, ...] = (fresh_optimiser, *FRESH_STATE)
register(
    Layer(
        "agent/learner_step",
        "One whole learner step: experience in; parameters, optimiser, meta-state and logs out.",
        lambda s: _learner_inputs(s),
        lambda s: _learner_outputs(s),
        LEARNER,
        learner_cases(
            Case("plain"),
            Case("fresh_state", edits=FRESH_LEARNER),
            Case("not_meta_training", {"is_meta_training": False}, gradients=False),
            Case("uneven_costs", UNEVEN_COSTS),
            *ENDS,
            *AWKWARD,
            Case(
                "full_size",
                {**FULL, "is_meta_training": False},
                FRESH_LEARNER,
                stored=False,
                gradients=False,
            ),
            Case(
                "disco103",
                {**FULL, "T": 9, "B": 5, "is_meta_training": False},
                FRESH_LEARNER,
                meta_params="disco103",
                stored=False,
                gradients=False,
            ),
        ),
        ("nets/agent", "disco/unroll_meta_net", "agent/loss", "optim/update"),
    )
)
register(
    Layer(
        "agent/learner_steps",
        "S learner steps in a row, each on its own rollout.",
        lambda s: _learner_inputs(s, lead=("S",)),
        lambda s: _learner_outputs(s, "S"),
        {**LEARNER, "S": 4, "is_meta_training": False},
        learner_cases(
            Case("four_steps", gradients=False),
            Case("from_the_start", edits=FRESH_LEARNER, gradients=False),
            *(
                Case(
                    f"{name}_20_steps",
                    {**FULL, "S": 20, "T": 6, "B": 4},
                    FRESH_LEARNER,
                    meta_params=name,
                    stored=False,
                    gradients=False,
                )
                for name in ("seeded", "disco103")
            ),
        ),
        ("agent/learner_step",),
    )
)
