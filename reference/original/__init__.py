"""DeepMind's `disco_rl`, live, as an implementation of the harness's layers. Importing this needs it installed."""

from collections.abc import Iterator

from parity.runs.curves import Setting, Step
from reference.devices import on_devices
from reference.identity import describe
from reference.jax_runtime import JaxImplementation, LayerFn
from reference.original import curves, elementary, environments, learning, metatraining, networks, rules, values


class Original(JaxImplementation):
    """The original: layers, and whole lives."""

    def live(self, setting: Setting, seed: int) -> Iterator[Step]:
        """A life, step by step; see `parity/runs/curves.py`."""
        return curves.live(setting, seed)


ON_ONE_DEVICE: dict[str, LayerFn] = {
    **elementary.LAYERS,
    **networks.LAYERS,
    **values.LAYERS,
    **learning.LAYERS,
    **rules.LAYERS,
    **environments.LAYERS,
    **metatraining.LAYERS,
}
implementation = Original("original", describe(), {**ON_ONE_DEVICE, **on_devices(ON_ONE_DEVICE)})
