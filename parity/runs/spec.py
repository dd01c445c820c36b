"""Training runs on Catch: rule, weights, seed, sizes and loop, in one record; and the noise that decides actions.

A run follows from its `RunSpec` alone. The original, the port and any other implementation make everything else from
it: `agent` and `loop` are in words that any framework can follow, `settings` in those of the registry of layers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity import weights
from parity.errors import FixtureError, WeightsMissing
from parity.files import read_json
from parity.goldens.store import FIXTURES
from parity.layers import params
from parity.layers.learning import LEARNER
from parity.layers.rules import LEARNER as AC_LEARNER
from parity.layers.spec import Arrays, Settings

BUNDLED = FIXTURES / "weights" / "catch_rule.npz"
NUM_ACTIONS = 3
TITLES = {"disco103": "Disco103", "bundled": "the bundled rule", "actor_critic": "actor-critic"}
PRESETS = tuple(TITLES)
SECONDS = {"disco103": 0.3, "bundled": 0.045, "actor_critic": 0.012}  # a step takes about, on one core
# From 64 environments. Soon after 120 steps (222,720 actions) the original diverges from itself, even in float64, when
# its initial parameters are perturbed by one unit in the last place.
LOCKSTEP_STEPS = {"actor_critic": 120}
DISCO103_AGENT: dict[str, Any] = {
    **{"learning_rate": 1e-2, "dense": (512, 512), "head_mlp_hiddens": (128,), "lstm_size": 128},
    **{"num_bins": 601, "max_abs_value": 300.0, "prediction_size": 600, "hidden_size": 256, "meta_hidden_size": 128},
}
ACTOR_CRITIC_AGENT = {"learning_rate": 5e-3, "dense": (64, 32, 32), "entropy_cost": 0.01, "normalize_adv": True}
LETTERS = {"prediction_size": "P", "num_bins": "K", "hidden_size": "H", "meta_hidden_size": "M"}  # in the registry


@dataclass(frozen=True)
class Loop:
    """Settings of the evaluation loop; the defaults are those of the original's notebook."""

    num_steps: int = 1000  # rollouts
    batch_size: int = 64
    rollout_length: int = 29
    replay_ratio: int = 32
    capacity: int = 1024
    rows: int = 8
    columns: int = 8
    replay_seed: int = 17

    @property
    def num_envs(self) -> int:
        """Environments that act in parallel."""
        return self.batch_size // self.replay_ratio


@dataclass(frozen=True)
class RunSpec:
    """A training run. Its precision is the caller's choice.

    Attributes:
        preset: where it comes from.
        rule: `disco` or `actor_critic`.
        weights: `disco103`, `bundled`, or None for a rule without weights.
        seed: of parameters, actions and balls.
        agent: learning rate and sizes of the agent, sizes of the meta-network, options of the rule.
        loop: of the evaluation.
    """

    preset: str
    rule: str
    weights: str | None
    seed: int
    agent: Mapping[str, Any]
    loop: Loop = Loop()

    def __post_init__(self) -> None:
        plain = {name: tuple(x) if isinstance(x, list) else x for name, x in self.agent.items()}
        object.__setattr__(self, "agent", plain)

    @property
    def name(self) -> str:
        """E.g. `bundled_seed0`."""
        return f"{self.preset}_seed{self.seed}"

    @property
    def title(self) -> str:
        """The preset, for readers."""
        return TITLES.get(self.preset, self.preset)

    @property
    def num_steps(self) -> int:
        """Steps of the loop."""
        return self.loop.num_steps

    @property
    def seconds(self) -> float:
        """About how long the run takes on one core."""
        return self.num_steps * SECONDS.get(self.preset, 0.1)

    @property
    def rollout_shape(self) -> tuple[int, int]:
        """Steps and environments of a rollout, (L, B)."""
        return self.loop.rollout_length, self.loop.num_envs

    @property
    def settings(self) -> Settings:
        """Settings of the learner step, as the registry names them."""
        sizes = {LETTERS.get(name, name): x for name, x in self.agent.items()}
        scalar = {"K": 1, "categorical_value": False, "nonlinear_value_transform": False, "max_abs_value": 300.0}
        rule = {**LEARNER, **params.FULL_SIZE} if self.rule == "disco" else {**AC_LEARNER, **scalar}
        seen = {"obs": (self.loop.rows, self.loop.columns, 1), "T": self.loop.rollout_length - 1}
        batch = {"B": self.loop.batch_size, "A": NUM_ACTIONS, "is_meta_training": False}
        plain: Settings = json.loads(json.dumps({**rule, **sizes, **seen, **batch}))
        return plain

    def with_seed(self, seed: int) -> RunSpec:
        """The same run from another seed."""
        return replace(self, seed=seed)

    def with_steps(self, num_steps: int | None) -> RunSpec:
        """The same run with that many steps; itself for None."""
        return self if num_steps is None else replace(self, loop=replace(self.loop, num_steps=num_steps))

    def as_json(self) -> dict[str, Any]:
        """The record for a manifest."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> RunSpec:
        """The inverse of `as_json`."""
        return RunSpec(**{**entry, "loop": Loop(**entry["loop"])})

    def weights_path(self) -> Path:
        """The file of the rule's weights, verified; WeightsMissing or FixtureError says what is wrong."""
        if self.weights == "bundled":
            return _bundled_path()
        try:
            path: Path = weights.find_weights(download=False).path
            return path
        except weights.WeightsMissingError as error:
            raise WeightsMissing(str(error)) from None
        except weights.WeightsError as error:
            raise FixtureError(f"Disco103's weights cannot be used: {error}") from None

    def weights_sha256(self) -> str:
        """Of the published file of the rule's weights, which are verified; one saved again holds the same weights."""
        self.weights_path()
        sha256: str = _card()["sha256"] if self.weights == "bundled" else weights.DISCO103.sha256
        return sha256

    def meta_params(self) -> Arrays:
        """The rule's weights by the original's names; none for a rule without weights."""
        if not self.weights:
            return {}
        path = self.weights_path()
        if self.weights == "disco103":
            arrays = weights.read_verified(path)
        else:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
        if params.meta(self.settings) != {name: array.shape for name, array in arrays.items()}:
            raise FixtureError(f"{self.name}: its settings are not the sizes of the weights {self.weights}.")
        return arrays


def preset(name: str, seed: int = 0, agent: Mapping[str, Any] | None = None, **loop: int) -> RunSpec:
    """A run of the notebook's loop (for actor-critic one in which it learns).

    Args:
        name: disco103, bundled or actor_critic.
        seed: of everything but the replay.
        agent: sizes and options other than the preset's.
        **loop: fields of `Loop` other than the preset's.
    """
    if name not in PRESETS:
        raise ValueError(f"There is no preset {name!r}; there are: {', '.join(PRESETS)}.")
    if name == "actor_critic":  # learns from fresh experience only
        on_policy = Loop(**{"num_steps": 300, "replay_ratio": 1, "capacity": 64, **loop})
        return RunSpec(name, name, None, seed, {**ACTOR_CRITIC_AGENT, **(agent or {})}, on_policy)
    sizes = DISCO103_AGENT if name == "disco103" else _bundled_agent()
    return RunSpec(name, "disco", name, seed, {**sizes, **(agent or {})}, Loop(**loop))


def lockstep_preset(name: str, seed: int, num_steps: int | None = None) -> RunSpec:
    """A preset, as long as its runs are compared action by action."""
    return preset(name, seed).with_steps(num_steps or LOCKSTEP_STEPS.get(name))


def new_name(name: str) -> str:
    """The name of a preset, which may be given as it was called before."""
    return "bundled" if name == "embedded" else name


def _card() -> dict[str, Any]:
    form = {"sha256": str, **dict.fromkeys(DISCO103_AGENT, object)}
    return read_json(BUNDLED.with_suffix(".json"), form, "Restore it: `git checkout -- fixtures`.")


def _bundled_agent() -> dict[str, Any]:
    return {name: value for name, value in _card().items() if name in DISCO103_AGENT}


def _bundled_path() -> Path:
    content = BUNDLED.read_bytes() if BUNDLED.is_file() else b""
    if hashlib.sha256(content).hexdigest() != _card()["sha256"]:
        raise FixtureError(f"{BUNDLED} is missing or damaged. Restore it: `git checkout -- fixtures`.")
    return BUNDLED


def gumbel(uniform: np.ndarray) -> np.ndarray:
    """Gumbel noise from JAX's float32 uniforms in [0, 1), the same bits everywhere.

    JAX takes both logarithms in float32, as its compiler sees fit; here they are taken in float64 and the result is
    rounded to float32.

    Reference: jax/_src/random.py::gumbel
    """
    positive = np.maximum(uniform.astype(np.float64), np.finfo(np.float32).tiny)
    return (-np.log(-np.log(positive))).astype(np.float32)
