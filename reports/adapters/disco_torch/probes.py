"""What of `disco-torch` is not a layer of the registry, judged all the same on figures recorded from the original.

V-trace, until the registry has it; the second inverse of the signed hyperbolic, on the goldens of that inverse; the
first one near 0 in float32; the settings; and how many gradient steps the trainer takes for each rollout.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from disco_torch import update_rule, utils

from parity.check import load as load_case
from parity.compare import Row, compare
from parity.layers import REGISTRY
from parity.layers.spec import Arrays
from parity.store import Accuracy, Store
from reports.adapters import recorded
from reports.adapters.disco_torch import values
from reports.adapters.disco_torch.inputs import default_dtype
from reports.adapters.disco_torch.learning import trainer

VTRACE = "V-trace"
INVERSE = "inverse_signed_hyperbolic"
NEAR_ZERO = "signed_hyperbolic_inv near 0"
SETTINGS = "settings of Disco103"
STEPS = "gradient steps for each rollout"


def _vtrace(x: Arrays, dtype: torch.dtype) -> tuple[Arrays, Arrays]:
    """Outputs and VJPs of the package's V-trace."""
    with default_dtype(dtype):
        given = {name: torch.tensor(value, dtype=dtype) for name, value in x.items()}
        sources = {name: value.requires_grad_() for name, value in given.items() if "/" not in name}
        outputs = values.vtrace(sources, recorded.LEARNING)
        cotangents = [given[f"cotangents/{name}"] for name in outputs]
        vjps = torch.autograd.grad(list(outputs.values()), list(sources.values()), cotangents)
    found = {name: value.detach().numpy() for name, value in outputs.items()}
    return found, {name: value.numpy() for name, value in zip(sources, vjps, strict=True)}


def _rows(where: tuple[str, str], kind: str, refs: Arrays, got: Arrays, distance32: dict[str, float]) -> list[Row]:
    found = []
    for name, ref in refs.items():
        dtype, accuracy = str(got[name].dtype), Accuracy(float(np.abs(ref).max()), 0.0, distance32.get(name))
        found.append(compare((*where, name), kind, dtype, ref, got[name], accuracy))
    return found


def vtrace_rows() -> list[Row]:
    """V-trace's errors and advantages, and their gradients."""
    found: list[Row] = []
    for case, figures in recorded.load()["vtrace"].items():
        x, refs, vjps = (recorded.arrays(figures[kind]) for kind in ("inputs", "outputs", "vjps"))
        if case == "on_policy":
            del vjps["rho"]  # a ratio of exactly 1 stands at the clip bound, where either derivative is right
        outputs, gradients = _vtrace(x, torch.float64)
        single, _ = _vtrace(x, torch.float32)
        found += _rows((VTRACE, case), "value", refs, outputs, {})
        found += _rows((VTRACE, case), "vjp", vjps, gradients, {})
        found += _rows((VTRACE, case), "value", refs, single, figures["distance32"])
    return found


def inverse_rows(store: Store) -> list[Row]:
    """The second inverse on the goldens of the first."""
    layer, found = "ops/signed_parabolic", []
    if not hasattr(utils, "inverse_signed_hyperbolic") or layer not in REGISTRY:
        return []
    for case in store.cases(layer):
        golden = load_case(store, layer, case)
        got = utils.inverse_signed_hyperbolic(torch.from_numpy(golden.inputs["x"].copy())).numpy()
        accuracy = golden.accuracy["value"]["out"]
        row = compare((layer, case, "out"), "value", "float64", golden.outputs["float64"]["out"], got, accuracy)
        found.append(replace(row, layer=INVERSE))
    return found


def near_zero_rows() -> list[Row]:
    """Value and derivative of the inverse in float32; the float64 figures are the truth."""
    x = torch.tensor(recorded.load()["near_zero"]["x"], dtype=torch.float32, requires_grad=True)
    value = utils.signed_hyperbolic_inv(x)
    (derivative,) = torch.autograd.grad(value.sum(), x)
    found = []
    for kind, name, got in (("value", "value", value.detach()), ("vjp", "derivative", derivative)):
        ref, accuracy = recorded.near_zero(name)
        where = (NEAR_ZERO, "recorded", "x" if kind == "vjp" else "out")
        found.append(compare(where, kind, "float32", ref, got.numpy(), accuracy))
    return found


def defaults(function: Callable[..., object]) -> dict[str, float]:
    """The numbers that a function takes unless told otherwise."""
    given = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    return {name: float(value) for name, value in given.items() if isinstance(value, int | float)}


def settings_rows() -> list[Row]:
    """The rule's and, where there is one, the trainer's numbers against the original's settings of Disco103."""
    ours = {f"rule/{name}": value for name, value in defaults(update_rule.DiscoUpdateRule).items()}
    given = getattr(trainer, "DEFAULT_HYPER_PARAMS", {})
    ours |= {f"hyper/{name}": float(value) for name, value in given.items()}
    theirs = recorded.load()["settings"]
    return [
        compare((SETTINGS, "defaults", name), "value", "float64", np.array(ref), np.array(ours[name]), Accuracy(ref, 0))
        for name, ref in theirs.items()
        if name in ours
    ]


def steps_rows() -> list[Row]:
    """Counts the gradient steps that one call of the trainer's `step` takes, as it is set from the start."""
    if not hasattr(trainer, "DiscoTrainer"):
        return []
    made, counted = trainer.DiscoTrainer.__new__(trainer.DiscoTrainer), list[int]()
    made.replay_ratio = int(defaults(trainer.DiscoTrainer)["replay_ratio"])
    made.batch_size, made.acting_steps, made.grad_steps = 1, 0, 0
    made._buffer = trainer._ReplayBuffer(4)
    made._validate_rollout = lambda rollout: None
    made._gradient_step = lambda batch: counted.append(1) or {}
    made.step({"observations": torch.zeros(2, 1, 1)})
    ref = np.array(float(recorded.load()["learner_steps_per_rollout"]))
    where = (STEPS, "defaults", "steps")
    return [compare(where, "value", "float64", ref, np.array(float(len(counted))), Accuracy(1.0, 0.0))]


def rows(store: Store) -> list[Row]:
    """All of these comparisons."""
    vtrace = [] if values.knows_vtrace() else vtrace_rows()
    return [*vtrace, *inverse_rows(store), *near_zero_rows(), *settings_rows(), *steps_rows()]
