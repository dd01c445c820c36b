"""Every default of the port's configuration is the original's: by a table, and by the original where it is installed.

A default that is wrong changes no layer, since layers are given their settings; it changes every run.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import math

import pytest

from port import config, input_transforms, moving_average, optimizers
from port.meta_train import MetaTrainConfig, meta_gradient
from port.value_fns import value_fn

needs_the_original = pytest.mark.skipif(
    importlib.util.find_spec("disco_rl") is None, reason="the original is not installed; `make original` brings it"
)

# As of disco_rl at commit 9059a29. Each table names its source, from which the second test reads it again.
DISCO = {  # agent.py::get_settings_disco
    "AgentConfig": {"learning_rate": 3e-4, "max_abs_update": 1.0},
    "HyperParams": {
        "pi_cost": 1.0,
        "y_cost": 1.0,
        "z_cost": 1.0,
        "value_cost": 0.2,
        "aux_policy_cost": 1.0,
        "target_params_coeff": 0.9,
        "value_fn_td_lambda": 0.95,
        "discount_factor": 0.997,
    },
    "MetaNetConfig": {
        "prediction_size": 600,
        "hidden_size": 256,
        "embedding_size": (16, 1),
        "policy_channels": (16, 2),
        "policy_target_channels": (16,),
        "output_stddev": 0.3,
        "aux_stddev": 0.3,
        "policy_target_stddev": 0.3,
        "state_stddev": 1.0,
    },
    "MetaRnnConfig": {
        "policy_channels": (16, 2),
        "embedding_size": (16,),
        "pred_embedding_size": (16, 1),
        "hidden_size": 128,
    },
    "AgentNetConfig": {
        "dense": (512, 512),
        "head_w_init_std": 1e-2,
        "head_mlp_hiddens": (128,),
        "lstm_size": 128,
    },
}
ACTOR_CRITIC = {  # agent.py::get_settings_actor_critic
    "AgentConfig": {"learning_rate": 5e-4, "max_abs_update": 1.0},
    "ActorCriticHyperParams": {
        "discount_factor": 0.997,
        "vtrace_lambda": 0.95,
        "entropy_cost": 0.2,
        "pg_cost": 1.0,
        "value_cost": 0.5,
    },
    "ActorCriticConfig": {
        "categorical_value": True,
        "num_bins": 601,
        "max_abs_value": 300.0,
        "nonlinear_value_transform": True,
        "normalize_adv": False,
        "normalize_td": False,
    },
    "AgentNetConfig": {
        "dense": (64, 32, 32),
        "head_w_init_std": 1e-2,
        "head_mlp_hiddens": (64,),
        "lstm_size": 64,
    },
}
RULES = {  # the constructors in update_rules/; Disco's first three are from get_settings_disco
    "DiscoConfig": {
        "value_discount": 0.997,
        "num_bins": 601,
        "max_abs_value": 300.0,
        "moving_average_decay": 0.99,
        "moving_average_eps": 1e-6,
    },
    "ActorCriticConfig": {
        "categorical_value": False,
        "num_bins": 601,
        "max_abs_value": 300.0,
        "nonlinear_value_transform": False,
        "normalize_adv": False,
        "normalize_td": False,
        "moving_average_decay": 0.99,
        "moving_average_eps": 1e-6,
    },
    "PolicyGradientConfig": {"entropy_cost": 0.01, "normalize_adv": True, "pg_cost": 1.0},
}
FUNCTIONS = {  # of the port, and where the original keeps the same defaults
    optimizers.adam_sg: {"b1": 0.9, "b2": 0.999, "eps": 1e-8},  # optimizers.py::scale_by_adam_sg_denom
    moving_average.normalize: {"eps": 1e-6, "root_eps": 1e-12, "subtract_mean": True},  # utils.py::MovingAverage
    # update_rules/input_transforms.py::EmaNorm
    input_transforms.normalize: {"decay": 0.99, "eps": 1e-6, "root_eps": 1e-12, "averaging": None},
}
VALUE_FN = {  # colabs/meta_train.ipynb, and types.py::ValueFnConfig for the moving averages
    "dense": (256, 256),
    "head_w_init_std": 1e-2,
    "learning_rate": 1e-3,
    "max_abs_update": 1.0,
    "discount_factor": 0.99,
    "td_lambda": 0.96,
    "outer_value_cost": 1.0,
    "ema_decay": 0.99,
    "ema_eps": 1e-6,
}
OUTER = {  # colabs/meta_train.ipynb::calculate_meta_gradient
    "entropy_cost": 1e-2,
    "prediction_entropy_cost": 1e-3,
    "target_mean_cost": 1e-3,
    "target_kl_cost": 1e-2,
}
NOTEBOOK = {  # colabs/meta_train.ipynb; the rule and its network are those of get_settings_disco
    "num_meta_updates": 800,
    "boards": ("5x5", "5x5"),
    "num_inner_steps": 2,
    "rollout_length": 16,
    "batch_size": 32,
    "meta_learning_rate": 5e-4,
    "seed": 4,
    "dense": (512, 512),
    "head_mlp_hiddens": (256,),
    "lstm_size": 256,
    "learning_rate": 5e-4,
    "value_dense": (256, 256),
    "value_learning_rate": 1e-3,
    "prediction_size": 600,
    "hidden_size": 256,
    "meta_hidden_size": 128,
    "num_bins": 601,
    "max_abs_value": 300.0,
    "lifetime": 0,  # what the notebook does not have is off
    "max_meta_grad_norm": 0.0,
    "recompute": False,
    "evaluate_every": 0,
}
OWN = {"evaluate_boards", "evaluate_seeds", "evaluate_steps", "checkpoint_every"}  # of no counterpart there


def tables(settings):
    """The numbers of a configuration by the names of its classes; what is nested stands beside it."""
    found, own = {}, {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            found |= tables(value)
        else:
            own[field.name] = value
    return {type(settings).__name__: own, **found}


def same(got, want):
    """Equal to the last bit, names included."""
    assert got.keys() == want.keys()
    assert {name: got[name] for name in want} == want


def test_a_disco_agents_defaults_are_in_the_table():
    got = tables(config.get_settings_disco())
    del got["InputOption"]  # whose features are the layer meta/inputs
    same(got, {**DISCO, "DiscoConfig": RULES["DiscoConfig"]})
    assert config.AgentConfig() == config.get_settings_disco()


def test_an_actor_critic_agents_settings_are_in_the_table():
    got = tables(config.get_settings_actor_critic())
    averages = {name: RULES["ActorCriticConfig"][name] for name in ("moving_average_decay", "moving_average_eps")}
    wanted = {**ACTOR_CRITIC, "ActorCriticConfig": {**ACTOR_CRITIC["ActorCriticConfig"], **averages}}
    same({name: got[name] for name in ACTOR_CRITIC}, wanted)


@pytest.mark.parametrize("kind", config.RULES.values(), ids=lambda kind: kind.__name__)
def test_a_rules_defaults_are_in_the_table(kind):
    same(dataclasses.asdict(kind()), RULES[kind.__name__])


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_a_functions_defaults_are_in_the_table(function):
    same(defaults_of(function), FUNCTIONS[function])


def test_meta_trainings_defaults_are_in_the_table():
    same(dataclasses.asdict(value_fn.ValueFnConfig()), VALUE_FN)
    same(dataclasses.asdict(meta_gradient.OuterLossConfig()), OUTER)
    run = MetaTrainConfig()
    same({name: x for name, x in dataclasses.asdict(run).items() if name not in OWN}, NOTEBOOK)
    assert (run.outer, run.value_fn) == (meta_gradient.OuterLossConfig(), value_fn.ValueFnConfig())
    assert run.agent.meta_net == config.MetaNetConfig() and run.agent.rule == config.DiscoConfig()
    assert run.agent.hyper == config.HyperParams() and run.agent.max_abs_update == 1.0


def defaults_of(function):
    """The defaults of a signature."""
    given = inspect.signature(function).parameters.items()
    return {name: p.default for name, p in given if p.default is not inspect.Parameter.empty}


def original(module):
    return importlib.import_module(f"disco_rl.{module}")


@needs_the_original
@pytest.mark.parametrize("table", [DISCO, ACTOR_CRITIC], ids=["disco", "actor_critic"])
def test_the_settings_in_the_table_are_the_originals(table):
    lib = original("agent")
    settings = lib.get_settings_disco() if table is DISCO else lib.get_settings_actor_critic()
    same({name: settings[name] for name in table["AgentConfig"]}, table["AgentConfig"])
    hyper = "HyperParams" if table is DISCO else "ActorCriticHyperParams"
    same(settings.hyper_params.to_dict(), table[hyper])
    args = settings.net_settings.net_args.to_dict()
    assert args.pop("model_arch_name") == "lstm"
    same({**args.pop("model_kwargs"), **args}, table["AgentNetConfig"])
    rule = settings.update_rule.to_dict()
    if table is ACTOR_CRITIC:
        same(rule, ACTOR_CRITIC["ActorCriticConfig"])
        return
    net = {name: x for name, x in rule.pop("net").items() if name not in ("name", "input_option")}
    same(net.pop("meta_rnn_kwargs"), DISCO["MetaRnnConfig"])
    same(net, DISCO["MetaNetConfig"])
    same({**rule, **defaults_of(original("update_rules.disco").DiscoUpdateRule)}, RULES["DiscoConfig"])


@needs_the_original
def test_the_defaults_in_the_table_are_the_originals():
    same(defaults_of(original("update_rules.actor_critic").ActorCritic), RULES["ActorCriticConfig"])
    policy_gradient = defaults_of(original("update_rules.policy_gradient").PolicyGradientUpdate)
    read = RULES["PolicyGradientConfig"]
    same({name: policy_gradient[name] for name in read}, read)
    same(defaults_of(original("optimizers").scale_by_adam_sg_denom), FUNCTIONS[optimizers.adam_sg])
    averages = {name: x for name, x in defaults_of(original("types").ValueFnConfig).items() if name.startswith("ema_")}
    same(averages, {name: VALUE_FN[name] for name in ("ema_decay", "ema_eps")})
    assert defaults_of(original("utils").MovingAverage)["eps"] == FUNCTIONS[moving_average.normalize]["eps"]


@needs_the_original
def test_the_epsilons_in_the_table_are_the_originals():
    """They have no name there, so they are read off what comes out for a stream without variance."""
    average = original("utils").MovingAverage(0.0, decay=0.5)
    state = average.update_state(3.0, average.init_state(), None)
    got = float(average.normalize(4.0, state, subtract_mean=True))
    eps = FUNCTIONS[moving_average.normalize]
    assert got == pytest.approx(1.0 / (math.sqrt(eps["root_eps"]) + eps["eps"]), rel=1e-5)
