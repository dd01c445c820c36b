"""Records one case: the original's answers in float64, and how far rounding may take each number of them.

The truth is the original as its users compile it. How far rounding takes a number is measured by Monte Carlo arithmetic
on its program (`reference.monte_carlo`).
"""

from __future__ import annotations

from collections.abc import Iterator

from parity.goldens.store import Golden
from parity.layers.draw import case_cotangents
from parity.layers.spec import Arrays, Case, Layer, Settings
from parity.sketch import reduced
from parity.tolerance import MOST_UNINFORMATIVE, RECORDED, Uninformative, uninformative
from reference.jax_runtime import JaxImplementation

AT_FULL_SIZE = (53, 24)  # bits: the smaller precisions say nothing there that they do not say at small sizes


def record(
    original: JaxImplementation, layer: Layer, case: Case, inputs: Arrays, settings: Settings, origin: str
) -> Golden:
    """Runs the original on a case."""
    wrt = layer.differentiable(settings) if case.gradients else []
    cotangents = case_cotangents(layer, case.name, settings) if wrt else {}
    compiled = original.as_users_compile
    values, vjps = compiled.run_and_vjp(layer.name, inputs, settings, "float64", cotangents, wrt)
    declared = set(layer.outputs(settings))
    if declared != set(values):
        raise RuntimeError(f"{layer.name}: outputs {sorted(declared ^ set(values))} differ from the registry.")
    bits = RECORDED["value"] if case.stored else AT_FULL_SIZE
    rounding = compiled.rounding(layer.name, inputs, settings, cotangents, wrt, bits, case.name)
    for name, by_bits in rounding.sigmas["vjp"].items():
        rounding.sigmas["vjp"][name] = {p: by_bits[p] for p in RECORDED["vjp"]}
    golden = Golden(
        layer=layer.name,
        case=case.name,
        settings=settings,
        origin=origin,
        meta_params=case.meta_params,
        inputs=inputs,
        cotangents=cotangents,
        outputs={name: reduced(value) for name, value in values.items()},
        vjps={name: reduced(value) for name, value in vjps.items()},
        rounding=rounding,
        stored=case.stored,
    )
    check_informative(golden, case)
    return golden


def silent(golden: Golden) -> Iterator[tuple[str, str, int, int]]:
    """Outputs with elements that say nothing in float64: kind, name, how many of them, how many elements."""
    for kind in ("value", "vjp"):
        for name, truth in golden.truth(kind).items():
            count = int(uninformative(truth, golden.sigma(kind, name, 53)).sum())
            if count:
                yield kind, name, count, truth.size


def check_informative(golden: Golden, case: Case) -> None:
    """Raises Uninformative where over 1% of an output says nothing, unless the case is declared to be at a branch."""
    worst = max(silent(golden), key=lambda counted: counted[2] / counted[3], default=None)
    if worst and worst[2] > MOST_UNINFORMATIVE * worst[3] and not case.at_branch:
        kind, name, count, elements = worst
        raise Uninformative(
            f"{golden.id}: rounding moves {count} of {elements} elements of the {kind} of {name} by more than 1e-3 of "
            "its scale in float64. Give the case inputs away from the branch, or declare it `at_branch`."
        )
