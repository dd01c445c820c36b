"""Teacher forcing: from the inputs of one learner step, what reaches every layer inside it.

`trace` walks the data flow with one implementation (the original, when goldens are recorded), giving each layer the
outputs of those before it, rounded to float32 so that both precisions see the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parity.layers import REGISTRY
from parity.layers.draw import as_single
from parity.layers.optim import TREE
from parity.layers.spec import Arrays, Settings, prefixed

Run = Callable[[str, Arrays, Settings], Arrays]
Traced = dict[str, tuple[Arrays, Settings]]


def under(prefix: str, flat: Arrays) -> Arrays:
    """The inverse of `prefixed`: the entries below `prefix/`, without it."""
    return {name[len(prefix) + 1 :]: value for name, value in flat.items() if name.startswith(prefix + "/")}


class Trace:
    """Collects the inputs of each layer and runs it on them."""

    def __init__(self, run: Run, settings: Settings):
        """Takes what runs a layer, and the settings of the learner step."""
        self.run, self.settings, self.seen = run, settings, Traced()

    def __call__(self, layer: str, inputs: Arrays, **settings: object) -> Arrays:
        """Notes the inputs, runs the layer, gives its outputs as the next layer sees them."""
        chosen = {k: settings.get(k, self.settings.get(k, v)) for k, v in REGISTRY[layer].settings.items()}
        self.seen[layer] = (inputs, chosen)
        outputs = self.run(layer, inputs, chosen)
        return {k: as_single(v) if v.dtype.kind == "f" else v for k, v in outputs.items()}


def trace(run: Run, root: Arrays, settings: Settings) -> Traced:
    """Returns, by layer, the inputs that reach it in the learner step `root`, and the settings it runs with."""
    step = Trace(run, settings)
    rollout, params = under("rollout", root), under("params", root)
    online, target = _agent_outs(step, rollout["observations"], params, under("meta_state/target_params", root))
    facts = {
        "actions": rollout["actions"],
        "rewards": rollout["rewards"][1:],
        "is_terminal": ~rollout["discounts"][1:].astype(bool),
    }
    values = _values(step, online, target, rollout["logits"], facts, root)
    experience = {
        **facts,
        **prefixed("agent_out", online, "logits y z"),
        **prefixed("target_out", target, "logits y z"),
        "behaviour_out/logits": rollout["logits"],
        "v_scalar": values["value"],
        "q": values["target_q_value"],
        **{k: values[k] for k in ("adv", "normalized_adv", "qv_adv", "normalized_qv_adv")},
    }
    targets = _meta_network(step, experience, root)
    _transforms(step, online, values, facts)
    _learning(step, root, online, rollout, facts, targets)
    return step.seen


def _agent_outs(step: Trace, observations: np.ndarray, params: Arrays, targets: Arrays) -> tuple[Arrays, Arrays]:
    target = step("nets/agent", {"observations": observations, **prefixed("params", targets)})
    online = step("nets/agent", {"observations": observations, **prefixed("params", params)})
    flat = observations.reshape(observations.shape[0] * observations.shape[1], -1)
    torso = {k.split("torso/")[1]: v for k, v in params.items() if "/torso/" in k}
    sizes = tuple(step.settings["dense"])
    hidden = step(
        "nets/mlp",
        {"x": flat, **prefixed("params/mlp", torso)},
        B=len(flat),
        E=flat.shape[1],
        sizes=sizes,
    )["out"]
    model = {k: v for k, v in params.items() if "_pass/" not in k}
    step("nets/action_model", {"torso": hidden, **prefixed("params", model)}, B=len(flat))
    return online, target


def _values(step: Trace, online: Arrays, target: Arrays, mu: np.ndarray, facts: Arrays, root: Arrays) -> Arrays:
    s = step.settings
    options = {"discount": s["value_discount"], "lambda": s["value_fn_td_lambda"]}
    pi, taken = online["logits"], facts["actions"][:-1]
    q = step("values/q_and_v", {"q_logits": target["q"], "pi_logits": pi})
    rho = step("ops/importance_weight", {"pi_logits": pi[:-1], "mu_logits": mu[:-1], "actions": taken})["rho"]
    traced = {
        "rewards": facts["rewards"],
        "actions": taken,
        "continues": 1.0 - facts["is_terminal"],
        "rho": rho,
        "target_values": q["v"],
        "target_q_values": q["q"],
    }
    step("values/retrace", traced, **options)
    mine = step("values/q_and_v", {"q_logits": online["q"], "pi_logits": pi})
    estimate = step("values/estimate_q", {**traced, "values": mine["v"], "q_values": mine["q"]}, **options)
    adv_state = prefixed("state", under("meta_state/adv_ema", root))
    state = step("moving_average/update", {"values": estimate["adv"], **adv_state})
    step("moving_average/normalize", {"values": estimate["adv"], **state})
    q_a = step("ops/lookup", {"table": online["q"][:-1], "index": taken}, E=s["K"])["out"]
    step("values/from_logits", {"net_out": q_a})
    step("values/loss_from_td", {"net_out": q_a, "td": estimate["q_td"]})
    step("values/loss_from_target", {"net_out": q_a, "target": estimate["q_target"]})
    squashed = step("ops/signed_hyperbolic", {"x": estimate["q_target"]})["out"]
    step("ops/signed_parabolic", {"x": squashed})
    probs = step("ops/two_hot", {"value": squashed})["probs"]
    step("ops/from_two_hot", {"probs": probs})
    averages = {k.removeprefix("meta_state/"): v for k, v in root.items() if "_ema/" in k}
    heads = {"q_logits": online["q"], "target_q_logits": target["q"], "pi_logits": pi, "mu_logits": mu}
    return step("values/outs", {**facts, **heads, **averages}, **options)


def _meta_network(step: Trace, experience: Arrays, root: Arrays) -> Arrays:
    every = under("meta_params", root)
    rnn = {"rnn/hidden": root["meta_state/rnn/hidden"], "rnn/cell": root["meta_state/rnn/cell"]}

    def own(layer: str) -> Arrays:
        return {k: root[k] for k in REGISTRY[layer].inputs(step.settings) if k.startswith("meta_params/")}

    built = step("meta/inputs", {**experience, **own("meta/inputs")})
    ends = {"is_terminal": experience["is_terminal"]}
    unrolled = step("meta/trajectory_rnn", {"x": built["x"], **ends, **own("meta/trajectory_rnn")})
    core = {leaf: every[f"lstm/lstm/linear/{leaf}"] for leaf in ("w", "b")}
    step("nets/unroll", {"xs": built["x"], **ends, **core}, E=built["x"].shape[-1])
    gated = step("meta/gate", {**unrolled, "rnn/hidden": rnn["rnn/hidden"], **own("meta/gate")})
    targets = step("meta/heads", {**gated, "policy_emb": built["policy_emb"], **own("meta/heads")})
    given = prefixed("meta_out", targets, "y meta_input_emb")
    step("meta/rnn", {**experience, **given, **rnn, **own("meta/rnn")})
    step("meta/whole", {**experience, **rnn, **prefixed("meta_params", every)})
    return targets


def _transforms(step: Trace, online: Arrays, values: Arrays, facts: Arrays) -> None:
    policy = step("transforms/softmax", {"x": online["logits"]})["out"]
    taken, width = facts["actions"][:-1], step.settings["P"]
    z = online["z"]
    step("transforms/max_a", {"x": z}, E=width)
    step("transforms/pi_weighted_avg", {"x": z, "policy": policy}, E=width)
    step("transforms/select_a", {"x": z[:-1], "actions": taken}, E=width)
    step("transforms/drop_last", {"x": online["y"]}, E=width)
    step("transforms/td_pair", {"x": online["y"]}, E=width)
    step("transforms/sign_log", {"x": values["value"]})
    step("transforms/masks_to_discounts", {"x": facts["is_terminal"]})


def _learning(step: Trace, root: Arrays, online: Arrays, rollout: Arrays, facts: Arrays, targets: Arrays) -> None:
    state = {k: v for k, v in root.items() if k.startswith(("params/", "meta_state/", "meta_params/"))}
    outs = prefixed("agent_out", online)
    rule_inputs = {**outs, "behaviour_out/logits": rollout["logits"], "observations": rollout["observations"]}
    meta_out = under("meta_out", step("disco/unroll_meta_net", {**rule_inputs, **facts, **state}))
    chosen = prefixed("meta_out", meta_out, "pi y z")
    value_outs = prefixed("meta_out", meta_out, "q_td q_target normalized_q_td q_value")
    heads = {k: v for k, v in outs.items() if not k.endswith("/q")}
    ends = {"actions": facts["actions"], "is_terminal": facts["is_terminal"]}
    step("disco/agent_loss", {**heads, **ends, **chosen})
    step("disco/agent_loss_no_meta", {"agent_out/q": outs["agent_out/q"], "actions": facts["actions"], **value_outs})
    step("ops/kl", {"p_logits": targets["pi"], "q_logits": online["logits"][:-1]})
    step("ops/entropy", {"p_logits": targets["pi"]})
    params = {k: v for k, v in root.items() if k.startswith("params/")}
    loss = step("agent/loss", {**prefixed("rollout", rollout), **chosen, **value_outs, **params})
    _optimiser(step, root, under("grads", loss))
    step("agent/learner_step", root)


def _optimiser(step: Trace, root: Arrays, grads: Arrays) -> None:
    """Real gradients and moments, cut to the small tree that the optimiser's layers are judged on."""
    source = {"first/w": "mlp/linear/w", "first/b": "mlp/linear/b", "second/w": "mlp/mlp/~/linear_0/w"}

    def cut(flat: Arrays) -> Arrays:
        return {k: flat[v][tuple(slice(n) for n in TREE[k])] for k, v in source.items()}

    state = {"opt/count": root["opt/count"], **prefixed("opt/mu", cut(under("opt/mu", root)))}
    state |= prefixed("opt/nu", cut(under("opt/nu", root)))
    given = prefixed("grads", cut(grads))
    step("optim/adam", {**given, **state})
    step("optim/update", {**given, **state, **prefixed("params", cut(under("params", root)))})
    online, target = under("params", root), under("meta_state/target_params", root)
    step("optim/target_average", {**prefixed("online", cut(online)), **prefixed("target", cut(target))})
