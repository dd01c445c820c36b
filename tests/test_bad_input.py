"""What a careful caller may still get wrong: NaN, other dtypes, sizes of something else; each gets a sentence."""

from __future__ import annotations

import dataclasses
from math import inf, nan

import numpy as np
import pytest
import torch

import port
from port import (
    acting,
    config,
    evaluation,
    meta_checkpointing,
    meta_gradient,
    ops,
    transforms,
    value_fn,
    values,
    vtrace,
    weights,
)
from port.environments import Catch, DrawnColumns, HostCatch, OriginalColumns, VectorisedCatch
from tests.test_meta_gradient import OBS, A, B, setup

ONE = setup(1)
LIVE = evaluation.EvalConfig(num_steps=1, batch_size=2, replay_ratio=1, rollout_length=3, rows=5, columns=5)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: port.AgentConfig(learning_rate=nan), "learning_rate is nan; it must be positive, and finite"),
        (lambda: port.AgentConfig(learning_rate=inf), "learning_rate is inf"),
        (lambda: port.AgentConfig(learning_rate="1"), "learning_rate is 1"),
        (lambda: port.AgentConfig(max_abs_update=nan), "max_abs_update is nan"),
        (lambda: port.AgentConfig(meta_net=None), "meta_net a MetaNetConfig"),
        (lambda: port.DiscoConfig(max_abs_value=nan), "max_abs_value is nan"),
        (lambda: port.DiscoConfig(num_bins=60.5), "num_bins is 60.5; it must be positive and whole"),
        (lambda: port.DiscoConfig(moving_average_decay=1.0), "must be a number between 0 and 1, and below 1"),
        (lambda: port.HyperParams(pi_cost=nan), "pi_cost is nan; it must be a finite number"),
        (lambda: port.ActorCriticHyperParams(entropy_cost=inf), "entropy_cost is inf"),
        (lambda: port.PolicyGradientConfig(pg_cost=nan), "pg_cost is nan"),
        (lambda: port.AgentNetConfig(dense=()), "a tuple of positive widths, of 1 layers or more"),
        (lambda: port.AgentNetConfig(dense=[8]), "a tuple of positive widths"),
        (lambda: port.AgentNetConfig(head_w_init_std=-1.0), "head_w_init_std is -1.0"),
        (lambda: port.MetaNetConfig(embedding_size=()), "a tuple of positive widths"),
        (lambda: port.MetaNetConfig(prediction_size=1.5), "prediction_size is 1.5"),
        (lambda: value_fn.ValueFnConfig(discount_factor=2.0), "discount_factor is 2.0"),
        (lambda: value_fn.ValueFnConfig(learning_rate=nan), "learning_rate is nan"),
        (lambda: meta_gradient.OuterLossConfig(entropy_cost=nan), "entropy_cost is nan"),
        (lambda: port.Agent(port.AgentConfig(), (), 2.5), "needs observations and actions"),
        (lambda: port.Agent(port.AgentConfig(), (0,), 3), "needs observations and actions"),
    ],
)
def test_a_setting_that_is_no_number_in_its_range_is_refused(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build()


def test_no_bound_on_updates_and_heads_without_hidden_layers_are_settings_too():
    assert port.AgentConfig(max_abs_update=inf).max_abs_update == inf
    assert port.AgentNetConfig(head_mlp_hiddens=()).head_mlp_hiddens == ()
    assert config.is_size(np.int64(3)) and not config.is_size(True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rewards": torch.full((4, B), nan, dtype=torch.float64)}, "The rollout's rewards are not all finite"),
        ({"observations": torch.full((4, B, *OBS), nan)}, r"observations\[0\] holds NaN"),
        ({"agent_outs": {"logits": torch.full((4, B, A), nan)}}, "agent_outs/logits holds NaN"),
        ({"agent_outs": {"logits": torch.zeros(4, B, A)}}, "learns in torch.float64, but agent_outs/logits .*float32"),
        ({"rewards": torch.zeros(4, B)}, "but rewards of the rollout is torch.float32"),
    ],
)
def test_a_rollout_with_other_numbers_than_the_agents_is_refused(change, sentence):
    rollout = dataclasses.replace(ONE.train[0], **change)
    with pytest.raises(ValueError, match=sentence):
        ONE.agent.learner_step(rollout, ONE.state.learner, ONE.meta_params)


def test_a_rollout_of_no_environment_is_refused():
    r = ONE.train[0]
    outs = {"logits": r.agent_outs["logits"][:, :0]}
    none = port.Rollout(r.observations[:, :0], r.actions[:, :0], r.rewards[:, :0], r.discounts[:, :0], outs)
    with pytest.raises(ValueError, match="at least 2 steps of 1 environment"):
        ONE.agent.learner_step(none, ONE.state.learner, ONE.meta_params)


def test_meta_parameters_in_another_dtype_are_refused():
    other = {name: p.float() for name, p in ONE.meta_params.items()}
    with pytest.raises(ValueError, match="but meta-parameter y_net/0/w is torch.float32"):
        ONE.agent.learner_step(ONE.train[0], ONE.state.learner, other)


@pytest.mark.parametrize(
    "function", [meta_gradient.meta_gradient, meta_checkpointing.checkpointed_meta_gradient], ids=lambda f: f.__name__
)
def test_a_validation_rollout_of_another_policy_or_a_rule_without_parameters_is_refused(function):
    lead = ONE.valid.rewards.shape
    valid = dataclasses.replace(ONE.valid, agent_outs={"logits": torch.zeros(*lead, A + 1, dtype=torch.float64)})
    with pytest.raises(ValueError, match="the agent has 3 actions"):
        function(*ONE._replace(valid=valid))
    with pytest.raises(ValueError, match="pass its parameters"):
        function(*ONE._replace(meta_params=None))
    agent = port.Agent(port.get_settings_actor_critic(), OBS, A)
    with pytest.raises(ValueError, match="ActorCritic has no meta-parameters, so there is no meta-gradient"):
        function(*ONE._replace(agent=agent, meta_params={}))


def test_a_life_that_cannot_learn_is_refused_before_it_begins():
    env = Catch(5, 5)
    spec = env.observation_shape
    with pytest.raises(ValueError, match="pass its parameters"):
        next(evaluation.live(port.Agent(ONE.agent.config, spec, 3), None, LIVE))
    plain = port.AgentConfig(hyper=None, rule=port.PolicyGradientConfig())
    with pytest.raises(ValueError, match="needs a value function beside the agent"):
        next(evaluation.live(port.Agent(plain, spec, 3), {}, LIVE))


def test_an_agent_of_another_board_does_not_act():
    env = Catch(4, 4)
    noise, columns = torch.zeros(2, 1, 3), torch.zeros(2, 1, dtype=torch.long)
    params = ONE.state.learner.params
    with pytest.raises(ValueError, match="The agent sees 6 numbers; these observations have 16"):
        acting.unroll(env, params, acting.start(env, columns[0]), noise, columns)


def test_weights_that_are_no_numbers_or_no_floats_are_refused():
    net = ONE.agent.config.meta_net
    arrays = weights.to_original(ONE.meta_params, net)
    with pytest.raises(ValueError, match=r"torch\.int32 cannot be learned with"):
        weights.load_npz(arrays, net, torch.int32)
    arrays["lstm/linear/b"][0] = nan
    with pytest.raises(ValueError, match="'lstm/linear/b' holds numbers that are not finite"):
        weights.load_npz(arrays, net)


def test_a_vectorised_environment_wants_a_reset_and_a_source_of_its_size():
    env = Catch(5, 5)
    with pytest.raises(ValueError, match="call reset before the first step"):
        VectorisedCatch(env, 2, OriginalColumns(env, 2, 0)).step(torch.tensor([1, 1]))
    with pytest.raises(ValueError, match=r"There are 2 environments; their source gives \(3,\) columns"):
        VectorisedCatch(env, 2, DrawnColumns(env, 3, torch.Generator())).reset()


def test_a_board_on_the_host_takes_numpys_numbers_and_no_fractions():
    env = HostCatch(5, 5, np.int64(3))
    env.reset()
    assert env.step(np.int64(2)).step_type == 1
    with pytest.raises(ValueError, match=r"Action 0.5 is none of"):
        env.step(0.5)


def test_shapes_that_would_broadcast_are_refused():
    flat, short, state = torch.zeros(4, 2), torch.zeros(1, 2), torch.zeros(5, 2)
    with pytest.raises(ValueError, match="Discounts and importance weights are"):
        vtrace.vtrace(state, flat, flat, short, 0.9)
    with pytest.raises(ValueError, match="Traces are"):
        values.retrace(flat, state, flat, flat, short)
    with pytest.raises(ValueError, match="over the same steps and actions"):
        ops.importance_weights(torch.zeros(4, 2), torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"for features of \(1,\); got features of \(3,\)"):
        transforms.normalize(torch.zeros(4, 2, 3), transforms.init_normalize(torch.zeros(4, 2, 1)))
