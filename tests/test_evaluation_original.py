"""The evaluation loop beside the original's, in float64: its own actions, replay and updates, the same run.

Both start from the same parameters and get the same Gumbel noise. The original's environment draws its columns from a
key; the port draws the same ones by itself. From there on each goes by what it computes. A third run, the original's
with random roundings, takes the actions of the second one: how far its numbers go is sigma.
"""

import dataclasses

import numpy as np
import pytest
import torch

from parity.compare import compare
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.layers.learning import FRESH_LEARNER
from parity.layers.spec import Case
from parity.sigma import NONE, measure
from parity.tolerance import PRECISIONS, SAMPLES
from port import weights
from port.adapter import learning as adapter
from port.adapter.inputs import agent as port_agent
from port.adapter.inputs import by_our_names
from port.environments import Catch, OriginalColumns
from port.evaluate.eval_loop import EvalConfig, EvalLoop

ROWS, COLUMNS, SEED = 5, 4, 3
CONFIG = EvalConfig(
    num_steps=12, batch_size=4, rollout_length=9, replay_ratio=2, capacity=7, rows=ROWS, columns=COLUMNS, seed=SEED
)
LAYER = REGISTRY["agent/learner_step"]
SETTINGS = {
    **LAYER.settings,
    **{"T": CONFIG.rollout_length - 1, "B": CONFIG.batch_size, "A": 3, "obs": (ROWS, COLUMNS, 1)},
    "is_meta_training": False,
}
BITS = (NONE, *[PRECISIONS["float64"]] * SAMPLES)


def start():
    """Parameters, fresh states and meta-parameters by the original's names."""
    drawn = case_inputs(LAYER, Case("loop", SETTINGS, FRESH_LEARNER))
    return {name: value for name, value in drawn.items() if not name.startswith("rollout/")}


def noise():
    shape = (CONFIG.num_steps, CONFIG.rollout_length, CONFIG.num_envs, 3)
    return np.random.default_rng(5).gumbel(size=shape)


@pytest.fixture(scope="module")
def original():
    """Rollouts and losses of the original's loop."""
    pytest.importorskip("disco_rl", reason="the original is not installed; `make original` brings it")
    return OriginalLoop().run()


class OriginalLoop:
    """The notebook's loop on the original's agent in float64 and on its environment in float32, where it runs."""

    def __init__(self):
        import jax
        from disco_rl.environments import jittable_envs
        from ml_collections import config_dict

        from reference.original import implementation

        self.run_layer = lambda layer, x, s: implementation.run(layer, x, s, "float64")
        perturbed = implementation.perturbed(BITS)
        self.run_noisily = lambda layer, x, s: perturbed.run(layer, x, s, "float64")
        config = config_dict.ConfigDict({"rows": ROWS, "columns": COLUMNS})
        env = jittable_envs.CatchJittableEnvironment(CONFIG.num_envs, config)
        self.env_step = jax.jit(env.step)
        self.env_state, self.shown = env.reset(jax.random.PRNGKey(SEED))
        self.learner = start()
        self.noisy_learner = in_one_sample(self.learner)

    def act(self, gumbel):
        observation = np.asarray(self.shown.observation, np.float64)
        is_last = np.asarray(self.shown.step_type) == 2
        params, noisy_params = (
            {name: value for name, value in learner.items() if name.startswith("params/")}
            for learner in (self.learner, self.noisy_learner)
        )
        acting = REGISTRY["agent/actor_step"].settings
        settings = {**{k: SETTINGS[k] for k in acting if k in SETTINGS}, "B": CONFIG.num_envs}
        inputs = {"observation": observation, "is_last": is_last, "gumbel": gumbel}
        out = self.run_layer("agent/actor_step", {**inputs, **params}, settings)
        noisy = self.run_noisily("agent/actor_step", {**in_one_sample(inputs), **noisy_params}, settings)
        step = {
            "observations": observation,
            "actions": out["actions"].astype(np.int32),
            "rewards": np.asarray(self.shown.reward, np.float64),
            "discounts": out["discounts"].astype(np.float64),
            "logits": out["logits"],
            "noisy_logits": np.moveaxis(noisy["logits"], 0, -1),  # [B, A, S]
        }
        self.env_state, self.shown = self.env_step(self.env_state, step["actions"])
        return step

    def run(self):
        rng, kept, rollouts, losses, noisy_losses = np.random.default_rng(CONFIG.replay_seed), [], [], [], []
        for gumbels in noise():
            steps = [self.act(gumbel) for gumbel in gumbels]
            rollout = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
            rollouts.append(rollout)
            kept += [{name: value[:, i] for name, value in rollout.items()} for i in range(CONFIG.num_envs)]
            kept = kept[-CONFIG.capacity :]
            if len(kept) >= CONFIG.batch_size:
                drawn = [kept[i] for i in rng.integers(len(kept), size=CONFIG.batch_size)]
                batch = {f"rollout/{k}": np.stack([d[k] for d in drawn], axis=1) for k in rollout}
                noisy_logits = np.moveaxis(batch.pop("rollout/noisy_logits"), -1, 0)
                noisy_batch = {**in_one_sample(batch), "rollout/logits": noisy_logits}
                out = self.run_layer("agent/learner_step", {**self.learner, **batch}, SETTINGS)
                noisy = self.run_noisily("agent/learner_step", {**self.noisy_learner, **noisy_batch}, SETTINGS)
                losses.append(logs_of(out))
                noisy_losses.append(sigmas_of(logs_of(noisy)))
                self.learner |= {name: out[name] for name in self.learner if name in out}
                self.noisy_learner |= {name: noisy[name] for name in self.learner if name in noisy}
        sigmas = {"logs": noisy_losses, "learner": sigmas_of(self.noisy_learner)}
        return {"rollouts": rollouts, "logs": losses, "learner": self.learner, "sigmas": sigmas}


def in_one_sample(arrays):
    return {name: np.asarray(value)[None] for name, value in arrays.items()}


def logs_of(out):
    return {name.removeprefix("log/"): value for name, value in out.items() if name.startswith("log/")}


def sigmas_of(noisy):
    several = {name: value for name, value in noisy.items() if len(value) == len(BITS)}
    return {name: by_bits[BITS[1]] for name, by_bits in measure(BITS, several, {}).sigmas["value"].items()}


def assert_equal(name, ref, got, sigma):
    row = compare(("eval loop", "", name), "value", "float64", ref, np.asarray(got), sigma)
    assert row.equal, row.sentence()


class GivenNoise:
    """The same noise, and the columns that the original draws from its key."""

    def __init__(self):
        self._noise = iter(noise())
        self._columns = OriginalColumns(Catch(ROWS, COLUMNS), CONFIG.num_envs, SEED)

    def first_columns(self):
        return self._columns.first()

    def rollout(self):
        return torch.from_numpy(next(self._noise)), self._columns.draw(CONFIG.rollout_length)


def run(config=CONFIG):
    tensors = {name: torch.from_numpy(value) for name, value in start().items()}
    agent, state = port_agent(SETTINGS), adapter.learner_state(tensors, SETTINGS)
    meta_params = by_our_names(tensors, SETTINGS).under("meta_params")
    reports = []
    EvalLoop(agent, meta_params, config, torch.float64, state, GivenNoise()).run(reports.append)
    return agent, reports


def test_the_port_repeats_the_originals_run(original):
    agent, reports = run()
    for step, (ref, report) in enumerate(zip(original["rollouts"], reports, strict=True)):
        for name in ("observations", "actions", "rewards"):
            assert np.array_equal(ref[name], getattr(report.rollout, name).numpy()), (step, name)
        assert np.array_equal(ref["discounts"] > 0, report.rollout.discounts.numpy()), step
    learned = [report.logs for report in reports if report.logs]
    assert len(learned) == len(original["logs"]) == 11
    for step, (ref, got) in enumerate(zip(original["logs"], learned, strict=True)):
        assert ref.keys() == got.keys()
        for name in ref:
            assert_equal(f"{name} of step {step}", ref[name], got[name], original["sigmas"]["logs"][step][name])
    got = weights.agent_params_to_original(reports[-1].state.params, agent.config)
    for name, value in got.items():
        path = f"params/{name}"
        assert_equal(name, original["learner"][path], value, original["sigmas"]["learner"][path])


def test_the_run_is_long_enough_to_tell(original):
    actions = np.stack([rollout["actions"] for rollout in original["rollouts"]])
    assert set(actions.flatten()) == {0, 1, 2}
    assert len({float(log["total_loss"]) for log in original["logs"]}) == 11
    ends = sum((rollout["discounts"] == 0).sum() for rollout in original["rollouts"])
    assert ends >= 40


def test_another_replay_would_be_seen(original):
    _, reports = run(dataclasses.replace(CONFIG, replay_seed=18))
    losses = [report.logs["total_loss"] for report in reports if report.logs]
    gaps = [abs(log["total_loss"] - loss) for log, loss in zip(original["logs"], losses, strict=True)]
    assert max(gaps) > 1e-3
