"""`python -m reports.speed.parts`: what each part of the fast learner step buys.

One process has a learner for each choice of parts, and they take their steps in turns: so other work on the machine
slows all of them, and ratios within a run can be trusted more than milliseconds. Processor time is that of all threads.

Example:
    python -m reports.speed.parts --rounds 20
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from parity.runs.runner import cores
from port.fast import learner
from port.fast.learner import Parts
from reports.speed import workload
from reports.speed.command import in_turns, jobs_of, make_work, prepared, weights_for
from reports.speed.port import Learner
from reports.speed.worker import Bench
from reports.speed.workload import Sample, Work

NONE = Parts(**{field.name: False for field in fields(Parts)})


def choices() -> dict[str, Parts | None]:
    """All parts, all but one, one alone, and None for the plain path."""
    found: dict[str, Parts | None] = {"plain": None, "all parts": Parts()}
    for field in fields(Parts):
        name = field.name.removeprefix("has_").replace("_", " ")
        found[f"all but {name}"] = replace(Parts(), **{field.name: False})
        found[f"{name} alone"] = replace(NONE, **{field.name: True})
    return found


@dataclass(frozen=True)
class Side:
    """A learner that takes the plain path, or a fast one of some parts; see `worker.Bench`."""

    parts: Parts | None

    def learner_step(self, work: Work) -> Callable[[], object]:
        """A step of the learner."""
        made = Learner(work, "plain")
        if self.parts is not None:
            made.agent.strategy = learner.make(made.agent.plain, self.parts)
        return made.step


def measure(work: Work, rounds: int) -> dict[str, list[Sample]]:
    """Samples of a learner step by choice; the first two steps of each do not count."""
    benches = {name: Bench(Side(parts)) for name, parts in choices().items()}
    jobs = jobs_of(benches, prepared(benches, "learner_step", work, {}))
    in_turns(jobs, 1)
    return in_turns(jobs, rounds)


def table(title: str, samples: Mapping[str, Sequence[Sample]]) -> str:
    """A table in Markdown: medians, and medians of the ratios to the plain path within a round."""
    lines = [f"| {title} | clock, ms | of plain | processor, ms | of plain |", "|---|---|---|---|---|"]
    for name, found in samples.items():
        cells = [name]
        for axis in ("wall", "cpu"):
            got, plain = ([getattr(sample, axis) for sample in each] for each in (found, samples["plain"]))
            ratio = statistics.median(x / y for x, y in zip(got, plain, strict=True))
            cells += [f"{1000 * statistics.median(got):.0f}", f"{ratio:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="steps of each choice (default: 10)")
    parser.add_argument("--threads", type=int, default=cores(), metavar="N", help="of torch (default: all)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        work = make_work(weights_for(Path(folder))[0])
        print(table("Catch, observations repeat", measure(work, args.rounds)), "\n")
        print(table("all observations different", measure(workload.all_different(work), args.rounds)))


if __name__ == "__main__":
    main()
