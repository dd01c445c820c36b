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
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from parity.compare import Row
from parity.compare import compare as compare_arrays
from parity.errors import CannotRun, FixtureError, WeightsMissing
from parity.files import canonical
from parity.implementation import load
from parity.layers.spec import Arrays
from parity.mutants.coverage import source_digest
from parity.mutants.mutate import Edit, edited
from parity.runs import runner
from parity.runs.lockstep import compare
from parity.runs.runner import Job, Workers
from parity.runs.spec import RunSpec
from parity.runs.trace import Recording, Trace, first_difference, trace_bytes, trace_from
from parity.sigma import Rounding
from parity.sketch import reduced
from parity.tolerance import PRECISIONS
from reports.lockstep.compared import LearnerStep, ResyncedRun
from reports.lockstep.port_run import PortLoop
from reports.lockstep.verdict import Verdict

DTYPE = "float64"  # in float32 two programs diverge within some tens of steps, wherever they begin
LOGITS = "agent_outs/logits"
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


def run(
    specs: Sequence[RunSpec], every: int, edits: Sequence[Edit], workers: Workers, folder: Path, origin: dict[str, Any]
) -> Verdict:
    """Runs all specs in both programs; what is kept from before is read again.

    Args:
        specs: of the runs.
        every: steps from one resynchronisation to the next.
        edits: changes to the port.
        workers: where jobs run.
        folder: for runs that have ended.
        origin: provenance of the original, as `provenance` gives it.
    """
    started, skipped, jobs = time.perf_counter(), dict[str, str](), list[Job]()
    sources = [source_digest(package) for package in runner.PACKAGES]
    for spec in specs:
        try:
            weights = spec.meta_params()
        except WeightsMissing as error:
            skipped[spec.name] = str(error)
            continue
        settings = canonical([spec.as_json(), origin, every, torch.__version__, [str(edit) for edit in edits]])
        key = runner.key(*sources, settings, *(weights[name] for name in sorted(weights)))
        path = folder / f"{spec.name}.resync{every}.{key}.safetensors"
        jobs.append(Job(spec.name, run_and_pack, (spec, every, edits), spec.num_steps, path, spec.seconds))
    if not jobs:
        raise CannotRun("; ".join(skipped.values()))
    results = runner.run_all(jobs, replace(workers, environment=origin["flags"]), "resynchronised runs")
    runs = [unpack(job.arguments[0], every, content) for job, content in results]
    runs.sort(key=lambda one: [job.name for job in jobs].index(one.name))
    return Verdict(runs, skipped, time.perf_counter() - started)


def run_and_pack(spec: RunSpec, every: int, edits: Sequence[Edit]) -> bytes:
    """Both traces and the learner steps, as the content of one file."""
    ref, got, learner_steps = resynced(spec, every, edits)
    steps = np.frombuffer(json.dumps(learner_steps).encode(), np.uint8)
    traces = {name: np.frombuffer(trace_bytes(trace), np.uint8) for name, trace in (("ref", ref), ("got", got))}
    return save_tensors({**traces, "learner_steps": steps})


def unpack(spec: RunSpec, every: int, content: bytes) -> ResyncedRun:
    """What `run_and_pack` packed, compared."""
    parts = {name: array.tobytes() for name, array in load_tensors(content).items()}
    ref, got = (trace_from(parts[name], spec, DTYPE) for name in ("ref", "got"))
    learner_steps = [LearnerStep(*step) for step in json.loads(parts["learner_steps"])]
    return ResyncedRun(spec.preset, spec.name, DTYPE, compare(ref, got), every=every, learner_steps=learner_steps)


class OriginalRun:
    """A run of the original, and how far rounding takes its last learner step."""

    def __init__(self, spec: RunSpec):
        """Begins with the original's own first parameters."""
        eval_loop = importlib.import_module("reference.original.eval_loop")
        self.spec, self.params = spec, eval_loop.initial_params(spec)
        self._loop = eval_loop.OriginalLoop(spec, DTYPE, self.params)
        self._learn, self._loop.learn = self._loop.learn, self._learn_and_note
        self._meta_params = {f"meta_params/{name}": value for name, value in spec.meta_params().items()}
        self._inputs: Arrays = {}

    def _learn_and_note(self, batch: Arrays) -> dict[str, float]:
        """A learner step whose inputs are kept."""
        self._inputs = {**self._loop.learner, **{f"rollout/{name}": value for name, value in batch.items()}}
        logs: dict[str, float] = self._learn(batch)
        return logs

    @property
    def learner(self) -> Arrays:
        """Its learner, flat, by the names of the learner step's layer."""
        learner: Arrays = self._loop.learner
        return learner

    def steps(self) -> Iterator[Any]:
        """Trains, step by step."""
        yield from self._loop.steps()

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
            _check_noise(spec, len(ref), step.noise, port.noise.last)
            ref.add(step.rollout["actions"], scores, step.noise, step.logs, step.params)
            acted_logits.append(step.rollout["logits"])
            runner.report_step(len(ref))
            first = first_difference(len(ref) - 1, step.rollout["actions"], actions, scores)
            if first is not None:
                break
            if is_same_state and step.logs:
                pair = original.learner, port_state(port, spec)
                compared.append(compare_learners(len(ref), spec, *pair, original.rounding()))
                is_same_state = False
            if len(ref) % every == 0:
                resynchronise(port, spec, original.learner, np.concatenate(acted_logits, axis=1))
                is_same_state = True
    return ref.trace(), replace(got.trace(), first=first), compared


def _check_noise(spec: RunSpec, step: int, ref: np.ndarray, got: np.ndarray) -> None:
    if not np.array_equal(ref, got):
        raise FixtureError(f"{spec.name}: the noise of step {step} is not the same on both sides.")


def _adapter() -> Any:
    """The port's functions from a flat learner's state to its own, and back."""
    return importlib.import_module("port.adapter.learning")


def port_state(port: PortLoop, spec: RunSpec) -> Arrays:
    """The port's learner, flat, by the names of the learner step's layer."""
    flat = _adapter().flat_learner_state(port.loop.state, spec.settings)
    return {name: x.numpy() for name, x in flat.items()}


def compare_learners(step: int, spec: RunSpec, ref: Arrays, got: Arrays, rounding: Rounding) -> LearnerStep:
    """Compares two learners after a step from the same state."""
    if ref.keys() != got.keys():
        odd = ", ".join(sorted(ref.keys() ^ got.keys()))
        raise CannotRun(f"After {step} steps only one of the port and the original has this in its state: {odd}.")
    rows = [_row(spec, name, np.asarray(ref[name]), got[name], rounding) for name in ref]
    worst = max(rows, key=lambda row: row.ratio)
    is_equal = all(row.equal for row in rows)
    return LearnerStep(step, worst.output, worst.max_rel, worst.sigmas, worst.ratio, is_equal)


def _row(spec: RunSpec, name: str, ref: np.ndarray, got: np.ndarray, rounding: Rounding) -> Row:
    truth, (bits,) = reduced(ref), _BITS
    sigma = rounding.sigmas["value"].get(name, {}).get(bits, np.zeros(truth.shape))
    others = rounding.alternatives.get(name, {}).get(bits)
    return compare_arrays((LAYERS[spec.rule], spec.name, name), "value", DTYPE, truth, got, sigma, ref.shape, others)


def resynchronise(port: PortLoop, spec: RunSpec, learner: Arrays, logits: np.ndarray) -> None:
    """Puts the port where the original is.

    Args:
        port: its run.
        spec: of the run.
        learner: the original's, flat, by the names of the learner step's layer.
        logits: [L, N, A], by which all N trajectories so far were acted there.
    """
    tensors = {name: torch.tensor(np.asarray(x)) for name, x in learner.items()}
    port.loop.state = _adapter().learner_state(tensors, spec.settings)
    columns, rest = port.loop.buffer.save()
    N = logits.shape[1]
    numbers = np.arange(N - len(port.loop.buffer), N)  # of the trajectories that are in the buffer
    places = torch.from_numpy(numbers % spec.loop.capacity)
    replaced = columns[LOGITS].clone().index_copy_(1, places, torch.from_numpy(logits[:, numbers]))
    port.loop.buffer.restore({**columns, LOGITS: replaced}, rest)
