"""What a careful caller may still get wrong: NaN, other dtypes, sizes of something else; each gets a sentence."""

from __future__ import annotations

import dataclasses
from math import inf, nan

import numpy as np
import pytest
import torch

import port
from port import agent, config, input_transforms, ops, rollout_checks, weights
from port.environments import Catch, DrawnColumns, HostCatch, OriginalColumns, VectorisedCatch, host_catch
from port.evaluate import acting, eval_loop
from port.input_option import TransformConfig, feature_width
from port.meta_train import meta_gradient
from port.networks import agent_net
from port.types import ActorCriticState
from port.update_rules import base
from port.value_fns import value_fn, value_utils, vtrace
from tests.test_meta_gradient import OBS, A, B, setup

ONE = setup(1)
LOOP = eval_loop.EvalConfig(num_steps=1, batch_size=2, replay_ratio=1, rollout_length=3, rows=5, columns=5)


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
        (lambda: port.AgentNetConfig(dense=()), "a tuple of positive widths, of 1 layer or more"),
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
    rollout = dataclasses.replace(ONE.train_rollouts[0], **change)
    with pytest.raises(ValueError, match=sentence):
        ONE.agent.learner_step(rollout, ONE.state.learner, ONE.meta_params)


def test_numbers_that_cannot_be_learned_from_are_refused_before_any_work_on_every_path(no_work):
    paths = [port.Agent(ONE.agent.config, OBS, A, path=path) for path in ("plain", "fast", "compiled")]
    rollout, state, meta_params = STEP
    impossible = torch.full((4, B, A), -inf, dtype=torch.float64)
    certain = torch.where(torch.arange(A) == 1, inf, 0.0).double().expand(4, B, A)
    one_bad = {"discounts": (nan, 1.5, -0.1), "rewards": (nan, inf, -inf)}
    rollouts = [({name: _spoilt(getattr(rollout, name).double(), x)}, name) for name, xs in one_bad.items() for x in xs]
    rollouts += [({"agent_outs": {"logits": x}}, "agent_outs/logits") for x in (impossible, certain)]
    given = [((dataclasses.replace(rollout, **change), state, meta_params), name) for change, name in rollouts]
    for x in (nan, inf):
        weights_, rule = ({**ps, name: _spoilt(ps[name], x)} for ps, name in PARAMETERS)
        given.append(((rollout, state._replace(params=weights_), meta_params), "parameter heads/y/w"))
        given.append(((rollout, state, rule), "meta-parameter y_net/0/w"))
    for learner in paths:
        for arguments, name in given:
            with pytest.raises(ValueError, match=f"The (rollout's )?{name} .*(finite|NaN|0 and 1|no distribution)"):
                learner.learner_step(*arguments)


def test_the_largest_finite_parameters_and_what_cannot_be_chosen_are_taken():
    huge = {"a": torch.full((4,), 3e38), "b": torch.zeros(2)}
    assert rollout_checks.not_finite(huge) == "" and rollout_checks.not_finite({**huge, "c": torch.tensor(nan)}) == "c"
    r = ONE.train_rollouts[0]
    logits = torch.where(torch.arange(A) == (r.actions[..., None] + 1) % A, -inf, r.agent_outs["logits"])
    outs = {"agent_outs": {"logits": logits}, "discounts": r.discounts.double() / 2}
    _, logs = ONE.agent.learner_step(dataclasses.replace(r, **outs), *STEP[1:])
    assert logs["global_gradient_norm"].isfinite()


def test_a_rollout_of_no_environment_is_refused():
    r = ONE.train_rollouts[0]
    outs = {"logits": r.agent_outs["logits"][:, :0]}
    none = port.Rollout(r.observations[:, :0], r.actions[:, :0], r.rewards[:, :0], r.discounts[:, :0], outs)
    with pytest.raises(ValueError, match="at least 2 steps of 1 environment"):
        ONE.agent.learner_step(none, ONE.state.learner, ONE.meta_params)


def test_meta_parameters_in_another_dtype_are_refused():
    other = {name: p.float() for name, p in ONE.meta_params.items()}
    with pytest.raises(ValueError, match="but meta-parameter y_net/0/w is torch.float32"):
        ONE.agent.learner_step(ONE.train_rollouts[0], ONE.state.learner, other)


def test_a_validation_rollout_of_another_policy_or_a_rule_without_parameters_is_refused():
    lead = ONE.valid_rollout.rewards.shape
    outs = {"logits": torch.zeros(*lead, A + 1, dtype=torch.float64)}
    with pytest.raises(ValueError, match="the agent has 3 actions"):
        dataclasses.replace(ONE, valid_rollout=dataclasses.replace(ONE.valid_rollout, agent_outs=outs))
    with pytest.raises(ValueError, match="pass its parameters"):
        dataclasses.replace(ONE, meta_params=None)
    agent = port.Agent(port.get_settings_actor_critic(), OBS, A)
    with pytest.raises(ValueError, match="ActorCritic has no meta-parameters, so there is no meta-gradient"):
        dataclasses.replace(ONE, agent=agent, meta_params={})


def test_a_run_that_cannot_learn_is_refused_before_it_begins():
    env = Catch(5, 5)
    spec = env.observation_shape
    with pytest.raises(ValueError, match="pass its parameters"):
        eval_loop.EvalLoop(port.Agent(ONE.agent.config, spec, 3), None, LOOP)
    plain = port.AgentConfig(hyper=None, rule=port.PolicyGradientConfig())
    with pytest.raises(ValueError, match="needs a value function beside the agent"):
        eval_loop.EvalLoop(port.Agent(plain, spec, 3), {}, LOOP)


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


STEP = (ONE.train_rollouts[0], ONE.state.learner, ONE.meta_params)
MEMORY = ONE.state.learner.meta_state
SHORT = MEMORY.rnn_state._replace(hidden=MEMORY.rnn_state.hidden[:-1])
SINGLE = MEMORY.adv_ema._replace(moment1=MEMORY.adv_ema.moment1.float())
OTHERS = ActorCriticState(MEMORY.adv_ema, MEMORY.td_ema)
LACKING = {name: p for name, p in MEMORY.target_params.items() if name != "heads/y/w"}
WIDER = {**MEMORY.target_params, "heads/y/b": torch.zeros(9, dtype=torch.float64)}


PARAMETERS = ((ONE.state.learner.params, "heads/y/w"), (ONE.meta_params, "y_net/0/w"))


def _spoilt(tensor, value):
    spoilt = tensor.clone()
    spoilt.view(-1)[-1] = value
    return spoilt


@pytest.fixture
def no_work(monkeypatch):
    monkeypatch.setattr(agent_net, "unroll", lambda *_: pytest.fail("work was done"))


@pytest.mark.parametrize(
    ("memory", "sentence"),
    [
        (None, "Disco remembers MetaState, but was given None; begin with Agent.learner_state"),
        (tuple(MEMORY), "Disco remembers MetaState, but was given tuple"),
        (OTHERS, "Disco remembers MetaState, but was given ActorCriticState"),
        (
            MEMORY._replace(rnn_state=SHORT),
            r"rnn_state/hidden as torch.float64 \(2,\); .* torch.float64 \(3,\)",
        ),
        (MEMORY._replace(adv_ema=SINGLE), r"remembers has adv_ema/moment1 as torch.float32 \(\); it must be"),
        (
            MEMORY._replace(target_params=LACKING),
            "target_params/heads/y/w is only in one of the two; begin",
        ),
        (MEMORY._replace(target_params=WIDER), r"has target_params/heads/y/b as torch.float64 \(9,\)"),
    ],
)
def test_the_memory_of_another_rule_or_agent_is_refused_before_any_work(no_work, memory, sentence):
    given, state, meta_params = STEP
    with pytest.raises((TypeError, ValueError), match=sentence):
        ONE.agent.learner_step(given, state._replace(meta_state=memory), meta_params)
    inputs = agent.rule_inputs(given, {})
    with pytest.raises((TypeError, ValueError), match=sentence):
        base.apply(ONE.agent.rule, meta_params, state.params, memory, inputs)


def test_rules_with_little_or_no_memory_refuse_another_rules_too():
    config = port.AgentConfig(hyper=None, rule=port.PolicyGradientConfig())
    for rule, sentence in (
        (port.Agent(port.get_settings_actor_critic(), OBS, A).rule, "ActorCritic remembers ActorCriticState"),
        (port.Agent(config, OBS, A).rule, "PolicyGradient remembers nothing, but was given MetaState"),
    ):
        with pytest.raises(TypeError, match=sentence):
            rule.check_meta_state(MEMORY, STEP[1].params)
        rule.check_meta_state(rule.init_meta_state(STEP[1].params), STEP[1].params)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.params, "The state is dict; initial_learner_state makes one"),
        (lambda s: s._replace(opt_state=None), "The optimiser's state is NoneType; optimizers.init_adam makes one"),
        (lambda s: s._replace(opt_state=_with(s, mu=LACKING)), "first moments .* lack heads/y/w"),
        (lambda s: s._replace(opt_state=_with(s, nu=WIDER)), r"second moments .* heads/y/b must be \(4,\); got \(9,\)"),
    ],
)
def test_a_learners_state_that_is_none_of_this_agents_is_refused_before_any_work(no_work, change, sentence):
    given, state, meta_params = STEP
    with pytest.raises((TypeError, ValueError), match=sentence):
        ONE.agent.learner_step(given, change(state), meta_params)


def _with(state, **moments):
    return dataclasses.replace(state.opt_state, **moments)


AS = {"list": lambda x: x.tolist(), "ndarray": lambda x: x.numpy()}


@pytest.mark.parametrize("kind", AS)
@pytest.mark.parametrize("field", ["actions", "rewards", "discounts", "observations"])
def test_rollouts_of_arrays_or_lists_are_refused_before_any_work(no_work, field, kind):
    given, state, meta_params = STEP
    odd = dataclasses.replace(given, **{field: AS[kind](getattr(given, field))})
    name = "observations\\[0\\]" if field == "observations" else field
    with pytest.raises(TypeError, match=f"{name} is given as {kind}, not as a torch tensor; torch.as_tensor makes one"):
        ONE.agent.learner_step(odd, state, meta_params)
    with pytest.raises(TypeError, match=f"{name} is given as {kind}"):
        dataclasses.replace(ONE, valid_rollout=odd)


@pytest.mark.parametrize("kind", AS)
def test_actions_as_arrays_or_lists_are_refused_wherever_they_are_taken(kind):
    env, actions = Catch(5, 5), AS[kind](torch.tensor([1, 1]))
    columns = torch.tensor([0, 1])
    state, _ = env.reset(columns)
    boards = VectorisedCatch(env, 2, OriginalColumns(env, 2, 0))
    boards.reset()
    host = host_catch(2)
    inputs = dataclasses.replace(agent.rule_inputs(ONE.train_rollouts[0], {}), actions=actions)
    for call in (
        lambda: env.step(state, actions, columns),
        lambda: boards.step(actions),
        lambda: host.step(actions),
        lambda: ops.batch_lookup(torch.zeros(2, 3), actions),
        lambda: ops.check_actions(actions, 3),
        lambda: input_transforms.apply("select_a", torch.zeros(2, 3), actions, torch.zeros(2, 3)),
        lambda: ONE.agent.rule.check_inputs(inputs, ("logits",)),
    ):
        with pytest.raises(TypeError, match=f"is given as {kind}, not as a torch tensor"):
            call()


def test_the_largest_over_actions_wants_an_axis_of_actions():
    flat, actions, policy = torch.zeros(4, 2), torch.zeros(4, 2, dtype=torch.long), torch.zeros(5, 2, 3)
    with pytest.raises(ValueError, match=r"give \[T\+1, B, A, ...\], not \(4, 2\)"):
        input_transforms.apply("max_a", flat, actions, policy)
    assert input_transforms.apply("max_a", policy, actions, policy).shape == (5, 2)


@pytest.mark.parametrize("name", ["max_a", "select_a", "pi_weighted_avg", "td_pair", "y_net"])
def test_a_scalar_is_no_input_of_a_transform_over_an_axis(name):
    feature = TransformConfig("rewards", (name,))
    with pytest.raises(ValueError, match=f"'rewards' is one number a step where {name} comes"):
        feature_width(feature, prediction_size=4, embedding=1, per_action=False)
    with pytest.raises(ValueError, match="say which, as in extra_from_rule/adv"):
        TransformConfig("extra_from_rule", (name,))


def test_shapes_that_would_broadcast_are_refused():
    flat, short, state = torch.zeros(4, 2), torch.zeros(1, 2), torch.zeros(5, 2)
    with pytest.raises(ValueError, match="Discounts and importance weights are"):
        vtrace.vtrace(state, flat, flat, short, 0.9)
    with pytest.raises(ValueError, match="Traces are"):
        value_utils.retrace(flat, state, flat, flat, short)
    with pytest.raises(ValueError, match="over the same steps and actions"):
        ops.importance_weights(torch.zeros(4, 2), torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"for features of \(1,\); got features of \(3,\)"):
        input_transforms.normalize(torch.zeros(4, 2, 3), input_transforms.init_normalize(torch.zeros(4, 2, 1)))
