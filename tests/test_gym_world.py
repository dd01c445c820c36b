"""Gymnasium's vector environments as a world: both ways of starting over, time limits, spaces, and what is refused."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

from port.agent import rule_inputs  # noqa: E402
from port.train import GymWorld, Trainer, rollouts  # noqa: E402
from port.train.world import obs_spec  # noqa: E402
from tests.small_rule import AGENT, CONFIG, meta_params  # noqa: E402


class Counting(gymnasium.Env):
    """Shows its number, the episode and the step; pays the step; ends after `length` steps, or is cut off there."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1.0, 1000.0, (3,), np.float64)

    def __init__(self, number=0, length=3, is_cut=False):
        self.number, self.length, self.is_cut, self.episode, self.actions = number, length, is_cut, -1, []

    def _show(self):
        return np.array([self.number, self.episode, self.count], float)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = 0 if seed is not None else self.episode + 1, 0
        return self._show(), {}

    def step(self, action):
        self.actions.append(int(action))
        self.count += 1
        is_over = self.count == self.length
        return self._show(), float(self.count), is_over and not self.is_cut, is_over and self.is_cut, {}


def counting(mode, *envs):
    return SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=mode)


def trainer_for(env, **changes):
    return Trainer(env, AGENT, meta_params(), replace(CONFIG, **changes))


def unrolled(mode, length=8, bootstraps=True, **kind):
    truncation = "bootstrap" if bootstraps else "terminal"
    changes = {"checkpoint_every": 0, "rollout_length": length, "truncation": truncation}
    trainer = trainer_for(counting(mode, Counting(**kind), Counting(1, length=100)), **changes)
    generator = torch.Generator().manual_seed(0)
    stream = rollouts.begin(trainer.world, generator, torch.float32)
    return trainer, *rollouts.unroll(trainer.world, trainer.agent, trainer.params, stream, trainer.config, generator)


def test_next_step_shows_the_last_observation_and_ignores_the_action_after_it():
    trainer, rollout, _, ended, frames = unrolled(AutoresetMode.NEXT_STEP)
    assert rollout.observations[:, 0, 1:].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2], [1, 3]]
    assert rollout.rewards[:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rollout.discounts[:, 0].tolist() == [True, True, True, False, True, True, True, False]
    assert [(e.env, e.total, e.length) for e in ended] == [(0, 6.0, 3), (0, 6.0, 3)]
    used = trainer.world.env.envs[0].actions
    assert used == [a for t, a in enumerate(rollout.actions[:, 0].tolist()) if t not in (3, 7)]
    assert frames == 8 + 6


def test_nothing_is_learned_from_an_ignored_action():
    trainer, rollout, *_ = unrolled(AutoresetMode.NEXT_STEP)
    state, _ = trainer.agent.learner_step(rollout, trainer.state, trainer.meta_params)
    assert rollout.discounts[3, 0] == 0
    inputs = trainer.agent.network.unroll(trainer.params, rollout.observations)
    meta_out, _ = trainer.agent.rule.unroll_meta_net(
        trainer.meta_params, trainer.params, trainer.state.meta_state, _rule_inputs(rollout, inputs)
    )
    tracked = {head: x.detach().requires_grad_() for head, x in inputs.items()}
    loss, _ = trainer.agent.loss(rollout, tracked, meta_out)
    loss.backward()
    for head in ("y", "z", "q"):  # of the policy, the step before predicts this one
        assert not tracked[head].grad[3, 0].any() and tracked[head].grad[2, 0].any()
    assert state.params.keys() == trainer.params.keys()


def _rule_inputs(rollout, outs):
    return rule_inputs(rollout, {head: x.detach() for head, x in outs.items()})


def test_same_step_shows_the_first_observation_of_the_next_episode():
    trainer, rollout, _, ended, frames = unrolled(AutoresetMode.SAME_STEP)
    assert rollout.observations[:, 0, 1:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]
    assert rollout.rewards[:, 0].tolist() == [0, 1, 2, 3, 1, 2, 3, 1]
    assert rollout.discounts[:, 0].tolist() == [True, True, True, False, True, True, False, True]
    assert trainer.world.env.envs[0].actions == rollout.actions[:, 0].tolist()
    assert [(e.env, e.total, e.length) for e in ended] == [(0, 6.0, 3), (0, 6.0, 3)] and frames == 16


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_time_limit_is_worth_the_value_of_the_last_observation(mode):
    trainer, rollout, *_ = unrolled(mode, is_cut=True)
    last = torch.tensor([[0.0, 0.0, 3.0]])
    value, discount = rollouts.state_values(trainer.agent, trainer.params, last)
    assert rollout.rewards[3, 0] == pytest.approx(3 + discount * float(value), abs=1e-6)
    assert float(value) != 0 and not rollout.discounts[3, 0]
    assert rollout.rewards[:3, 0].tolist() == [0, 1, 2]
    _, as_if_over, *_ = unrolled(mode, is_cut=True, bootstraps=False)
    assert as_if_over.rewards[3, 0] == 3 and not as_if_over.discounts[3, 0]


def test_disabled_autoreset_is_refused():
    with pytest.raises(ValueError, match="nobody would start its episodes over.*NEXT_STEP or SAME_STEP"):
        trainer_for(counting(AutoresetMode.DISABLED, Counting()))


def test_an_environment_that_does_not_say_how_it_starts_over_is_refused():
    env = counting(AutoresetMode.NEXT_STEP, Counting())
    env.metadata = {}
    with pytest.raises(ValueError, match="does not say how it starts over"):
        trainer_for(env)


def test_continuous_actions_are_refused():
    with pytest.raises(ValueError, match="Box.*Actions are continuous"):
        trainer_for(gymnasium.make_vec("Pendulum-v1", num_envs=2, vectorization_mode="sync"))


def test_a_single_environment_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match="single environment.*make_vec"):
        trainer_for(gymnasium.make("CartPole-v1"))


def test_an_environment_that_is_not_the_same_twice_is_refused():
    env = gymnasium.wrappers.vector.NormalizeObservation(gymnasium.make_vec("CartPole-v1", num_envs=2))
    with pytest.raises(ValueError, match="same seed.*NormalizeObservation.*checkpoint_every"):
        trainer_for(env)
    env = gymnasium.wrappers.vector.NormalizeObservation(gymnasium.make_vec("CartPole-v1", num_envs=2))
    trainer_for(env, checkpoint_every=0).run(2)


class Shown(gymnasium.Env):
    """Shows a sample of a space; actions start at 5."""

    action_space = spaces.Discrete(3, start=5)

    def __init__(self, space):
        self.observation_space = copy.deepcopy(space)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, bool(self.np_random.random() < 0.3), False, {}


SPACES = {
    "discrete": (spaces.Discrete(4, start=-1), (4,), torch.float32),
    "multi_discrete": (spaces.MultiDiscrete([2, 3]), (5,), torch.float32),
    "multi_binary": (spaces.MultiBinary(6), (6,), torch.int8),
    "image": (spaces.Box(0, 255, (4, 4, 3), np.uint8), (4, 4, 3), torch.uint8),
    "scalar": (spaces.Box(-1.0, 1.0, (), np.float32), (1,), torch.float32),
    "dict": (
        spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Discrete(3)))),
        {"a": (2,), "b": {"0": (2,), "1": (3,)}},
        None,
    ),
}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize(("space", "spec", "dtype"), SPACES.values(), ids=SPACES)
def test_every_kind_of_observation_reaches_the_agent(space, spec, dtype, mode):
    trainer = trainer_for(SyncVectorEnv([lambda: Shown(space)] * 2, autoreset_mode=mode))
    assert obs_spec(trainer.world) == spec
    assert dtype is None or trainer.world.example.dtype == dtype
    trainer.run(3)
    assert trainer.episodes > 0


def test_choices_become_one_hot():
    world = GymWorld(SyncVectorEnv([lambda: Shown(spaces.Discrete(4, start=-1))] * 2))
    shown = world.reset(torch.Generator().manual_seed(0))
    assert shown.sum(-1).tolist() == [1, 1] and set(shown.unique().tolist()) == {0.0, 1.0}


def test_text_is_refused():
    env = SyncVectorEnv([lambda: Shown(spaces.Text(3))] * 2)
    with pytest.raises(ValueError, match="Text.*cannot be fed to a network"):
        trainer_for(env)
