"""Records one case: the original's answers, and how exact they are.

In float64 the inputs are moved by one unit in the last place, and the original is compiled in two ways (as users do,
which gives the goldens, and quickly), and run eagerly beside jitted: what its answers move by is its sensitivity. Where
that comes near to being the budget it is measured at more inputs. In float32 its own distance to the float64 truth is
measured, at the inputs and at inputs moved by one float32 unit in the last place (each against the truth at those same
inputs), compiled in both ways: how one order of summation rounds on one input is luck. Layers whose values move in
steps are measured a little further beside as well (`spread32`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from parity.layers.draw import case_cotangents, generator, jittered, shifted
from parity.layers.spec import Arrays, Case, Layer, Settings
from parity.store import Accuracy, Golden, reduced
from reference.execution import JaxImplementation

JITTERS = 6
# By chance alone a new answer of the original passes the largest of n earlier ones once in n + 1 times, in each output:
# with six, and some dozens of outputs that move, it is called different from itself now and then.
JITTERS_WHERE_IT_MOVES = 256
JITTERS_IN_FLOAT32 = 12
JITTERS_IN_FLOAT32_AT_FULL_SIZE = 2
AT_BRANCH = 1e-12
TOLERANCE = 1e-12
NEAR = 0.5  # of what is allowed everywhere: a movement by more is measured at more inputs


def near_branch(layer: Layer, inputs: Arrays, settings: Settings) -> dict[str, int]:
    """How many elements stand at a branch."""
    if layer.branches is None:
        return {}
    return {name: int((margin <= AT_BRANCH).sum()) for name, margin in layer.branches(inputs, settings).items()}


def _gap(got: np.ndarray, truth: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(truth), np.abs(got.astype(np.float64) - truth), 0.0)


def _largest(gap: np.ndarray) -> float:
    return float(gap.max()) if gap.size else 0.0


def scale(truth: np.ndarray) -> float:
    """The largest finite magnitude."""
    finite = truth[np.isfinite(truth)]
    return float(np.abs(finite).max()) if finite.size else 0.0


class Measurement:
    """The original on one case."""

    def __init__(
        self, original: JaxImplementation, layer: Layer, case: Case, inputs: Arrays, settings: Settings, eager: bool
    ):
        """Takes the case with its inputs made; `eager` says whether to run it op by op as well, which is slow."""
        self.eager = eager
        self.original, self.layer, self.case = original, layer, case
        self.inputs, self.settings = inputs, settings
        self.wrt = layer.differentiable(settings) if case.gradients else []
        self.cotangents = case_cotangents(layer, case.name, settings) if self.wrt else {}
        self.rng = generator(layer.name, case.name, "jitter")
        self.jitters_in_float32 = JITTERS_IN_FLOAT32 if case.stored else JITTERS_IN_FLOAT32_AT_FULL_SIZE

    def at(self, inputs: Arrays, dtype: str, jit: bool = True, quick: bool = False) -> dict[str, Arrays]:
        """Values and VJPs, large arrays as sketches; VJPs in float64 only."""
        original = self.original if quick else self.original.as_users_compile
        wrt = self.wrt if dtype == "float64" else []
        cotangents = self.cotangents if wrt else None
        values, vjps = original.evaluate(self.layer.name, inputs, self.settings, dtype, cotangents, wrt, jit=jit)
        return {
            "value": {name: reduced(value) for name, value in values.items()},
            "vjp": {name: reduced(value) for name, value in vjps.items()},
        }

    def golden(self, origin: str) -> Golden:
        """Runs everything and puts the golden together."""
        truth = self.at(self.inputs, "float64")
        self._check_outputs(truth["value"])
        branch = near_branch(self.layer, self.inputs, self.settings)
        at_a_branch = any(branch.values())
        neighbours = self._at_some(JITTERS, self.rng)
        movements = JITTERS_WHERE_IT_MOVES if self._moves(truth, neighbours) and not at_a_branch else 0
        if movements:
            neighbours += self.at_many()
        here = [self.at(self.inputs, "float64", quick=True)]
        if self.eager:
            here.append(self.at(self.inputs, "float64", jit=False))
        distance = self._distances(truth)
        accuracy = {
            kind: {
                name: Accuracy(
                    scale(ref),
                    self.sensitivity(kind, name, ref, here if at_a_branch else [*here, *neighbours]),
                    distance.get(name) if kind == "value" else None,
                )
                for name, ref in truth[kind].items()
            }
            for kind in ("value", "vjp")
        }
        outputs = {"float64": truth["value"]}
        if "float32" in self.case.dtypes:
            outputs["float32"] = self.at(self.inputs, "float32")["value"]
        return Golden(
            layer=self.layer.name,
            case=self.case.name,
            settings=self.settings,
            origin=origin,
            meta_params=self.case.meta_params,
            inputs=self.inputs,
            cotangents=self.cotangents,
            outputs=outputs,
            vjps=truth["vjp"],
            sides=self._sides(truth, neighbours) if at_a_branch else {"value": {}, "vjp": {}},
            accuracy=accuracy,
            near_branch=branch,
            stored=self.case.stored,
            movements=movements,
        )

    def at_many(self) -> list[dict[str, Arrays]]:
        """Answers at many more inputs a unit in the last place away, the same whatever order the inputs have."""
        return self._at_some(JITTERS_WHERE_IT_MOVES - JITTERS, generator(self.layer.name, self.case.name, "more"))

    def _at_some(self, count: int, rng: np.random.Generator) -> list[dict[str, Arrays]]:
        inputs = self.inputs if rng is self.rng else dict(sorted(self.inputs.items()))
        near = (jittered(inputs, "float64", rng) for _ in range(count))
        return [self.at(x, "float64", quick=quick) for x in near for quick in (False, True)]

    def _moves(self, truth: dict[str, Arrays], others: list[dict[str, Arrays]]) -> bool:
        """Whether any answer moves by more than half of what is allowed everywhere."""
        return any(
            self.sensitivity(kind, name, ref, others) > NEAR * self.layer.tolerance_of(self.case.name) * scale(ref)
            for kind, arrays in truth.items()
            for name, ref in arrays.items()
            if ref.dtype.kind == "f"
        )

    def _check_outputs(self, values: Arrays) -> None:
        declared = set(self.layer.outputs(self.settings))
        if declared != set(values):
            raise RuntimeError(f"{self.layer.name}: outputs {sorted(declared ^ set(values))} differ from the registry.")

    def sensitivity(self, kind: str, name: str, ref: np.ndarray, others: list[dict[str, Arrays]]) -> float:
        """How far the farthest of some answers is from the truth."""
        if ref.dtype.kind != "f":
            return 0.0
        return max((_largest(_gap(other[kind][name], ref)) for other in others), default=0.0)

    def _sides(self, truth: dict[str, Arrays], others: list[dict[str, Arrays]]) -> dict[str, dict[str, list]]:
        """The lowest and highest answers of the neighbours, where any of them jumps."""

        def jumping(kind: str) -> Iterator[tuple[str, list[np.ndarray]]]:
            for name, ref in truth[kind].items():
                stack = np.stack([other[kind][name] for other in others])
                if ref.dtype.kind == "f" and _largest(_gap(stack, ref)) > TOLERANCE * scale(ref):
                    yield name, [stack.min(axis=0), stack.max(axis=0)]

        return {kind: dict(jumping(kind)) for kind in ("value", "vjp")}

    def _distances(self, truth: dict[str, Arrays]) -> dict[str, float]:
        if "float32" not in self.case.dtypes:
            return {}
        near = [jittered(self.inputs, "float32", self.rng) for _ in range(self.jitters_in_float32)]
        if self.layer.spread32:
            near += [shifted(self.inputs, self.layer.spread32, self.rng) for _ in near]
        known = [(self.inputs, truth["value"]), *((x, self.at(x, "float64")["value"]) for x in near)]
        pairs = [(ref, self.at(x, "float32", quick=quick)["value"]) for x, ref in known for quick in (False, True)]
        if self.eager:
            pairs.append((truth["value"], self.at(self.inputs, "float32", jit=False)["value"]))
        return {
            name: max(_largest(_gap(single[name], exact[name])) for exact, single in pairs)
            for name, ref in truth["value"].items()
            if ref.dtype.kind == "f"
        }
