"""Layers on D devices that average with each other: each has experience of its own, all have the same parameters.

Experience carries a leading axis of devices, and so does everything that comes out. VJPs go back through the averages:
what a device's experience did to the others counts too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from parity.layers import edits
from parity.layers.metatraining import alive
from parity.layers.spec import REGISTRY, Case, Settings, Spec, register

OWN = ("rollout/", "train/", "valid/", "pi_logits", "values", "x")  # what each device has for itself
Specs = Callable[[Settings], Mapping[str, Spec]]

SMALL: Settings = {
    **{"D": 2, "T": 2, "B": 2, "A": 2, "P": 3, "K": 3, "H": 3, "M": 2, "obs": (3,), "dense": (4,)},
    **{"head_mlp_hiddens": (3,), "lstm_size": 2, "embedding_size": (2, 1), "policy_channels": (2,)},
    **{"policy_target_channels": (2,), "meta_policy_channels": (2,), "meta_embedding_size": (2,)},
    "meta_pred_embedding_size": (2, 1),
}


def _of_devices(spec: Spec) -> Spec:
    return replace(spec, dims=("D", *spec.dims))


def _inputs(within: Specs) -> Specs:
    return lambda s: {name: _of_devices(x) if name.startswith(OWN) else x for name, x in within(s).items()}


def _outputs(within: Specs) -> Specs:
    return lambda s: {name: _of_devices(x) for name, x in within(s).items()}


def _register(name: str, within: str, summary: str, settings: Settings, *cases: Case, is_live: bool = True) -> None:
    """A layer of one device on several."""
    layer = REGISTRY[within]
    known = set(layer.settings) | {"D"}
    register(
        replace(
            layer,
            name=f"distributed/{name}",
            summary=summary,
            inputs=_inputs(layer.inputs),
            outputs=_outputs(layer.outputs),
            settings={key: value for key, value in {**layer.settings, **settings}.items() if key in known},
            cases=cases,
            upstream=(within,),
            is_live=is_live,
        )
    )


_register(
    "moving_average",
    "moving_average/update",
    "Both moments move towards the means over devices of the batches' moments.",
    {"D": 2, "T": 3, "B": 2},
    Case("plain"),
    Case("far_apart", edits=(edits.scaled(100.0, "values"),), gradients=False),
)
_register(
    "normalize",
    "transforms/normalize",
    "The transform that keeps a state: its moments are means over devices.",
    {"D": 2, "T": 3, "B": 2, "E": 2},
    Case("plain"),
    Case(
        "fresh_state",
        edits=(edits.filled(0, *(f"state/{m}/{k}" for m in ("m1", "m2") for k in ("hidden", "counter"))),),
    ),
)
_register(
    "value_fn",
    "meta_train/value_fn",
    "One update of the value function; moments and gradients are means over devices.",
    {**SMALL, "value_dense": (3,)},
    Case("plain", edits=(alive("rollout"),)),
)
_register(
    "learner_step",
    "agent/learner_step",
    "One whole learner step on each device; moments, the meta-RNN's input and the gradients are means over devices.",
    SMALL,
    Case("plain", edits=(alive("rollout"),)),
    is_live=False,
)
_register(
    "meta_gradient",
    "meta_train/outer_loss",
    "The meta-gradient through S inner updates and their averages, and its own mean over devices.",
    {**SMALL, "S": 2, "value_dense": (3,)},
    Case("later_in_life", edits=(alive("train", "valid"),), gradients=False),
    is_live=False,
)
