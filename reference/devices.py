"""Layers on several devices, for the original and the stand-in: mapped over a leading axis, and averaged over it.

The original's own way is `jax.pmap`, one device for each; goldens are recorded so, on host devices that XLA pretends to
have (`HOST_DEVICES`). Where there are fewer, `jax.vmap` maps the same functions over an axis of the same name.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from reference.flat_dict import LayerFn, Settings, Tensors
from reference.jax_runtime import FLAGS

AXIS = "i"  # as the original's notebooks call it
COUNT = 2
HOST_DEVICES = f"--xla_force_host_platform_device_count={COUNT}"
OWN = ("rollout/", "train/", "valid/", "pi_logits", "values", "x")  # what each device has for itself
WITHIN = {
    "distributed/moving_average": "moving_average/update",
    "distributed/normalize": "transforms/normalize",
    "distributed/value_fn": "meta_train/value_fn",
    "distributed/learner_step": "agent/learner_step",
    "distributed/meta_gradient": "meta_train/outer_loss",
}


def flags_of(layer: str) -> dict[str, str]:
    """The flags that a layer is recorded under: those on several devices need the devices beside the common ones."""
    return {**FLAGS, "XLA_FLAGS": f"{FLAGS['XLA_FLAGS']} {HOST_DEVICES}"} if layer in WITHIN else FLAGS


def mapped(layer: LayerFn, is_pmapped: bool) -> LayerFn:
    """The layer on `D` devices: each gets what they share, and every output has an axis of devices."""

    def call(x: Tensors, s: Settings) -> Tensors:
        per_device = {
            name: value if name.startswith(OWN) else jnp.broadcast_to(value, (s["D"], *value.shape))
            for name, value in x.items()
        }
        mapping = jax.pmap if is_pmapped and jax.local_device_count() >= s["D"] else jax.vmap
        return mapping(lambda inputs: layer(inputs, {**s, "axis_name": AXIS}), axis_name=AXIS)(per_device)

    return call


def on_devices(within: dict[str, LayerFn], is_pmapped: bool = True) -> dict[str, LayerFn]:
    """The layers on several devices, from those on one."""
    return {name: mapped(within[inner], is_pmapped) for name, inner in WITHIN.items()}
