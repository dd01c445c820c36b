"""Lives on Catch: which rule, which weights, which seed, which sizes; and the noise that decides their actions.

A life is told completely by its description. Both sides, the original and an implementation that is held to it, make
everything else from that: `loop` in the words of the evaluation notebook, `settings` in those of the registry.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parity.errors import FixtureError
from parity.goldens.check import disco103
from parity.goldens.store import FIXTURES
from parity.layers import params
from parity.layers.learning import LEARNER
from parity.layers.rules import LEARNER as AC_LEARNER
from parity.layers.spec import Arrays, Settings

EMBEDDED = FIXTURES / "weights" / "catch_rule.npz"
KINDS = ("disco103", "embedded", "actor_critic")
NUM_ACTIONS = 3
# Only fresh experience, from 64 environments. Soon after 120 steps (222,720 actions) the original parts from itself,
# even in float64, when its initial parameters are moved by one unit in the last place.
ON_POLICY = {"num_steps": 120, "replay_ratio": 1, "capacity": 64}


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
        """Environments that act side by side."""
        return self.batch_size // self.replay_ratio


@dataclass(frozen=True)
class Life:
    """What a life is.

    Attributes:
        name: of its files.
        rule: disco or actor_critic.
        weights: of the rule: disco103, embedded or none.
        seed: of parameters, actions and balls.
        loop: the evaluation's.
        settings: of the learner step, as the registry names them.
    """

    name: str
    rule: str
    weights: str
    seed: int
    loop: Loop
    settings: Settings

    @property
    def acted(self) -> tuple[int, int]:
        """Steps and environments of a rollout, (L, B)."""
        return self.loop.rollout_length, self.loop.num_envs

    def as_json(self) -> dict[str, Any]:
        """The description for a manifest."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @staticmethod
    def from_json(entry: dict[str, Any]) -> Life:
        """The inverse of `as_json`."""
        return Life(**{**entry, "loop": Loop(**entry["loop"])})


def _card() -> dict[str, Any]:
    path = EMBEDDED.with_suffix(".json")
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError) as problem:
        raise FixtureError(f"{path} cannot be read ({problem}). Restore it: `git checkout -- fixtures`.") from None
    return found


def _embedded_sizes() -> Settings:
    card = _card()
    same = ("max_abs_value", "dense", "head_mlp_hiddens", "lstm_size", "learning_rate")
    sizes = {
        "P": card["prediction_size"],
        "K": card["num_bins"],
        "H": card["hidden_size"],
        "M": card["meta_hidden_size"],
    }
    return {**params.FULL_SIZE, **sizes, **{name: card[name] for name in same}}


def _sizes(kind: str) -> Settings:
    """Sizes and costs; those of the notebook for Disco103, those under which it learns for actor-critic."""
    if kind == "disco103":
        return {**LEARNER, **params.FULL_SIZE, "max_abs_value": 300.0, "learning_rate": 1e-2}
    if kind == "embedded":
        return {**LEARNER, **_embedded_sizes()}
    scalar = {"K": 1, "categorical_value": False, "nonlinear_value_transform": False, "max_abs_value": 300.0}
    learning = {"normalize_adv": True, "entropy_cost": 0.01, "learning_rate": 5e-3, "dense": (64, 32, 32)}
    return {**AC_LEARNER, **scalar, **learning}


def life(kind: str, seed: int, sizes: Settings | None = None, **loop: int) -> Life:
    """A life of one of the kinds: the notebook's loop (for actor-critic one in which it learns), and what is changed.

    Args:
        kind: disco103, embedded or actor_critic.
        seed: of everything but the replay.
        sizes: of agent and rule, other than the kind's.
        **loop: fields of `Loop`, other than the kind's.
    """
    if kind not in KINDS:
        raise ValueError(f"There is no life of kind {kind!r}; there are: {', '.join(KINDS)}.")
    is_disco = kind != "actor_critic"
    chosen = Loop(**({} if is_disco else ON_POLICY) | loop)
    seen = {"obs": (chosen.rows, chosen.columns, 1), "T": chosen.rollout_length - 1, "B": chosen.batch_size}
    settings = {**_sizes(kind), **(sizes or {}), **seen, "A": NUM_ACTIONS, "is_meta_training": False}
    plain: Settings = json.loads(json.dumps(settings))
    rule, weights = ("disco", kind) if is_disco else ("actor_critic", "none")
    return Life(f"{kind}_seed{seed}", rule, weights, seed, chosen, plain)


def kind_of(of: Life) -> str:
    """The kind that a life is of, as its name says."""
    return of.name.rpartition("_seed")[0]


def _embedded() -> Arrays:
    content = EMBEDDED.read_bytes() if EMBEDDED.is_file() else b""
    if hashlib.sha256(content).hexdigest() != _card()["sha256"]:
        raise FixtureError(f"{EMBEDDED} is missing or damaged. Restore it: `git checkout -- fixtures`.")
    with np.load(EMBEDDED, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def meta_params(of: Life) -> Arrays:
    """The rule's weights by the original's names; `WeightsMissing` where Disco103's are not on this machine."""
    if of.rule != "disco":
        return {}
    found = disco103() if of.weights == "disco103" else _embedded()
    shapes = params.meta(of.settings)
    if shapes != {name: array.shape for name, array in found.items()}:
        raise FixtureError(f"{of.name}: its settings are not the sizes of the weights {of.weights}.")
    return found


def gumbel(uniform: np.ndarray) -> np.ndarray:
    """Gumbel noise from JAX's float32 uniforms, the same bits everywhere.

    JAX takes both logarithms in float32, as its compiler sees fit; here they are taken in float64 and the result is
    rounded to float32, so that it does not depend on who computes it.

    Args:
        uniform: [...], float32 in [0, 1).

    Returns:
        [...], float32.

    Reference: jax/_src/random.py::gumbel
    """
    positive = np.maximum(uniform.astype(np.float64), np.finfo(np.float32).tiny)
    return (-np.log(-np.log(positive))).astype(np.float32)
