"""The trainer: it is the evaluation loop in any world, resumes to the same bits, and learns nothing from nonsense."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from port import trees
from port.agent import Agent
from port.config import PolicyGradientConfig, get_settings_actor_critic
from port.environments import Catch
from port.evaluate.eval_loop import EvalConfig, EvalLoop
from port.examples import own_network, step_functions
from port.rollout_checks import check_learned
from port.storage import checkpoint
from port.train import CatchWorld, StepFunctions, TrainConfig, Trainer, load_rule
from tests.small_rule import AGENT, CONFIG, meta_params, same

NORMS = ("global_gradient_norm", "global_update_norm")


def catch_trainer(out=None, **changes):
    world = CatchWorld(Catch(4, 3, replace(CONFIG, **changes).torch_dtype), 2)
    return Trainer(world, AGENT, meta_params(), replace(CONFIG, **changes), out=out)


def corridor():
    return StepFunctions(step_functions.reset, step_functions.step, num_actions=2)


def corridor_trainer(out=None, **changes):
    return Trainer(corridor(), AGENT, meta_params(), replace(CONFIG, **changes), out=out)


def gym_trainer(out=None, **changes):
    gymnasium = pytest.importorskip("gymnasium")
    return Trainer(
        gymnasium.make_vec("CartPole-v1", num_envs=2), AGENT, meta_params(), replace(CONFIG, **changes), out=out
    )


MAKERS = {"catch": catch_trainer, "functions": corridor_trainer, "gymnasium": gym_trainer}


def test_on_catch_it_is_the_evaluation_loop_to_the_last_bit():
    loop = EvalConfig(num_steps=12, batch_size=4, rollout_length=6, replay_ratio=2, capacity=16, rows=4, columns=3)
    agent = Agent(AGENT, (4, 3, 1), 3)
    reports = []
    EvalLoop(agent, meta_params(), loop).run(reports.append)
    trainer = catch_trainer(checkpoint_every=0)
    trainer.run(12)
    assert same(trees.flatten(trainer.state), trees.flatten(reports[-1].state))
    assert trainer.frames == reports[-1].frames


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_run_in_two_pieces_is_the_run_in_one(make, tmp_path):
    whole = make(tmp_path / "whole")
    whole.run(9)
    first = make(tmp_path / "pieces")
    first.run(5)  # two rollouts past the checkpoint after 3
    second = make(tmp_path / "pieces")
    assert second.step == 3
    second.run(9)
    assert same(trees.flatten(second.state), trees.flatten(whole.state))
    assert (second.frames, second.episodes, second.mean_return) == (whole.frames, whole.episodes, whole.mean_return)
    for name in ("checkpoint.safetensors", "log.csv", "agent.npz", "config.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "pieces" / name).read_bytes(), name


def test_a_folder_changes_no_number(tmp_path):
    with_folder, without = gym_trainer(tmp_path), gym_trainer()
    with_folder.run(5)
    without.run(5)
    assert same(with_folder.params, without.params)


def test_another_seed_is_another_run():
    runs = [catch_trainer(seed=seed) for seed in (0, 1)]
    for run in runs:
        run.run(4)
    assert not same(runs[0].params, runs[1].params)


def test_a_write_that_is_cut_short_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    trainer = catch_trainer(tmp_path)
    trainer.run(3)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()

    def fail(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        trainer.run(6)
    monkeypatch.undo()
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    again, whole = catch_trainer(tmp_path), catch_trainer()
    again.run(6)
    whole.run(6)
    assert same(again.params, whole.params)


CHILD = """
import sys
from tests.test_trainer import gym_trainer
from pathlib import Path
gym_trainer(Path(sys.argv[1]), checkpoint_every=20).run(400)
"""


def test_a_run_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    pytest.importorskip("gymnasium")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for checkpoints in (1, 3):  # killed a moment after so many more checkpoints
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], env=environment)
        for _ in range(checkpoints):
            _wait_for_change(tmp_path / "checkpoint.safetensors", child)
        time.sleep(0.05 * checkpoints)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    again = gym_trainer(tmp_path, checkpoint_every=20)
    reached = again.step
    assert 0 < reached < 400
    whole = gym_trainer(checkpoint_every=20)
    again.run(reached + 20)
    whole.run(reached + 20)
    assert same(trees.flatten(again.state), trees.flatten(whole.state))
    assert again.mean_return == whole.mean_return


def _wait_for_change(path, child):
    stamp = path.stat().st_mtime_ns if path.exists() else None
    while child.poll() is None and (not path.exists() or path.stat().st_mtime_ns == stamp):
        time.sleep(0.005)
    assert child.returncode is None, "the run ended before it could be killed"


def test_other_settings_do_not_continue_a_run(tmp_path):
    catch_trainer(tmp_path).run(3)
    with pytest.raises(ValueError, match=r"train.batch_size 4 -> 8.*another --out"):
        catch_trainer(tmp_path, batch_size=8)
    other = {name: p + 1 for name, p in meta_params().items()}
    with pytest.raises(ValueError, match="meta_params"):
        Trainer(CatchWorld(Catch(4, 3), 2), AGENT, other, CONFIG, out=tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    catch_trainer(tmp_path).run(3)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        catch_trainer(tmp_path)


class Faulty:
    """Catch that says something that is no number, once."""

    def __init__(self, field, at, value):
        self._world, self._field, self._at, self._value, self._count = CatchWorld(Catch(4, 3), 2), field, at, value, 0

    def __getattr__(self, name):
        return getattr(self._world, name)

    def step(self, actions, generator):
        step = self._world.step(actions, generator)
        self._count += 1
        if self._count == self._at:
            getattr(step, self._field)[1] = self._value
        return step


@pytest.mark.parametrize(("field", "name"), [("rewards", "reward"), ("observations", "observation")])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nothing_is_learned_from_what_is_no_number(field, name, value):
    trainer = Trainer(Faulty(field, 5 * 6 + 3, value), AGENT, meta_params(), CONFIG)
    trainer.run(5)
    before, kept = dict(trainer.params), trainer._buffer._added
    with pytest.raises(ValueError, match=rf"Rollout 5 .*step 30.*{name} of environment 1 is {value} at step 2"):
        trainer.run(6)
    assert same(before, trainer.params) and trainer._buffer._added == kept and trainer.step == 5
    trainer.run(7)  # goes on with fresh episodes
    assert not same(before, trainer.params)


@pytest.mark.parametrize("maker", [catch_trainer, corridor_trainer])
def test_a_learner_step_that_overflows_stops_the_run_and_keeps_its_last_checkpoint(maker, tmp_path):
    trainer = maker(tmp_path, checkpoint_every=2)
    trainer.run(4)
    kept, before = (tmp_path / "checkpoint.safetensors").read_bytes(), trees.flatten(trainer.state)
    for x in trainer._buffer._kept["rewards"]:
        x.fill_(3e38)  # finite, with squares that are not
    with pytest.raises(FloatingPointError, match="overflowed after rollout 4: .* is not finite. Nothing was learned"):
        trainer.run(6)
    assert same(before, trees.flatten(trainer.state))
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == kept and trainer.step == 4


@pytest.mark.parametrize("name", ["global_gradient_norm", "global_update_norm", "adv_ema/moment2"])
def test_each_place_in_which_a_step_may_overflow_is_looked_at(name):
    trainer = catch_trainer()
    memory = trainer.state.meta_state
    spoilt = {"adv_ema": memory.adv_ema._replace(moment2=torch.tensor(float("inf")))} if "/" in name else {}
    logs = {key: torch.tensor(float("nan") if key == name else 1.0) for key in NORMS}
    state = trainer.state._replace(meta_state=memory._replace(**spoilt))
    check_learned(trainer.state, dict.fromkeys(NORMS, torch.tensor(1.0)), "")
    with pytest.raises(FloatingPointError, match=f"overflowed in step 3: {name} is not finite"):
        check_learned(state, logs, "in step 3")


def test_an_observation_of_another_shape_is_refused():
    world = Faulty("rewards", 0, 0.0)
    world.step = lambda actions, generator: world._world.step(actions, generator)._replace(
        observations=torch.zeros(2, 4, 4, 1)
    )
    trainer = Trainer(world, AGENT, meta_params(), CONFIG)
    with pytest.raises(ValueError, match=r"observation is torch.float32 \(2, 4, 4, 1\); it announced"):
        trainer.run(1)


def test_evaluation_does_not_touch_training():
    one, other = corridor_trainer(), corridor_trainer()
    one.run(4)
    one.evaluate(corridor(), episodes=10)
    one.run(8)
    other.run(8)
    assert same(one.params, other.params)


def test_an_evaluation_counts_as_many_episodes_in_each_environment():
    trainer = corridor_trainer()
    scores = trainer.evaluate(corridor(), episodes=9)
    assert len(scores.returns) == 16 and scores.lengths.max() <= step_functions.LIMIT
    again = trainer.evaluate(corridor(), episodes=9)
    assert np.array_equal(scores.returns, again.returns)
    assert not np.array_equal(scores.returns, trainer.evaluate(corridor(), episodes=9, seed=1).returns)


def test_evaluation_refuses_the_wrong_environments():
    trainer = catch_trainer()
    with pytest.raises(ValueError, match="observations of"):
        trainer.evaluate(corridor())
    with pytest.raises(ValueError, match="learns in"):
        trainer.evaluate(trainer.world)


def test_an_episode_that_is_cut_off_is_worth_what_the_agent_expects_there():
    from port.train import rollouts

    trainer = corridor_trainer(seed=3)
    generator = torch.Generator().manual_seed(0)
    stream = rollouts.begin(trainer.world, generator, torch.float32)
    cut = None
    for _ in range(40):
        step = trainer.world.step(torch.zeros(8, dtype=torch.long), generator)
        if bool(step.is_truncated.any()):
            cut = step
            break
    assert cut is not None and not bool(cut.is_terminal.any())
    value, discount = rollouts.state_values(trainer.agent, trainer.params, cut.final_observations)
    learned = rollouts.learned_rewards(trainer.agent, trainer.params, cut, 2.0, bootstraps=True)
    assert torch.equal(learned, torch.where(cut.is_truncated, cut.rewards * 2 + discount * value, cut.rewards * 2))
    assert torch.equal(rollouts.learned_rewards(trainer.agent, trainer.params, cut, 2.0, False), cut.rewards * 2)
    after, _ = rollouts.follow(stream, cut, learned)
    assert not bool(after.continues[cut.is_truncated].any())
    assert torch.equal(cut.observations.argmax(-1)[cut.is_truncated] < step_functions.CELLS // 2, cut.is_truncated)


def test_the_actor_critic_rule_trains_and_expects_values_too():
    agent = replace(get_settings_actor_critic(), net=AGENT.net)
    trainer = Trainer(corridor(), agent, None, CONFIG)
    trainer.run(6)
    assert trainer.episodes > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rollout_length": 1}, "one transition takes 2"),
        ({"capacity": 3}, "never holds a batch"),
        ({"truncation": "ignore"}, "bootstrap or terminal"),
        ({"dtype": "float16"}, "float32 or float64"),
        ({"reward_scale": 0.0}, "must be positive"),
        ({"checkpoint_every": -1}, "give 0 for none"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **changes)


def test_what_is_no_environment_is_told_so():
    with pytest.raises(TypeError, match="is no environment"):
        Trainer(lambda action: None, AGENT, meta_params())
    with pytest.raises(TypeError, match="how many boards"):
        Trainer(Catch(4, 3), AGENT, meta_params())
    with pytest.raises(ValueError, match="value function beside"):
        Trainer(corridor(), replace(AGENT, rule=PolicyGradientConfig(), hyper=None))


def test_weights_of_another_rule_are_found_before_anything_is_done(tmp_path):
    with pytest.raises(ValueError, match="meta-parameters"):
        Trainer(corridor(), AGENT, load_rule()[1], CONFIG, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_float64_reaches_everything():
    trainer = catch_trainer(dtype="float64")
    trainer.run(4)
    floats = [x for x in trees.flatten(trainer.state).values() if x.is_floating_point()]
    assert {x.dtype for x in floats} == {torch.float64}


def test_rules_go_by_name_and_sizes_by_the_caller():
    agent, rule = load_rule(learning_rate=0.5, dense=(7,))
    assert (agent.learning_rate, agent.net.dense, agent.net.lstm_size) == (0.5, (7,), 32) and rule
    assert load_rule("actor_critic")[1] is None
    with pytest.raises(ValueError, match="no rule called"):
        load_rule("ppo")
    with pytest.raises(ValueError, match="no size called 'width'"):
        load_rule(width=3)


def test_settings_that_differ_deep_inside_are_named(tmp_path):
    old = {"a": {"b": {"c": 1}}, "d": [1, 2]}
    checkpoint.check_same(old, {"a": {"b": {"c": 1}}, "d": (1, 2)}, tmp_path)
    with pytest.raises(ValueError, match="a.b.c 1 -> 2"):
        checkpoint.check_same(old, {"a": {"b": {"c": 2}}, "d": [1, 2]}, tmp_path)


def test_the_example_with_step_functions_learns(tmp_path):
    assert step_functions.main(steps=100, out=tmp_path) > 0.4  # at random it is near -0.6
    assert TrainConfig().is_checkpoint(100) and (tmp_path / "checkpoint.safetensors").exists()


def test_the_example_with_a_network_of_ones_own_runs():
    assert 0.0 <= own_network.main(steps=18) <= 1.0
