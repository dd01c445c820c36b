"""One agent of meta-training and one meta-update of the run, piece by piece as the original's notebook has them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from port import meta_gradient, optim
from port.meta_train import MetaTrainConfig, population
from port.meta_train.population import Member, MemberState
from port.meta_train.run import Files, evaluate, run, start
from port.meta_train.workers import Workers
from port.types import Rollout
from tests.test_meta_train import TINY

CONFIG = MetaTrainConfig(**{**TINY, "evaluate_every": 0})  # type: ignore[arg-type]


def acted(member: Member, step: int, state: MemberState) -> Rollout:
    """The steps of a meta-update in one rollout."""
    train, valid, _ = member.act(step, state)
    parts = [*train, valid]
    fields = {name: torch.cat([getattr(p, name) for p in parts]) for name in ("actions", "rewards", "discounts")}
    return Rollout(torch.cat([p.observations for p in parts]), agent_outs=parts[0].agent_outs, **fields)


def test_each_update_gets_a_rollout_and_validation_one_of_twice_the_length_in_one_stream():
    member = Member(CONFIG, 0)
    state = member.fresh(0)
    train, valid, stream = member.act(0, state)
    assert [len(rollout.rewards) for rollout in (*train, valid)] == [4, 4, 8]
    whole = acted(member, 0, state)
    assert torch.equal(whole.observations[0], state.stream.timestep.observation)
    ends = ~whole.discounts
    assert ends.any(0).all() and torch.equal(ends, whole.rewards != 0)
    starts = whole.observations[..., 0, :, 0].sum(-1) == 1  # the ball is in the top row
    assert torch.equal(starts[1:], ends[1:])  # a last step shows the next board, over borders too
    following = member.act(1, state._replace(stream=stream))[0][0]
    assert torch.equal(following.observations[0], stream.timestep.observation)
    assert torch.equal(following.rewards[0], stream.timestep.reward)


def test_agents_and_meta_updates_have_noise_of_their_own():
    one, other = Member(CONFIG, 0), Member(MetaTrainConfig(**{**TINY, "boards": ("3x3", "3x3")}), 1)
    state = one.fresh(0)
    assert not torch.equal(acted(one, 0, state).actions, acted(one, 1, state).actions)
    assert not torch.equal(acted(one, 0, state).actions, acted(other, 0, state).actions)
    name = "torso/0/w"
    lives = [member.fresh(step).learning.learner.params[name] for member, step in ((one, 0), (one, 4), (other, 0))]
    assert not any(torch.equal(a, b) for a, b in ((lives[0], lives[1]), (lives[0], lives[2])))


def test_a_life_goes_on_with_its_stream_and_ends_with_its_age():
    member, meta_params = Member(CONFIG, 0), start(CONFIG, None).meta_params
    state, counts = None, []
    for step in range(5):
        before = state
        state, _ = member.contribute(step, state, meta_params)
        counts.append(int(state.learning.learner.opt_state.count))
        if step in (1, 2, 3):
            assert torch.equal(state.stream.timestep.observation, member.act(step, before)[2].timestep.observation)
    assert counts == [2, 4, 6, 8, 2]


def test_a_meta_update_of_the_run_is_adam_along_the_mean_of_the_agents_gradients(tmp_path: Path):
    config = MetaTrainConfig(**{**TINY, "num_meta_updates": 1, "evaluate_every": 0, "max_meta_grad_norm": 1e-3})
    begun = start(config, None)
    given = [Member(config, i).contribute(0, None, begun.meta_params)[1] for i in range(2)]
    wanted, _, logs = meta_gradient.meta_update(
        begun.meta_params, optim.init_adam(begun.meta_params), [c.grads for c in given], 5e-4, 1e-3
    )
    assert logs["meta_grad_norm"] > 1e-3  # so that the cut matters
    end = run(config, tmp_path, Workers(config, 1))
    assert all(torch.equal(end.meta_params[name], p) for name, p in wanted.items())
    clipped = 1e-3 / float(logs["meta_grad_norm"])
    for name, mu in end.opt_state.mu.items():
        mean = (given[0].grads[name] + given[1].grads[name]) / 2
        torch.testing.assert_close(mu, 0.1 * clipped * mean, rtol=1e-4, atol=1e-10)
    with Files(tmp_path).log.open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["meta_loss"]) == pytest.approx((given[0].log["meta_loss"] + given[1].log["meta_loss"]) / 2)


@pytest.mark.parametrize(
    ("setting", "value", "where"),
    [
        ("learning_rate", 0.25, lambda c: c.agent.learning_rate),
        ("prediction_size", 9, lambda c: c.agent.meta_net.prediction_size),
        ("hidden_size", 9, lambda c: c.agent.meta_net.hidden_size),
        ("meta_hidden_size", 9, lambda c: c.agent.meta_net.meta_rnn.hidden_size),
        ("num_bins", 9, lambda c: c.agent.rule.num_bins),
        ("max_abs_value", 9.0, lambda c: c.agent.rule.max_abs_value),
        ("dense", (9,), lambda c: c.agent.net.dense),
        ("head_mlp_hiddens", (9,), lambda c: c.agent.net.head_mlp_hiddens),
        ("lstm_size", 9, lambda c: c.agent.net.lstm_size),
        ("value_dense", (9,), lambda c: c.value_fn.dense),
        ("value_learning_rate", 0.25, lambda c: c.value_fn.learning_rate),
    ],
)
def test_a_setting_reaches_what_it_is_of(setting, value, where):
    assert where(MetaTrainConfig(**{**TINY, setting: value})) == value


def test_the_defaults_are_the_notebooks():
    c = MetaTrainConfig()
    assert (c.num_meta_updates, c.boards, c.num_inner_steps, c.rollout_length) == (800, ("5x5", "5x5"), 2, 16)
    assert (c.batch_size, c.meta_learning_rate, c.lifetime, c.max_meta_grad_norm) == (32, 5e-4, 0, 0.0)
    net, value = c.agent.net, c.value_fn
    assert (net.dense, net.head_mlp_hiddens, net.lstm_size, net.head_w_init_std) == ((512, 512), (256,), 256, 1e-2)
    assert (c.agent.learning_rate, c.agent.max_abs_update) == (5e-4, 1.0)
    assert (value.dense, value.head_w_init_std, value.learning_rate) == ((256, 256), 1e-2, 1e-3)
    assert (value.max_abs_update, value.discount_factor, value.td_lambda) == (1.0, 0.99, 0.96)
    assert (value.outer_value_cost, value.ema_decay, value.ema_eps) == (1.0, 0.99, 1e-6)
    outer = c.outer
    assert (outer.entropy_cost, outer.prediction_entropy_cost) == (1e-2, 1e-3)
    assert (outer.target_mean_cost, outer.target_kl_cost) == (1e-3, 1e-2)


class Told:
    """Workers that only tell which fresh agents they were asked for."""

    def evaluate(self, meta_params, tasks):
        self.tasks = tasks
        return [population.Score(0.5, 0.5) for _ in tasks]


class Rows(list):
    """A log in memory."""

    add = list.append


def test_rules_are_chosen_on_seeds_that_port_evaluate_does_not_judge_by():
    config, workers = MetaTrainConfig(**{**TINY, "evaluate_boards": ("3x3", "4x4"), "evaluate_seeds": 3}), Told()
    rows = Rows()
    assert evaluate(config, workers, {}, 7, rows) == 0.5
    assert {board for board, _ in workers.tasks} == {"3x3", "4x4"} and min(seed for _, seed in workers.tasks) >= 1000
    assert [(row["step"], row["board"], row["seed"]) for row in rows] == [(7, *task) for task in workers.tasks]


def test_of_equally_good_rules_the_first_is_the_best(tmp_path: Path):
    config = MetaTrainConfig(**{**TINY, "num_meta_updates": 2, "evaluate_every": 1})
    workers = Workers(config, 1)
    workers.evaluate = Told().evaluate
    end = run(config, tmp_path, workers)
    assert (end.best_score, end.best_step) == (0.5, 1)
