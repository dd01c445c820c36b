"""The fast learner step is the plain one: the same numbers up to rounding, whichever of its parts are there."""

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import port
from port import ops, trees
from port.adapter.curves import agent_config
from port.agent import Agent
from port.config import DiscoConfig
from port.fast import disco, fused_kl, learner, network, parallel, unique_rows
from port.fast.learner import Parts
from port.network import MlpNetwork
from port.networks import agent_net, init
from port.strategy import Plain
from port.types import Rollout
from port.value_fns import value_utils
from reports.speed import workload
from tests.test_speed import LOOP, TINY

ACTIONS = 4
OF = torch.tensor([2, 0, 0, 1, 2, 2])  # six states [3, 2] of three unique rows
LEAD = (3, 2)
ULPS = 256  # sums here have at most 6 * 4 * 4 * 5 = 480 terms, whose order is all that differs
PARTS = {
    "all": Parts(),
    "no unique rows": Parts(has_unique_rows=False),
    "no taken actions": Parts(has_taken_actions=False),
    "no fused losses": Parts(has_fused_losses=False),
    "no threads": Parts(has_threads=False),
}
SIZES = {
    "small": {},
    "one transition": {"rollout_length": 2},
    "one environment": {"batch_size": 1, "replay_ratio": 1},
    "wide": {"rollout_length": 4, "batch_size": 64, "replay_ratio": 32, "capacity": 64},
}


@contextmanager
def of_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def drawn(*shape, scale=1.0, seed=0, dtype=torch.float64):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def made(folder, dtype=torch.float64, **loop):
    """An agent, its state after a step, meta-parameters and a rollout."""
    setting = workload.evaluation(folder, TINY, **{**LOOP, **loop})
    agent = Agent(agent_config(setting), (5, 4, 1), ACTIONS, path="plain")
    generator = torch.Generator().manual_seed(0)
    state = agent.initial_learner_state(generator, dtype)
    meta_params = init.init_meta_params(agent.config.meta_net, generator, dtype)
    x = {name: torch.from_numpy(value) for name, value in workload.batch(setting, ACTIONS, 0).items()}
    rewards, logits = x.pop("rewards").to(dtype), x.pop("logits").to(dtype)
    rollout = Rollout(**x, rewards=rewards, agent_outs={"logits": logits})
    return agent, agent.learner_step(rollout, state, meta_params)[0], meta_params, rollout


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    return made(tmp_path_factory.mktemp("none"))


def with_boards(rollout, are_shared):
    """The rollout with few observations that come again and again, or of which no two are alike."""
    boards = rollout.observations
    if are_shared:
        few = boards.flatten(0, 1)[: max(1, boards.shape[0] * boards.shape[1] // 4)]
        order = torch.arange(boards.shape[0] * boards.shape[1]) * 7 % len(few)
        return replace(rollout, observations=few[order].view_as(boards))
    noise = torch.rand(boards.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return replace(rollout, observations=boards + noise)


def chosen(agent, parts):
    """The agent with a fast strategy of some parts."""
    fast = Agent(agent.config, agent.obs_spec, agent.num_actions, path="fast")
    fast.strategy = learner.make(fast.plain, parts)
    return fast


def assert_rounding_apart(got, ref):
    """Every tensor of two records is the same up to some units in the last place of its largest number."""
    got, ref = trees.flatten(got), trees.flatten(ref)
    assert got.keys() == ref.keys()
    for name, want in ref.items():
        have, want = got[name].detach(), want.detach()
        assert (have.shape, have.dtype) == (want.shape, want.dtype), name
        if want.is_floating_point():
            bound = ULPS * torch.finfo(want.dtype).eps * float(want.abs().max())
            assert float((have - want).abs().max()) <= bound, (name, float((have - want).abs().max()) / bound)
        else:
            assert torch.equal(have, want), name


def assert_same_step(got, ref):
    """Two results of a learner step; new parameters are left to the moments, since Adam blows up gradients near 0."""
    (state, logs), (ref_state, ref_logs) = got, ref
    for part in ("opt_state", "meta_state"):
        assert_rounding_apart(getattr(state, part), getattr(ref_state, part))
    assert_rounding_apart(logs, ref_logs)
    assert not any(x.requires_grad for x in trees.flatten(logs["meta_out"]).values())
    assert not any(x.requires_grad for x in trees.flatten(state).values())


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("are_shared", [True, False], ids=["shared", "all different"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_a_fast_learner_step_is_a_plain_one(tmp_path, monkeypatch, size, dtype, are_shared, threads):
    agent, state, meta_params, rollout = made(tmp_path, dtype, **SIZES[size])
    rollout = with_boards(rollout, are_shared)
    ref = agent.learner_step(rollout, state, meta_params)
    monkeypatch.setattr(parallel, "ROWS", 2)
    with of_threads(threads):
        got = chosen(agent, Parts()).learner_step(rollout, state, meta_params)
        assert torch.get_num_threads() == threads
    assert_same_step(got, ref)
    assert all(bool(x.any()) for x in ref[0].opt_state.mu.values())


@pytest.mark.parametrize("are_shared", [True, False], ids=["shared", "all different"])
@pytest.mark.parametrize("name", PARTS)
def test_no_part_of_the_fast_path_changes_what_is_learned(given, monkeypatch, name, are_shared):
    agent, state, meta_params, rollout = given
    rollout = with_boards(rollout, are_shared)
    monkeypatch.setattr(parallel, "ROWS", 2)
    with of_threads(2):
        got = chosen(agent, PARTS[name]).learner_step(rollout, state, meta_params)
    assert_same_step(got, agent.learner_step(rollout, state, meta_params))


def test_loss_and_gradients_of_both_paths_are_the_same(given):
    agent, state, meta_params, rollout = given
    _, logs = agent.learner_step(rollout, state, meta_params)
    fast = chosen(agent, Parts())
    got, ref = (each.loss_and_grads(state.params, rollout, logs["meta_out"]) for each in (fast, agent))
    assert_rounding_apart(got[0], ref[0])
    assert_rounding_apart(got[1], ref[1])


def test_the_fast_path_is_taken_where_it_works(given):
    config, spec = given[0].config, given[0].obs_spec
    other = Other(config, spec, ACTIONS)
    assert isinstance(Agent(config, spec, ACTIONS).strategy, learner.Fast)
    for agent in (Agent(config, spec, ACTIONS, path="plain"), Agent(config, spec, ACTIONS, other)):
        assert type(agent.strategy) is Plain
    assert type(Agent(port.get_settings_actor_critic(), spec, ACTIONS).strategy) is Plain
    with pytest.raises(ValueError, match="fast path is for an MlpNetwork, not for a Other"):
        Agent(config, spec, ACTIONS, other, path="fast")
    with pytest.raises(ValueError, match="compiled path is for Disco, not for ActorCritic"):
        Agent(port.get_settings_actor_critic(), spec, ACTIONS, path="compiled")
    with pytest.raises(ValueError, match="no path called 'quick'; there are: auto, plain"):
        Agent(config, spec, ACTIONS, path="quick")


def test_nothing_outside_knows_of_the_fast_path():
    folder = Path(port.__file__).parent
    files = [file for file in folder.rglob("*.py") if not file.is_relative_to(folder / "fast")]
    lines = {
        (file.relative_to(folder).as_posix(), line.partition("  #")[0])
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) port\.fast", line)
    }
    assert lines == {
        ("__init__.py", "import port.fast.omp"),
        ("agent.py", "from port.fast import learner"),
    }


class Other:
    """A network of a user's own."""

    def __init__(self, *given):
        self.inner = MlpNetwork(*given)

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_meta_training_takes_the_plain_path(given, monkeypatch):
    agent, state, meta_params, rollout = given
    monkeypatch.setattr(network, "unroll_learning", None)  # would fail if it were asked
    tracked = {name: p.clone().requires_grad_() for name, p in meta_params.items()}
    new, _ = chosen(agent, Parts()).learner_step(rollout, state, tracked, is_meta_training=True)
    assert all(x.requires_grad for x in new.opt_state.mu.values())


@pytest.mark.parametrize("are_shared", [True, False], ids=["shared", "all different"])
def test_all_outputs_are_those_of_the_unroll_and_the_loss_learns_on_those_of_the_actions_taken(given, are_shared):
    _, state, _, rollout = given
    boards = with_boards(rollout, are_shared)
    ref = agent_net.unroll(state.params, boards.observations)
    out = network.unroll_learning(state.params, boards.observations, boards.actions)
    assert isinstance(out.heads["q"], unique_rows.Shared) == are_shared
    for outputs in (out, network.unroll(state.params, boards.observations)):
        assert_rounding_apart(dict(outputs), ref)
    taken = {h: ops.batch_lookup(x, boards.actions) if h in agent_net.MODEL_HEADS else x for h, x in ref.items()}
    assert_rounding_apart(dict(out.learned), {head: x[:-1] for head, x in taken.items()})


def test_a_thread_whose_rows_are_all_of_the_bootstrap_step_learns_nothing(given, monkeypatch):
    agent, state, meta_params, rollout = given
    fields = ("observations", "actions", "rewards", "discounts")
    cut = {name: getattr(rollout, name)[:2] for name in fields}
    short = with_boards(Rollout(**cut, agent_outs={"logits": rollout.agent_outs["logits"][:2]}), are_shared=False)
    monkeypatch.setattr(parallel, "ROWS", 1)
    with of_threads(2):
        got = chosen(agent, Parts()).learner_step(short, state, meta_params)
    assert_same_step(got, agent.learner_step(short, state, meta_params))


def test_asking_which_heads_there_are_spreads_none():
    out = unique_rows.SharedOutputs({"q": unique_rows.over_time(torch.zeros(2, 3), torch.tensor([0, 1, 1, 0]), (2, 2))})
    assert "q" in out and "v" not in out and list(out) == ["q"]
    assert not out._spread
    assert out["q"].shape == out.heads["q"].shape == (2, 2, 3)


def test_what_cannot_be_chosen_counts_nothing_beside_rows_in_which_all_can():
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [0.0, 1.0, 2.0]], dtype=torch.float64)
    got = ops.categorical_entropy(logits)
    assert got[0] == pytest.approx(float(ops.categorical_entropy(logits[0, :2])))
    assert got[1] == pytest.approx(float(ops.categorical_entropy(logits[1])))


def test_unique_rows_are_those_of_different_bits():
    rows = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 1.0], [0.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
    first, of = unique_rows.find_unique(rows)
    assert len(first) == 2
    assert torch.equal(rows[first][of], rows)
    assert unique_rows.find_unique(torch.arange(12.0).view(6, 2)) is None
    minus = rows.clone()
    minus[2, 0] = -0.0
    assert len(unique_rows.find_unique(minus).first) == 3
    assert unique_rows.find_unique(rows.clone().requires_grad_()) is None


def test_wide_rows_are_told_apart_by_columns_that_are_not_looked_at_first():
    rows = torch.zeros(8, 3 * unique_rows.SOME)
    rows[::2, 1] = 1.0  # every third column is looked at first
    assert len(unique_rows.find_unique(rows).first) == 2
    rows[:, 0] = torch.arange(8.0)
    assert unique_rows.find_unique(rows) is None


def test_two_rows_that_get_the_same_number_are_not_taken_for_one(monkeypatch):
    monkeypatch.setattr(unique_rows, "_factors", lambda size, device: torch.zeros(size, dtype=torch.int64))
    assert unique_rows.find_unique(torch.tensor([[0.0], [1.0], [0.0], [0.0]])) is None


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


def shared(width, scale=1.0):
    rows = drawn(3, width, scale=scale).requires_grad_()
    return rows, unique_rows.over_time(rows, OF, LEAD)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 200.0])
def test_the_divergence_and_its_gradient_are_those_of_the_general_way(scale, monkeypatch):
    monkeypatch.setattr(parallel, "CHUNK", 10)  # two rows
    rows, predicted = shared(5, scale)
    target, weights = drawn(*LEAD, 5, scale=scale, seed=1), drawn(*LEAD, seed=2)
    got, got_entropy = fused_kl.kl_and_entropy(target, predicted)
    ref, ref_entropy = ops.kl_and_entropy(target, predicted.spread())
    torch.testing.assert_close(got, ref, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(got_entropy, ref_entropy.detach(), rtol=1e-12, atol=1e-14)
    assert not got_entropy.requires_grad
    got_grad, ref_grad = (torch.autograd.grad((kl * weights).sum(), rows)[0] for kl in (got, ref))
    torch.testing.assert_close(got_grad, ref_grad, rtol=1e-11, atol=1e-14)
    assert bool(ref_grad.abs().max() > 1e-5)


@pytest.mark.parametrize("is_wanted", [False, True])
def test_the_divergence_knows_about_what_cannot_be(is_wanted):
    rows, _ = shared(4)
    with torch.no_grad():
        rows[:, 1] = -torch.inf
    predicted = unique_rows.over_time(rows, OF, LEAD)
    target = drawn(*LEAD, 4, seed=1)
    if not is_wanted:
        target[..., 1] = -torch.inf
    got, got_entropy = fused_kl.kl_and_entropy(target, predicted)
    ref, ref_entropy = ops.kl_and_entropy(target, predicted.spread())
    assert bool(ref.isfinite().all()) is not is_wanted and bool(ref_entropy.isfinite().all())
    torch.testing.assert_close(got, ref)
    torch.testing.assert_close(got_entropy, ref_entropy.detach())
    assert not got_entropy.requires_grad


def test_the_divergence_refuses_to_be_differentiated_twice():
    rows, predicted = shared(4)
    kl, _ = fused_kl.kl_and_entropy(drawn(*LEAD, 4, seed=1), predicted)
    with pytest.raises(RuntimeError, match="is_meta_training"):
        torch.autograd.grad(kl.sum(), rows, create_graph=True)


def test_the_value_loss_of_shared_states_and_its_gradient_are_those_of_the_general_way():
    rows, head = shared(9)
    td = drawn(*LEAD, scale=3.0, seed=3)
    td[0, 0], td[1, 0] = 1e6, -1e6  # past the range
    form = value_utils.ValueForm(4.0)
    got, ref = disco.value_loss(head, td, form), value_utils.value_loss_from_td(head.spread(), td, form)
    torch.testing.assert_close(got, ref, rtol=1e-12, atol=1e-14)
    weights = drawn(*LEAD, seed=4)
    got_grad, ref_grad = (torch.autograd.grad((loss * weights).sum(), rows)[0] for loss in (got, ref))
    torch.testing.assert_close(got_grad, ref_grad, rtol=1e-11, atol=1e-14)
