"""The rule in the box: its file, its card, and that agents learn by it."""

import json

import pytest
import torch

from port import Agent, embedded, evaluate, names, weights


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A copy of the rule that may be spoilt."""
    copy = tmp_path / embedded.WEIGHTS.name
    copy.write_bytes(embedded.WEIGHTS.read_bytes())
    copy.with_suffix(".json").write_bytes(embedded.WEIGHTS.with_suffix(".json").read_bytes())
    monkeypatch.setattr(embedded, "WEIGHTS", copy)
    return copy


def test_the_weights_fit_the_sizes_on_the_card():
    sizes, found = embedded.card(), weights.meta_config_of(embedded.path())
    assert (found.prediction_size, found.hidden_size) == (sizes["prediction_size"], sizes["hidden_size"])
    assert found.meta_rnn.hidden_size == sizes["meta_hidden_size"]
    names.check_shapes(embedded.load(), names.meta_shapes(found), "rule's weights")


def test_it_is_what_the_command_takes_by_default():
    task = evaluate.task_of(evaluate.parser().parse_args([]))
    config = task.agent
    assert task.weights == embedded.WEIGHTS
    assert config.rule.num_bins == embedded.card()["num_bins"]
    assert list(config.net.dense) == embedded.card()["dense"]


def test_an_agent_learns_a_small_board_by_it(tmp_path):
    arguments = ["--rows", "4", "--columns", "4", "--seeds", "1", "--steps", "250", "--jobs", "1", "--quiet"]
    assert evaluate.main([*arguments, "--bar", "0.7", "--at-least", "1", "--out", str(tmp_path)]) == 0


def test_changed_weights_are_refused(elsewhere):
    content = bytearray(elsewhere.read_bytes())
    content[1000] ^= 1
    elsewhere.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="its sha256 is not the one on its card"):
        embedded.load()


def test_a_missing_file_is_named(elsewhere):
    elsewhere.unlink()
    with pytest.raises(ValueError, match="weights are not at .*git checkout"):
        embedded.load()
    elsewhere.with_suffix(".json").unlink()
    with pytest.raises(ValueError, match="card of the embedded rule cannot be read"):
        embedded.card()


def test_the_card_tells_how_it_was_made_and_judged():
    card = embedded.card()
    assert all("port.meta_train" in command for command in card["commands"])
    assert len(card["judged"]["seeds"]) >= 5
    assert json.dumps(card)


def test_it_starts_a_learner():
    agent = Agent(evaluate.task_of(evaluate.parser().parse_args([])).agent, (8, 8, 1), 3)
    state = agent.initial_learner_state(torch.Generator().manual_seed(0), torch.float32)
    agent.rule.check_meta_params(embedded.load())
    assert state.opt_state.count == 0
