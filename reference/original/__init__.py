"""DeepMind's `disco_rl`, live, as an implementation of the harness's layers. Importing this needs it installed."""

from reference.execution import JaxImplementation
from reference.identity import describe
from reference.original import elementary, environments, learning, metatraining, networks, rules, values

implementation = JaxImplementation(
    "original",
    describe(),
    {
        **elementary.LAYERS,
        **networks.LAYERS,
        **values.LAYERS,
        **learning.LAYERS,
        **rules.LAYERS,
        **environments.LAYERS,
        **metatraining.LAYERS,
    },
)
