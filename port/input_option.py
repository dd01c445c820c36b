"""Which inputs the meta-network reads, as data.

A feature is a source among the rule's inputs and a chain of transforms; `y_net` and `z_net` in a chain are small
networks of the meta-network itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from port import input_transforms

NETS = ("y_net", "z_net")
NEED_AN_AXIS = ("select_a", "pi_weighted_avg", "max_a", "td_pair")

_DISCO_BASE = """
agent_out/logits: drop_last softmax stop_grad select_a
behaviour_agent_out/logits: drop_last softmax stop_grad select_a
rewards: sign_log
is_terminal: masks_to_discounts
extra_from_rule/v_scalar: sign_log td_pair stop_grad
extra_from_rule/adv: sign_log stop_grad
extra_from_rule/normalized_adv: stop_grad
extra_from_rule/target_out/logits: drop_last softmax stop_grad select_a
agent_out/y: softmax y_net td_pair
extra_from_rule/target_out/y: softmax y_net td_pair
agent_out/z: drop_last softmax z_net select_a
agent_out/z: softmax z_net pi_weighted_avg td_pair
agent_out/z: softmax z_net max_a td_pair
extra_from_rule/target_out/z: drop_last softmax z_net select_a
extra_from_rule/target_out/z: softmax z_net pi_weighted_avg td_pair
extra_from_rule/target_out/z: softmax z_net max_a td_pair
"""

_DISCO_ACTION_CONDITIONAL = """
agent_out/logits: drop_last softmax stop_grad
behaviour_agent_out/logits: drop_last softmax stop_grad
extra_from_rule/target_out/logits: drop_last softmax stop_grad
agent_out/z: drop_last softmax z_net
extra_from_rule/target_out/z: drop_last softmax z_net
extra_from_rule/q: sign_log drop_last stop_grad
extra_from_rule/qv_adv: sign_log drop_last stop_grad
extra_from_rule/normalized_qv_adv: drop_last stop_grad
"""


@dataclass(frozen=True)
class TransformConfig:
    """One feature: a "/"-separated source in `RuleInputs`, and the transforms to apply in order."""

    source: str
    transforms: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.source.split("/")[0] == "extra_from_rule" and not self.source.split("/")[1:]:
            raise ValueError("extra_from_rule holds several tensors; say which, as in extra_from_rule/adv.")
        for name in self.transforms:
            if name == "normalize":
                raise ValueError(f"{self.source}: normalize keeps a state; the meta-network's inputs keep none.")
            if name not in input_transforms.TRANSFORMS and name not in NETS:
                known = ", ".join((*input_transforms.TRANSFORMS, *NETS))
                raise ValueError(f"{self.source}: there is no transform called {name!r}; there are: {known}.")

    @property
    def canonical(self) -> tuple[str, ...]:
        """The same chain with each `drop_last` as late as it can stand, so that chains share longer prefixes."""
        chain = list(self.transforms)
        pointwise = input_transforms.POINTWISE_IN_TIME.union(NETS)
        for i in reversed(range(len(chain))):
            while chain[i] == "drop_last" and i + 1 < len(chain) and chain[i + 1] in pointwise:
                chain[i], chain[i + 1] = chain[i + 1], chain[i]
                i += 1
        return tuple(chain)

    @property
    def needs_unit_axis(self) -> bool:
        """Whether the source is a scalar per step (or per action), which gets a last axis of size 1."""
        path = self.source.split("/")
        return path[0] == "extra_from_rule" and (path[1] != "target_out" or path[2:] == ["q"])


@dataclass(frozen=True)
class InputOption:
    """Features per step, and features per action."""

    base: tuple[TransformConfig, ...]
    action_conditional: tuple[TransformConfig, ...]

    def __post_init__(self) -> None:
        if not self.action_conditional:
            raise ValueError("The policy target is made from action-conditional inputs; list at least one.")

    def uses(self, net: str) -> bool:
        """Whether any feature goes through `net`, one of y_net and z_net."""
        return any(net in feature.transforms for feature in (*self.base, *self.action_conditional))


def parse(table: str) -> tuple[TransformConfig, ...]:
    """Features from lines of the form `source: transform transform`."""
    rows = (line.split(":") for line in table.strip().splitlines())
    return tuple(TransformConfig(source.strip(), tuple(chain.split())) for source, chain in rows)


def disco_input_option() -> InputOption:
    """The inputs of Disco103.

    Reference: disco_rl/update_rules/disco.py::get_input_option
    """
    return InputOption(parse(_DISCO_BASE), parse(_DISCO_ACTION_CONDITIONAL))


_PER_ACTION = 0  # stands for the number of actions in a feature's shape, which no size may depend on
_PREDICTION = -1  # stands for the prediction size

_SOURCE_SHAPES = {
    "logits": (_PER_ACTION,),
    "y": (_PREDICTION,),
    "z": (_PER_ACTION, _PREDICTION),
    "aux_pi": (_PER_ACTION, _PER_ACTION),
    "rewards": (),
    "is_terminal": (),
    "v_scalar": (),
    "adv": (),
    "normalized_adv": (),
    "q": (_PER_ACTION,),
    "qv_adv": (_PER_ACTION,),
    "normalized_qv_adv": (_PER_ACTION,),
}


def feature_width(feature: TransformConfig, prediction_size: int, embedding: int, per_action: bool) -> int:
    """How many numbers a feature gives per step, or per action.

    Args:
        feature: the feature.
        prediction_size: P.
        embedding: outputs of y_net and of z_net.
        per_action: whether it is an action-conditional feature.

    Returns:
        The width; ValueError where it would depend on the number of actions.
    """
    name = feature.source.split("/")[-1]
    if name not in _SOURCE_SHAPES:
        raise ValueError(f"The width of {feature.source!r} is not known; sources end in {', '.join(_SOURCE_SHAPES)}.")
    shape = [prediction_size if size == _PREDICTION else size for size in _SOURCE_SHAPES[name]]
    shape += [1] * feature.needs_unit_axis
    for transform in feature.transforms:
        if not shape and (transform in NETS or transform in NEED_AN_AXIS):
            raise ValueError(f"{feature.source!r} is one number a step where {transform} comes; it needs an axis more.")
        if transform in NETS:
            shape[-1] = embedding
        elif transform in ("select_a", "pi_weighted_avg", "max_a"):
            del shape[0]
        elif transform == "td_pair":
            shape[-1] *= 2
    if per_action and shape[:1] == [_PER_ACTION]:
        del shape[0]
    elif per_action:
        raise ValueError(f"{feature.source!r} does not keep its action axis and cannot be an action-conditional input.")
    width = 1
    for size in shape:
        width *= size
    if width == 0:
        raise ValueError(f"The width of {feature.source!r} depends on the number of actions; reduce it over actions.")
    return width
