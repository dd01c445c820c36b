"""Mistakes that ports really make, planted in ours from outside: each must go red at the layer where it is made."""

from dataclasses import replace

import pytest
import torch

from parity.check import Judge, load
from parity.store import Store
from port import agent, disco, init, meta_net, moving_average, nets, ops, optim, transforms, values
from port.adapter import implementation
from port.types import AdamState, EmaState, LstmState

STORE = Store()


def different(layer):
    """Number of comparisons of a layer that differ, over its stored cases."""
    judge = Judge(implementation)
    cases = [case for case in STORE.cases(layer) if STORE.entry(layer, case)["stored"]]
    return sum(not row.equal for case in cases for row in judge.rows(load(STORE, layer, case)))


def gates(order=(0, 1, 2, 3), forget_bias=1.0):
    def lstm_gates(pre, cell):
        parts = pre.chunk(4, dim=-1)
        write, candidate, forget, read = (parts[i] for i in order)
        cell = (forget + forget_bias).sigmoid() * cell + write.sigmoid() * candidate.tanh()
        return LstmState(read.sigmoid() * cell.tanh(), cell)

    return lstm_gates


def retrace(shift=0, sign=1.0):
    """Retrace with the weights and action values taken `shift` steps too late, as a real port has them."""

    def run(q_a, target_values, rewards, discounts, traces):
        last = len(rewards) - 1
        target = rewards[-1] + discounts[-1] * target_values[-1]
        targets = [target]
        for t in range(last - 1, -1, -1):
            at = min(t + 1 + shift, last)
            target = rewards[t] + discounts[t] * (target_values[t + 1] + sign * traces[at] * (target - q_a[at]))
            targets.append(target)
        return torch.stack(targets[::-1]).detach()

    return run


def normalize(eps_scale=1.0, root=True):
    def run(values, state, eps=1e-6, root_eps=1e-12, subtract_mean=True):
        mean, variance = moving_average.mean_and_variance(state)
        centred = values - mean if subtract_mean else values
        return centred / ((variance + (root_eps if root else 0.0)).sqrt() + eps * eps_scale)

    return run


def two_hot_without_epsilon(value, num_bins, max_abs):
    value = ops.clip(value, -max_abs, max_abs)
    position = (value + max_abs) / (2 * max_abs) * (num_bins - 1)
    below, above = position.detach().floor().long(), position.detach().ceil().long()
    weight = torch.where(above == below, torch.zeros_like(value), above - position)
    empty = value.new_zeros(*value.shape, num_bins).scatter_add(-1, below.unsqueeze(-1), weight.unsqueeze(-1))
    return empty.scatter_add(-1, above.unsqueeze(-1), 1 - weight.unsqueeze(-1))


def importance_weights_with_gradient(pi_logits, mu_logits, actions):
    log_pi, log_mu = (ops.batch_lookup(x.log_softmax(-1), actions) for x in (pi_logits, mu_logits))
    return (log_pi - log_mu).exp()


def adam(detached=True, eps_inside=False):
    def run(grads, state, b1=0.9, b2=0.999, eps=1e-8):
        count = state.count + 1
        c1, c2 = 1 - b1 ** int(count), 1 - b2 ** int(count)
        mu = {k: (1 - b1) * g + b1 * state.mu[k] for k, g in grads.items()}
        nu = {k: (1 - b2) * g.square() + b2 * state.nu[k] for k, g in grads.items()}
        hat = {k: (v.detach() if detached else v) / c2 for k, v in nu.items()}
        root = {k: (v + eps).sqrt() if eps_inside else v.sqrt() + eps for k, v in hat.items()}
        return {k: m / c1 / root[k] for k, m in mu.items()}, AdamState(count, mu, nu)

    return run


def loss_masked_at_the_terminal(self, rollout, agent_out, meta_out, is_meta_training=False):
    shifted = replace(rollout, discounts=torch.cat((rollout.discounts[1:], rollout.discounts[:1])))
    inputs = agent.rule_inputs(rollout, agent_out)
    per_step, logs = disco.agent_loss(inputs, meta_out, self.config.hyper, backprop=is_meta_training)
    value_loss, value_logs = disco.agent_loss_no_meta(inputs, meta_out, self.config.hyper, self.config.rule)
    counts = (shifted.discounts[:-1] > 0).to(per_step.dtype)
    total = ((per_step + value_loss) * counts).sum() / (counts.sum() + 1e-8)
    return total, {"total_loss": total, **value_logs, **logs}


def forward_unroll(params, prefix, xs, should_reset, reverse=False):
    return ORIGINAL_UNROLL(params, prefix, xs, should_reset, reverse=False)


def conv_block_without_mean(params, prefix, x):
    weight, bias = nets.weight_and_bias(params, prefix)
    own, shared = weight.reshape(2 * x.shape[-1], -1).split(x.shape[-1])
    return (x @ own + (x @ shared + bias)).relu()


def update_without_decay_product(state, values, decay):
    new = ORIGINAL_UPDATE(state, values, decay)
    return EmaState(new.moment1, new.moment2, state.decay_product * 0 + decay)


def stopped_predictions(name, x, actions, policy):
    return ORIGINAL_APPLY(name, x.detach() if name == "softmax" else x, actions, policy)


def flowing_logits(name, x, actions, policy):
    return x if name == "stop_grad" else ORIGINAL_APPLY(name, x, actions, policy)


def hyperbolic(x):
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-2 * x


KL = ops.categorical_kl
ORIGINAL_UNROLL, ORIGINAL_UPDATE, ORIGINAL_APPLY = nets.lstm_unroll, moving_average.update, transforms.apply
ORIGINAL_TARGET, ORIGINAL_STDS, ORIGINAL_CLIP = optim.target_average, init.agent_stds, optim.clip_and_scale

MISTAKES = {
    "gate_order": (nets, "lstm_gates", gates(order=(0, 2, 1, 3)), "nets/lstm_step"),
    "forget_bias_left_out": (nets, "lstm_gates", gates(forget_bias=0.0), "nets/lstm_step"),
    "retrace_index_too_late": (values, "retrace", retrace(shift=1), "values/retrace"),
    "retrace_sign": (values, "retrace", retrace(sign=-1.0), "values/retrace"),
    "root_epsilon_left_out": (moving_average, "normalize", normalize(root=False), "moving_average/normalize"),
    "epsilon_ten_times_larger": (moving_average, "normalize", normalize(eps_scale=10.0), "moving_average/normalize"),
    "decays_not_multiplied": (moving_average, "update", update_without_decay_product, "moving_average/update"),
    "two_hot_epsilon_left_out": (ops, "two_hot", two_hot_without_epsilon, "ops/two_hot"),
    "hyperbolic_epsilon": (ops, "signed_hyperbolic", hyperbolic, "ops/signed_hyperbolic"),
    "ratio_keeps_its_gradient": (ops, "importance_weights", importance_weights_with_gradient, "ops/importance_weight"),
    "kl_the_other_way": (ops, "categorical_kl", lambda p, q: KL(q, p), "ops/kl"),
    "clip_passes_all_or_nothing": (ops, "clip", lambda x, low, high: x.clamp(low * 1.001, high), "transforms/clip"),
    "adam_denominator_not_stopped": (optim, "adam_sg", adam(detached=False), "optim/adam"),
    "adam_epsilon_under_the_root": (optim, "adam_sg", adam(eps_inside=True), "optim/adam"),
    "no_clip_after_adam": (optim, "clip_and_scale", lambda u, bound, rate: ORIGINAL_CLIP(u, 1e9, rate), "optim/update"),
    "polyak_reversed": (optim, "target_average", lambda t, o, c: ORIGINAL_TARGET(t, o, 1 - c), "optim/target_average"),
    "head_initialisation_left_out": (
        init,
        "agent_stds",
        lambda config, shapes: {k: init.fan_in_std(v) for k, v in shapes.items() if k.endswith("/w")},
        "nets/agent_init",
    ),
    "normal_not_cut_off": (init, "BOUND", 3.0, "nets/agent_init"),
    "unroll_runs_forward": (nets, "lstm_unroll", forward_unroll, "nets/unroll"),
    "mean_over_actions_left_out": (nets, "conv_block", conv_block_without_mean, "nets/conv_block"),
    "predictions_stopped": (transforms, "apply", stopped_predictions, "meta/inputs"),
    "logits_not_stopped": (transforms, "apply", flowing_logits, "meta/inputs"),
    "gate_left_out": (meta_net, "gate", lambda params, x, state: x, "meta/gate"),
    "loss_masked_at_the_terminal": (agent.Agent, "loss", loss_masked_at_the_terminal, "agent/loss"),
    "noise_not_used": (agent, "sample_actions", lambda logits, noise: logits.argmax(-1), "agent/actor_step"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found_at_its_layer(monkeypatch, name):
    owner, attribute, wrong, layer = MISTAKES[name]
    monkeypatch.setattr(owner, attribute, wrong)
    assert different(layer) > 0


@pytest.mark.parametrize("layer", sorted({mistake[3] for mistake in MISTAKES.values()}))
def test_without_a_mistake_these_layers_are_equal(layer):
    assert different(layer) == 0
