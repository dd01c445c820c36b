"""`python -m reports.meta_gradients`: the port's meta-gradient against the original's, live, in float64.

For 1, 2 and 5 inner steps, at a small size and at that of Disco103 with its weights, for an agent that starts and for
one that has learned for a while. The rule is that of all comparisons (`parity.tolerance`), on inputs that are in no
fixture. Sigma is measured on the spot, which takes most of the time: small alone takes minutes, both sizes an hour.

Example:
    python -m reports.meta_gradients --seed 7 --sizes small --json found.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from parity.command_line import exit_code, write_result
from parity.files import write_atomically
from parity.goldens.check import Judge, with_disco103
from parity.implementation import Implementation, load
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.layers.metatraining import BOTH_ALIVE, FRESH, FULL
from parity.layers.spec import Case
from parity.live.comparison import Sample, reference_golden
from reports import page

LAYER = REGISTRY["meta_train/outer_loss"]
STEPS, SIZES = (1, 2, 5), ("small", "disco103")
AGENTS = {"fresh": FRESH, "later": (BOTH_ALIVE,)}
META_GRADIENT = "meta_grads/"


@dataclass(frozen=True)
class Line:
    """One comparison.

    Attributes:
        size: `small`, or `disco103` with its weights.
        agent: `fresh` for one that starts, `later` for one that has learned.
        steps: inner updates.
        error: the largest error of a meta-parameter's gradient relative to that gradient's scale.
        sigmas: the C that the worst number would need.
        share: the largest error over its tolerance.
        tensor: the meta-parameter that takes this share.
        zero_blocks: meta-parameters of which the original's gradient is 0.
        equal: whether all numbers are within their tolerance.
    """

    size: str
    agent: str
    steps: int
    error: float
    sigmas: float
    share: float
    tensor: str
    zero_blocks: int
    equal: bool


def sample(size: str, agent: str, steps: int, seed: int) -> Sample:
    """Inputs that are in no fixture."""
    case = Case("live", {**(FULL if size == "disco103" else {}), "S": steps}, AGENTS[agent], gradients=False)
    inputs = case_inputs(LAYER, case, "meta-gradients", str(seed))
    return Sample(case, LAYER.case_settings(case), with_disco103(inputs) if size == "disco103" else inputs)


def compared(original: Implementation, port: Implementation, size: str, agent: str, steps: int, seed: int) -> Line:
    """One line."""
    golden = reference_golden(original, LAYER, sample(size, agent, steps, seed), ("float64",))
    every = Judge(port, ("float64",)).rows(golden)
    rows = [row for row in every if row.output.startswith(META_GRADIENT)]
    worst = max(rows, key=lambda row: row.ratio)
    return Line(
        size,
        agent,
        steps,
        error=max(row.max_rel for row in rows),
        sigmas=max(row.sigmas for row in rows),
        share=worst.ratio,
        tensor=worst.output.removeprefix(META_GRADIENT),
        zero_blocks=sum(not x.any() for name, x in golden.outputs.items() if name.startswith(META_GRADIENT)),
        equal=all(row.equal for row in rows),
    )


def lines(sizes: Sequence[str], seed: int) -> Iterator[Line]:
    """All comparisons, each as soon as it is done."""
    original, port = load("original"), load("port")
    for size in sizes:
        # At full size a program runs for longer than it compiles: there the optimised one is the faster.
        reference = getattr(original, "as_users_compile", original) if size == "disco103" else original
        for agent in AGENTS:
            for steps in STEPS:
                doing = f"{size}, {agent}, {steps} inner steps: compiles and measures sigma ..."
                print(doing, file=sys.stderr, flush=True)
                yield compared(reference, port, size, agent, steps, seed)


def table(found: Sequence[Line]) -> Table:
    """For the terminal."""
    names = ("inner steps", "largest error", "in sigmas", "share of tolerance", "zero blocks", "verdict")
    shown = Table("size", "agent", *names, box=None)
    for line in found:
        cells = (f"{line.error:.1e}", f"{line.sigmas:.2g}", f"{line.share:.2g}", str(line.zero_blocks))
        shown.add_row(line.size, line.agent, str(line.steps), *cells, "equal" if line.equal else "DIFFERENT")
    return shown


def as_json(frame: pd.DataFrame) -> str:
    """The lines for machines; infinities become null."""
    return str(frame.to_json(orient="records", indent=1)) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.meta_gradients",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (0)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="which sizes (both)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines for machines")
    parser.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    return exit_code(parser, arguments, report)


def report(args: argparse.Namespace) -> int:
    """Compares, prints the table and writes it; 0 equal, 1 different."""
    found = list(lines(args.sizes, args.seed))
    Console().print(table(found))
    frame = pd.DataFrame([asdict(line) for line in found])
    write_atomically(args.out / "meta_gradients.csv", frame.to_csv(index=False).encode())
    write_result(args.json, as_json(frame).encode())
    return 0 if all(line.equal for line in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
