"""Meta-gradients of the port: second derivatives in forward mode, recomputation, what is left alone, bad input."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.autograd import forward_ad

import port
from port import optimizers, trees
from port.config import AgentNetConfig, DiscoConfig, MetaNetConfig, MetaRnnConfig
from port.meta_train import meta_gradient, recompute
from port.meta_train.meta_gradient import InnerProblem, LearningState, OuterLossConfig
from port.types import Params, Rollout
from port.value_fns import value_fn

OBS, A, B = (3, 2, 1), 3, 2
CONFIG = port.AgentConfig(
    learning_rate=5e-3,
    rule=DiscoConfig(num_bins=5, max_abs_value=3.0),
    meta_net=MetaNetConfig(prediction_size=4, hidden_size=5, meta_rnn=MetaRnnConfig(hidden_size=3)),
    net=AgentNetConfig(dense=(6, 5), head_mlp_hiddens=(4,), lstm_size=3),
)
VALUE = value_fn.ValueFnConfig(dense=(5,))


def rollout(steps: int, noise: torch.Generator, dtype: torch.dtype) -> Rollout:
    """What an actor could have recorded."""
    return Rollout(
        torch.randn(steps, B, *OBS, generator=noise, dtype=dtype),
        torch.randint(A, (steps, B), generator=noise),
        torch.randn(steps, B, generator=noise, dtype=dtype),
        torch.rand(steps, B, generator=noise) < 0.75,
        {"logits": torch.randn(steps, B, A, generator=noise, dtype=dtype)},
    )


def setup(inner_steps: int = 2, dtype: torch.dtype = torch.float64) -> InnerProblem:
    """A small agent at the start of training."""
    noise = torch.Generator().manual_seed(1)
    agent = port.Agent(CONFIG, OBS, A)
    value_params = value_fn.init_value_params(VALUE, OBS, noise, dtype)
    state = LearningState(agent.initial_learner_state(noise, dtype), value_fn.init_state(value_params))
    meta_params = port.init_meta_params(CONFIG.meta_net, noise, dtype)
    meta_params = {k: p + 0.1 * torch.randn(p.shape, generator=noise, dtype=dtype) for k, p in meta_params.items()}
    train = [rollout(4, noise, dtype) for _ in range(inner_steps)]
    return InnerProblem(agent, VALUE, OuterLossConfig(), meta_params, state, train, rollout(8, noise, dtype))


def direction(params: Params) -> Params:
    noise = torch.Generator().manual_seed(2)
    return {name: torch.randn(p.shape, generator=noise, dtype=p.dtype) for name, p in params.items()}


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_forward_mode_over_the_inner_gradients_gives_the_same_directional_derivative(inner_steps):
    """The loss depends on the meta-parameters through inner gradients, so this is a second derivative by JVP."""
    given = setup(inner_steps)
    along = direction(given.meta_params)
    with forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(p, along[name]) for name, p in given.meta_params.items()}
        loss = meta_gradient.outer_loss(dataclasses.replace(given, meta_params=dual)).loss
        forward = float(forward_ad.unpack_dual(loss).tangent.detach())
    grads = meta_gradient.meta_gradient(given).grads
    backward = sum(float((grads[name] * along[name]).sum()) for name in grads)
    assert abs(backward) > 1e-4
    assert forward == pytest.approx(backward, rel=1e-10)


def test_products_with_the_hessian_of_the_agents_loss_agree_in_both_modes():
    given = setup()
    agent, taken = given.agent, given.train_rollouts[0]
    _, logs = agent.learner_step(taken, given.state.learner, given.meta_params)
    params, along = given.state.learner.params, direction(given.state.learner.params)

    def grads(at: Params) -> Params:
        return agent.loss_and_grads(at, taken, logs["meta_out"], is_meta_training=True)[0]

    tracked = {name: p.detach().requires_grad_() for name, p in params.items()}
    out = grads(tracked)
    backward = torch.autograd.grad(list(out.values()), list(tracked.values()), list(along.values()))
    with forward_ad.dual_level():
        dual = {k: forward_ad.make_dual(p.detach().requires_grad_(), along[k]) for k, p in params.items()}
        tangents = {name: forward_ad.unpack_dual(g).tangent for name, g in grads(dual).items()}
    for name, reverse in zip(params, backward, strict=True):
        torch.testing.assert_close(tangents[name].detach(), reverse, rtol=1e-9, atol=1e-14)
    assert any(x.abs().max() > 1e-3 for x in backward)


@pytest.mark.parametrize("inner_steps", [1, 3])
def test_recomputing_inner_updates_changes_nothing(inner_steps):
    given = setup(inner_steps)
    plain = meta_gradient.meta_gradient(given)
    again = recompute.checkpointed_meta_gradient(given)
    ours, theirs = trees.flatten(plain.state), trees.flatten(again.state)
    assert ours.keys() == theirs.keys() and all(torch.equal(x, theirs[name]) for name, x in ours.items())
    for part in ("grads", "metrics", "meta_log"):
        for name, x in getattr(plain, part).items():
            torch.testing.assert_close(getattr(again, part)[name], x, rtol=1e-12, atol=1e-16)
            assert bool((x == 0).all()) == bool((getattr(again, part)[name] == 0).all())


def test_after_one_inner_update_nothing_depends_on_the_meta_rnn_but_its_start():
    grads = meta_gradient.meta_gradient(setup(1)).grads
    dead = {name for name, g in grads.items() if not g.any()}
    assert dead == {name for name in grads if name.startswith(("meta_rnn/", "meta_input/"))} | {"gate/w"}
    assert all(bool(g.any()) for g in meta_gradient.meta_gradient(setup(2)).grads.values())


def test_the_meta_gradient_leaves_its_inputs_alone_and_carries_no_graph():
    given = setup()
    kept = {name: x.clone() for name, x in trees.flatten(given.state).items()}
    result = meta_gradient.meta_gradient(given)
    after = trees.flatten(given.state)
    assert all(torch.equal(kept[name], after[name]) for name in kept)
    assert not any(p.requires_grad for p in given.meta_params.values())
    for tree in (result.state, result.grads, result.metrics, result.meta_log):
        assert not any(x.requires_grad for x in trees.flatten(tree).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_meta_gradient_keeps_the_dtype(dtype):
    result = meta_gradient.meta_gradient(setup(1, dtype))
    floats = [x for tree in result for x in trees.flatten(tree).values() if x.is_floating_point()]
    assert {x.dtype for x in floats} == {dtype}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_first_update_stands_inside_the_clip_bound(dtype):
    """Else the meta-gradient of a fresh agent is wrong; see the head of `port.meta_train.meta_gradient`."""
    grads = {"w": torch.linspace(0.5, 2.0, 64, dtype=dtype)}
    updates, _ = optimizers.adam_sg(grads, optimizers.init_adam(grads))
    assert bool((updates["w"] < 1.0).all())


def test_a_meta_update_is_adam_on_the_mean():
    params = {"w": torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)}
    grads = [{"w": torch.tensor(g, dtype=torch.float64)} for g in ([0.5, 1.0], [1.5, -3.0])]
    adam = torch.optim.Adam(params.values(), lr=0.01)
    ours, state = {"w": params["w"].detach().clone()}, optimizers.init_adam(params)
    for _ in range(3):
        params["w"].grad = (grads[0]["w"] + grads[1]["w"]) / 2
        adam.step()
        ours, state, _ = meta_gradient.meta_update(ours, state, grads, 0.01)
    torch.testing.assert_close(ours["w"], params["w"].detach(), rtol=1e-12, atol=0)


def test_long_meta_gradients_are_cut_only_where_asked():
    params = {"w": torch.ones(2)}
    grads = [{"w": torch.tensor([30.0, 40.0])}]
    _, _, logs = meta_gradient.meta_update(params, optimizers.init_adam(params), grads, 0.1)
    _, state, cut = meta_gradient.meta_update(params, optimizers.init_adam(params), grads, 0.1, max_grad_norm=5.0)
    assert float(logs["meta_grad_norm"]) == float(cut["meta_grad_norm"]) == 50.0
    torch.testing.assert_close(state.mu["w"], 0.1 * torch.tensor([3.0, 4.0]))


def test_bad_rollouts_are_refused_before_any_work():
    given = setup()
    with pytest.raises(ValueError, match="at least one inner update"):
        dataclasses.replace(given, train_rollouts=[])
    short = dataclasses.replace(given.valid_rollout, actions=given.valid_rollout.actions[:-1])
    with pytest.raises(ValueError, match=r"actions is \(7, 2\)"):
        dataclasses.replace(given, valid_rollout=short)
    with pytest.raises(ValueError, match="at least one agent"):
        meta_gradient.meta_update(given.meta_params, optimizers.init_adam(given.meta_params), [], 0.1)


def test_a_record_of_other_shapes_is_not_filled_in():
    like = {"a": torch.zeros(2), "b": {"c": torch.zeros(3)}}
    assert set(trees.flatten(like)) == {"a", "b/c"}
    with pytest.raises(ValueError, match="b/d"):
        trees.unflatten(like, {"a": torch.zeros(2), "b/d": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"has b/c as torch.float32 \(4,\)"):
        trees.unflatten(like, {"a": torch.zeros(2), "b/c": torch.zeros(4)})
