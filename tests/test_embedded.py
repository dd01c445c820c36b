"""The rule in the box: its file, its card, and that agents learn by it."""

import json

import pytest
import torch

from port import Agent, bundled, weights
from port.evaluate import __main__
from port.networks import param_names


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A copy of the rule that may be spoilt."""
    copy = tmp_path / bundled.WEIGHTS.name
    copy.write_bytes(bundled.WEIGHTS.read_bytes())
    copy.with_suffix(".json").write_bytes(bundled.WEIGHTS.with_suffix(".json").read_bytes())
    monkeypatch.setattr(bundled, "WEIGHTS", copy)
    return copy


def test_the_weights_fit_the_sizes_on_the_card():
    sizes, found = bundled.card(), weights.meta_config_of(bundled.path())
    assert (found.prediction_size, found.hidden_size) == (sizes["prediction_size"], sizes["hidden_size"])
    assert found.meta_rnn.hidden_size == sizes["meta_hidden_size"]
    param_names.check_shapes(bundled.load(), param_names.meta_shapes(found), "rule's weights")


def test_it_is_what_the_command_takes_by_default():
    task = __main__.task_of(__main__.parser().parse_args([]))
    config = task.agent
    assert task.weights == bundled.WEIGHTS
    assert config.rule.num_bins == bundled.card()["num_bins"]
    assert list(config.net.dense) == bundled.card()["dense"]


def test_an_agent_learns_a_small_board_by_it(tmp_path):
    arguments = ["--rows", "4", "--columns", "4", "--seeds", "1", "--steps", "250", "--jobs", "1", "--quiet"]
    assert __main__.main([*arguments, "--bar", "0.7", "--at-least", "1", "--out", str(tmp_path)]) == 0


def test_changed_weights_are_refused(elsewhere):
    content = bytearray(elsewhere.read_bytes())
    content[1000] ^= 1
    elsewhere.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="its sha256 is not the one on its card"):
        bundled.load()


def test_a_missing_file_is_named(elsewhere):
    elsewhere.unlink()
    with pytest.raises(ValueError, match="weights are not at .*git checkout"):
        bundled.load()
    elsewhere.with_suffix(".json").unlink()
    with pytest.raises(ValueError, match="card of the embedded rule cannot be read"):
        bundled.card()


def test_the_card_tells_how_it_was_made_and_judged():
    card = bundled.card()
    assert all("port.meta_train" in command for command in card["commands"])
    assert len(card["judged"]["seeds"]) >= 5
    assert json.dumps(card)


def test_it_starts_a_learner():
    agent = Agent(__main__.task_of(__main__.parser().parse_args([])).agent, (8, 8, 1), 3)
    state = agent.initial_learner_state(torch.Generator().manual_seed(0), torch.float32)
    agent.rule.check_meta_params(bundled.load())
    assert state.opt_state.count == 0
