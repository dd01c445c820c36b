"""What of `disco-torch` is not a layer of the registry, judged all the same.

The second inverse of the signed hyperbolic, on the goldens of the first; the settings; and how many gradient steps the
trainer takes for each rollout. The settings are those of the port, which `tests/test_config_defaults.py` holds to the
original's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from disco_torch import update_rule, utils

from parity.compare import Row, compare
from parity.goldens.check import load as load_case
from parity.goldens.store import Store
from parity.tolerance import PRECISIONS
from port.config import get_settings_disco
from reports.audit.disco_torch.learning import trainer

INVERSE = "inverse_signed_hyperbolic"
SETTINGS = "settings of Disco103"
STEPS = "gradient steps for each rollout"
LEARNER_STEPS = 1.0  # colabs/eval.ipynb calls `learner_step_fn` once after each call of `unroll_actor`


def inverse_rows(store: Store) -> list[Row]:
    """The second inverse on the goldens of the first."""
    layer, found = "ops/signed_parabolic", []
    if not hasattr(utils, "inverse_signed_hyperbolic"):
        return []
    for case in store.cases(layer):
        golden = load_case(store, layer, case)
        got = utils.inverse_signed_hyperbolic(torch.from_numpy(golden.inputs["x"].copy())).numpy()
        sigma = golden.sigma("value", "out", PRECISIONS["float64"])
        row = compare((layer, case, "out"), "value", "float64", golden.outputs["out"], got, sigma)
        found.append(replace(row, layer=INVERSE))
    return found


def defaults(function: Callable[..., object]) -> dict[str, float]:
    """The default arguments of a function that are numbers."""
    given = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    return {name: float(value) for name, value in given.items() if isinstance(value, int | float)}


def original_settings() -> dict[str, float]:
    """The original's settings of Disco103."""
    config = get_settings_disco()
    rule = {**asdict(config.rule), "prediction_size": config.meta_net.prediction_size}
    return {
        **{f"rule/{name}": float(value) for name, value in rule.items() if isinstance(value, int | float)},
        **{f"hyper/{name}": float(value) for name, value in asdict(config.hyper).items()},  # type: ignore[arg-type]
    }


def _exact(where: tuple[str, str, str], ref: float, got: float) -> Row:
    """A number that no rounding enters."""
    return compare(where, "value", "float64", np.array(ref), np.array(got), np.zeros(()))


def settings_rows() -> list[Row]:
    """The rule's and, where there is one, the trainer's numbers against the original's settings of Disco103."""
    ours = {f"rule/{name}": value for name, value in defaults(update_rule.DiscoUpdateRule).items()}
    given = getattr(trainer, "DEFAULT_HYPER_PARAMS", {})
    ours |= {f"hyper/{name}": float(value) for name, value in given.items()}
    theirs = original_settings()
    return [_exact((SETTINGS, "defaults", name), ref, ours[name]) for name, ref in theirs.items() if name in ours]


def steps_rows() -> list[Row]:
    """Counts the gradient steps that one call of the trainer's `step` takes, as it is set from the start."""
    if not hasattr(trainer, "DiscoTrainer"):
        return []
    made: Any = trainer.DiscoTrainer.__new__(trainer.DiscoTrainer)
    counted: list[Any] = []
    made.replay_ratio = int(defaults(trainer.DiscoTrainer)["replay_ratio"])
    made.batch_size, made.acting_steps, made.grad_steps = 1, 0, 0
    made._buffer = trainer._ReplayBuffer(4)
    made._validate_rollout = lambda rollout: None

    def count(batch: Any) -> dict[str, Any]:
        counted.append(batch)
        return {}

    made._gradient_step = count
    made.step({"observations": torch.zeros(2, 1, 1)})
    return [_exact((STEPS, "defaults", "steps"), LEARNER_STEPS, float(len(counted)))]


def rows(store: Store) -> list[Row]:
    """All of these comparisons."""
    return [*inverse_rows(store), *settings_rows(), *steps_rows()]
