"""`python -m port.evaluate`: sizes from weights, several seeds in processes, files, exit codes, sentences."""

import csv
import json
import re

import numpy as np
import pytest
import torch

from port import weights
from port.config import AgentNetConfig, DiscoConfig, MetaNetConfig, MetaRnnConfig
from port.evaluate import __main__, multi_seed
from port.networks import param_names
from port.networks.init import init_meta_params

META = MetaNetConfig(
    prediction_size=5,
    hidden_size=6,
    embedding_size=(4, 3, 2),
    policy_channels=(3,),
    policy_target_channels=(4, 3),
    meta_rnn=MetaRnnConfig((5, 2), (4, 3), (6,), 7),
)
SIZES = {"num_bins": 7, "max_abs_value": 3.0, "dense": [8], "head_mlp_hiddens": [4], "lstm_size": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights of a small rule, with their configuration beside them."""
    path = tmp_path_factory.mktemp("rule")
    params = init_meta_params(META, torch.Generator().manual_seed(0), torch.float32)
    weights.save_npz(path / "rule.npz", params, META)
    (path / "rule.json").write_text(json.dumps({**SIZES, "learning_rate": 0.005, "num_meta_updates": 800}))
    return path


def read(*more):
    return __main__.task_of(__main__.parser().parse_args(list(map(str, more))))


def test_sizes_of_the_rule_come_from_its_weights(folder):
    assert weights.meta_config_of(folder / "rule.npz") == META
    assert param_names.meta_config_of(names_and_shapes(MetaNetConfig())) == MetaNetConfig()


@pytest.mark.parametrize("lost", ["lstm/mlp/~/linear_0/w", "lstm/~/meta_lstm/~unroll/sequential/conv1_d/w"])
def test_a_weight_that_is_missing_or_a_lone_number_is_called_by_its_name(lost):
    shapes = names_and_shapes(META)
    for odd in ({**shapes, lost: ()}, {name: shape for name, shape in shapes.items() if name != lost}):
        with pytest.raises(ValueError, match=f"meta-network: {re.escape(lost)} is missing"):
            param_names.meta_config_of(odd)


def names_and_shapes(config):
    shapes, table = param_names.meta_shapes(config), param_names.meta_names(config)
    return {table[ours]: shape for ours, shape in shapes.items()}


def test_other_sizes_come_from_the_configuration_beside_and_the_command_line_wins(folder):
    task = read("--weights", folder / "rule.npz", "--dense", "9,5", "--rows", 4)
    assert task.agent.meta_net == META
    assert task.agent.net == AgentNetConfig(dense=(9, 5), head_mlp_hiddens=(4,), lstm_size=4)
    assert task.agent.rule == DiscoConfig(num_bins=7, max_abs_value=3.0)
    assert task.agent.learning_rate == 0.005
    assert (task.loop.rows, task.loop.columns, task.loop.num_steps) == (4, 8, 1000)


def test_without_a_configuration_the_agent_is_the_notebooks(folder, tmp_path):
    alone = tmp_path / "alone.npz"
    alone.write_bytes((folder / "rule.npz").read_bytes())
    task = read("--weights", alone)
    assert (task.agent.net, task.agent.rule, task.agent.learning_rate) == (AgentNetConfig(), DiscoConfig(), 0.01)


def command(folder, out, *more):
    size = ("--rows", "4", "--columns", "3", "--batch-size", "32", "--steps", "34", "--quiet")
    return ["--weights", str(folder / "rule.npz"), *size, "--out", str(out), *more]


@pytest.fixture(scope="module")
def done(folder, tmp_path_factory):
    """One run of two seeds in two processes."""
    out = tmp_path_factory.mktemp("out")
    return __main__.main(command(folder, out, "--seeds", "3,5", "--jobs", "2", "--at-least", "2", "--bar", "1.01")), out


def test_fewer_solved_seeds_than_asked_for_end_with_1(done):
    assert done[0] == 1


def test_the_summary_says_what_was_run(done):
    found = json.loads((done[1] / "summary.json").read_text())
    assert [run["seed"] for run in found["seeds"]] == [3, 5]
    assert (found["rule"], found["solved"], found["bar"]) == ("disco", 0, 1.01)
    assert found["weights"].endswith("rule.npz")
    assert found["agent"]["learning_rate"] == 0.005 and found["agent"]["meta_net"]["hidden_size"] == 6
    assert found["loop"]["rows"] == 4 and found["loop"]["num_steps"] == 34


def test_curves_are_those_of_a_run_in_this_process(done, folder):
    before = torch.get_num_threads()
    try:
        alone = multi_seed.run_one(read(*command(folder, "unused")), 5)
    finally:
        torch.set_num_threads(before)
    with (done[1] / "seed_5.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 34
    for name, values in alone.columns.items():
        assert [row[name] for row in rows] == [f"{x:.9g}" for x in values], name
    assert np.isfinite([float(row["total_loss"]) for row in rows[-2:]]).all()


def test_the_verdict_is_in_words(done, capsys):
    found = json.loads((done[1] / "summary.json").read_text())
    text = __main__.verdict(found | {"weights": "rule.npz"})
    assert "0 of 2 seeds catch at least 1.01 on 4x3 after 34 steps with rule.npz" in text
    assert text.startswith("seed 3: ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--weights", "{folder}/none.npz"], "There is no weights file at"),
        (["--weights", "{folder}/rule.json"], "is not an .npz file"),
        (["--weights", "{folder}/rule.npz", "--rule", "actor_critic"], "has no weights; leave --weights out"),
        (["--weights", "{folder}/rule.npz", "--config", "{folder}/none.json"], "There is no configuration at"),
        (["--weights", "{folder}/rule.npz", "--config", "{folder}/rule.npz"], "is no JSON"),
        (["--weights", "{folder}/rule.npz", "--seeds", "many"], "seeds separated by commas; got 'many'"),
        (["--weights", "{folder}/rule.npz", "--seeds", "1,1"], "no list of different seeds"),
        (["--weights", "{folder}/rule.npz", "--seeds", "0"], "no list of different seeds"),
        (["--weights", "{folder}/rule.npz", "--rows", "1"], "1 rows and 8 columns is too small"),
        (["--weights", "{folder}/rule.npz", "--steps", "0"], "num_steps is 0; it must be positive"),
        (["--weights", "{folder}/rule.npz", "--jobs", "0"], "At least one process is needed"),
        (["--weights", "{folder}/rule.npz", "--num-bins", "1"], "two-hot values need at least 2"),
        (["--weights", "{folder}/rule.npz", "--learning-rate", "nan"], "--learning-rate is nan; it must be positive"),
        (["--weights", "{folder}/rule.npz", "--seeds", f"{2**70},1"], "does not fit into 63 bits"),
        (["--weights", "{folder}/rule.npz", "--bar", "nan"], "--bar nan is no catch rate"),
        (["--weights", "{folder}/rule.npz", "--seeds", "2", "--at-least", "3"], "cannot be met by 2 seeds"),
        (["--weights", "{folder}/rule.npz", "--json", "{folder}/none/x.json"], "The summary cannot be written to"),
        (["--weights", "{folder}/rule.npz", "--json", "{folder}"], "The summary cannot be written to"),
    ],
)
def test_what_cannot_run_ends_with_2_and_a_sentence(folder, tmp_path, capsys, arguments, sentence):
    given = [argument.format(folder=folder) for argument in arguments]
    assert __main__.main([*given, "--quiet", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and "Traceback" not in error


@pytest.mark.parametrize("text", ['{"dense": "abc"}', '{"dense": [1.5]}', '{"dense": 5}', '{"num_bins": null}'])
def test_a_configuration_of_other_types_is_refused_in_a_sentence(folder, tmp_path, capsys, text):
    (tmp_path / "odd.json").write_text(text)
    given = ["--weights", str(folder / "rule.npz"), "--config", str(tmp_path / "odd.json")]
    assert __main__.main([*given, "--quiet", "--out", str(tmp_path)]) == 2
    assert "it must be" in capsys.readouterr().err


def test_weights_of_something_else_are_refused(tmp_path, capsys):
    np.savez(tmp_path / "other.npz", **{"lstm/linear/w": np.zeros((2, 3), np.float32)})
    assert __main__.main(["--weights", str(tmp_path / "other.npz"), "--quiet"]) == 2
    assert "not the weights of a Disco meta-network" in capsys.readouterr().err


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as end:
        __main__.main(["--help"])
    assert end.value.code == 0
    assert "example: python -m port.evaluate" in capsys.readouterr().out
