"""`python -m reports.guide_figures`: the learning curves that `port/GUIDE.md` shows, from the original's recorded runs.

Example:
    python -m reports.guide_figures --out port/guide
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from parity.command_line import exit_code
from parity.files import write_atomically
from parity.runs.curves import Recorded
from parity.runs.spec import preset

OUT = Path(__file__).resolve().parents[1] / "port" / "guide"
PANELS = {"disco103": "Disco103", "bundled": "bundled rule", "actor_critic": "actor-critic"}
EVERY = 20  # steps between two points of a curve
PLAIN = {"svg.hashsalt": "guide", "svg.fonttype": "none", "font.size": 9, "path.simplify": False}


def catch_rates(preset_name: str) -> np.ndarray:
    """Catch rate over the last 100 episodes, [seeds, steps], of the original's recorded runs."""
    return np.array([curve.catch_rates for curve in Recorded().curves(preset(preset_name)).values()])


def learning_curves() -> bytes:
    """The picture, an SVG."""
    with matplotlib.rc_context(PLAIN):
        figure = Figure(figsize=(9, 2.6), layout="constrained")
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
            rates = catch_rates(name)
            steps = np.arange(1, rates.shape[1] + 1)[::EVERY]
            axes.plot(steps, rates[:, ::EVERY].T, color="#9bb8d8", linewidth=0.8)
            axes.plot(steps, np.median(rates, axis=0)[::EVERY], color="#1f4e8c", linewidth=2)
            axes.set(title=f"{title}, {len(rates)} seeds", xlabel="rollouts", ylim=(0, 1.02))
        panels[0].set_ylabel("catch rate, last 100 episodes")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the pictures; 0 done."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.guide_figures",
        description="Draws the learning curves of port/GUIDE.md.",
        epilog="example: python -m reports.guide_figures",
    )
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where it goes")
    return exit_code(parser, arguments, run)


def run(args: argparse.Namespace) -> int:
    """Writes the pictures."""
    write_atomically(args.out / "learning_curves.svg", learning_curves())
    print(f"The picture is {args.out / 'learning_curves.svg'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
