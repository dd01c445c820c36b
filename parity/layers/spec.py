"""What a layer is: its name, its inputs and outputs with shapes, its cases.

Sizes are letters, declared once: T transitions (the bootstrapped axis is ``T+1``), B batch, A actions, P prediction
size, K value bins, H and M the hidden sizes of the trajectory RNN and of the meta-RNN, E and C free widths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

Arrays = dict[str, np.ndarray]
Settings = dict[str, Any]
Kind = Literal["float", "int", "bool"]
Draw = Literal["normal", "uniform", "positive", "simplex", "zero_one"]
Edit = Callable[[Arrays, Settings], Arrays]


@dataclass(frozen=True)
class Spec:
    """One named array of a layer.

    Attributes:
        dims: sizes, as letters (`"T+1"`, `"4*H"`) or numbers.
        kind: float arrays take the caller's dtype; ints and bools are compared exactly.
        differentiable: whether a VJP with respect to this input is judged (a stopped gradient is judged as zero).
        draw: how the generator fills it: `normal`, `uniform` (in [0, 1)), `positive`, `simplex`, `zero_one`.
        scale: factor on the drawn values.
        below: for ints, the exclusive upper bound (a letter or a number).
    """

    dims: tuple[str | int, ...]
    kind: Kind = "float"
    differentiable: bool = False
    draw: Draw = "normal"
    scale: float = 1.0
    below: str | int = 2

    def shape(self, settings: Settings) -> tuple[int, ...]:
        """Returns the shape at the sizes in `settings`."""
        return tuple(size(dim, settings) for dim in self.dims)

    def describe(self) -> str:
        """Returns e.g. `[T+1, B, A] float`."""
        return f"[{', '.join(str(d) for d in self.dims)}] {self.kind}"


def size(dim: str | int, settings: Settings) -> int:
    """Evaluates a size such as `7`, `"T"`, `"T+1"` or `"4*H"`."""
    if isinstance(dim, int):
        return dim
    terms = (term.split("*") for term in dim.split("+"))
    return sum(math.prod(int(f) if f.isdigit() else int(settings[f]) for f in factors) for factors in terms)


def smooth(dims: str, **options: Any) -> Spec:
    """A float input whose VJP is judged."""
    return Spec(tuple(dims.split()), differentiable=True, **options)


def fixed(dims: str, **options: Any) -> Spec:
    """A float input that nothing is differentiated by (or an output)."""
    return Spec(tuple(dims.split()), **options)


def index(dims: str, below: str | int = "A") -> Spec:
    """An integer input in [0, below)."""
    return Spec(tuple(dims.split()), kind="int", below=below)


def flag(dims: str) -> Spec:
    """A boolean input."""
    return Spec(tuple(dims.split()), kind="bool")


V = TypeVar("V")
Specs = Mapping[str, Spec]
SpecsOf = Callable[[Settings], Specs]


def each(names: str, spec: Spec) -> dict[str, Spec]:
    """The same spec for several arrays: `each("adv td", fixed("T B"))`."""
    return dict.fromkeys(names.split(), spec)


def prefixed(prefix: str, entries: Mapping[str, V], names: str = "") -> dict[str, V]:
    """Specs or arrays under a prefix: all, or those named."""
    return {f"{prefix}/{name}": entry for name, entry in entries.items() if not names or name in names.split()}


@dataclass(frozen=True)
class Case:
    """One input of a layer, made from a seed.

    Attributes:
        name: says what is awkward about it, e.g. `terminal_mid`.
        settings: what differs from the layer's default settings.
        edits: applied in order to the generated inputs.
        meta_params: `"disco103"` replaces `meta_params/*` by the real weights; they are never stored.
        stored: whether inputs are written to the fixtures; if not, they are made again from the seed and checked
            against their digests.
        gradients: whether VJPs are judged (a full-size VJP says nothing that a small one does not).
        at_branch: whether it stands where rounding decides (a tie, an edge, an underflow), so that over 1% of the
            elements of an output may say nothing; one case of a layer at most.
    """

    name: str
    settings: Settings = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    meta_params: str = "seeded"
    stored: bool = True
    gradients: bool = True
    at_branch: bool = False


@dataclass(frozen=True)
class Layer:
    """A layer of Disco: a pure function from named arrays to named arrays.

    Attributes:
        name: `group/name`; the registry is in data-flow order.
        summary: one sentence.
        inputs: settings -> specs of the inputs.
        outputs: settings -> specs of the outputs.
        settings: default settings (sizes and static numbers).
        cases: generated cases; the recorder adds teacher-forced ones.
        upstream: layers whose outputs reach this one.
        notebook: the original's notebook that defines this layer, if it is none of its package's: goldens then come
            from the package's functions in the notebook's order, put together in `reference/original/`.
        is_live: whether it is also compared live; not where the reference compiles for too long, and its parts are.
    """

    name: str
    summary: str
    inputs: SpecsOf
    outputs: SpecsOf
    settings: Settings
    cases: Sequence[Case]
    upstream: tuple[str, ...] = ()
    notebook: str = ""
    is_live: bool = True

    def case_settings(self, case: Case) -> Settings:
        """The layer's settings with what the case changes."""
        unknown = set(case.settings) - set(self.settings)
        if unknown:
            raise KeyError(f"{self.name}[{case.name}] sets {sorted(unknown)}, which the layer does not have.")
        return {**self.settings, **case.settings}

    def differentiable(self, settings: Settings) -> list[str]:
        """Names of the inputs whose VJP is judged."""
        return [name for name, spec in self.inputs(settings).items() if spec.differentiable]


REGISTRY: dict[str, Layer] = {}


def add(layer: Layer) -> None:
    """Adds a layer to the registry."""
    if layer.name in REGISTRY:
        raise ValueError(f"Layer {layer.name} is registered twice.")
    REGISTRY[layer.name] = layer


def register(
    name: str,
    summary: str,
    inputs: Specs | SpecsOf,
    outputs: Specs | SpecsOf,
    settings: Settings,
    cases: Sequence[Case],
    upstream: tuple[str, ...] = (),
    notebook: str = "",
) -> None:
    """Adds a layer, with specs that may depend on its settings; modules of this package do so in data-flow order."""

    def of_settings(specs: Specs | SpecsOf) -> SpecsOf:
        return specs if callable(specs) else lambda settings: specs

    add(Layer(name, summary, of_settings(inputs), of_settings(outputs), settings, cases, upstream, notebook))


def from_notebooks() -> list[str]:
    """Layers that the original defines in a notebook."""
    return [name for name, layer in REGISTRY.items() if layer.notebook]


def upstream(layer: str) -> set[str]:
    """All layers that feed a layer, directly or not."""
    direct = REGISTRY[layer].upstream
    return set(direct).union(*(upstream(name) for name in direct))
