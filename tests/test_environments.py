"""Catch in both forms: what it shows at an episode's end, how randomness enters, what it refuses."""

import numpy as np
import pytest
import torch

from port.agent import Agent
from port.config import AgentConfig, AgentNetConfig, DiscoConfig, MetaNetConfig
from port.environments import (
    Batched,
    Catch,
    CatchState,
    DrawnColumns,
    HostCatch,
    OriginalColumns,
    VectorisedCatch,
    host_catch,
    spread_seed,
    threefry,
)
from port.environments.base import FIRST_STEP, LAST_STEP, MID_STEP
from port.evaluate import acting
from port.networks import agent_net

LEFT, STAY, RIGHT = 0, 1, 2
# Drawn with jax.random; `tests/test_environments_original.py` draws again where JAX is installed.
SEEDS_OF_1 = [1733648124, 210002864, 956228320]
UNIFORM_OF_0 = [0.9476670026779175, 0.9785798788070679]
SIZES = [(8, 8), (5, 3), (3, 7), (2, 1), (11, 4)]


def state(row, ball, paddle):
    return CatchState(*(torch.tensor([value]) for value in (row, ball, paddle)))


def after(env, start, action, column=0):
    return env.step(start, torch.tensor([action]), torch.tensor([column]))


def test_it_starts_with_a_middle_step_and_the_paddle_right_of_the_middle():
    env = Catch(4, 6)
    start, shown = env.reset(torch.tensor([5, 0]))
    assert shown.step_type.tolist() == [MID_STEP, MID_STEP]
    assert shown.reward.tolist() == [0.0, 0.0]
    assert shown.observation.shape == (2, 4, 6, 1)
    assert shown.observation[0, :, :, 0].nonzero().tolist() == [[0, 5], [3, 3]]
    assert start.paddle_column.tolist() == [3, 3]


@pytest.mark.parametrize(("ball", "reward"), [(2, 1.0), (1, -1.0)])
def test_the_last_step_has_its_own_reward_and_the_next_board(ball, reward):
    new, shown = after(Catch(5, 5), state(3, ball, 1), RIGHT, column=4)
    assert (shown.step_type.item(), shown.reward.item()) == (LAST_STEP, reward)
    assert [part.item() for part in new] == [0, 4, 2]
    assert shown.observation[0, :, :, 0].nonzero().tolist() == [[0, 4], [4, 2]]


def test_before_the_last_step_the_given_column_is_not_read():
    new, shown = after(Catch(5, 5), state(2, 1, 1), STAY, column=4)
    assert (shown.step_type.item(), shown.reward.item()) == (MID_STEP, 0.0)
    assert [part.item() for part in new] == [3, 1, 1]


@pytest.mark.parametrize(("action", "paddle"), [(LEFT, 0), (RIGHT, 4)])
def test_the_paddle_stops_at_the_edges(action, paddle):
    new, _ = after(Catch(5, 5), state(0, 1, paddle), action)
    assert new.paddle_column.item() == paddle


def test_rewards_are_no_negative_zeros():
    _, shown = after(Catch(5, 5), state(0, 1, 3), STAY)
    assert not bool(torch.signbit(shown.reward).any())


def test_environments_may_have_any_leading_axes():
    env, generator = Catch(5, 4), torch.Generator().manual_seed(0)
    columns, following = env.draw_columns(generator, 3, 2), env.draw_columns(generator, 3, 2)
    actions = torch.randint(3, (3, 2), generator=generator)
    new, shown = env.step(env.reset(columns)[0], actions, following)
    flat, seen = env.step(env.reset(columns.flatten())[0], actions.flatten(), following.flatten())
    assert shown.observation.shape == (3, 2, 5, 4, 1)
    assert torch.equal(shown.observation.flatten(0, 1), seen.observation)
    assert torch.equal(new.ball_column.flatten(), flat.ball_column)


def test_thousands_step_at_once():
    env, generator = Catch(), torch.Generator().manual_seed(0)
    columns = env.draw_columns(generator, 5000)
    assert sorted(set(columns.tolist())) == list(range(8))
    now, _ = env.reset(columns)
    for step in range(7):
        now, shown = env.step(now, torch.full_like(columns, STAY), columns)
        assert bool((shown.step_type == (LAST_STEP if step == 6 else MID_STEP)).all())
    assert int((shown.reward == 1.0).sum()) == int((columns == 4).sum())


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Catch(1, 8), "1 rows and 8 columns is too small"),
        (lambda: Catch(8, 0), "8 rows and 0 columns is too small"),
        (lambda: HostCatch(1, 1), "too small"),
        (lambda: Catch().reset(torch.tensor([8])), "run from 8 to 8, outside 0 to 7"),
        (lambda: Catch().reset(torch.tensor([0.5])), "torch.float32; give integers"),
        (lambda: after(Catch(), state(0, 0, 0), 3), "Actions run from 3 to 3, outside 0 to 2"),
        (lambda: after(Catch(), state(0, 0, 0), -1), "Actions run from -1"),
        (lambda: Catch().step(state(0, 0, 0), torch.tensor([1, 1]), torch.tensor([1])), "one of each per environment"),
        (lambda: HostCatch().step(7), "Action 7 is none of 0"),
        (lambda: host_catch(2).step(torch.tensor([1])), r"There are 2 environments; got actions of \(1,\)"),
        (lambda: host_catch(2).step(torch.tensor([1, 5])), "outside 0 to 2"),
        (lambda: Batched([]), "at least one environment"),
        (lambda: VectorisedCatch(Catch(), 0, None), "at least one environment"),
        (lambda: threefry.prng_key(2**32), "does not fit into 32 bits"),
        (lambda: threefry.randint(threefry.prng_key(0), 3, 0), "bound of random integers is 0"),
        (lambda: threefry.split(np.zeros(2)), "Keys are .* of uint32"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_the_host_says_first_middle_last_and_starts_over_on_any_action():
    env = HostCatch(3, 3, 0)
    steps = [env.reset(), *(env.step(STAY) for _ in range(3))]
    assert [step.step_type for step in steps] == [FIRST_STEP, MID_STEP, LAST_STEP, FIRST_STEP]
    assert steps[2].observation[2].sum() >= 1 and steps[2].observation[:2].sum() == 0  # the ball is down


def test_a_batch_on_the_host_shows_the_next_board_at_an_episodes_end():
    env = host_catch(3, rows=4, columns=5, seed=7)
    env.reset()
    steps = [env.step(torch.tensor([LEFT, STAY, RIGHT])) for _ in range(6)]
    for step in (steps[2], steps[5]):
        assert step.step_type.tolist() == [LAST_STEP] * 3
        assert step.observation.shape == (3, 4, 5)
        assert step.observation[:, 0].sum(-1).tolist() == [1.0] * 3
        assert set(step.reward.tolist()) <= {-1.0, 1.0}
    assert all(step.step_type.tolist() == [MID_STEP] * 3 for step in (*steps[:2], *steps[3:5]))


def test_specs_say_what_is_shown():
    env = host_catch(2, rows=4, columns=5)
    assert env.observation_spec.batched(2).shape == tuple(env.reset().observation.shape)
    assert env.action_spec.num_actions == 3
    vectorised = VectorisedCatch(Catch(4, 5), 6, DrawnColumns(Catch(4, 5), 6, torch.Generator().manual_seed(0)))
    assert vectorised.observation_spec.batched(6).shape == tuple(vectorised.reset().observation.shape)
    assert tuple(vectorised.step(torch.zeros(6, dtype=torch.long)).reward.shape) == (6,)


SMALL = AgentConfig(
    meta_net=MetaNetConfig(prediction_size=4, hidden_size=5),
    rule=DiscoConfig(num_bins=5, max_abs_value=2.0),
    net=AgentNetConfig(dense=(8, 6), head_mlp_hiddens=(4,), lstm_size=4),
)


def acting_parts(rows, columns, length=23, batch=3, dtype=torch.float64):
    env, generator = Catch(rows, columns, dtype), torch.Generator().manual_seed(2)
    agent = Agent(SMALL, env.observation_shape, 3)
    params = agent.initial_learner_state(generator, dtype).params
    params |= {name: 3000 * params[name] for name in ("heads/logits/w", "heads/logits/b")}  # a fresh policy is uniform
    noise = -torch.log(-torch.log(torch.rand(length, batch, 3, generator=generator, dtype=dtype)))
    stream = acting.start(env, env.draw_columns(generator, batch))
    return env, agent, params, stream, noise, env.draw_columns(generator, length, batch)


def by_steps(env, agent, params, stream, noise, columns):
    """What an agent and an environment do step by step."""
    taken = []
    for now, following in zip(noise, columns, strict=True):
        step = agent.actor_step(params, stream.timestep, now)
        taken.append((step.observations, step.actions, step.rewards, step.discounts, step.logits))
        stream = acting.Stream(*env.step(stream.state, step.actions, following))
    return [torch.stack(field) for field in zip(*taken, strict=True)], stream


@pytest.mark.parametrize(("rows", "columns"), SIZES, ids=str)
def test_a_rollout_is_what_agent_and_environment_do_step_by_step(rows, columns):
    env, agent, params, stream, noise, following = acting_parts(rows, columns)
    expected, end = by_steps(env, agent, params, stream, noise, following)
    rollout, stream = acting.unroll(env, params, stream, noise, following)
    got = (rollout.observations, rollout.actions, rollout.rewards, rollout.discounts, rollout.agent_outs["logits"])
    for ref, value in zip(expected, got, strict=True):
        assert ref.dtype == value.dtype and torch.equal(ref, value)
    assert bool(expected[-1].std(-1).max() > 0.5)
    for ref, value in zip((*end.state, *end.timestep), (*stream.state, *stream.timestep), strict=True):
        assert torch.equal(ref, value)


def test_a_stream_goes_on_where_it_stopped():
    env, _, params, stream, noise, columns = acting_parts(5, 5, length=20)
    whole, _ = acting.unroll(env, params, stream, noise, columns)
    first, stream = acting.unroll(env, params, stream, noise[:9], columns[:9])
    second, _ = acting.unroll(env, params, stream, noise[9:], columns[9:])
    for name in ("observations", "actions", "rewards", "discounts"):
        assert torch.equal(getattr(whole, name), torch.cat((getattr(first, name), getattr(second, name)))), name


def test_acting_computes_logits_only():
    env, _, params, stream, noise, columns = acting_parts(5, 5)
    needed = {name: x for name, x in params.items() if name.startswith(("torso/", "heads/logits/"))}
    rollout, _ = acting.unroll(env, needed, stream, noise, columns)
    assert set(rollout.agent_outs) == {"logits"}
    every = agent_net.unroll(params, rollout.observations)["logits"]
    assert torch.equal(agent_net.policy_logits(params, rollout.observations, lead=2), every)
    assert torch.equal(agent_net.policy(params)(rollout.observations.flatten(0, 1)), every.flatten(0, 1))


def test_an_agent_that_has_diverged_is_named_with_step_and_environment():
    env, _, params, stream, noise, columns = acting_parts(5, 5)

    shown = stream.timestep.observation
    other = next(i for i in range(1, len(shown)) if not torch.equal(shown[i], shown[0]))

    def policy(given):
        def logits(seen):
            is_odd = (seen == shown[other]).flatten(1).all(1)
            return agent_net.policy(given)(seen).masked_fill(is_odd.unsqueeze(1), float("nan"))

        return logits

    with pytest.raises(ValueError, match=f"not finite at step 0 in environment {other}"):
        acting.unroll(env, params, stream, noise, columns, policy)


@pytest.mark.parametrize("part", ["noise", "columns"])
def test_noise_of_another_shape_is_refused(part):
    env, _, params, stream, noise, columns = acting_parts(5, 5)
    noise, columns = (noise[:, :2], columns) if part == "noise" else (noise, columns[:, :2])
    with pytest.raises(ValueError, match=r"3 environments with 3 actions take noise of \[L, 3, 3\]"):
        acting.unroll(env, params, stream, noise, columns)


def test_random_integers_are_those_of_jax():
    assert spread_seed(1, 3) == SEEDS_OF_1
    assert threefry.uniform(threefry.prng_key(0), 2).tolist() == UNIFORM_OF_0


def test_columns_of_the_original_do_not_depend_on_how_many_are_asked_for_at_once():
    one, other = (OriginalColumns(Catch(5, 5), 3, seed=4) for _ in range(2))
    assert torch.equal(one.first(), other.first())
    assert torch.equal(torch.cat((one.draw(2), one.draw(5))), other.draw(7))
