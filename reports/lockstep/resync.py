"""The port beside the original through one life; every so many steps it goes on from where the original is.

Once learning has taken off, a difference in the last place grows tenfold every few tens of steps, so that after some
hundreds no two programs act alike, and the original, moved by one unit in the last place, does not act as itself. What
the rest of a life is like can be seen all the same: the port takes over the original's learner (parameters, optimiser,
the rule's memory) and the policies that it remembers, and lives by itself until the next time. After the next learner
step the learners are compared by the rule of `parity.tolerance`. Sigma is measured on that very step of the original,
which takes a second at small sizes and minutes at that of Disco103.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.compare import Row
from parity.compare import compare as compare_arrays
from parity.errors import CannotRun, FixtureError, WeightsMissing
from parity.files import canonical, write_atomically
from parity.implementation import load
from parity.layers.spec import Arrays
from parity.mutants.coverage import source_digest
from parity.mutants.mutate import Edit, edited
from parity.runs.lockstep import compare
from parity.runs.side_by_side import Piece, run_all
from parity.runs.spec import Life, kind_of, meta_params
from parity.runs.trace import Recording, Tape, first_difference, tape_bytes, tape_from
from parity.sigma import Rounding
from parity.sketch import reduced
from parity.tolerance import PRECISIONS
from reports.lockstep.port_run import PortLoop
from reports.lockstep.verdict import LearnerStep, Lived, Verdict

DTYPE = "float64"  # in float32 two programs part within some tens of steps, wherever they begin
LOGITS = "agent_outs/logits"
_BITS = (PRECISIONS[DTYPE],)
LAYERS = {"disco": "agent/learner_step", "actor_critic": "agent/actor_critic_step"}
ADAPTERS = {  # rule -> module of the port's adapter, and its functions from the flat state of a learner and to it
    "disco": ("learning", "learner_state", "flat_learner_state"),
    "actor_critic": ("rules", "actor_critic_state", "flat_actor_critic_state"),
}


def provenance() -> dict[str, Any]:
    """Of the original that lives beside the port; CannotRun where it is not installed, or is not the genuine one."""
    try:
        record = importlib.import_module("reference.record.goldens")
    except ModuleNotFoundError as error:
        raise CannotRun(f"There is no {error.name}, which the original needs; `make bootstrap` installs it.") from None
    try:
        record.require_original()
    except record.RecordError as error:
        raise CannotRun(f"The original must live beside the port: {error}") from None
    found: dict[str, Any] = record.provenance()
    return found


def run(
    lives: Sequence[Life], every: int, edits: Sequence[Edit], jobs: int, kept: Path, origin: dict[str, Any]
) -> Verdict:
    """Lives all lives, each in a process of its own, and judges them; what was lived before is read again.

    Args:
        lives: to live.
        every: so many steps the port goes on from where the original is.
        edits: changes to the port.
        jobs: processes.
        kept: folder for lives that are finished.
        origin: of the original, as `provenance` gives it.
    """
    os.environ.update(origin["flags"])  # for the processes that run the original
    started, skipped, pieces = time.perf_counter(), dict[str, str](), list[Piece]()
    for life in lives:
        try:
            weights = meta_params(life)
        except WeightsMissing as error:
            skipped[life.name] = str(error)
            continue
        path = kept / f"{life.name}.renewed{every}.{_key(life, weights, edits, origin)}"
        pieces.append(Piece(f"{life.name} beside the original", life.loop.num_steps, (life, every, edits, path)))
    if not pieces:
        raise CannotRun("; ".join(skipped.values()))
    new = [piece for piece in pieces if not _files(piece.arguments[-1])[-1].is_file()]
    for _ in run_all(live_and_keep, new, jobs):
        pass
    lived = [_lived(*piece.arguments) for piece in pieces]
    return Verdict(lived, skipped, time.perf_counter() - started)


def _key(life: Life, weights: Arrays, edits: Sequence[Edit], origin: dict[str, Any]) -> str:
    """Changes with everything that two lives side by side depend on."""
    sources = [source_digest(package) for package in ("port", "reference", "parity", "reports")]
    parts = [*sources, *(str(edit) for edit in edits), torch.__version__, str(life), canonical(origin)]
    found = hashlib.sha256("\n".join(parts).encode())
    for name in sorted(weights):
        found.update(weights[name].tobytes())
    return found.hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    """Of the learner steps, of the original's tape and of the port's, which is written last."""
    endings = ("learner_steps.json", "original.safetensors", "port.safetensors")
    return [path.with_name(f"{path.name}.{ending}") for ending in endings]


def live_and_keep(of: Life, every: int, edits: Sequence[Edit], path: Path, tell: Callable[[int], Any]) -> None:
    """Both lives, written down as soon as they are over."""
    ref, got, learner_steps = live(of, every, edits, tell)
    contents = (json.dumps(learner_steps).encode(), tape_bytes(ref), tape_bytes(got))
    for content, file in zip(contents, _files(path), strict=True):
        write_atomically(file, content)


def _lived(of: Life, every: int, edits: Sequence[Edit], path: Path) -> Lived:
    compared, *tapes = _files(path)
    ref, got = (tape_from(file.read_bytes(), of, DTYPE, 0) for file in tapes)
    learner_steps = [LearnerStep(*one) for one in json.loads(compared.read_bytes())]
    return Lived(kind_of(of), of.name, DTYPE, compare(ref, got), {}, renewed=every, learner_steps=learner_steps)


class OriginalLife:
    """A life of the original, and how far rounding takes its last learner step."""

    def __init__(self, of: Life):
        """Begins with the original's own first parameters."""
        closed_loop = importlib.import_module("reference.original.eval_loop")
        self.of, self.params = of, closed_loop.initial_params(of)
        self._loop = closed_loop.OriginalLoop(of, DTYPE, self.params)
        self._learn, self._loop.learn = self._loop.learn, self._noting
        self._meta_params = {f"meta_params/{name}": value for name, value in meta_params(of).items()}
        self._inputs: Arrays = {}

    def _noting(self, batch: Arrays) -> dict[str, float]:
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
        """Lives, step by step."""
        yield from self._loop.steps()

    def rounding(self) -> Rounding:
        """Of the last learner step, by Monte Carlo arithmetic; full-size programs run faster as users compile them."""
        original: Any = load("original")
        compiled = original.as_users_compile if kind_of(self.of) == "disco103" else original
        inputs = {**self._inputs, **self._meta_params}
        found: Rounding = compiled.rounding(LAYERS[self.of.rule], inputs, self.of.settings, {}, (), _BITS)
        return found


def live(
    of: Life,
    every: int,
    edits: Sequence[Edit],
    tell: Callable[[int], Any],
    begin: Callable[[Life], Any] = OriginalLife,
) -> tuple[Tape, Tape, list[LearnerStep]]:
    """Lives until the end, or until an action differs.

    Args:
        of: the life.
        every: so many steps the port goes on from where the original is.
        edits: changes to the port's source, to see whether they are noticed.
        tell: told after each step how many there are.
        begin: gives the life beside the port; the original's.

    Returns:
        The tape of the original, that of the port, and the first learner step from each state that both had.
    """
    there = begin(of)
    with edited(*edits) if edits else nullcontext():
        here = PortLoop(of, DTYPE, there.params)
        ref, got = Recording(of, DTYPE), Recording(of, DTYPE)
        remembered, compared, first = list[np.ndarray](), list[LearnerStep](), None
        is_same_state = True
        for step in there.steps():
            actions, perturbed = here.step(got)
            _check_noise(of, len(ref), step.noise, here.noise.last)
            ref.add(step.rollout["actions"], perturbed, step.noise, step.logs, step.params)
            remembered.append(step.rollout["logits"])
            tell(len(ref))
            first = first_difference(len(ref) - 1, step.rollout["actions"], actions, perturbed)
            if first is not None:
                break
            if is_same_state and step.logs:
                compared.append(learner_step(len(ref), of, there.learner, port_state(here, of), there.rounding()))
                is_same_state = False
            if len(ref) % every == 0:
                renew(here, of, there.learner, np.concatenate(remembered, axis=1))
                is_same_state = True
    return ref.tape(), replace(got.tape(), first=first), compared


def _check_noise(of: Life, step: int, theirs: np.ndarray, ours: np.ndarray) -> None:
    if not np.array_equal(theirs, ours):
        raise FixtureError(f"{of.name}: the noise of step {step} is not the same on both sides.")


def _adapter(of: Life) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The port's functions that make a learner's state of a flat one, and a flat one of it."""
    module, *names = ADAPTERS[of.rule]
    make, flatten = (getattr(importlib.import_module(f"port.adapter.{module}"), name) for name in names)
    return make, flatten


def port_state(here: PortLoop, of: Life) -> Arrays:
    """The port's learner, flat, by the names of the learner step's layer."""
    _, flatten = _adapter(of)
    return {name: x.numpy() for name, x in flatten(here.life.state, of.settings).items()}


def learner_step(step: int, of: Life, ref: Arrays, got: Arrays, rounding: Rounding) -> LearnerStep:
    """Compares two learners after a step from the same state."""
    if ref.keys() != got.keys():
        odd = ", ".join(sorted(ref.keys() ^ got.keys()))
        raise CannotRun(f"After {step} steps only one of the port and the original has this in its state: {odd}.")
    rows = [_row(of, name, np.asarray(ref[name]), got[name], rounding) for name in ref]
    worst = max(rows, key=lambda row: row.ratio)
    is_equal = all(row.equal for row in rows)
    return LearnerStep(step, worst.output, worst.max_rel, worst.sigmas, worst.ratio, is_equal)


def _row(of: Life, name: str, ref: np.ndarray, got: np.ndarray, rounding: Rounding) -> Row:
    truth, (bits,) = reduced(ref), _BITS
    sigma = rounding.sigmas["value"].get(name, {}).get(bits, np.zeros(truth.shape))
    others = rounding.alternatives.get(name, {}).get(bits)
    return compare_arrays((LAYERS[of.rule], of.name, name), "value", DTYPE, truth, got, sigma, ref.shape, others)


def renew(here: PortLoop, of: Life, learner: Arrays, logits: np.ndarray) -> None:
    """Puts the port where the original is.

    Args:
        here: the port's life.
        of: which life.
        learner: the original's, flat, by the names of the learner step's layer.
        logits: [L, N, A], by which all N trajectories so far were acted there.
    """
    state_of, _ = _adapter(of)
    here.life.state = state_of({name: torch.tensor(np.asarray(x)) for name, x in learner.items()}, of.settings)
    kept, rest = here.life.buffer.save()
    N = logits.shape[1]
    numbers = np.arange(N - len(here.life.buffer), N)  # of the trajectories that are kept
    places = torch.from_numpy(numbers % of.loop.capacity)
    renewed = kept[LOGITS].clone().index_copy_(1, places, torch.from_numpy(logits[:, numbers]))
    here.life.buffer.restore({**kept, LOGITS: renewed}, rest)
