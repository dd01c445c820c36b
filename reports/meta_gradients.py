"""`python -m reports.meta_gradients`: the port's meta-gradient against the original's, live, in float64.

For 1, 2 and 5 inner steps, small and at the size of Disco103 with its weights, for an agent that starts and for one
that has learned for a while: the largest error of any meta-parameter's gradient, as a share of that tensor's largest
element. A tensor may be off by 1e-9, or by as much as the original itself moves there, and by no more: no factor.

That movement is measured as the recorder does, but not eagerly, which takes minutes and gave the compiled original's
gradient to 2e-12 where it was tried. The original is compiled as users do, which gives the truth, and in another way;
it runs in both ways at inputs that are each moved by one unit in the last place, and in the other way at the inputs
themselves. The largest distance from the truth is the movement. It matters for a fresh agent: Adam's first update
divides a gradient by its own size and so amplifies the rounding of gradients that are nearly 0, and at Disco103's size
the original's meta-gradient is not within 1e-9 of itself. Few movements underestimate an extreme: of N of them and the
port's error, all drawn alike, the port's is the largest once in N + 1 times. So one line that is a little over is not
yet a fault of the port, and counts as different all the same: other seeds tell the two apart, and the verdict says how
many of the original's own answers would count as different if each was held to the others.

Both sizes take a quarter of an hour on one core, half of it to compile; small alone a few minutes.

Example:
    python -m reports.meta_gradients --seed 7 --sizes small --json found.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from parity.check import WeightsMissing, with_disco103
from parity.implementation import CannotRun, Implementation, load
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs, generator, jittered
from parity.layers.metatraining import BOTH_ALIVE, FRESH, FULL
from parity.layers.spec import Arrays, Case
from parity.store import canonical, write_atomically
from reports import page

LAYER = REGISTRY["meta_train/outer_loss"]
TOLERANCE = 1e-9
MOVEMENTS = 32
STEPS, SIZES = (1, 2, 5), ("small", "disco103")
Distances = dict[str, float]  # of each tensor from the truth, by its scale
LIVES = {"fresh": FRESH, "later": (BOTH_ALIVE,)}


@dataclass(frozen=True)
class Line:
    """One comparison.

    Attributes:
        size: `small`, or `disco103` with its weights.
        life: `fresh` for an agent that starts, `later` for one that has learned.
        steps: inner updates.
        error: the port's, the largest of any tensor by that tensor's scale.
        tensor: where.
        moved: how far the original itself moves there.
        moved_by_inputs: by inputs a unit in the last place away, of that.
        moved_by_compilation: by another way of compiling it, of that.
        movements: how many such inputs were tried.
        runs: how many answers of the original that makes, its truth left out.
        own_calls: how many of these the same rule would call different, each held to the others.
        beyond: tensors that are off by more than 1e-9.
        share: of what is allowed, the largest of any tensor.
        share_at: where.
        zero_blocks: tensors of which the original's gradient is 0.
        same_zeros: whether exactly those are 0 in the port.
        is_exact: whether every error is within 1e-9.
        equal: whether every error is that, or within the original's own movement; and the same zeros.
    """

    size: str
    life: str
    steps: int
    error: float
    tensor: str
    moved: float
    moved_by_inputs: float
    moved_by_compilation: float
    movements: int
    runs: int
    own_calls: int
    beyond: int
    share: float
    share_at: str
    zero_blocks: int
    same_zeros: bool
    is_exact: bool
    equal: bool

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.same_zeros:
            return "DIFFERENT: not the same zeros"
        if not self.equal:
            own = f"; so are {self.own_calls} of the original's own {self.runs}" if self.own_calls else ""
            return f"DIFFERENT: {self.share:.3g} times what is allowed{own}"
        return "within 1e-9" if self.is_exact else "within the original's own movement"

    def as_json(self) -> dict[str, Any]:
        """The line for machines; what is infinite becomes null."""
        values = asdict(self) | {"verdict": self.verdict}
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}


def sample(size: str, life: str, steps: int, seed: int) -> tuple[Arrays, dict]:
    """Inputs that are in no fixture, and settings."""
    case = Case("live", {**(FULL if size == "disco103" else {}), "S": steps}, LIVES[life])
    inputs = case_inputs(LAYER, case, "meta-gradients", str(seed))
    return (with_disco103(inputs) if size == "disco103" else inputs), LAYER.case_settings(case)


def meta_gradient(implementation: Implementation, inputs: Arrays, settings: dict) -> Arrays:
    """By meta-parameter, in float64."""
    outputs = implementation.run(LAYER.name, inputs, settings, "float64")
    return {name: value for name, value in outputs.items() if name.startswith("meta_grads/")}


def distances(got: Arrays, truth: Arrays) -> Distances:
    """The largest error of each tensor by its scale, infinite where there is a NaN; a tensor that is 0 is left out."""
    scales = {name: float(np.abs(value).max()) for name, value in truth.items()}
    found = {name: float(np.abs(got[name] - truth[name]).max()) / scale for name, scale in scales.items() if scale}
    return {name: np.inf if np.isnan(distance) else distance for name, distance in found.items()}


def ways(original: Implementation) -> list[Implementation]:
    """The original as its users compile it and then in another way, where it can be compiled in two."""
    as_users = getattr(original, "as_users_compile", None)
    return [as_users, original] if as_users else [original]


def farthest(known: Iterable[Distances], names: Iterable[str]) -> Distances:
    """The largest distance of each tensor in any of the answers; 0 without any."""
    answers = list(known)
    return {name: max((one[name] for one in answers), default=0.0) for name in names}


def movements(
    compiled: Sequence[Implementation], inputs: Arrays, settings: dict, truth: Arrays, near: Iterable[Arrays]
) -> tuple[list[Distances], list[Distances]]:
    """How far the original moves from its truth: by inputs nearby, compiled in each way, and by compilation alone."""
    by_inputs = [distances(meta_gradient(way, x, settings), truth) for x in near for way in compiled]
    by_compilation = [distances(meta_gradient(way, inputs, settings), truth) for way in compiled[1:]]
    if not np.isfinite([distance for one in (*by_inputs, *by_compilation) for distance in one.values()]).all():
        raise CannotRun("The original's own meta-gradient is not finite on these inputs; try another --seed.")
    return by_inputs, by_compilation


def called_different(known: Sequence[Distances]) -> int:
    """How many answers have a tensor that is farther away than 1e-9 and than in every other answer."""
    if len(known) < 2:
        return 0
    ranked = {name: sorted(one[name] for one in known) for name in known[0]}
    return sum(
        any(distance > TOLERANCE and distance == ranked[name][-1] > ranked[name][-2] for name, distance in one.items())
        for one in known
    )


def compared(
    original: Implementation, port: Implementation, size: str, life: str, steps: int, seed: int, count: int = MOVEMENTS
) -> Line:
    """One line."""
    inputs, settings = sample(size, life, steps, seed)
    compiled, rng = ways(original), generator(LAYER.name, "meta-gradients", str(seed))
    truth, got = (meta_gradient(one, inputs, settings) for one in (compiled[0], port))
    near = (jittered(inputs, "float64", rng) for _ in range(count))
    moved_by_inputs, moved_by_compilation = movements(compiled, inputs, settings, truth, near)
    errors = distances(got, truth)
    by_inputs, by_compilation = (farthest(known, errors) for known in (moved_by_inputs, moved_by_compilation))
    moved = {name: max(by_inputs[name], by_compilation[name]) for name in errors}
    shares = {name: error / max(TOLERANCE, moved[name]) for name, error in errors.items()}
    worst, share_at = (max(of, key=of.__getitem__) for of in (errors, shares))
    zeros, zeros_here = ({name for name, value in of.items() if not value.any()} for of in (truth, got))
    return Line(
        size,
        life,
        steps,
        error=errors[worst],
        tensor=worst.removeprefix("meta_grads/"),
        moved=moved[worst],
        moved_by_inputs=by_inputs[worst],
        moved_by_compilation=by_compilation[worst],
        movements=count,
        runs=len(moved_by_inputs) + len(moved_by_compilation),
        own_calls=called_different([*moved_by_inputs, *moved_by_compilation]),
        beyond=sum(error > TOLERANCE for error in errors.values()),
        share=shares[share_at],
        share_at=share_at.removeprefix("meta_grads/"),
        zero_blocks=len(zeros),
        same_zeros=zeros == zeros_here,
        is_exact=errors[worst] <= TOLERANCE,
        equal=zeros == zeros_here and shares[share_at] <= 1.0,
    )


def tell(sentence: str) -> None:
    """Shows progress, apart from the results."""
    print(sentence, file=sys.stderr, flush=True)


def lines(sizes: Sequence[str], seed: int, count: int = MOVEMENTS) -> Iterator[Line]:
    """All comparisons, each as soon as it is done."""
    original, port = load("original"), load("port")
    for size in sizes:
        for life in LIVES:
            for steps in STEPS:
                tell(f"{size}, {life}, {steps} inner steps: compiles, then runs at {count} inputs nearby ...")
                yield compared(original, port, size, life, steps, seed, count)


def table(found: Sequence[Line]) -> Table:
    """For the terminal."""
    names = ("inner steps", "largest error", "the original moves there by", "share of what is allowed", "zero blocks")
    shown = Table("size", "agent", *names, "verdict", box=None)
    for line in found:
        cells = (str(line.steps), f"{line.error:.1e}", f"{line.moved:.1e}", f"{line.share:.3g}", str(line.zero_blocks))
        shown.add_row(line.size, line.life, *cells, line.verdict)
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.meta_gradients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (0)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="which sizes (both)")
    parser.add_argument(
        "--movements", type=int, default=MOVEMENTS, metavar="N", help="inputs nearby at which the original runs (32)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines for machines")
    parser.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    args = parser.parse_args(arguments)
    if args.movements < 1:
        print("reports.meta_gradients: --movements must be at least 1.", file=sys.stderr)
        return 2
    found: list[Line] = []
    try:
        for line in lines(args.sizes, args.seed, args.movements):
            found.append(line)
            tell(f"{line.size}, {line.life}, {line.steps} inner steps: {line.error:.1e}, {line.verdict}")
    except (CannotRun, WeightsMissing) as error:
        print(f"reports.meta_gradients: {error}", file=sys.stderr)
        return 2
    Console().print(table(found))
    text = pd.DataFrame([asdict(line) for line in found]).to_csv(index=False)
    write_atomically(args.out / "meta_gradients.csv", text.encode())
    if args.json:
        write_atomically(args.json, canonical([line.as_json() for line in found]).encode())
    return 0 if all(line.equal for line in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
