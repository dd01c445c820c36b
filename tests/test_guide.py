"""`port/GUIDE.md`: its code runs, its numbers are those of the code, and each layer named pins down what is said."""

import re
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from parity import diagram, mutants
from parity.__main__ import main as parity
from parity.goldens.check import load
from parity.goldens.store import Store
from parity.layers import REGISTRY
from parity.mutants import mutate, tiers
from reports import guide_figures

torch = pytest.importorskip("torch")
import port  # noqa: E402
from port.config import eval_agent_config  # noqa: E402
from port.evaluate.eval_loop import EvalConfig  # noqa: E402
from port.input_option import feature_width  # noqa: E402
from port.meta_train.config import MetaTrainConfig  # noqa: E402
from port.value_fns.value_fn import ValueFnConfig  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "port" / "GUIDE.md").read_text(encoding="utf-8")
PICTURES = ROOT / "port" / "guide"
CATALOGUE = mutants.catalogue()
CATCH = (8, 8, 1), 3  # observation and actions of the guide's tables
SYMBOLS = {"$\\pi$": "pi", "$y$": "y", "$z$": "z", "$p$": "aux_policy", "$q$": "value"}  # of losses


def table(first_heading):
    """Rows of the table whose first column has this heading, as lists of cells without code marks."""
    body = GUIDE.split(f"\n| {first_heading} |")[1].split("\n\n")[0]
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in body.split("\n")[2:]]


def settings(first_heading):
    return {row[0]: row[1] for row in table(first_heading)}


SURPRISES = table("#")
STOPS = table("stopped")
PINNED = sorted({(row[-2], row[-1]) for row in [*SURPRISES, *STOPS] if row[-1]})


def numbers(x):
    """A value as the guide writes it: `1,024`, `0.01` or `256, 256`."""
    parts = x if isinstance(x, tuple) else (x,)
    return ", ".join(f"{part:,}" if isinstance(part, int) else f"{part:g}" for part in parts)


def own_agent(config=None):
    return port.Agent(config or port.get_settings_disco(), *CATCH)


def by_part(shapes, parts):
    """Weights and number of parameters of each part, as the guide writes them, and of all together."""
    rows = []
    for part in parts:
        mine = {name: shape for name, shape in shapes.items() if re.fullmatch(rf"{part}(/\d+)?/[wb]", name)}
        weights = ", ".join(f"{shape[-2]}×{shape[-1]}" for name, shape in mine.items() if name.endswith("/w"))
        rows.append([part, weights, f"{sum(map(prod, mine.values())):,}"])
    return [*rows, ["all", "", f"{sum(map(prod, shapes.values())):,}"]]


def test_its_code_runs():
    code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL))
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are small
    try:
        exec(compile(code, "GUIDE.md", "exec"), {})
    finally:
        torch.set_default_dtype(before[0])
        torch.set_num_threads(before[1])
    assert code.count("assert ") >= 6


def test_every_layer_that_it_names_is_in_the_registry():
    groups = "|".join({name.split("/")[0] for name in REGISTRY})
    of_the_network = {row[0] for row in [*table("agent's part"), *table("meta-network's part")]}
    named = set(re.findall(rf"(?<![\w/])(?:{groups})/\w+(?![\w/.])", GUIDE)) - of_the_network
    assert len(named) >= 15
    assert named <= set(REGISTRY)


def test_heads_and_their_sizes():
    letters = {3: "A", 600: "P", 601: "K"}
    heads = own_agent().rule.heads(3)
    want = {name: f"[{letters[width]}]" for name, width in heads.flat.items()}
    want |= {name: f"[A, {letters[width]}]" for name, width in heads.model.items()}
    assert settings("head") == want


def test_sizes_of_the_agents_network():
    rows = table("agent's part")
    assert [row[:3] for row in rows] == by_part(own_agent().shapes, [row[0] for row in rows[:-1]])


def test_sizes_of_the_meta_network():
    params = port.init_meta_params(port.MetaNetConfig(), torch.Generator().manual_seed(0), torch.float32)
    rows = table("meta-network's part")
    assert rows == by_part({name: tuple(x.shape) for name, x in params.items()}, [row[0] for row in rows[:-1]])
    assert len(params) == 42


def test_inputs_of_the_meta_network():
    option, config = port.disco_input_option(), port.MetaNetConfig()
    width = [feature_width(f, config.prediction_size, config.embedding_size[-1], False) for f in option.base]
    rows = [[f.source, " ".join(f.transforms), str(n)] for f, n in zip(option.base, width, strict=True)]
    assert table("feature") == rows
    summary = 2 * config.policy_channels[-1]
    said = re.search(r"becomes (\d+) numbers: (\d+) from (\d+) features, and (\d+) from", GUIDE)
    assert [int(x) for x in said.groups()] == [sum(width) + summary, sum(width), len(rows), summary]
    assert f"Each action has {len(option.action_conditional) + 1} numbers" in GUIDE


LOSSES = ("pi", "y", "z", "aux_policy", "value")


@pytest.fixture(scope="module")
def reached():
    """Loss -> the parts of the agent that it moves when its cost alone is not zero."""
    config, meta_params = port.load_rule()
    generator = torch.Generator().manual_seed(0)
    rollout = port.Rollout(
        observations=torch.rand(5, 2, 3, 3, 1, generator=generator),
        actions=torch.randint(3, (5, 2), generator=generator),
        rewards=torch.randn(5, 2, generator=generator),
        discounts=torch.ones(5, 2),
        agent_outs={"logits": torch.randn(5, 2, 3, generator=generator)},
    )
    found = {}
    for loss in LOSSES:
        costs = {f"{name}_cost": float(name == loss) for name in LOSSES}
        agent = port.Agent(replace(config, hyper=replace(config.hyper, **costs)), (3, 3, 1), 3)
        before = agent.initial_learner_state(torch.Generator().manual_seed(1), torch.float32)
        after, _ = agent.learner_step(rollout, before, meta_params)
        found[loss] = {name for name, x in after.params.items() if not torch.equal(x, before.params[name])}
    return found


@pytest.mark.parametrize("row", table("agent's part")[:-1], ids=lambda row: row[0])
def test_which_loss_reaches_which_part(reached, row):
    said = set(LOSSES) if row[3] == "all five" else {SYMBOLS[symbol] for symbol in row[3].split(", ")}
    assert {loss for loss, names in reached.items() if any(name.startswith(row[0] + "/") for name in names)} == said


def test_constants_in_the_text():
    config, adam = port.get_settings_disco(), {"0.9", "0.999"}
    hyper, rule = config.hyper, config.rule
    costs = {hyper.pi_cost, hyper.y_cost, hyper.z_cost, hyper.aux_policy_cost}
    assert costs == {1.0}
    assert f"&+ {hyper.value_cost}" in GUIDE
    assert f"c_t = {hyper.value_fn_td_lambda}\\min(1,\\rho_t)$ and $d_t = {rule.value_discount}$" in GUIDE
    assert f"from −{rule.max_abs_value:.0f} to {rule.max_abs_value:.0f}" in GUIDE
    assert f"(decay {rule.moving_average_decay})" in GUIDE
    kept = hyper.target_params_coeff
    assert GUIDE.count(f"{kept} \\bar\\theta + {1 - kept:.1g} \\theta") == 1
    assert f"θ̄ ← {kept} θ̄ + {1 - kept:.1g} θ" in GUIDE
    assert set(re.search(r"\\beta_1=([\d.]+).*?\\beta_2=([\d.]+)", GUIDE).groups()) == adam
    net = config.meta_net
    sizes = {"P": net.prediction_size, "K": rule.num_bins, "H": net.hidden_size, "M": net.meta_rnn.hidden_size}
    assert sizes == {letter: int(size) for letter, size in re.findall(r"\$([PKHM])=(\d+)\$", GUIDE)}


def test_settings_of_the_loop_on_catch():
    loop = EvalConfig()
    assert settings("setting") == {
        "board": f"{loop.rows}×{loop.columns}",
        "environments": numbers(loop.num_envs),
        "steps in a rollout": numbers(loop.rollout_length),
        "batch of trajectories": numbers(loop.batch_size),
        "trajectories kept": numbers(loop.capacity),
        "learning rate": numbers(eval_agent_config().learning_rate),
        "rollouts": numbers(loop.num_steps),
    }
    assert f"learned {loop.replay_ratio} times on average" in GUIDE


def test_settings_of_meta_training():
    run, value = MetaTrainConfig(), ValueFnConfig()
    assert settings("setting of the notebook") == {
        "agents": numbers(len(run.boards)),
        "board": run.boards[0].replace("x", "×"),
        "environments of each agent": numbers(run.batch_size),
        "inner updates $N$": numbers(run.num_inner_steps),
        "steps in a training rollout": numbers(run.rollout_length),
        "steps in the validation rollout": numbers(2 * run.rollout_length),
        "learning rate of $\\eta$": numbers(run.meta_learning_rate),
        "learning rate of the agents": numbers(run.learning_rate),
        "value function's layers": numbers(value.dense),
        "value function's learning rate": numbers(value.learning_rate),
        "value function's discount and λ": numbers((value.discount_factor, value.td_lambda)),
    }


def test_costs_of_the_outer_loss():
    outer = MetaTrainConfig().outer
    power = {cost: f"10^{{{np.log10(cost):.0f}}}" for cost in (1e-2, 1e-3)}
    assert f"{power[outer.entropy_cost]}\\,\\mathbb H[\\pi]" in GUIDE
    assert f"{power[outer.prediction_entropy_cost]}\\big(\\mathbb H[y]" in GUIDE
    assert f"R_n = {power[outer.target_mean_cost]}" in GUIDE
    assert f"{power[outer.target_kl_cost]}\\,\\mathrm{{KL}}(\\mathrm{{sg}}\\,\\bar\\pi_n" in GUIDE


@pytest.mark.parametrize("kind", guide_figures.PANELS)
def test_how_long_learning_took(kind):
    rates = guide_figures.catch_rates(kind)
    first = np.argmax(rates >= 0.9, axis=1) + 1
    (row,) = [row for row in table("rule") if row[0] == guide_figures.PANELS[kind]]
    assert row[1] == str(len(rates))
    assert row[3] == f"{np.median(first):g} ({first.min()} to {first.max()})"


def test_twelve_surprises():
    assert [row[0] for row in SURPRISES] == [str(i) for i in range(1, 13)]
    assert [row[0] for row in SURPRISES if not row[-1]] == ["4"]


@pytest.mark.parametrize(("layer", "name"), PINNED)
def test_the_goldens_of_the_layer_go_red_for_the_mutant(layer, name):
    mutant = CATALOGUE[name]
    assert mutant.layer == layer
    candidate = mutate.load_edited(mutants.PORT, mutant.edits)
    assert any(tiers.first_difference(candidate, [layer], tier, ("float64",)) for tier in ("values", "gradients"))


def state_values(q_logits, policy_logits, max_abs_value):
    """Mean under a policy of the action values that logits over bins stand for, as the guide writes them: [T+1, B]."""
    bins = np.linspace(-max_abs_value, max_abs_value, q_logits.shape[-1])
    mean = (softmax(q_logits, axis=-1) * bins).sum(-1)
    root = (np.sqrt(1 + 4e-3 * (np.abs(mean) + 1.001)) - 1) / 2e-3
    return (softmax(policy_logits, axis=-1) * np.sign(mean) * (root**2 - 1)).sum(-1)


def test_state_values_average_over_the_online_policy():
    """Surprise 4, from the recorded numbers: the advantage is Retrace's target minus the target network's value."""
    golden = load(Store(), SURPRISES[3][-2], "plain")
    out, bound = golden.outputs, {**REGISTRY[golden.layer].settings, **golden.settings}["max_abs_value"]
    want = out["meta_out/q_target"] - out["meta_out/adv"]
    online, target = golden.inputs["agent_out/logits"], out["meta_out/target_out/logits"]
    value, other = (state_values(out["meta_out/target_out/q"], x, bound)[:-1] for x in (online, target))
    np.testing.assert_allclose(value, want, rtol=1e-9, atol=1e-12)
    assert np.abs(other - want).max() > 1e-3


def test_the_data_flow_is_drawn_from_the_registry(tmp_path, capsys):
    picture = tmp_path / "data_flow.svg"
    assert parity(["list", "agent/learner_step", "--diagram", str(picture)]) == 0
    assert capsys.readouterr().out == f"The picture is {picture}\n"
    assert picture.read_bytes() == (PICTURES / picture.name).read_bytes()


def test_the_learning_curves_are_drawn_from_the_fixtures(tmp_path):
    assert guide_figures.main(["--out", str(tmp_path)]) == 0
    name = "learning_curves.svg"
    assert (tmp_path / name).read_bytes() == (PICTURES / name).read_bytes()


def test_every_picture_and_file_that_it_links_to_is_there():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", GUIDE)
    assert {f"guide/{file.name}" for file in PICTURES.iterdir()} == set(links)


def test_no_formula_in_a_line_has_escapes_that_github_takes_away():
    prose = re.sub(r"```.*?```", "", GUIDE, flags=re.DOTALL)
    formulas = re.findall(r"\$[^$]+\$", prose)
    assert len(formulas) > 50
    assert not [formula for formula in formulas if re.search(r"\\[^A-Za-z]|\n", formula)]


def closure(graph):
    above = {}
    for name, feeding in graph.items():
        above[name] = feeding.union(*(above[other] for other in feeding))
    return above


def test_arrows_left_out_are_implied_by_others():
    graph = diagram.edges(REGISTRY)
    fewest = diagram.reduced(graph)
    assert closure(fewest) == closure(graph)
    assert all(fewest[name] <= graph[name] for name in graph)
    assert sum(map(len, fewest.values())) < sum(map(len, graph.values()))


def test_boxes_stand_apart_and_below_what_feeds_them():
    graph = diagram.edges(REGISTRY)
    at = diagram.places(graph)
    assert len(set(at.values())) == len(graph)
    assert all(at[other][1] < at[name][1] for name, feeding in graph.items() for other in feeding)
    columns = {diagram.group(name): column for name, (column, _) in at.items()}
    assert len(set(columns.values())) == len({column for column, _ in at.values()}) == len(columns)
