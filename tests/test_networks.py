"""Networks of the caller's own: any module with the rule's heads, heads on a plain torso, and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from port.agent import Agent
from port.config import get_settings_actor_critic
from port.environments import Catch
from port.network import ModuleNetwork, WithHeads
from port.train import CatchWorld, Trainer
from tests.small_rule import AGENT, CONFIG, meta_params, same

A, P, K = 3, AGENT.meta_net.prediction_size, AGENT.rule.num_bins


class FiveHeads(nn.Module):
    """A module of the caller's own, with something in it that no head depends on and something that stays."""

    widths = {"logits": (A,), "y": (P,), "z": (A, P), "aux_pi": (A, A), "q": (A, K)}

    def __init__(self, **widths):
        super().__init__()
        self.shapes = {name: shape for name, shape in (self.widths | widths).items() if shape}
        self.body = nn.Linear(12, 6)
        self.heads = nn.ModuleDict({name: nn.Linear(6, torch.Size(s).numel()) for name, s in self.shapes.items()})
        self.idle = nn.Linear(2, 2)
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)
        self.register_buffer("shift", torch.randn(6))

    def forward(self, observations):
        x = torch.tanh(self.body(observations.flatten(1))) + self.shift + self.frozen
        return {name: head(x).unflatten(-1, self.shapes[name]) for name, head in self.heads.items()}


def example(n=2):
    return torch.zeros(n, 4, 3, 1)


def train(network, steps=4, agent=AGENT, rule=True, out=None):
    trainer = Trainer(CatchWorld(Catch(4, 3), 2), agent, meta_params() if rule else None, CONFIG, network, out)
    trainer.run(steps)
    return trainer


def test_a_module_with_the_five_heads_learns():
    module = FiveHeads()
    before = {name: p.clone() for name, p in module.state_dict().items()}
    trainer = train(module)
    assert same(before, module.state_dict()), "the module itself is left alone"
    moved = {name for name, p in trainer.params.items() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if name.startswith(("body", "heads"))}


def test_its_outputs_are_the_modules():
    module = FiveHeads()
    network = ModuleNetwork(module, AGENT, A, example())
    params = network.init(torch.Generator(), torch.float32)
    observations = torch.randn(5, 2, 4, 3, 1)
    out = network.unroll(params, observations)
    want = module(observations.flatten(0, 1))
    for head, x in out.items():
        assert torch.equal(x.flatten(0, 1), want[head])
    assert torch.equal(network.policy(params)(observations[0]), out["logits"][0])


def test_what_does_not_learn_is_kept_in_checkpoints(tmp_path):
    torch.manual_seed(0)
    first = train(FiveHeads(), steps=6, out=tmp_path / "a")
    torch.manual_seed(0)
    train(FiveHeads(), steps=3, out=tmp_path / "b")
    torch.manual_seed(1)  # a module made anew, whose constants are other numbers
    again = train(FiveHeads(), steps=6, out=tmp_path / "b")
    assert same(first.params, again.params)


@pytest.mark.parametrize(
    ("widths", "message"),
    [
        ({"aux_pi": None}, r"gives no aux_pi; the rule reads logits \(N, 3\).*WithHeads"),
        ({"q": (A, K + 1)}, r"head q must be floats of \(2, 3, 7\); got torch.float32 \(2, 3, 8\)"),
        ({"y": (P, 1)}, r"head y must be floats of \(2, 5\)"),
    ],
)
def test_heads_that_are_missing_or_wrong_are_named(widths, message):
    with pytest.raises(ValueError, match=message):
        train(FiveHeads(**widths))


class Odd(nn.Module):
    """Gives whatever it is told to."""

    def __init__(self, give):
        super().__init__()
        self.inner, self._give = FiveHeads(), give

    def forward(self, observations):
        return self._give(self.inner(observations))


def test_an_output_that_is_no_dict_or_does_not_learn_is_refused():
    with pytest.raises(ValueError, match="gives a tuple; it must give a dict with logits"):
        train(Odd(lambda out: tuple(out.values())))
    with pytest.raises(ValueError, match="head z does not depend"):
        train(Odd(lambda out: {**out, "z": out["z"].detach()}))
    with pytest.raises(TypeError, match=r"give a torch.nn.Module"):
        train(lambda observations: None)


@pytest.mark.parametrize("part", [nn.Dropout(0.1), nn.BatchNorm1d(6)], ids=["dropout", "batch_norm"])
def test_a_module_that_is_not_a_function_is_refused(part):
    module = FiveHeads()
    module.extra = part
    with pytest.raises(ValueError, match=f"part extra is a {type(part).__name__}"):
        train(module)


def torso(size=6):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, size), nn.ReLU())


def test_heads_on_a_plain_torso_learn_and_so_does_the_torso():
    network = WithHeads(torso(), 6, AGENT, A)
    before = {name: p.clone() for name, p in network.state_dict().items()}
    trainer = train(network)
    assert trainer.params.keys() == before.keys()
    assert not any(torch.equal(p, before[name]) for name, p in trainer.params.items() if "heads/logits" in name)
    assert not torch.equal(trainer.params["torso.1.weight"], before["torso.1.weight"])


def test_heads_on_the_originals_torso_are_the_originals_network():
    agent = Agent(AGENT, (4, 3, 1), A)
    params = agent.initial_learner_state(torch.Generator().manual_seed(0), torch.float32).params
    network = WithHeads(nn.Sequential(nn.Flatten(), nn.Linear(12, 8)), 8, AGENT, A)
    given = {name: p for name, p in params.items() if not name.startswith("torso/")}
    given |= {"torso.1.weight": params["torso/0/w"].T, "torso.1.bias": params["torso/0/b"]}
    observations = torch.randn(5, 4, 3, 1)
    got = torch.func.functional_call(network, given, (observations,))
    want = agent.network.step(params, observations)
    assert got.keys() == want.keys()
    for head in want:
        torch.testing.assert_close(got[head], want[head], rtol=1e-5, atol=1e-6)


def test_a_torso_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"The torso must give \[N, E\] = \(2, 6\); got \(2, 5\)"):
        train(WithHeads(torso(5), 6, AGENT, A))


def test_a_torso_for_other_observations_is_told_what_they_are():
    with pytest.raises(ValueError, match=r"The module cannot take observations of \(2, 4, 3, 1\): mat1 and mat2"):
        train(WithHeads(nn.Sequential(nn.Flatten(), nn.Linear(5, 6)), 6, AGENT, A))


def test_a_network_in_the_place_of_the_agent_is_sent_to_its_own():
    with pytest.raises(TypeError, match="The agent is a Sequential; .* your network as `network`"):
        Trainer(CatchWorld(Catch(4, 3), 2), nn.Sequential(nn.Flatten()), meta_params())


def test_the_actor_critic_has_two_heads():
    agent = replace(get_settings_actor_critic(), net=AGENT.net)
    trainer = train(WithHeads(torso(), 6, agent, A), agent=agent, rule=False)
    assert {name for name in trainer.params if "/" in name} == {f"heads/{h}/{k}" for h in ("logits", "v") for k in "wb"}
