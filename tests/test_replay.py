"""The replay buffer: what it keeps, in which order, what it draws, what it refuses."""

import collections

import numpy as np
import pytest
import torch

from port.replay import ReplayBuffer
from port.types import Rollout


def rollout(*marks, length=3, observations=None):
    """A rollout whose trajectories are told apart by their rewards."""
    rewards = torch.tensor(marks, dtype=torch.float32).repeat(length, 1)
    shape = rewards.shape
    seen = torch.zeros(*shape, 2) if observations is None else observations
    return Rollout(
        seen, torch.zeros(shape, dtype=torch.long), rewards, rewards == 0, {"logits": torch.zeros(*shape, 3)}
    )


def marks(buffer):
    return buffer.take(np.arange(len(buffer))).rewards[0].tolist()


def test_the_oldest_make_room():
    buffer = ReplayBuffer(5, seed=0)
    for first in (1, 3, 5):
        buffer.add(rollout(first, first + 1))
    assert len(buffer) == 5
    assert marks(buffer) == [2, 3, 4, 5, 6]


def test_of_more_than_fit_the_last_stay():
    buffer = ReplayBuffer(3, seed=0)
    buffer.add(rollout(1))
    buffer.add(rollout(2, 3, 4, 5, 6))
    assert marks(buffer) == [4, 5, 6]


def test_it_draws_what_numpy_draws_from_a_queue():
    buffer, queue, rng = ReplayBuffer(7, seed=17), collections.deque(maxlen=7), np.random.default_rng(17)
    for step in range(12):
        new = [10 * step + i for i in range(3)]
        buffer.add(rollout(*new))
        queue.extend(new)
        drawn = [queue[i] for i in rng.integers(len(queue), size=6)]
        assert buffer.sample(6).rewards[0].tolist() == drawn


def test_whole_trajectories_come_back_field_by_field():
    given = rollout(1, 2)
    seen = {"board": torch.randn(3, 2, 4, 4), "inner": {"time": torch.arange(6).reshape(3, 2)}}
    given = Rollout(seen, given.actions + 1, given.rewards, given.discounts, {"logits": torch.randn(3, 2, 3)})
    buffer = ReplayBuffer(4, seed=0)
    buffer.add(given)
    got = buffer.take(np.array([1, 0, 1]))
    order = torch.tensor([1, 0, 1])
    assert torch.equal(got.observations["board"], seen["board"][:, order])
    assert torch.equal(got.observations["inner"]["time"], seen["inner"]["time"][:, order])
    assert torch.equal(got.agent_outs["logits"], given.agent_outs["logits"][:, order])
    assert torch.equal(got.actions, given.actions[:, order]) and got.actions.dtype == torch.long
    assert torch.equal(got.discounts, given.discounts[:, order]) and got.discounts.dtype == torch.bool


def test_what_was_added_may_change_afterwards():
    buffer, given = ReplayBuffer(4, seed=0), rollout(1, 2)
    buffer.add(given)
    given.rewards.zero_()
    assert marks(buffer) == [1, 2]


def test_it_holds_tensors_of_a_fixed_size():
    buffer = ReplayBuffer(16, seed=0)
    buffer.add(rollout(1, 2))
    before = {name: x.data_ptr() for name, x in buffer._kept.items()}
    for _ in range(40):
        buffer.add(rollout(1, 2))
    assert {name: x.data_ptr() for name, x in buffer._kept.items()} == before


def filled():
    buffer = ReplayBuffer(4, seed=0)
    buffer.add(rollout(1, 2))
    return buffer


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: ReplayBuffer(0, 1), ValueError, "room for at least one trajectory; got capacity 0"),
        (lambda: ReplayBuffer(4, 1).sample(2), ValueError, "The replay buffer is empty; add a rollout"),
        (lambda: filled().take(np.array([2])), IndexError, "holds 2 trajectories"),
        (lambda: filled().add(rollout(1, length=4)), ValueError, "as 3 steps of .*; got"),
        (lambda: filled().add(rollout(1, observations=torch.zeros(3, 1, 5))), ValueError, "keeps observations as"),
        (lambda: filled().add(rollout(1, observations={"x": torch.zeros(3, 1)})), ValueError, "observations/x"),
        (lambda: filled().add(rollout(1, length=1)), ValueError, "at least 2 steps"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call()
