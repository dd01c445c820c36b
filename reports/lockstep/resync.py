"""The port in comparison with the original through one run, resynchronised with it every N steps.

Once learning has taken off, a difference in the last place grows tenfold every few tens of steps. After some hundreds
no two programs act alike, nor does the original when it is perturbed by one unit in the last place. Resynchronised
runs test the rest of a run all the same: every N steps the port takes over the original's learner (parameters,
optimiser, the rule's memory) and the policies in its replay buffer, and goes on by itself. After the next learner step
the learners are compared by the rule of `parity.tolerance`. Sigma is measured on that very step of the original, which
takes a second at small sizes and minutes at that of Disco103.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from parity.compare import Row
from parity.compare import compare as compare_arrays
from parity.errors import CannotRun, FixtureError
from parity.files import canonical
from parity.implementation import load
from parity.layers.spec import Arrays
from parity.mutants.mutate import Edit, edited
from parity.runs import runner
from parity.runs.lockstep import compare
from parity.runs.runner import Job, Workers
from parity.runs.spec import RunSpec
from parity.runs.trace import Recording, Trace, first_difference, trace_bytes, trace_from
from parity.sigma import Rounding
from parity.sketch import reduced
from parity.tolerance import PRECISIONS
from reports.lockstep.port_run import PortLoop
from reports.lockstep.verdict import ComparedRun, LearnerStep

DTYPE = "float64"  # in float32 two programs diverge within some tens of steps, wherever they begin
_BITS = (PRECISIONS[DTYPE],)
LAYERS = {"disco": "agent/learner_step", "actor_critic": "agent/actor_critic_step"}


def provenance() -> dict[str, Any]:
    """Of the original; CannotRun where it is not installed, or is not the genuine one."""
    try:
        record = importlib.import_module("reference.record.goldens")
    except ModuleNotFoundError as error:
        raise CannotRun(f"There is no {error.name}, which the original needs; `make bootstrap` installs it.") from None
    try:
        record.require_original()
    except record.RecordError as error:
        raise CannotRun(f"The original must run beside the port: {error}") from None
    origin: dict[str, Any] = record.provenance()
    return origin


@dataclass(frozen=True)
class ResyncPlan:
    """Runs of both programs, in which the port is resynchronised.

    Attributes:
        specs: of the runs.
        every: steps from one resynchronisation to the next.
        origin: provenance of the original, as `provenance` gives it.
        edits: changes to the port.
        workers: where jobs run.
        folder: for runs that have ended, so that none is repeated.
    """

    specs: Sequence[RunSpec]
    every: int
    origin: dict[str, Any]
    edits: tuple[Edit, ...]
    workers: Workers
    folder: Path

    def jobs(self, spec: RunSpec) -> list[Job]:
        """The run of both programs."""
        weights, edits = spec.meta_params(), [str(edit) for edit in self.edits]
        settings = canonical([spec.as_json(), self.origin, self.every, torch.__version__, edits])
        key = runner.key(runner.loaded_code(), settings, *(weights[name] for name in sorted(weights)))
        path = self.folder / f"{spec.name}.resync{self.every}.{key}.safetensors"
        return [Job(spec.name, run_and_pack, (spec, self.every, self.edits), spec.num_steps, path, spec.seconds)]

    def compared(self, job: Job, content: bytes) -> ComparedRun:
        """What `run_and_pack` packed, compared."""
        spec, parts = job.arguments[0], {name: array.tobytes() for name, array in load_tensors(content).items()}
        ref, got = (trace_from(parts[name], spec, DTYPE) for name in ("ref", "got"))
        steps = [LearnerStep(*step) for step in json.loads(parts["learner_steps"])]
        return ComparedRun(spec.preset, spec.name, DTYPE, compare(ref, got), every=self.every, learner_steps=steps)


def run_and_pack(spec: RunSpec, every: int, edits: Sequence[Edit]) -> bytes:
    """Both traces and the learner steps, as the content of one file."""
    ref, got, learner_steps = resynced(spec, every, edits)
    steps = np.frombuffer(json.dumps(learner_steps).encode(), np.uint8)
    traces = {name: np.frombuffer(trace_bytes(trace), np.uint8) for name, trace in (("ref", ref), ("got", got))}
    return save_tensors({**traces, "learner_steps": steps})


class OriginalRun:
    """A run of the original, and how far rounding takes its last learner step.

    Attributes:
        spec: of the run.
        params: the initial ones.
        loop: the original's; its learner is flat, by the names of the learner step's layer.
        steps: trains, step by step.
    """

    def __init__(self, spec: RunSpec):
        """Begins with the original's own first parameters."""
        eval_loop = importlib.import_module("reference.original.eval_loop")
        self.spec, self.params = spec, eval_loop.initial_params(spec)
        self.loop = eval_loop.OriginalLoop(spec, DTYPE, self.params)
        self.steps, learn = self.loop.steps, self.loop.learn
        self._meta_params = {f"meta_params/{name}": value for name, value in spec.meta_params().items()}
        self._inputs: Arrays = {}

        def learn_from_kept_inputs(batch: Arrays) -> Any:
            self._inputs = {**self.loop.learner, **{f"rollout/{name}": value for name, value in batch.items()}}
            return learn(batch)

        self.loop.learn = learn_from_kept_inputs

    def rounding(self) -> Rounding:
        """Of the last learner step, by Monte Carlo arithmetic; full-size programs run faster as users compile them."""
        original: Any = load("original")
        compiled = original.as_users_compile if self.spec.weights == "disco103" else original
        inputs = {**self._inputs, **self._meta_params}
        measured: Rounding = compiled.rounding(LAYERS[self.spec.rule], inputs, self.spec.settings, {}, (), _BITS)
        return measured


def resynced(
    spec: RunSpec, every: int, edits: Sequence[Edit], begin: Callable[[RunSpec], Any] = OriginalRun
) -> tuple[Trace, Trace, list[LearnerStep]]:
    """Runs both programs until the end, or until an action differs.

    Args:
        spec: of the run.
        every: steps from one resynchronisation to the next.
        edits: changes to the port's source, to see whether they are noticed.
        begin: makes the run that the port is compared with; the original's.

    Returns:
        The trace of the original, that of the port, and the first learner step from each state that both had.
    """
    original = begin(spec)
    with edited(*edits) if edits else nullcontext():
        port = PortLoop(spec, DTYPE, original.params)
        ref, got = Recording(spec, DTYPE), Recording(spec, DTYPE)
        acted_logits, compared, first = list[np.ndarray](), list[LearnerStep](), None
        is_same_state = True
        for step in original.steps():
            actions, scores = port.step(got)
            if not np.array_equal(step.noise, port.noise.last):
                raise FixtureError(f"{spec.name}: the noise of step {len(ref)} is not the same on both sides.")
            ref.add(step.rollout["actions"], scores, step.noise, step.logs, step.params)
            acted_logits.append(step.rollout["logits"])
            runner.report_step(len(ref))
            first = first_difference(len(ref) - 1, step.rollout["actions"], actions, scores)
            if first is not None:
                break
            if is_same_state and step.logs:
                compared.append(
                    compare_learners(len(ref), spec, original.loop.learner, port.learner, original.rounding())
                )
                is_same_state = False
            if len(ref) % every == 0:
                port.resynchronise(original.loop.learner, np.concatenate(acted_logits, axis=1))
                is_same_state = True
    return ref.trace(), replace(got.trace(), first=first), compared


def compare_learners(step: int, spec: RunSpec, ref: Arrays, got: Arrays, rounding: Rounding) -> LearnerStep:
    """Compares two learners after a step from the same state."""
    if ref.keys() != got.keys():
        odd = ", ".join(sorted(ref.keys() ^ got.keys()))
        raise CannotRun(f"After {step} steps only one of the port and the original has this in its state: {odd}.")
    rows, (bits,) = list[Row](), _BITS
    for name, exact in ref.items():
        truth = reduced(np.asarray(exact))
        sigma = rounding.sigmas["value"].get(name, {}).get(bits, np.zeros(truth.shape))
        others = rounding.alternatives.get(name, {}).get(bits)
        where = (LAYERS[spec.rule], spec.name, name)
        rows.append(compare_arrays(where, "value", DTYPE, truth, got[name], sigma, np.shape(exact), others))
    worst = max(rows, key=lambda row: row.ratio)
    is_equal = all(row.equal for row in rows)
    return LearnerStep(step, worst.output, worst.max_rel, worst.sigmas, worst.ratio, is_equal)
