"""The learner step keeps a graph of the action model only for the actions taken: nothing of what it learns changes."""

import pytest
import torch

from port import agent_net, init, ops
from port.adapter.curves import agent_config
from port.agent import Agent
from port.config import DiscoConfig
from port.types import Rollout
from reports import speed_work
from tests.test_speed import LOOP, TINY

ACTIONS = 4


class Plain:
    """The same network without the short cut."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        if name == "unroll_taken":
            raise AttributeError(name)
        return getattr(self.inner, name)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    setting = speed_work.evaluation(tmp_path_factory.mktemp("none"), TINY, **LOOP)
    agent = Agent(agent_config(setting), (5, 4, 1), ACTIONS)
    generator = torch.Generator().manual_seed(0)
    state = agent.initial_learner_state(generator, torch.float64)
    meta_params = init.init_meta_params(agent.config.meta_net, generator, torch.float64)
    x = {name: torch.from_numpy(value) for name, value in speed_work.batch(setting, ACTIONS, 0).items()}
    logits = x.pop("logits").double()
    rollout = Rollout(**{**x, "rewards": x["rewards"].double()}, agent_outs={"logits": logits})
    return agent, state, meta_params, rollout


def test_all_outputs_are_those_of_the_unroll_and_the_taken_ones_are_looked_up_in_them(given):
    agent, state, _, rollout = given
    ref = agent_net.unroll(state.params, rollout.observations)
    out, taken = agent_net.unroll_taken(state.params, rollout.observations, rollout.actions)
    assert out.keys() == ref.keys() and set(taken) == set(agent_net.MODEL_HEADS)
    for head, x in out.items():
        torch.testing.assert_close(x, ref[head], rtol=0, atol=1e-14)
    for head, x in taken.items():
        torch.testing.assert_close(x, ops.batch_lookup(ref[head], rollout.actions), rtol=0, atol=1e-14)


def test_a_learner_step_is_the_same_with_and_without_the_short_cut(given):
    agent, state, meta_params, rollout = given
    plain = Agent(agent.config, agent.obs_spec, ACTIONS, Plain(agent.network))
    (got, got_logs), (ref, ref_logs) = (a.learner_step(rollout, state, meta_params) for a in (agent, plain))
    for name, x in ref.opt_state.mu.items():  # a tenth of the gradient; Adam's direction would hide its size
        torch.testing.assert_close(got.opt_state.mu[name], x, rtol=1e-11, atol=1e-15)
        assert bool(x.any()), name
    torch.testing.assert_close(got_logs["total_loss"], ref_logs["total_loss"], rtol=1e-13, atol=0)
    assert not any(x.requires_grad for x in got.params.values())


def test_the_loss_of_disco_reads_the_model_only_at_the_actions_taken(given):
    agent, state, meta_params, rollout = given
    assert isinstance(agent.config.rule, DiscoConfig)
    _, logs = agent.learner_step(rollout, state, meta_params)
    out = {h: x.requires_grad_() for h, x in agent_net.unroll(state.params, rollout.observations).items()}
    total, _ = agent.loss(rollout, out, logs["meta_out"])
    others = torch.nn.functional.one_hot(rollout.actions.long(), ACTIONS) == 0  # [T+1, B, A]
    for head in agent_net.MODEL_HEADS:
        (grad,) = torch.autograd.grad(total, out[head], retain_graph=True)
        assert bool(grad.any()) and not bool(grad[others].any())


def test_meta_training_keeps_the_whole_graph(given, monkeypatch):
    agent, state, meta_params, rollout = given
    monkeypatch.setattr(agent_net, "unroll_taken", None)  # would fail if it were asked
    tracked = {name: p.clone().requires_grad_() for name, p in meta_params.items()}
    new, _ = agent.learner_step(rollout, state, tracked, is_meta_training=True)
    assert all(x.requires_grad for x in new.opt_state.mu.values())
