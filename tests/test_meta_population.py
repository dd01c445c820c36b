"""One agent of meta-training and one meta-update of the run, piece by piece as the original's notebook has them."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest
import torch

from port import optimizers, trees, weights
from port.meta_train import MetaTrainConfig, meta_gradient, population
from port.meta_train import recompute as recompute_module
from port.meta_train.checkpoint import Files, start
from port.meta_train.population import Member, MemberState
from port.meta_train.run import evaluate, run
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
    starts = [member.fresh(step).learning.learner.params[name] for member, step in ((one, 0), (one, 4), (other, 0))]
    assert not any(torch.equal(a, b) for a, b in ((starts[0], starts[1]), (starts[0], starts[2])))


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


def test_a_new_life_keeps_nothing_of_the_one_before():
    member, meta_params = Member(CONFIG, 0), start(CONFIG, None).meta_params
    old, _ = member.contribute(3, member.fresh(0), meta_params)
    reborn, given = member.contribute(4, old, meta_params)
    alone, same_given = member.contribute(4, None, meta_params)
    theirs = trees.flatten(alone)
    assert all(torch.equal(x, theirs[name]) for name, x in trees.flatten(reborn).items())
    assert given.log == same_given.log
    assert all(torch.equal(g, same_given.grads[name]) for name, g in given.grads.items())


def test_each_agent_plays_on_its_own_board():
    assert [(m.env.rows, m.env.columns) for m in (Member(CONFIG, 0), Member(CONFIG, 1))] == [(3, 3), (4, 3)]
    assert [Member(CONFIG, i).agent.obs_spec for i in range(2)] == [(3, 3, 1), (4, 3, 1)]


def test_rewards_are_logged_of_what_the_agent_learns_from():
    member = Member(MetaTrainConfig(**{**TINY, "batch_size": 16}), 0)
    state = member.fresh(0)
    rewards = torch.stack([rollout.rewards for rollout in member.act(0, state)[0]])
    caught, missed = float((rewards == 1).sum()), float((rewards == -1).sum())
    assert caught != missed and min(caught, missed) > 0  # else one could stand for the other
    _, given = member.contribute(0, state, start(member.config, None).meta_params)
    assert (given.log["pos_rewards"], given.log["neg_rewards"]) == (caught, missed)
    assert given.log["rewards"] == pytest.approx((caught - missed) / rewards.numel())
    assert given.log["catch_rate"] == caught / (caught + missed)


@pytest.mark.parametrize("recompute", [False, True])
def test_memory_is_saved_where_asked_for(monkeypatch, recompute):
    used = []
    for module, name in ((meta_gradient, "meta_gradient"), (recompute_module, "checkpointed_meta_gradient")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, real=real, name=name: (used.append(name), real(*given))[1])
    config = MetaTrainConfig(**{**TINY, "recompute": recompute})
    Member(config, 0).contribute(0, None, start(config, None).meta_params)
    assert used == ["checkpointed_meta_gradient" if recompute else "meta_gradient"]


def test_a_meta_update_of_the_run_is_adam_along_the_mean_of_the_agents_gradients(tmp_path: Path):
    settings = {"num_meta_updates": 1, "evaluate_every": 0, "max_meta_grad_norm": 1e-3, "meta_learning_rate": 3e-4}
    config = MetaTrainConfig(**{**TINY, **settings})
    torch.set_num_threads(1)  # as the run's workers: some processors add up otherwise with two
    begun = start(config, None)
    given = [Member(config, i).contribute(0, None, begun.meta_params)[1] for i in range(2)]
    wanted, _, logs = meta_gradient.meta_update(
        begun.meta_params, optimizers.init_adam(begun.meta_params), [c.grads for c in given], 3e-4, 1e-3
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


class FakeWorkers:
    """Workers that only return which fresh agents they were asked for."""

    def evaluate(self, meta_params, tasks):
        self.tasks = tasks
        return [population.Score(self.rate, 0.75) for _ in tasks]

    def __init__(self, rate=0.5):
        self.rate = rate


class Rows(list):
    """A log in memory."""

    add = list.append


def test_rules_are_chosen_on_seeds_that_port_evaluate_does_not_judge_by():
    config, workers = MetaTrainConfig(**{**TINY, "evaluate_boards": ("3x3", "4x4"), "evaluate_seeds": 3}), FakeWorkers()
    rows = Rows()
    assert evaluate(config, workers, {}, 7, rows) == 0.5
    assert {board for board, _ in workers.tasks} == {"3x3", "4x4"} and min(seed for _, seed in workers.tasks) >= 1000
    assert [(row["step"], row["board"], row["seed"]) for row in rows] == [(7, *task) for task in workers.tasks]


def test_of_equally_good_rules_the_first_is_the_best(tmp_path: Path):
    config = MetaTrainConfig(**{**TINY, "num_meta_updates": 2, "evaluate_every": 1})
    workers = Workers(config, 1)
    workers.evaluate = FakeWorkers().evaluate
    end = run(config, tmp_path, workers)
    assert (end.best_score, end.best_step) == (0.5, 1)


def test_the_best_rule_is_kept_as_it_was_judged_and_over_a_restart(tmp_path: Path):
    config, judged = MetaTrainConfig(**{**TINY, "num_meta_updates": 3, "evaluate_every": 1}), {}

    def until(step, rates):
        workers = Workers(config, 1)

        def evaluate_by(meta_params, tasks):
            rate = next(rates)
            judged[rate] = meta_params
            return FakeWorkers(rate).evaluate(meta_params, tasks)

        workers.evaluate = evaluate_by
        return run(dataclasses.replace(config, num_meta_updates=step), tmp_path, workers)

    assert until(2, iter((0.25, 0.5)))[-3:-1] == (0.5, 2)
    assert until(3, iter((0.375,)))[-3:-1] == (0.5, 2)  # worse than what the first part of the run had found
    best = weights.load_npz(Files(tmp_path).best, config.agent.meta_net)
    assert all(torch.equal(p, judged[0.5][name]) for name, p in best.items())
    assert not torch.equal(best["gate/w"], judged[0.375]["gate/w"])


def test_agents_and_scores_come_in_their_order_however_they_are_spread_over_workers():
    """Three agents in two processes, the first and the third in one."""
    workers = Workers.__new__(Workers)
    workers.count = 2

    def answers(name, arguments):
        if name == "evaluate":
            return [[population.Score(seed, 0.0) for _, seed in tasks] for _, tasks in arguments]
        return [{i: ({}, {"age": float(i)}) for i in share} for share in ([0, 2], [1])]

    workers._call = answers
    assert [c.log["age"] for c in workers.contribute(0, {})] == [0.0, 1.0, 2.0]
    assert [score.life_catch_rate for score in workers.evaluate({}, [("3x3", seed) for seed in range(5)])] == [
        *range(5)
    ]
