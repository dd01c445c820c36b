"""The three update rules as an agent runs them: what they need, what they leave alone, and what they refuse."""

import dataclasses
import importlib.util

import numpy as np
import pytest
import torch

import port
from port import update_rules
from port.networks import agent_net
from port.update_rules import actor_critic, base, policy_gradient
from port.value_fns import value_utils
from tests.test_port import CONFIG, OBS, A, generator, make, rollout, tensors

AC = port.ActorCriticConfig(categorical_value=True, num_bins=11, max_abs_value=4.0, nonlinear_value_transform=True)
NET = port.AgentNetConfig(dense=(10, 9))
AC_CONFIG = port.AgentConfig(learning_rate=1e-2, hyper=port.ActorCriticHyperParams(), rule=AC, net=NET)
PG_CONFIG = port.AgentConfig(learning_rate=1e-2, hyper=None, rule=port.PolicyGradientConfig(), net=NET)
needs_the_original = pytest.mark.skipif(
    importlib.util.find_spec("disco_rl") is None, reason="the original is not installed; `make original` brings it"
)


def make_with(config, dtype=torch.float64):
    agent = port.Agent(config, OBS, A)
    return agent, agent.initial_learner_state(generator(), dtype)


def estimates(given, dtype=torch.float64):
    """What a value function would say of a rollout."""
    shape = given.rewards[1:].shape
    fields = {name: torch.zeros(shape, dtype=dtype) for name in port.ValueOuts._fields}
    g = generator(7)
    drawn = {name: torch.randn(shape, generator=g, dtype=dtype) for name in ("adv", "normalized_adv")}
    return port.ValueOuts(**{**fields, **drawn})


def step(config, given, state, **options):
    agent = port.Agent(config, OBS, A)
    if isinstance(config.rule, port.PolicyGradientConfig):
        options = {"value_out": estimates(given, given.rewards.dtype), **options}
    return agent.learner_step(given, state, **options)


BOTH = pytest.mark.parametrize("config", [AC_CONFIG, PG_CONFIG], ids=["actor_critic", "policy_gradient"])


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learner_step_keeps_the_dtype_and_leaves_its_inputs_alone(config, dtype):
    _, state = make_with(config, dtype)
    given = rollout(dtype=dtype)
    before = [x.clone() for x in tensors((state, given))]
    new, logs = step(config, given, state)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors((state, given)), strict=True))
    assert {x.dtype for x in tensors((new, logs)) if x.is_floating_point()} == {dtype}
    assert not any(x.requires_grad for x in tensors((new, logs)))
    assert not torch.equal(new.params["heads/logits/w"], state.params["heads/logits/w"])


def test_actor_critic_returns_new_averages_and_does_not_write_into_the_old():
    agent, state = make_with(AC_CONFIG)
    new, _ = agent.learner_step(rollout(), state)
    assert float(state.meta_state.adv_ema.moment2) == 0.0
    assert float(new.meta_state.adv_ema.moment2) > 0.0
    assert float(new.meta_state.td_ema.decay_product) == pytest.approx(0.99)


def test_heads_follow_from_the_rule():
    def heads(config):
        agent, state = make_with(config)
        seen = port.Timestep(torch.zeros((2, *OBS), dtype=torch.float64), torch.ones(2), torch.zeros(2))
        outs = agent.actor_step(state.params, seen, torch.zeros((2, A), dtype=torch.float64)).agent_outs
        return {name: tuple(x.shape[1:]) for name, x in outs.items()}

    assert heads(AC_CONFIG) == {"logits": (3,), "v": (11,)}
    assert heads(dataclasses.replace(AC_CONFIG, rule=port.ActorCriticConfig())) == {"logits": (3,), "v": (1,)}
    assert heads(PG_CONFIG) == {"logits": (3,)}
    assert heads(CONFIG) == {"logits": (3,), "y": (7,), "z": (3, 7), "aux_pi": (3, 3), "q": (3, 11)}


def test_the_rule_is_chosen_by_its_configuration():
    kinds = [type(update_rules.make(config)).__name__ for config in (CONFIG, AC_CONFIG, PG_CONFIG)]
    assert kinds == ["Disco", "ActorCritic", "PolicyGradient"]
    assert port.rule_config("actor_critic", normalize_adv=True) == port.ActorCriticConfig(normalize_adv=True)


def test_a_rule_by_itself_gives_the_loss_that_an_agent_averages():
    agent, state = make_with(AC_CONFIG)
    given = rollout()
    outs = agent_net.unroll(state.params, given.observations)
    inputs = port.agent.rule_inputs(given, outs)
    per_step, new_state, logs = base.apply(agent.rule, None, state.params, state.meta_state, inputs)
    counts = (given.discounts[:-1] > 0).double()
    _, step_logs = agent.learner_step(given, state)
    assert float((per_step * counts).sum() / (counts.sum() + 1e-8)) == pytest.approx(float(step_logs["total_loss"]))
    assert float(logs["entropy"]) == pytest.approx(float(step_logs["entropy"]))
    assert float(new_state.adv_ema.moment2) > 0.0


def test_the_policy_gradient_rule_reads_the_advantages_that_its_option_names():
    given = rollout()
    inputs = port.agent.rule_inputs(given, {"logits": given.agent_outs["logits"]}, estimates(given))
    for normalize_adv, name in ((True, "normalized_adv"), (False, "adv")):
        rule = policy_gradient.PolicyGradient(port.PolicyGradientConfig(normalize_adv=normalize_adv))
        meta_out, _ = rule.unroll_meta_net({}, {}, None, inputs)
        assert meta_out["pi"] is getattr(inputs.value_out, name)


@BOTH
def test_the_action_that_pays_becomes_likelier(config):
    config = dataclasses.replace(config, learning_rate=5e-3)
    agent, state = make_with(config)
    g = generator(3)
    for _ in range(40):
        actions = torch.randint(0, A, (5, 8), generator=g)
        paid = (actions[:-1] == 1).double()
        given = port.Rollout(
            observations=torch.ones((5, 8, *OBS), dtype=torch.float64),
            actions=actions,
            rewards=torch.cat((torch.zeros((1, 8), dtype=torch.float64), paid)),
            discounts=torch.ones((5, 8), dtype=torch.bool),
            agent_outs={"logits": torch.zeros((5, 8, A), dtype=torch.float64)},
        )
        advs = estimates(given)._replace(normalized_adv=paid - 1 / A)
        options = {"value_out": advs} if config.hyper is None else {}
        state, logs = agent.learner_step(given, state, **options)
    seen = port.Timestep(given.observations[0], torch.ones(8), torch.zeros(8))
    logits = agent.actor_step(state.params, seen, torch.zeros((8, A), dtype=torch.float64)).logits
    assert float(logits.softmax(-1)[0, 1]) > 0.5


def test_actor_critic_weights_go_out_and_come_back(tmp_path):
    _, state = make_with(AC_CONFIG)
    port.save_agent_params(tmp_path / "agent.npz", state.params, AC_CONFIG)
    back = port.load_agent_params(tmp_path / "agent.npz", AC_CONFIG, OBS, A, torch.float64)
    assert all(torch.equal(back[name], state.params[name]) for name in state.params)
    with pytest.raises(ValueError, match=r"torso_head_1/~/linear_0/w.* \(9, 1\).* \(9, 11\)"):
        port.load_agent_params(
            tmp_path / "agent.npz", dataclasses.replace(AC_CONFIG, rule=port.ActorCriticConfig()), OBS, A
        )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: port.rule_config("disko"), "no update rule called 'disko'.*disco, actor_critic, policy_gradient"),
        (lambda: port.rule_config("actor_critic", normalise_td=True), "no option 'normalise_td'; it has: categorical"),
        (lambda: port.rule_config("policy_gradient", kl_prior_cost=0.5), "no option 'kl_prior_cost'"),
        (lambda: port.ActorCriticConfig(normalize_td=True, categorical_value=True), "not both"),
        (lambda: port.ActorCriticConfig(categorical_value=True, num_bins=1), "at least 2"),
        (lambda: port.ActorCriticConfig(moving_average_decay=1.5), "between 0 and 1"),
        (lambda: port.ActorCriticHyperParams(vtrace_lambda=-0.1), "between 0 and 1"),
        (lambda: port.AgentConfig(rule=AC), "hyper is HyperParams; with ActorCriticConfig .* ActorCriticHyperParams"),
        (lambda: port.AgentConfig(rule=port.PolicyGradientConfig()), "with PolicyGradientConfig it must be None"),
        (lambda: port.AgentConfig(hyper=None), "hyper is None; with DiscoConfig it must be HyperParams"),
        (lambda: port.AgentConfig(rule="actor_critic"), "rule is a str; it must be one of DiscoConfig"),
    ],
)
def test_a_rule_that_does_not_exist_or_contradicts_itself_gets_a_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": torch.full((5, 3), -1)}, "outside 0 to 2"),
        ({"actions": torch.zeros((5, 2), dtype=torch.long)}, "actions is"),
        ({"agent_outs": {"logits": torch.zeros((5, 3, 2))}}, "agent has 3 actions"),
        ({"agent_outs": {"v": torch.zeros((5, 3, 11))}}, "lack logits"),
        ({"observations": torch.zeros((5, 3, 11))}, "sees 12 numbers"),
    ],
)
@BOTH
def test_a_rollout_that_does_not_fit_gets_a_sentence(config, change, message):
    _, state = make_with(config)
    given = rollout()
    with pytest.raises((ValueError, KeyError), match=message):
        step(config, dataclasses.replace(given, **change), state, **value_out_of(config, given))


def value_out_of(config, given):
    return {"value_out": estimates(given)} if config is PG_CONFIG else {}


def test_parameters_without_a_needed_head_get_a_sentence_before_any_work(monkeypatch):
    agent, state = make_with(AC_CONFIG)
    monkeypatch.setattr(agent_net, "unroll", lambda *_: pytest.fail("work was done"))
    headless = {name: x for name, x in state.params.items() if "heads/v" not in name}
    with pytest.raises(ValueError, match="agent's parameters .* lack heads/v/b, heads/v/w"):
        agent.learner_step(rollout(), state._replace(params=headless))
    _, disco_state, _ = make()
    with pytest.raises(ValueError, match="lack heads/v/b.*; they also have heads/y/b"):
        agent.learner_step(rollout(), disco_state)
    wider, _ = make_with(dataclasses.replace(AC_CONFIG, rule=dataclasses.replace(AC, num_bins=21)))
    with pytest.raises(ValueError, match=r"heads/v/w must be \(9, 21\); got \(9, 11\)"):
        wider.learner_state(state.params)


def test_meta_parameters_that_do_not_fit_get_a_sentence():
    disco, state, meta = make()
    with pytest.raises(ValueError, match="Disco learns by a meta-network"):
        disco.learner_step(rollout(), state)
    with pytest.raises(ValueError, match=r"gate/w must be \(6, 8\); got \(6, 9\)"):
        disco.learner_step(rollout(), state, {**meta, "gate/w": torch.zeros((6, 9))})
    with pytest.raises(ValueError, match="meta-parameters .* lack gate/b"):
        disco.learner_step(rollout(), state, {name: x for name, x in meta.items() if name != "gate/b"})
    other, state = make_with(AC_CONFIG)
    with pytest.raises(ValueError, match="ActorCritic has no meta-network"):
        other.learner_step(rollout(), state, meta)


def test_policy_gradient_without_a_value_function_gets_a_sentence():
    agent, state = make_with(PG_CONFIG)
    with pytest.raises(ValueError, match="takes its advantages from a value function"):
        agent.learner_step(rollout(), state)
    with pytest.raises(ValueError, match=r"Advantages are \(2, 3\)"):
        agent.learner_step(rollout(), state, value_out=estimates(rollout(T=2)))


def test_outputs_that_a_rule_cannot_read_get_a_sentence():
    given, rule = rollout(), actor_critic.ActorCritic(port.ActorCriticHyperParams(), AC)
    logits, v = given.agent_outs["logits"], torch.zeros((5, 3, 11), dtype=torch.float64)
    state = rule.init_meta_state({"w": v})

    def unroll(outs, **changes):
        inputs = dataclasses.replace(port.agent.rule_inputs(given, outs), **changes)
        return rule.unroll_meta_net({}, {}, state, inputs)

    with pytest.raises(KeyError, match="lack v; ActorCritic needs logits, v"):
        unroll({"logits": logits})
    with pytest.raises(ValueError, match=r"must give \(11,\)"):
        unroll({"logits": logits, "v": v[..., :1]})
    with pytest.raises(ValueError, match=r"agent_out/v must start with \(5, 3\)"):
        unroll({"logits": logits, "v": v[:4]})
    with pytest.raises(KeyError, match="acting network lack logits"):
        unroll({"logits": logits, "v": v}, behaviour_agent_out={})
    with pytest.raises(ValueError, match="is_terminal must start with"):
        unroll({"logits": logits, "v": v}, is_terminal=torch.zeros((5, 3), dtype=torch.bool))
    with pytest.raises(ValueError, match="is no scalar"):
        value_utils.values_from_logits(v, value_utils.ValueForm(categorical=False))


def plain(settings):
    """The original's settings as the port's configuration spells them."""
    net = settings.net_settings.net_args
    return {
        "learning_rate": settings.learning_rate,
        "max_abs_update": settings.max_abs_update,
        "hyper": settings.hyper_params.to_dict(),
        "net": {"dense": net.dense, "head_w_init_std": net.head_w_init_std, **net.model_kwargs.to_dict()},
    }


@needs_the_original
def test_settings_are_the_originals():
    agent_lib = importlib.import_module("disco_rl.agent")
    pairs = [
        (agent_lib.get_settings_disco(), port.get_settings_disco()),
        (agent_lib.get_settings_actor_critic(), port.get_settings_actor_critic()),
    ]
    for original, ours in pairs:
        got = dataclasses.asdict(ours)
        assert {name: got[name] for name in plain(original)} == plain(original)
        options = {k: v for k, v in original.update_rule.to_dict().items() if k != "net"}
        assert {name: got["rule"][name] for name in options} == options
        assert port.config.RULES[original.update_rule_name] is type(ours.rule)
    net = {k: v for k, v in pairs[0][0].update_rule.net.to_dict().items() if k not in ("name", "input_option")}
    net["meta_rnn"] = net.pop("meta_rnn_kwargs")
    got = dataclasses.asdict(pairs[0][1].meta_net)
    assert {name: got[name] for name in net} == net


@needs_the_original
@pytest.mark.parametrize("rule", ["actor_critic", "policy_gradient"])
def test_defaults_of_the_rules_are_the_originals(rule):
    module = importlib.import_module(f"disco_rl.update_rules.{rule}")
    kind = module.ActorCritic if rule == "actor_critic" else module.PolicyGradientUpdate
    signature = importlib.import_module("inspect").signature(kind)
    defaults = {name: p.default for name, p in signature.parameters.items()}
    ours = dataclasses.asdict(port.rule_config(rule))
    assert ours == {name: defaults[name] for name in ours}
    unread = {"kl_prior_cost", "p_actor_prior", "p_uniform_prior", "target_params_coeff"}
    assert defaults.keys() - ours.keys() == (unread if rule == "policy_gradient" else set())


@needs_the_original
def test_an_actor_critic_agent_has_the_originals_parameters():
    jax, specs = importlib.import_module("jax"), importlib.import_module("dm_env.specs")
    agent_lib = importlib.import_module("disco_rl.agent")
    original = agent_lib.Agent(
        single_observation_spec={"observation": specs.Array((8, 8, 1), np.float32)},
        single_action_spec=specs.BoundedArray((), np.int32, 0, 2),
        agent_settings=agent_lib.get_settings_actor_critic(),
        batch_axis_name=None,
    )
    state = jax.eval_shape(original.initial_learner_state, jax.random.PRNGKey(0))
    expected = {f"{m}/{leaf}": x.shape for m, leaves in state.params.items() for leaf, x in leaves.items()}
    config = port.get_settings_actor_critic()
    agent = port.Agent(config, (8, 8, 1), 3)
    table = port.networks.param_names.agent_names(config.net, agent.rule.heads(3))
    assert {table[name]: shape for name, shape in agent.shapes.items()} == expected
