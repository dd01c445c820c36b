"""Layers on D devices that average with each other: each has experience of its own, all have the same parameters.

Experience carries a leading axis of devices, and so does everything that comes out. VJPs go back through the averages:
what a device's experience did to the others counts too.
"""

from __future__ import annotations

from dataclasses import replace

from parity.layers import edits
from parity.layers.cases import PLAIN
from parity.layers.elementary import FRESH_AVERAGES
from parity.layers.learning import ALIVE
from parity.layers.metatraining import BOTH_ALIVE
from parity.layers.spec import REGISTRY, Case, Settings, Specs, SpecsOf, add

OWN = ("rollout/", "train/", "valid/", "pi_logits", "values", "x")  # what each device has for itself
SMALL: Settings = {
    **{"D": 2, "T": 2, "B": 2, "A": 2, "P": 3, "K": 3, "H": 3, "M": 2, "obs": (3,), "dense": (4,)},
    **{"head_mlp_hiddens": (3,), "lstm_size": 2, "embedding_size": (2, 1), "policy_channels": (2,)},
    **{"policy_target_channels": (2,), "meta_policy_channels": (2,), "meta_embedding_size": (2,)},
    "meta_pred_embedding_size": (2, 1),
}


def _on_devices(within: SpecsOf, own: str | tuple[str, ...]) -> SpecsOf:
    """Specs with an axis of devices in front, where the name begins like what each device has for itself."""

    def specs(s: Settings) -> Specs:
        alone = within(s)
        return {name: replace(x, dims=("D", *x.dims)) if name.startswith(own) else x for name, x in alone.items()}

    return specs


def _register(name: str, within: str, summary: str, settings: Settings, *cases: Case, is_live: bool = True) -> None:
    """A layer of one device on several."""
    layer = REGISTRY[within]
    known = set(layer.settings) | {"D"}
    add(
        replace(
            layer,
            name=f"distributed/{name}",
            summary=summary,
            inputs=_on_devices(layer.inputs, OWN),
            outputs=_on_devices(layer.outputs, ""),
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
    PLAIN,
    Case("far_apart", edits=(edits.scaled(100.0, "values"),), gradients=False),
)
_register(
    "normalize",
    "transforms/normalize",
    "The transform that keeps a state: its moments are means over devices.",
    {"D": 2, "T": 3, "B": 2, "E": 2},
    PLAIN,
    FRESH_AVERAGES,
)
_register(
    "value_fn",
    "meta_train/value_fn",
    "One update of the value function; moments and gradients are means over devices.",
    {**SMALL, "value_dense": (3,)},
    Case("plain", edits=(ALIVE,)),
)
_register(
    "learner_step",
    "agent/learner_step",
    "One whole learner step on each device; moments, the meta-RNN's input and the gradients are means over devices.",
    SMALL,
    Case("plain", edits=(ALIVE,)),
    is_live=False,
)
_register(
    "meta_gradient",
    "meta_train/outer_loss",
    "The meta-gradient through S inner updates and their averages, and its own mean over devices.",
    {**SMALL, "S": 2, "value_dense": (3,)},
    Case("later_in_life", edits=(BOTH_ALIVE,), gradients=False),
    is_live=False,
)
