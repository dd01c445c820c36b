"""`python -m reports.meta_gradients`: the port's meta-gradient against the original's, live, in float64.

For 1, 2 and 5 inner steps, small and at the size of Disco103 with its weights, for an agent that starts and for one
that has learned for a while: the largest error of any meta-parameter's gradient, as a share of that tensor's largest
element. Beside it, how far the original's own answer moves when its inputs move by one unit in the last place, or, if
that is more, what its float32 error comes to in float64. Adam's first update divides a gradient by its own size, and so
amplifies the rounding of gradients that are nearly 0: a fresh agent's meta-gradient is not within 1e-9 of itself. What
is further off than 1e-9 counts as equal up to as many times that movement as everywhere in the harness
(`parity.exactness.FACTOR`: few movements underestimate an extreme), and the table says by which of the two it does.

Example:
    python -m reports.meta_gradients --seed 7 --sizes small
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from parity.check import WeightsMissing, with_disco103
from parity.compare import FLOAT32_TO_FLOAT64
from parity.exactness import FACTOR
from parity.implementation import CannotRun, Implementation, load
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs, generator, jittered
from parity.layers.metatraining import BOTH_ALIVE, FRESH, FULL
from parity.layers.spec import Arrays, Case
from parity.store import write_atomically
from reports import page

LAYER = REGISTRY["meta_train/outer_loss"]
TOLERANCE = 1e-9
MOVEMENTS = 6
STEPS, SIZES = (1, 2, 5), ("small", "disco103")
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
        share: of what is allowed, the largest of any tensor.
        zero_blocks: tensors of which the original's gradient is 0.
        same_zeros: whether exactly those are 0 in the port.
        is_exact: whether every error is within 1e-9.
        equal: whether every error is that, or within a few times the original's own movement; and the same zeros.
    """

    size: str
    life: str
    steps: int
    error: float
    tensor: str
    moved: float
    share: float
    zero_blocks: int
    same_zeros: bool
    is_exact: bool
    equal: bool

    @property
    def verdict(self) -> str:
        """In words."""
        if not self.equal:
            return "DIFFERENT"
        return "within 1e-9" if self.is_exact else "as near as the original to itself"


def sample(size: str, life: str, steps: int, seed: int) -> tuple[Arrays, dict]:
    """Inputs that are in no fixture, and settings."""
    case = Case("live", {**(FULL if size == "disco103" else {}), "S": steps}, LIVES[life])
    inputs = case_inputs(LAYER, case, "meta-gradients", str(seed))
    return (with_disco103(inputs) if size == "disco103" else inputs), LAYER.case_settings(case)


def meta_gradient(implementation: Implementation, inputs: Arrays, settings: dict, dtype: str = "float64") -> Arrays:
    """By meta-parameter."""
    outputs = implementation.run(LAYER.name, inputs, settings, dtype)
    return {name: value for name, value in outputs.items() if name.startswith("meta_grads/")}


def distances(got: Arrays, truth: Arrays) -> dict[str, float]:
    """The largest error of each tensor by its scale; a tensor that is 0 is left out."""
    scales = {name: float(np.abs(value).max()) for name, value in truth.items()}
    return {name: float(np.abs(got[name] - truth[name]).max()) / scale for name, scale in scales.items() if scale}


def compared(original: Implementation, port: Implementation, size: str, life: str, steps: int, seed: int) -> Line:
    """One line."""
    inputs, settings = sample(size, life, steps, seed)
    truth, got = (meta_gradient(one, inputs, settings) for one in (original, port))
    rng = generator(LAYER.name, "meta-gradients", str(seed))
    near = [meta_gradient(original, jittered(inputs, "float64", rng), settings) for _ in range(MOVEMENTS)]
    errors, moves = distances(got, truth), [distances(other, truth) for other in near]
    single = distances(meta_gradient(original, inputs, settings, "float32"), truth)
    moved = {name: max(FLOAT32_TO_FLOAT64 * single[name], *(move[name] for move in moves)) for name in errors}
    allowed = {name: max(TOLERANCE, FACTOR * moved[name]) for name in errors}
    worst, share = max(errors, key=errors.__getitem__), max(errors[name] / allowed[name] for name in errors)
    zeros = {name for name, value in truth.items() if not value.any()}
    same = zeros == {name for name, value in got.items() if not value.any()}
    is_exact, equal = errors[worst] <= TOLERANCE, same and share <= 1.0
    tensor = worst.removeprefix("meta_grads/")
    return Line(size, life, steps, errors[worst], tensor, moved[worst], share, len(zeros), same, is_exact, equal)


def lines(sizes: Sequence[str], seed: int) -> Iterator[Line]:
    """All comparisons, each as soon as it is done."""
    original, port = load("original"), load("port")
    for size in sizes:
        for life in LIVES:
            for steps in STEPS:
                yield compared(original, port, size, life, steps, seed)


def table(found: Sequence[Line]) -> Table:
    """For the terminal."""
    names = ("inner steps", "largest error", "the original moves there by", "share of what is allowed", "zero blocks")
    shown = Table("size", "agent", *names, "verdict", box=None)
    for line in found:
        cells = (str(line.steps), f"{line.error:.1e}", f"{line.moved:.1e}", f"{line.share:.2g}", str(line.zero_blocks))
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
    parser.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    args = parser.parse_args(arguments)
    found: list[Line] = []
    try:
        for line in lines(args.sizes, args.seed):
            found.append(line)
            print(f"{line.size}, {line.life}, {line.steps} inner steps: {line.error:.1e}", file=sys.stderr, flush=True)
    except (CannotRun, WeightsMissing) as error:
        print(f"reports.meta_gradients: {error}", file=sys.stderr)
        return 2
    Console().print(table(found))
    text = pd.DataFrame([asdict(line) for line in found]).to_csv(index=False)
    write_atomically(args.out / "meta_gradients.csv", text.encode())
    return 0 if all(line.equal for line in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
