"""The meta-network over a batch: features of states that show the same once, and independent parts in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from port import input_transforms
from port.distributed import Averaging
from port.fast import parallel, unique_rows
from port.fast.unique_rows import SharedOutputs
from port.input_option import InputOption, TransformConfig
from port.networks import meta_nets, nets
from port.types import LstmState, Outputs, Params, RuleInputs


class UniqueFeatures(meta_nets.Features):
    """Features whose chains run over unique rows for as long as a step treats each state on its own."""

    def evaluate(self, feature: TransformConfig, params: Params, scope: str) -> Tensor:
        """Value of a feature, for all states."""
        return unique_rows.spread(super().evaluate(feature, params, scope))

    def evaluate_all(self, wanted: Sequence[TransformConfig], params: Params, scope: str) -> list[Tensor]:
        """Values of features in their order; those with different sources share nothing, and come in parallel."""

        def of_source(source: str) -> Iterator[Tensor]:
            return iter([self.evaluate(f, params, scope) for f in wanted if f.source == source])

        sources = dict.fromkeys(f.source for f in wanted)
        found = parallel.in_parallel({source: partial(of_source, source) for source in sources})
        return [next(found[f.source]) for f in wanted]

    def source(self, feature: TransformConfig) -> Any:
        """What a feature starts from, as states share it."""
        holder, _, head = feature.source.rpartition("/")
        outputs = meta_nets.extract(self.inputs, holder) if holder else None
        if not isinstance(outputs, SharedOutputs) or head not in outputs:
            return super().source(feature)
        x = unique_rows.find(outputs, head)
        return unique_rows.mapped(x, lambda x: x.unsqueeze(-1)) if feature.needs_unit_axis else x

    def network(self, params: Params, name: str, x: Any) -> Any:
        """A network treats each state on its own."""
        return unique_rows.mapped(x, lambda x: nets.mlp(params, name, x))

    def transform(self, name: str, x: Any) -> Any:
        """Some transforms treat each state on its own; the others are given all states."""
        apply = super().transform
        if name in input_transforms.POINTWISE_IN_TIME:
            return unique_rows.mapped(x, lambda x: apply(name, x))
        return apply(name, unique_rows.spread(x))


def heads(params: Params, x: Tensor, policy_embedding: Tensor) -> Outputs:
    """`meta_nets.heads` in parallel.

    Reference: disco_rl/networks/meta_nets.py::LSTM.__call__
    """
    linear = {"y": "y_head", "z": "z_head", "meta_input_emb": "meta_input"}
    return parallel.in_parallel(
        {
            "pi": partial(meta_nets.policy_target, params, x, policy_embedding),
            **{name: partial(nets.linear, params, layer, x) for name, layer in linear.items()},
        }
    )


def meta_net(
    params: Params,
    inputs: RuleInputs,
    state: LstmState,
    option: InputOption,
    averaging: Averaging | None = None,
) -> tuple[Outputs, LstmState]:
    """`meta_nets.meta_net`; another thread builds the meta-RNN's inputs while the trajectory RNN runs.

    Reference: disco_rl/networks/meta_nets.py::LSTM.__call__
    """
    features = UniqueFeatures(inputs)
    xs, policy_embedding = meta_nets.build_inputs(features, option, params)
    rnn_inputs = parallel.meanwhile(partial(meta_nets.meta_rnn_inputs, features, option, params))
    x = meta_nets.gate(params, meta_nets.trajectory_rnn(params, xs, inputs.is_terminal), state)
    outs = heads(params, x, policy_embedding)
    return outs, meta_nets.meta_rnn(params, rnn_inputs(), outs, state, averaging)
