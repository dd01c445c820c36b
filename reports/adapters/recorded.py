"""Figures of the original for what the audit judges beside the registry; recorded by running it, once.

They are in `recorded.json`, with where they came from, so that an audit needs neither JAX nor the original:

    python -m reports.adapters.recorded     # runs the original and writes the file again

V-trace as `disco_rl` calls it, in values and gradients; the inverse of the signed hyperbolic near 0, where a clamp
shows; the settings of Disco103; and how often the evaluation notebook learns.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from parity.layers.draw import bell, generator
from parity.layers.spec import Arrays
from parity.store import Accuracy, write_atomically

FILE = Path(__file__).with_name("recorded.json")
PACKAGES = ("jax", "rlax", "distrax", "dm-haiku", "numpy")
LEARNING = {"discount": 0.997, "lambda": 0.95}
VTRACE_SIZES = {"unit_normal": (9, 4), "terminals": (6, 3), "on_policy": (5, 2), "T1": (1, 2)}
NEAR_ZERO = (1e-7, -1e-6, 3e-6, 1e-5, -1e-5, 1e-4, -1e-3, 0.5)
RULE_SETTINGS = ("value_discount", "max_abs_value", "num_bins")


def vtrace_inputs(case: str) -> Arrays:
    """Rewards, values and log ratios of mean 0 and variance 1."""
    T, B = VTRACE_SIZES[case]
    rng = generator("audit", f"vtrace/{case}")
    continues = np.ones((T, B))
    if case == "unit_normal":
        continues[T // 2, 0] = 0.0
    if case == "terminals":
        continues[[0, T // 2, T - 1], [0, 1, 2]] = 0.0
    return {
        "rewards": bell(rng, (T, B)),
        "target_values": bell(rng, (T + 1, B)),
        "continues": continues,
        "rho": np.ones((T, B)) if case == "on_policy" else np.exp(bell(rng, (T, B))),
        "cotangents/errors": bell(rng, (T, B)),
        "cotangents/adv": bell(rng, (T, B)),
    }


def _original_vtrace(x: Arrays, dtype: str) -> tuple[Arrays, Arrays]:
    """Outputs and VJPs of the original's V-trace."""
    jax = importlib.import_module("jax")
    value_utils = importlib.import_module("disco_rl.value_fns.value_utils")
    given = {name: jax.numpy.asarray(value, dtype) for name, value in x.items()}
    names = ("rewards", "target_values", "continues", "rho")

    def run(rewards: Any, values: Any, continues: Any, rho: Any) -> tuple[Any, Any]:
        actions = np.zeros(rewards.shape, np.int32)
        outs = value_utils.estimate_values(
            rewards, actions, continues, rho, values, values, LEARNING["discount"], LEARNING["lambda"]
        )
        return outs.td, outs.adv

    (errors, adv), pull = jax.vjp(run, *(given[name] for name in names))
    vjps = pull((given["cotangents/errors"], given["cotangents/adv"]))
    outputs = {"errors": np.asarray(errors), "adv": np.asarray(adv)}
    return outputs, {name: np.asarray(value) for name, value in zip(names, vjps, strict=True)}


def _record_vtrace(case: str) -> dict[str, Any]:
    x = vtrace_inputs(case)
    outputs, vjps = _original_vtrace(x, "float64")
    single, _ = _original_vtrace(x, "float32")
    distance = {name: float(np.abs(single[name] - outputs[name]).max()) for name in outputs}
    lists = {kind: {n: v.tolist() for n, v in found.items()} for kind, found in (("outputs", outputs), ("vjps", vjps))}
    return {"inputs": {name: value.tolist() for name, value in x.items()}, **lists, "distance32": distance}


def _record_near_zero() -> dict[str, Any]:
    """The inverse and its derivative, in float32 and, at the same numbers, in float64."""
    jax = importlib.import_module("jax")
    inverse = importlib.import_module("rlax").SIGNED_HYPERBOLIC_PAIR[1]
    x = np.array(NEAR_ZERO, np.float32)
    found: dict[str, Any] = {"x": x.astype(float).tolist()}
    for dtype in ("float64", "float32"):
        value, derivative = jax.vmap(jax.value_and_grad(inverse))(jax.numpy.asarray(x, dtype))
        found[dtype] = {
            "value": np.asarray(value, float).tolist(),
            "derivative": np.asarray(derivative, float).tolist(),
        }
    return found


def record() -> dict[str, Any]:
    """Runs the original; float64 where it says so."""
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    settings = importlib.import_module("disco_rl.agent").get_settings_disco()
    rule = importlib.import_module("disco_rl.update_rules.disco").DiscoUpdateRule
    defaults = rule.__init__.__defaults__
    identity = importlib.import_module("reference.identity").describe()
    return {
        "original": identity,
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "vtrace": {case: _record_vtrace(case) for case in VTRACE_SIZES},
        "near_zero": _record_near_zero(),
        "settings": {
            **{f"hyper/{k}": float(v) for k, v in settings.hyper_params.items() if k != "discount_factor"},
            **{f"rule/{k}": float(settings.update_rule[k]) for k in RULE_SETTINGS},
            **{"rule/moving_average_decay": defaults[0], "rule/moving_average_eps": defaults[1]},
            "rule/prediction_size": float(settings.update_rule.net.prediction_size),
        },
        # Read, not run: colabs/eval.ipynb calls `learner_step_fn` once after each call of `unroll_actor`.
        "learner_steps_per_rollout": 1,
    }


@lru_cache(maxsize=1)
def load() -> dict[str, Any]:
    """The recorded figures."""
    return json.loads(FILE.read_text())


def arrays(found: dict[str, Any]) -> Arrays:
    """Lists as float64 arrays."""
    return {name: np.array(value, np.float64) for name, value in found.items()}


def near_zero(output: str) -> tuple[np.ndarray, Accuracy]:
    """The inverse's value or derivative near 0 in float64, and how far from it the original is in float32."""
    truth, single = (np.array(load()["near_zero"][dtype][output]) for dtype in ("float64", "float32"))
    return truth, Accuracy(float(np.abs(truth).max()), 0.0, float(np.abs(single - truth).max()))


if __name__ == "__main__":
    write_atomically(FILE, (json.dumps(record(), indent=1, sort_keys=True) + "\n").encode())
    print(f"wrote {FILE}")
