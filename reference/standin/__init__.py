"""Disco in JAX, written here: what stands in for the original on machines that cannot have it.

Read it as a specification, in this order: `elementary`, `networks`, `values`, `metanet`, `rule`, `learning`,
`rules`. They are pure functions over arrays and flat dicts of arrays, on rlax, distrax and optax, parameters in Haiku's
names; `layers` gives them the harness's names. It is held to the original's goldens like any other implementation.
"""

from reference.devices import on_devices
from reference.jax_runtime import JaxImplementation
from reference.standin.layers import LAYERS
from reference.standin.metatraining import LAYERS as META_TRAINING
from reference.standin.rules import LAYERS as RULES

ON_ONE_DEVICE = {**LAYERS, **RULES, **META_TRAINING}
implementation = JaxImplementation(
    "standin",
    "Disco in JAX, written here on rlax, distrax and optax; never sees disco_rl",
    {**ON_ONE_DEVICE, **on_devices(ON_ONE_DEVICE, is_pmapped=False)},
)
