"""What timings come to: medians with their spread, ratios, goals, and all of it for machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from reports.speed.workload import Sample

PORT, ORIGINAL = "port", "original"
MEGABYTES_WANTED = 1024.0
RUN_STEPS = 1000  # of a whole Catch run
TITLES = {
    "learner_step": "learner step",
    "learner_step_different": "learner step, no duplicate observations",
    "actor_unroll": "actor, 2 environments",
    "actor_unroll_4096": "actor, 4,096 environments",
    "meta_update": "meta-update",
    "catch_run": "whole Catch run",
}
GOALS = {
    "learner_step": 2.0,
    "actor_unroll": 1.0,
    "actor_unroll_4096": 2.0,
    "meta_update": 1.0,
}  # original's time over the port's


@dataclass(frozen=True)
class Timing:
    """A task, timed in alternating rounds.

    Attributes:
        task: its name.
        samples: by implementation, one for each round.
        first_seconds: of the first call, which compiles, by implementation.
        not_run: why an implementation is missing, by its name.
        frames: acted in one call, for the actor.
        flops: of one call of the port, where counted.
        megabytes: the most that each process had, where measured.
        filling: of a run, the samples of steps in which nothing is learned yet.
        steps_filling: how many of these a run has.
        steps: that a run has; 0 where the task is no run.
    """

    task: str
    samples: Mapping[str, Sequence[Sample]]
    first_seconds: Mapping[str, float]
    not_run: Mapping[str, str] = field(default_factory=dict)
    frames: int = 0
    flops: int = 0
    megabytes: Mapping[str, float] = field(default_factory=dict)
    filling: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    steps_filling: int = 0
    steps: int = 0

    @property
    def names(self) -> list[str]:
        """Implementations that ran."""
        return list(self.samples)

    def milliseconds(self, name: str, share: float = 0.5, kind: str = "wall") -> float:
        """A quantile over rounds; of a run, scaled from its steps to all of it."""
        learning = self._quantile(self.samples[name], share, kind)
        if not self.steps:
            return learning
        before = self._quantile(self.filling[name], share, kind) if self.filling.get(name) else 0.0
        return before * self.steps_filling + learning * (self.steps - self.steps_filling)

    @staticmethod
    def _quantile(samples: Sequence[Sample], share: float, kind: str) -> float:
        return 1000.0 * float(np.quantile([getattr(sample, kind) for sample in samples], share))

    def ratio(self, name: str, to: str = PORT) -> float | None:
        """Its time over the port's: above 1 where the port is faster; None where one of them did not run."""
        if name not in self.samples or to not in self.samples:
            return None
        return self.milliseconds(name) / self.milliseconds(to)

    def ratio_spread(self, name: str, to: str = PORT) -> tuple[float, float] | None:
        """Quartiles of the ratios of the rounds, each taken between neighbours in time."""
        if name not in self.samples or to not in self.samples:
            return None
        ratios = [a.wall / b.wall for a, b in zip(self.samples[name], self.samples[to], strict=True)]
        low, high = np.quantile(ratios, (0.25, 0.75))
        return float(low), float(high)

    def frames_per_second(self, name: str) -> float:
        """Of the actor."""
        return self.frames / (self.milliseconds(name) / 1000.0)

    def row(self, name: str) -> dict[str, Any]:
        """What the CSV file and the page have of an implementation."""
        return {
            "task": self.task,
            "implementation": name,
            "milliseconds": self.milliseconds(name),
            "lower_quartile": self.milliseconds(name, 0.25),
            "upper_quartile": self.milliseconds(name, 0.75),
            "cpu_milliseconds": self.milliseconds(name, kind="cpu"),
            "ratio_to_port": self.ratio(name),
            "first_call_seconds": self.first_seconds[name],
            "frames_per_second": self.frames_per_second(name) if self.frames else None,
            "peak_megabytes": self.megabytes.get(name),
            "rounds": len(self.samples[name]),
        }

    def as_json(self) -> dict[str, Any]:
        """All figures; `milliseconds` and `ratio` are what a script looks for."""
        rows = {name: self.row(name) for name in self.names}
        others = [name for name in self.names if name != PORT]
        figures: dict[str, Any] = {
            "milliseconds": {name: row["milliseconds"] for name, row in rows.items()},
            "ratio": self.ratio(ORIGINAL),
            "ratios": {name: rows[name]["ratio_to_port"] for name in others},
            "ratio_quartiles": {name: self.ratio_spread(name) for name in others},
            "quartiles": {name: [row["lower_quartile"], row["upper_quartile"]] for name, row in rows.items()},
            "cpu_milliseconds": {name: row["cpu_milliseconds"] for name, row in rows.items()},
            "first_call_seconds": dict(self.first_seconds),
            "rounds": {name: [list(sample) for sample in samples] for name, samples in self.samples.items()},
            "not_run": dict(self.not_run),
        }
        if self.frames:
            fast = {name: row["frames_per_second"] for name, row in rows.items()}
            figures |= {"frames": self.frames, "frames_per_second": fast}
        if self.flops:
            figures["flops"] = self.flops
        if self.megabytes:
            figures["peak_megabytes"] = dict(self.megabytes)
        if self.steps:
            step = {name: self._quantile(samples, 0.5, "wall") for name, samples in self.samples.items()}
            figures |= {"steps": self.steps, "steps_measured": len(next(iter(self.samples.values())))}
            figures |= {"is_scaled": True, "milliseconds_per_step": step}
        return figures


@dataclass(frozen=True)
class Growth:
    """The port's learner step at another size: which axis was changed to what, and how long it took."""

    axis: str
    value: int
    samples: Sequence[Sample]
    flops: int

    def row(self) -> dict[str, Any]:
        """For the CSV file."""
        low, middle, high = np.quantile([1000.0 * sample.wall for sample in self.samples], (0.25, 0.5, 0.75))
        cpu = 1000.0 * float(np.median([sample.cpu for sample in self.samples]))
        figures = {"milliseconds": middle, "lower_quartile": low, "upper_quartile": high, "cpu_milliseconds": cpu}
        return {"axis": self.axis, "value": self.value, "implementation": PORT, **figures, "flops": self.flops}


def exponent(rows: Sequence[Mapping[str, Any]], what: str = "cpu_milliseconds") -> float:
    """By which power cost grows along the axis of these rows: the slope of a line through the logarithms."""
    if len({row["value"] for row in rows}) < 2:
        return math.nan
    sizes, costs = (np.log([row[key] for row in rows]) for key in ("value", what))
    return float(np.polyfit(sizes, costs, 1)[0])


class Goal(NamedTuple):
    """Something asked of the port: what, how much was found, how much is wanted, and whether it is reached."""

    what: str
    found: float
    wanted: float
    is_reached: bool


@dataclass(frozen=True)
class Found:
    """Everything that a run found out.

    Attributes:
        timings: by task.
        matmul: samples of a large matrix product in the port's process, in turns with the learner step.
        matmul_flops: of one of these.
        stages: seconds by stage of the port's learner step, one dict for each step.
        growth: the learner step at other sizes.
        machine: threads, processors, load and sizes.
        weights: which were used, in words.
        absent: implementations that are not installed, and what to do about it.
    """

    timings: Mapping[str, Timing]
    matmul: Sequence[Sample]
    matmul_flops: int
    stages: Sequence[Mapping[str, float]]
    growth: Sequence[Growth]
    machine: Mapping[str, Any]
    weights: str
    absent: Mapping[str, str]

    @property
    def peak(self) -> float:
        """Floating-point operations in a second, of the fastest of the matrix products."""
        return self.matmul_flops / min(sample.wall for sample in self.matmul) if self.matmul else math.nan

    def share_of_peak(self, task: str) -> float:
        """Of the port: a task's operations in a second over those of the products, both in the median.

        So other work on the machine is in both.
        """
        timing = self.timings[task]
        if not (timing.flops and self.matmul):
            return math.nan
        product = self.matmul_flops / float(np.median([sample.wall for sample in self.matmul]))
        return timing.flops / (timing.milliseconds(PORT) / 1000.0) / product

    def stage_rows(self) -> list[dict[str, Any]]:
        """The port's learner step by stage: median milliseconds and share of the sum."""
        medians = {name: float(np.median([step[name] for step in self.stages])) for name in self.stages[0]}
        total = sum(medians.values())
        return [{"stage": n, "milliseconds": 1000.0 * x, "share": x / total} for n, x in medians.items()]

    def goals(self) -> list[Goal]:
        """What is asked of the port, as far as it was measured."""
        found = []
        for task, least in GOALS.items():
            ratio = self.timings[task].ratio(ORIGINAL) if task in self.timings else None
            if ratio is not None:
                found.append(Goal(f"{TITLES[task]}: times as fast as the original", ratio, least, ratio >= least))
        run = self.timings.get("catch_run")
        if run is not None and run.megabytes.get(PORT, math.nan) > 0:
            used = run.megabytes[PORT]
            found.append(Goal("whole Catch run: peak MB", used, MEGABYTES_WANTED, used <= MEGABYTES_WANTED))
        return found

    def as_json(self) -> dict[str, Any]:
        """For machines: one entry for each task, and what stands around them."""
        return {
            **{task: timing.as_json() for task, timing in self.timings.items()},
            "goals": [goal._asdict() for goal in self.goals()],
            "matmul": {
                "peak_gflops": self.peak / 1e9 if self.matmul else None,
                "rounds": [list(sample) for sample in self.matmul],
            },
            "share_of_peak": {n: self.share_of_peak(n) for n, t in self.timings.items() if t.flops and self.matmul},
            "flops_counted_by": "torch.utils.flop_counter on the port's step: matrix products only, 2 per multiply-add",
            "stages": self.stage_rows() if self.stages else [],
            "growth": [growth.row() for growth in self.growth],
            "machine": dict(self.machine),
            "weights": self.weights,
            "not_installed": dict(self.absent),
        }


def in_words(found: Found) -> str:
    """The verdict in a sentence or two."""
    if not any(ORIGINAL in timing.samples for timing in found.timings.values()):
        why = found.absent.get(ORIGINAL, "it did not run")
        return f"The original was not measured ({why}). The report contains the port's times only."
    parts = [
        f"{TITLES[task]} {timing.ratio(ORIGINAL):.2f} times as fast"
        for task, timing in found.timings.items()
        if timing.ratio(ORIGINAL) is not None
    ]
    missed = [goal.what for goal in found.goals() if not goal.is_reached]
    end = f"Goal missed: {'; '.join(missed)}." if missed else "Every measured goal is reached."
    return f"The port against the original, in alternating rounds: {', '.join(parts)}. {end}"
