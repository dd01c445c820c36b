"""Agents with the two rules that have no meta-network, step by step beside the original's, in float64.

The original's agent never hands its rule a value function's estimates, which policy gradient needs; here they are put
in the rule's inputs on the way.
"""

import importlib.util

import numpy as np
import pytest
import torch

import port
from parity.compare import compare
from parity.sigma import NONE, measure
from parity.tolerance import PRECISIONS, SAMPLES
from port.networks import param_names
from port.weights import agent_params_to_original

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("disco_rl") is None, reason="the original is not installed; `make original` brings it"
)

OBS, A, T, B, STEPS = (4, 3, 1), 3, 5, 4, 5
NET = port.AgentNetConfig(dense=(10, 9))
CONFIGS = {
    "actor_critic": port.AgentConfig(
        learning_rate=1e-2,
        hyper=port.ActorCriticHyperParams(),
        rule=port.ActorCriticConfig(nonlinear_value_transform=True, normalize_adv=True, normalize_td=True),
        net=NET,
    ),
    "policy_gradient": port.AgentConfig(
        learning_rate=1e-2, hyper=None, rule=port.PolicyGradientConfig(pg_cost=1.5), net=NET
    ),
}


def drawn(seed):
    """A rollout and the advantages of a value function, as arrays."""
    rng = np.random.default_rng(seed)
    rollout = {
        "observations": rng.normal(size=(T + 1, B, *OBS)),
        "actions": rng.integers(0, A, (T + 1, B)).astype(np.int32),
        "rewards": rng.normal(size=(T + 1, B)),
        "discounts": rng.random((T + 1, B)) > 0.2,
        "logits": rng.normal(size=(T + 1, B, A)),
    }
    return rollout, {name: rng.normal(size=(T, B)) for name in ("adv", "normalized_adv")}


def ours(config, params, rollouts):
    agent = port.Agent(config, OBS, A)
    state, totals = agent.learner_state(params), []
    for arrays, advs in rollouts:
        x = {name: torch.from_numpy(value) for name, value in arrays.items()}
        fields = {name: torch.zeros((T, B), dtype=torch.float64) for name in port.ValueOuts._fields}
        value_out = port.ValueOuts(**fields | {name: torch.from_numpy(value) for name, value in advs.items()})
        given = port.Rollout(**{k: v for k, v in x.items() if k != "logits"}, agent_outs={"logits": x["logits"]})
        state, logs = agent.learner_step(given, state, value_out=value_out)
        totals.append(float(logs["total_loss"]))
    return agent_params_to_original(state.params, config), totals


def originals_agent(name, config):
    agent_lib, specs = (importlib.import_module(module) for module in ("disco_rl.agent", "dm_env.specs"))
    settings = agent_lib.get_settings_actor_critic()
    settings.update_rule_name, settings.learning_rate = name, config.learning_rate
    settings.update_rule = vars(config.rule)
    settings.hyper_params = vars(config.hyper) if config.hyper else {}
    settings.net_settings.net_args.dense = config.net.dense
    return agent_lib.Agent(
        single_observation_spec={"observation": specs.Array(OBS, np.float32)},
        single_action_spec=specs.BoundedArray((), np.int32, 0, A - 1),
        agent_settings=settings,
        batch_axis_name=None,
    )


def theirs(name, config, params, rollouts):
    """The original's parameters and losses after all steps, and the sigma of each number."""
    jax, types = importlib.import_module("jax"), importlib.import_module("disco_rl.types")
    agent_lib = importlib.import_module("disco_rl.agent")
    flat_dict = importlib.import_module("reference.flat_dict")
    monte_carlo = importlib.import_module("reference.monte_carlo")
    agent = originals_agent(name, config)
    unroll = agent.update_rule.unroll_meta_net

    def step(state, arrays, advs):
        def with_estimates(*, rollout, **given):
            rollout.value_out = types.ValueOuts(**advs)
            return unroll(rollout=rollout, **given)

        agent.update_rule.unroll_meta_net = with_estimates
        outs = {"logits": arrays["logits"]}
        given = types.ActorRollout(**arrays, agent_outs=outs, states={})
        state, _, log = agent.learner_step(None, given, state, {}, {}, False)
        return state, log["total_loss"]

    def run(params, rollouts):
        start = flat_dict.nested("p", {f"p/{k}": v for k, v in params.items()})
        wide = jax.tree.map(lambda x: x.astype("float64"), agent.update_rule.init_meta_state(None, start))
        state = agent_lib.LearnerState(params=start, opt_state=agent._optimizer.init(start), meta_state=wide)
        totals = []
        for arrays, advs in rollouts:
            state, total = step(state, arrays, advs)
            totals.append(total)
        return flat_dict.flattened("p", state.params) | {"totals": jax.numpy.stack(totals)}

    given, bits = (params, rollouts), [NONE, *[PRECISIONS["float64"]] * SAMPLES]
    traced = jax.jit(run).trace(*given)
    truth = {key: np.asarray(value) for key, value in traced.lower().compile()(*given).items()}
    noisy = monte_carlo.run_samples(traced.jaxpr, [x[None] for x in jax.tree.leaves(given)], bits)
    answers = jax.tree.unflatten(jax.tree.structure(traced.out_info), noisy)
    sigmas = measure(bits, answers, {}).sigmas["value"]
    return {key.removeprefix("p/"): (value, sigmas[key][bits[1]]) for key, value in truth.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_five_learner_steps_are_the_originals(name):
    config = CONFIGS[name]
    execution = importlib.import_module("reference.jax_runtime")
    shapes = port.network.shapes_of_agent(config, OBS, A)
    rng = np.random.default_rng(1)
    params = {key: torch.from_numpy(0.3 * rng.normal(size=shape)) for key, shape in shapes.items()}
    rollouts = [drawn(seed) for seed in range(STEPS)]
    start = agent_params_to_original(params, config)
    got, got_totals = ours(config, params, rollouts)
    with execution.precision("float64"):
        ref = theirs(name, config, start, rollouts)
    got["totals"] = np.array(got_totals)
    heads = port.update_rules.make(config).heads(A)
    assert got.keys() == ref.keys() == {"totals", *param_names.agent_names(NET, heads).values()}
    assert all(np.abs(ref[key][0] - value).max() > 1e-2 for key, value in start.items())
    for key, (truth, sigma) in ref.items():
        row = compare((name, "five steps", key), "value", "float64", truth, got[key], sigma)
        assert row.equal, row.sentence()
