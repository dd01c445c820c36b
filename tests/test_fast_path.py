"""Short cuts of the learner step: a graph only for the actions taken, and outputs that states share.

Nothing of what it learns changes.
"""

from dataclasses import replace

import pytest
import torch

from port import ops, trees
from port.adapter.curves import agent_config
from port.agent import Agent
from port.config import DiscoConfig
from port.fast import parallel, unique_rows
from port.networks import agent_net, init
from port.types import Rollout
from reports.speed import workload
from tests.test_speed import LOOP, TINY

ACTIONS = 4
LEARNED = agent_net.Learned


class Plain:
    """The same network without the short cut."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        if name == "unroll_learning":
            raise AttributeError(name)
        return getattr(self.inner, name)


def first_steps(rollout, steps):
    cut = {name: getattr(rollout, name)[:steps] for name in ("observations", "actions", "rewards", "discounts")}
    return Rollout(**cut, agent_outs={"logits": rollout.agent_outs["logits"][:steps]})


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    setting = workload.evaluation(tmp_path_factory.mktemp("none"), TINY, **LOOP)
    agent = Agent(agent_config(setting), (5, 4, 1), ACTIONS)
    generator = torch.Generator().manual_seed(0)
    state = agent.initial_learner_state(generator, torch.float64)
    meta_params = init.init_meta_params(agent.config.meta_net, generator, torch.float64)
    x = {name: torch.from_numpy(value) for name, value in workload.batch(setting, ACTIONS, 0).items()}
    logits = x.pop("logits").double()
    rollout = Rollout(**{**x, "rewards": x["rewards"].double()}, agent_outs={"logits": logits})
    return agent, state, meta_params, rollout


@pytest.fixture(params=["shared", "all different"])
def boards(given, request):
    """A rollout in which states show the same, or in which no two do."""
    rollout = given[3]
    if request.param == "shared":
        few = rollout.observations.flatten(0, 1)[: len(rollout.actions)]
        return replace(
            rollout, observations=few.repeat(rollout.actions.shape[1], 1, 1, 1).view_as(rollout.observations)
        )
    noise = torch.rand(rollout.observations.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return replace(rollout, observations=rollout.observations + noise)


def test_all_outputs_are_those_of_the_unroll_and_the_loss_learns_on_those_of_the_actions_taken(given, boards):
    agent, state, _, _ = given
    ref = agent_net.step(state.params, boards.observations, lead=2)
    out, learned = agent_net.unroll_learning(state.params, boards.observations, boards.actions)
    assert out.keys() == ref.keys() == learned.keys()
    for head, x in out.items():
        torch.testing.assert_close(x, ref[head], rtol=0, atol=1e-14)
    for head, x in learned.items():
        want = ops.batch_lookup(ref[head], boards.actions) if head in agent_net.MODEL_HEADS else ref[head]
        torch.testing.assert_close(x, want[:-1], rtol=0, atol=1e-14)


def test_states_that_show_the_same_share_their_outputs_where_no_graph_is_kept(given, boards, request):
    _, state, _, _ = given
    is_shared = "shared" in request.node.callspec.id
    with torch.no_grad():
        out = agent_net.unroll(state.params, boards.observations)
    assert isinstance(out, unique_rows.SharedOutputs) == is_shared
    for head, x in agent_net.step(state.params, boards.observations, lead=2).items():
        torch.testing.assert_close(out[head], x, rtol=0, atol=1e-14)
        assert unique_rows.shape(out, head) == tuple(x.shape)
    assert not isinstance(agent_net.unroll(state.params, boards.observations), unique_rows.SharedOutputs)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_learner_step_is_the_same_with_and_without_the_short_cuts(given, boards, monkeypatch, threads):
    agent, state, meta_params, _ = given
    rollout = boards
    plain = Agent(agent.config, agent.obs_spec, ACTIONS, Plain(agent.network))
    monkeypatch.setattr(parallel, "ROWS", 2)
    before, parts = torch.get_num_threads(), []
    monkeypatch.setattr(agent_net, "Learned", lambda *of: parts.append(len(of[0])) or LEARNED(*of))
    torch.set_num_threads(threads)
    try:
        got, got_logs = agent.learner_step(rollout, state, meta_params)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert parts == [threads]
    monkeypatch.setattr(unique_rows, "kinds", lambda rows: None)
    ref, ref_logs = plain.learner_step(rollout, state, meta_params)
    for name, x in ref.opt_state.mu.items():  # a tenth of the gradient; Adam's direction would hide its size
        torch.testing.assert_close(got.opt_state.mu[name], x, rtol=1e-11, atol=1e-15)
        assert bool(x.any()), name
    meta_out, ref_meta_out = (trees.flatten(logs.pop("meta_out")) for logs in (got_logs, ref_logs))
    assert got_logs.keys() == ref_logs.keys() and meta_out.keys() == ref_meta_out.keys()
    for got_part, ref_part in ((got_logs, ref_logs), (meta_out, ref_meta_out)):
        for name, x in ref_part.items():
            torch.testing.assert_close(got_part[name], x, rtol=1e-11, atol=1e-14)
    for name, x in trees.flatten(ref.meta_state).items():
        torch.testing.assert_close(trees.flatten(got.meta_state)[name], x, rtol=1e-11, atol=1e-14)
    assert not any(x.requires_grad for x in (*got.params.values(), *meta_out.values()))


def test_a_thread_whose_rows_are_all_of_the_bootstrap_step_learns_nothing(given, monkeypatch):
    agent, state, meta_params, rollout = given
    short = first_steps(rollout, 2)
    monkeypatch.setattr(unique_rows, "kinds", lambda rows: None)
    ref, _ = agent.learner_step(short, state, meta_params)
    monkeypatch.setattr(parallel, "ROWS", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        got, _ = agent.learner_step(short, state, meta_params)
    finally:
        torch.set_num_threads(before)
    for name, x in ref.opt_state.mu.items():
        torch.testing.assert_close(got.opt_state.mu[name], x, rtol=1e-11, atol=1e-15)


def test_asking_which_heads_there_are_spreads_none():
    out = unique_rows.SharedOutputs({"q": unique_rows.over_time(torch.zeros(2, 3), torch.tensor([0, 1, 1, 0]), (2, 2))})
    assert "q" in out and "v" not in out and list(out) == ["q"]
    assert not out._spread
    assert out["q"].shape == unique_rows.shape(out, "q") == (2, 2, 3)


def test_what_cannot_be_chosen_counts_nothing_beside_rows_in_which_all_can():
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [0.0, 1.0, 2.0]], dtype=torch.float64)
    got = ops.categorical_entropy(logits)
    assert got[0] == pytest.approx(float(ops.categorical_entropy(logits[0, :2])))
    assert got[1] == pytest.approx(float(ops.categorical_entropy(logits[1])))


def test_kinds_are_rows_of_the_same_bits():
    rows = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 1.0], [0.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
    first, of = unique_rows.kinds(rows)
    assert len(first) == 2
    assert torch.equal(rows[first][of], rows)
    assert unique_rows.kinds(torch.arange(12.0).view(6, 2)) is None
    minus = rows.clone()
    minus[2, 0] = -0.0
    assert len(unique_rows.kinds(minus).first) == 3
    assert unique_rows.kinds(rows.clone().requires_grad_()) is None


def test_wide_rows_are_told_apart_by_columns_that_are_not_looked_at_first():
    rows = torch.zeros(8, 3 * unique_rows.SOME)
    rows[::2, 1] = 1.0  # every third column is looked at first
    assert len(unique_rows.kinds(rows).first) == 2
    rows[:, 0] = torch.arange(8.0)
    assert unique_rows.kinds(rows) is None


def test_two_kinds_that_get_the_same_number_are_not_taken_for_one(monkeypatch):
    monkeypatch.setattr(unique_rows, "_factors", lambda size, device: torch.zeros(size, dtype=torch.int64))
    assert unique_rows.kinds(torch.tensor([[0.0], [1.0], [0.0], [0.0]])) is None


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


def test_targets_get_their_gradient_in_meta_training_whatever_is_learned_on(given):
    agent, state, meta_params, rollout = given
    _, logs = agent.learner_step(rollout, state, meta_params)
    seen, learned = agent_net.unroll_learning(state.params, rollout.observations, rollout.actions)
    targets = {name: logs["meta_out"][name].clone().requires_grad_() for name in ("pi", "y", "z")}
    for own in (learned, None):
        total, _ = agent.loss(rollout, seen, {**logs["meta_out"], **targets}, is_meta_training=True, learned=own)
        assert all(bool(grad.any()) for grad in torch.autograd.grad(total, list(targets.values())))


def test_meta_training_keeps_the_whole_graph(given, monkeypatch):
    agent, state, meta_params, rollout = given
    monkeypatch.setattr(agent_net, "unroll_learning", None)  # would fail if it were asked
    tracked = {name: p.clone().requires_grad_() for name, p in meta_params.items()}
    new, _ = agent.learner_step(rollout, state, tracked, is_meta_training=True)
    assert all(x.requires_grad for x in new.opt_state.mu.values())
