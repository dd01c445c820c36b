"""Configuration: frozen dataclasses whose defaults are the original's; sizes that follow from others are computed.

An agent's rule is chosen by the type of `AgentConfig.rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, TypeAlias

from port.input_option import InputOption, disco_input_option, feature_width


def is_number(value: Any) -> bool:
    """Whether a setting is a finite number."""
    return isinstance(value, Real) and value is not True and value is not False and isfinite(value)


def is_size(value: Any) -> bool:
    """Whether a setting is a positive whole number."""
    return isinstance(value, Integral) and is_number(value) and int(value) > 0


def _checker(wish: str, is_good: Callable[[Any], bool]) -> Callable[..., None]:
    """A check of named settings of a record, which raises ValueError where one is not as wished."""

    def check(owner: object, *names: str) -> None:
        for name in names:
            value = getattr(owner, name)
            if not is_good(value):
                raise ValueError(f"{type(owner).__name__}.{name} is {value}; it must be {wish}.")

    return check


def _are_widths(value: Any, at_least: int) -> bool:
    return isinstance(value, tuple) and len(value) >= at_least and all(map(is_size, value))


check_sizes = _checker("positive and whole", is_size)
check_widths = _checker("a tuple of positive widths, of 1 layer or more", lambda x: _are_widths(x, 1))
check_hidden_widths = _checker("a tuple of positive widths, of 0 layers or more", lambda x: _are_widths(x, 0))
check_numbers = _checker("a finite number", is_number)
check_positive = _checker("positive, and finite", lambda x: is_number(x) and x > 0)
check_deviations = _checker("positive, and finite", lambda x: x is None or (is_number(x) and x > 0))
check_fractions = _checker("a number between 0 and 1", lambda x: is_number(x) and 0.0 <= x <= 1.0)
# Nothing would enter an average with a decay of 1.
check_decays = _checker("a number between 0 and 1, and below 1", lambda x: is_number(x) and 0.0 <= x < 1.0)


@dataclass(frozen=True)
class MetaRnnConfig:
    """The RNN that runs over an agent's lifetime, one step per learner step."""

    policy_channels: tuple[int, ...] = (16, 2)
    embedding_size: tuple[int, ...] = (16,)
    pred_embedding_size: tuple[int, ...] = (16, 1)
    hidden_size: int = 128  # M

    def __post_init__(self) -> None:
        check_widths(self, "policy_channels", "pred_embedding_size")
        check_hidden_widths(self, "embedding_size")
        check_sizes(self, "hidden_size")


@dataclass(frozen=True)
class MetaNetConfig:
    """The meta-network. A stddev of None means one over the root of the fan-in."""

    prediction_size: int = 600  # P
    hidden_size: int = 256  # H
    embedding_size: tuple[int, ...] = (16, 1)
    policy_channels: tuple[int, ...] = (16, 2)
    policy_target_channels: tuple[int, ...] = (16,)
    output_stddev: float | None = 0.3
    aux_stddev: float | None = 0.3
    policy_target_stddev: float | None = 0.3
    state_stddev: float | None = 1.0
    meta_rnn: MetaRnnConfig = field(default_factory=MetaRnnConfig)
    inputs: InputOption = field(default_factory=disco_input_option)

    def __post_init__(self) -> None:
        check_sizes(self, "prediction_size", "hidden_size")
        check_widths(self, "embedding_size", "policy_channels", "policy_target_channels")
        check_deviations(self, "output_stddev", "aux_stddev", "policy_target_stddev", "state_stddev")

    def action_features(self, embedding: int) -> int:
        """Features per action that enter a policy net: the listed ones and the action taken, one-hot."""
        listed = self.inputs.action_conditional
        return 1 + sum(feature_width(f, self.prediction_size, embedding, per_action=True) for f in listed)

    def step_features(self, embedding: int, policy_embedding: int) -> int:
        """Features per step: the listed ones, and the policy embedding averaged and at the action taken."""
        listed = self.inputs.base
        widths = sum(feature_width(f, self.prediction_size, embedding, per_action=False) for f in listed)
        return widths + 2 * policy_embedding


@dataclass(frozen=True)
class AgentNetConfig:
    """The agent's network."""

    dense: tuple[int, ...] = (512, 512)
    head_w_init_std: float | None = 1e-2
    head_mlp_hiddens: tuple[int, ...] = (128,)
    lstm_size: int = 128  # L

    def __post_init__(self) -> None:
        check_widths(self, "dense")
        check_hidden_widths(self, "head_mlp_hiddens")
        check_sizes(self, "lstm_size")
        check_deviations(self, "head_w_init_std")


@dataclass(frozen=True)
class DiscoConfig:
    """Value estimation inside the rule."""

    value_discount: float = 0.997
    num_bins: int = 601  # K
    max_abs_value: float = 300.0
    moving_average_decay: float = 0.99
    moving_average_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_positive(self, "max_abs_value", "moving_average_eps")
        check_fractions(self, "value_discount")
        check_decays(self, "moving_average_decay")
        check_sizes(self, "num_bins")
        if self.num_bins < 2:
            raise ValueError(f"DiscoConfig.num_bins is {self.num_bins}; two-hot values need at least 2.")


@dataclass(frozen=True)
class HyperParams:
    """Weights of the loss and speeds of the rule. `discount_factor` is not used by Disco; `value_discount` is."""

    pi_cost: float = 1.0
    y_cost: float = 1.0
    z_cost: float = 1.0
    value_cost: float = 0.2
    aux_policy_cost: float = 1.0
    target_params_coeff: float = 0.9
    value_fn_td_lambda: float = 0.95
    discount_factor: float = 0.997

    def __post_init__(self) -> None:
        check_numbers(self, "pi_cost", "y_cost", "z_cost", "value_cost", "aux_policy_cost")
        check_fractions(self, "target_params_coeff", "value_fn_td_lambda", "discount_factor")


@dataclass(frozen=True)
class ActorCriticConfig:
    """The actor-critic rule. Bins and bound are read where values are categorical.

    Reference: disco_rl/update_rules/actor_critic.py::ActorCritic.__init__
    """

    categorical_value: bool = False
    num_bins: int = 601  # K
    max_abs_value: float = 300.0
    nonlinear_value_transform: bool = False
    normalize_adv: bool = False
    normalize_td: bool = False
    moving_average_decay: float = 0.99
    moving_average_eps: float = 1e-6

    def __post_init__(self) -> None:
        check_positive(self, "max_abs_value", "moving_average_eps")
        check_decays(self, "moving_average_decay")
        if self.categorical_value and self.num_bins < 2:
            raise ValueError(f"ActorCriticConfig.num_bins is {self.num_bins}; two-hot values need at least 2.")
        if self.normalize_td and self.categorical_value:
            raise ValueError("normalize_td scales the errors of scalar values; set it or categorical_value, not both.")


@dataclass(frozen=True)
class ActorCriticHyperParams:
    """Weights of the actor-critic loss, and its discounting."""

    discount_factor: float = 0.997
    vtrace_lambda: float = 0.95
    entropy_cost: float = 0.2
    pg_cost: float = 1.0
    value_cost: float = 0.5

    def __post_init__(self) -> None:
        check_fractions(self, "discount_factor", "vtrace_lambda")
        check_numbers(self, "entropy_cost", "pg_cost", "value_cost")


@dataclass(frozen=True)
class PolicyGradientConfig:
    """The policy-gradient rule, whose advantages come from a value function outside the agent.

    The original takes four more settings (`kl_prior_cost`, `p_actor_prior`, `p_uniform_prior`, `target_params_coeff`)
    and reads none of them.

    Reference: disco_rl/update_rules/policy_gradient.py::PolicyGradientUpdate.__init__
    """

    entropy_cost: float = 0.01
    normalize_adv: bool = True
    pg_cost: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, "entropy_cost", "pg_cost")


RuleConfig: TypeAlias = DiscoConfig | ActorCriticConfig | PolicyGradientConfig
RULES: dict[str, type[RuleConfig]] = {
    "disco": DiscoConfig,
    "actor_critic": ActorCriticConfig,
    "policy_gradient": PolicyGradientConfig,
}
_HYPER = {DiscoConfig: HyperParams, ActorCriticConfig: ActorCriticHyperParams, PolicyGradientConfig: type(None)}


def rule_config(name: str, **options: Any) -> RuleConfig:
    """Configuration of the rule called `name` in the original, with its options by their names there.

    Reference: disco_rl/agent.py::Agent.__init__
    """
    if name not in RULES:
        raise ValueError(f"There is no update rule called {name!r}; there are: {', '.join(RULES)}.")
    known = [field.name for field in fields(RULES[name])]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(f"The rule {name} has no option {unknown[0]!r}; it has: {', '.join(known)}.")
    return RULES[name](**options)


@dataclass(frozen=True)
class AgentConfig:
    """An agent; by default one that learns by Disco103, as `get_settings_disco` of the original makes it.

    Attributes:
        learning_rate: of Adam.
        max_abs_update: bound on each entry of Adam's direction.
        hyper: what goes with the rule: HyperParams with Disco, ActorCriticHyperParams with actor-critic, None with
            policy gradient.
        rule: which update rule, and its options.
        meta_net: of Disco; the other rules have none.
        net: of the agent.

    Reference: disco_rl/agent.py::get_settings_disco
    """

    learning_rate: float = 3e-4
    max_abs_update: float = 1.0
    hyper: HyperParams | ActorCriticHyperParams | None = field(default_factory=HyperParams)
    rule: RuleConfig = field(default_factory=DiscoConfig)
    meta_net: MetaNetConfig = field(default_factory=MetaNetConfig)
    net: AgentNetConfig = field(default_factory=AgentNetConfig)

    def __post_init__(self) -> None:
        check_positive(self, "learning_rate")
        if self.max_abs_update != inf:  # which is no bound
            check_positive(self, "max_abs_update")
        if not isinstance(self.net, AgentNetConfig) or not isinstance(self.meta_net, MetaNetConfig):
            raise ValueError("AgentConfig.net must be an AgentNetConfig, and meta_net a MetaNetConfig.")
        if type(self.rule) not in _HYPER:
            known = ", ".join(rule.__name__ for rule in _HYPER)
            raise ValueError(f"AgentConfig.rule is a {type(self.rule).__name__}; it must be one of {known}.")
        wanted = _HYPER[type(self.rule)]
        if not isinstance(self.hyper, wanted):
            got, want = (kind.__name__.replace("NoneType", "None") for kind in (type(self.hyper), wanted))
            raise ValueError(f"AgentConfig.hyper is {got}; with {type(self.rule).__name__} it must be {want}.")


def get_settings_disco() -> AgentConfig:
    """The settings under which Disco103 is evaluated.

    Reference: disco_rl/agent.py::get_settings_disco
    """
    return AgentConfig()


def get_settings_actor_critic() -> AgentConfig:
    """An actor-critic agent with categorical values. It has no action model, so what shapes one is not read.

    Reference: disco_rl/agent.py::get_settings_actor_critic
    """
    return AgentConfig(
        learning_rate=5e-4,
        hyper=ActorCriticHyperParams(),
        rule=ActorCriticConfig(categorical_value=True, nonlinear_value_transform=True),
        net=AgentNetConfig(dense=(64, 32, 32), head_mlp_hiddens=(64,), lstm_size=64),
    )


def eval_agent_config(config: AgentConfig | None = None) -> AgentConfig:
    """An agent as the original's notebook sets it up, whatever its rule: network and learning rate."""
    return replace(config or AgentConfig(), learning_rate=1e-2, net=AgentNetConfig())
