"""DeepMind's `disco_rl`, live, as an implementation of the harness's layers. Importing this needs it installed."""

from collections.abc import Iterator

from parity.runs.curves import Step
from parity.runs.spec import RunSpec
from reference.devices import on_devices
from reference.flat_dict import LayerFn
from reference.identity import describe
from reference.jax_runtime import JaxImplementation
from reference.original import curves, elementary, environments, learning, metatraining, networks, rules, values


class Original(JaxImplementation):
    """The original: layers, and training runs."""

    def train(self, spec: RunSpec) -> Iterator[Step]:
        """A training run, step by step; see `parity/runs/curves.py`."""
        return curves.train(spec)


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
