"""The evaluation loop: when it learns, what it counts, that a seed decides everything, what it refuses."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from port.agent import Agent
from port.config import (
    AgentConfig,
    AgentNetConfig,
    DiscoConfig,
    MetaNetConfig,
    MetaRnnConfig,
    eval_agent_config,
    get_settings_actor_critic,
)
from port.environments import Catch
from port.evaluate.eval_loop import (
    DrawnRandomness,
    EvalConfig,
    EvalLoop,
    accumulate_returns,
    catch_rate,
)
from port.networks import agent_net
from port.networks.init import init_meta_params

NET = AgentNetConfig(dense=(12,), head_mlp_hiddens=(6,), lstm_size=6)
SMALL = AgentConfig(
    learning_rate=1e-2,
    rule=DiscoConfig(num_bins=7, max_abs_value=3.0),
    meta_net=MetaNetConfig(prediction_size=5, hidden_size=6, meta_rnn=MetaRnnConfig(hidden_size=4)),
    net=NET,
)
LOOP = EvalConfig(num_steps=9, batch_size=6, rollout_length=8, replay_ratio=3, capacity=10, rows=4, columns=3, seed=1)


def agent_and_weights(config=SMALL, loop=LOOP):
    agent = Agent(config, (loop.rows, loop.columns, 1), 3)
    return agent, init_meta_params(config.meta_net, torch.Generator().manual_seed(0), torch.float32)


@pytest.fixture(scope="module")
def done():
    reports = []
    result = EvalLoop(*agent_and_weights(), LOOP).run(reports.append)
    return result, reports


def test_the_notebooks_settings_follow_from_each_other():
    config = EvalConfig()
    assert (config.num_envs, config.min_buffer_size) == (2, 64)
    first = math.ceil(config.min_buffer_size / config.num_envs)
    assert config.num_steps - first + 1 == 969  # learner steps of the notebook


def test_the_defaults_are_the_notebooks():
    config, agent = EvalConfig(), eval_agent_config()
    assert (config.num_steps, config.batch_size, config.rollout_length, config.replay_ratio) == (1000, 64, 29, 32)
    assert (config.capacity, config.rows, config.columns, config.seed, config.replay_seed) == (1024, 8, 8, 0, 17)
    assert (agent.learning_rate, agent.net.dense, agent.net.head_w_init_std) == (1e-2, (512, 512), 1e-2)
    assert (agent.net.head_mlp_hiddens, agent.net.lstm_size) == ((128,), 128)


def test_it_learns_once_the_buffer_holds_a_batch(done):
    result, reports = done
    assert [bool(report.logs) for report in reports] == [False, False] + [True] * 7
    loss = result.logs["total_loss"]
    assert np.isnan(loss[:2]).all() and np.isfinite(loss[2:]).all()
    assert int(reports[-1].state.opt_state.count) == 7


def test_it_acts_with_the_newest_parameters(done):
    _, reports = done
    for before, now in pairwise(reports):
        expected = agent_net.policy_logits(before.state.params, now.rollout.observations, lead=2)
        torch.testing.assert_close(now.rollout.agent_outs["logits"], expected)
    stale = agent_net.policy_logits(reports[-3].state.params, reports[-1].rollout.observations, lead=2)
    assert not torch.allclose(reports[-1].rollout.agent_outs["logits"], stale)


def test_it_counts_frames_and_episodes(done):
    result, reports = done
    assert result.frames.tolist() == [16 * (i + 1) for i in range(9)]
    assert all(report.rollout.rewards.shape == (8, 2) for report in reports)
    ends = sum(int((report.rollout.discounts == 0).sum()) for report in reports)
    assert len(result.episode_returns) == ends == 2 * ((9 * 8 - 1) // 3)
    assert set(result.episode_returns) <= {-1.0, 1.0}
    assert result.catch_rate == (result.episode_returns > 0).mean()
    ended = reports[3].episode_returns
    assert result.average_returns[3] == pytest.approx(np.mean(ended))


def test_a_seed_decides_everything(done):
    result, _ = done
    again = EvalLoop(*agent_and_weights(), LOOP).run()
    other = EvalLoop(*agent_and_weights(), dataclasses.replace(LOOP, seed=2)).run()
    assert np.array_equal(result.episode_returns, again.episode_returns)
    for name, values in result.logs.items():
        assert np.array_equal(values, again.logs[name], equal_nan=True), name
    assert not np.array_equal(result.logs["total_loss"], other.logs["total_loss"], equal_nan=True)


def test_the_replay_seed_changes_what_is_learned_and_not_how_it_starts(done):
    result, reports = done
    seen = []
    EvalLoop(*agent_and_weights(), dataclasses.replace(LOOP, replay_seed=3)).run(seen.append)
    assert torch.equal(seen[0].rollout.actions, reports[0].rollout.actions)
    assert seen[2].logs["total_loss"] != reports[2].logs["total_loss"]


def test_another_rule_runs_in_the_same_loop():
    config = dataclasses.replace(get_settings_actor_critic(), net=NET)
    result = EvalLoop(agent_and_weights(config)[0], {}, LOOP).run()
    assert np.isfinite(result.logs["total_loss"][2:]).all()


def test_it_runs_in_float64():
    agent, _ = agent_and_weights()
    meta_params = init_meta_params(SMALL.meta_net, torch.Generator().manual_seed(0), torch.float64)
    seen = []
    EvalLoop(agent, meta_params, dataclasses.replace(LOOP, num_steps=3), torch.float64).run(seen.append)
    assert all(p.dtype == torch.float64 for p in seen[-1].state.params.values())
    assert seen[-1].rollout.rewards.dtype == torch.float64


def test_noise_is_gumbels():
    env = Catch(4, 3, torch.float64)
    loop = dataclasses.replace(LOOP, rollout_length=2000)
    noise, columns = DrawnRandomness(loop, env, torch.Generator().manual_seed(0)).rollout()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.05)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.1)
    assert set(columns.unique().tolist()) == {0, 1, 2}


def test_returns_add_up_over_the_borders_of_rollouts():
    rewards = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    goes_on = torch.tensor([[True], [False], [True], [True]])
    so_far, returns = accumulate_returns(torch.tensor([10.0]), rewards, goes_on)
    assert returns[:, 0].tolist() == [11.0, 13.0, 4.0, 12.0]
    assert so_far.tolist() == [12.0]
    _, later = accumulate_returns(so_far, rewards[:1], goes_on[:1])
    assert later[0].tolist() == [13.0]


def test_the_first_step_at_the_bar_is_found(done):
    run = dataclasses.replace(done[0], catch_rates=np.array([np.nan, 0.2, 0.95, 0.9]))
    assert run.solved_at(0.95) == 3
    assert run.solved_at(0.99) is None


def test_the_catch_rate_is_of_the_last_100_episodes():
    assert catch_rate([-1.0] * 50 + [1.0] * 100) == 1.0
    assert catch_rate([1.0] * 50 + [-1.0] * 75 + [1.0] * 25) == 0.25
    assert catch_rate([1.0, -1.0]) == 0.5
    assert math.isnan(catch_rate([]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_steps": 0}, "num_steps is 0; it must be positive"),
        ({"rollout_length": 1}, "one transition takes 2 steps"),
        ({"replay_ratio": 4}, "A batch of 6 is no multiple of the replay ratio 4"),
        ({"capacity": 5}, "never holds a batch of 6"),
    ],
)
def test_settings_that_cannot_work_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(LOOP, **change)


def test_an_agent_for_another_board_is_refused_before_any_work():
    agent, meta_params = agent_and_weights()
    with pytest.raises(ValueError, match=r"made for observations of \(4, 3, 1\).*show \(8, 3, 1\)"):
        EvalLoop(agent, meta_params, dataclasses.replace(LOOP, rows=8))


def test_returns_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"got \[\(2,\), \(4, 1\), \(4, 1\)\]"):
        accumulate_returns(torch.zeros(2), torch.zeros(4, 1), torch.zeros(4, 1))
