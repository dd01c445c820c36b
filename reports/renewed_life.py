"""The port beside the original through one life; every so many steps it goes on from where the original is.

Once learning has taken off, a difference in the last place grows tenfold every few tens of steps, so that after some
hundreds no two programs act alike, and the original, moved by one unit in the last place, does not act as itself. What
the rest of a life is like can be seen all the same: the port takes over the original's learner (parameters, optimiser,
the rule's memory) and the policies that it remembers, and lives by itself until the next time. Some steps after each
time the learners are compared, tensor by tensor.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.bugs.plant import Edit, edited
from parity.bugs.reach import source_digest
from parity.check import WeightsMissing
from parity.implementation import CannotRun
from parity.layers.spec import Arrays
from parity.lives import Life, kind_of, meta_params
from parity.lockstep import compare
from parity.side_by_side import Piece, run_all
from parity.store import FixtureError, canonical, write_atomically
from parity.tapes import Recording, Tape, first_difference, tape_bytes, tape_from
from reports.lockstep_verdict import STEPS_AFTER_RENEWAL, Lived, StateDistance, Verdict
from reports.port_life import PortLoop

DTYPE = "float64"  # in float32 two programs part within some tens of steps, wherever they begin
LOGITS = "agent_outs/logits"
ADAPTERS = {  # rule -> module of the port's adapter, and its functions from the flat state of a learner and to it
    "disco": ("learning", "learner_state", "flat_learner_state"),
    "actor_critic": ("rules", "actor_critic_state", "flat_actor_critic_state"),
}


def provenance() -> dict[str, Any]:
    """Of the original that lives beside the port; CannotRun where it is not installed, or is not the genuine one."""
    try:
        record = importlib.import_module("reference.record")
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
    """Of the distances of states, of the original's tape and of the port's, which is written last."""
    endings = ("states.json", "original.safetensors", "port.safetensors")
    return [path.with_name(f"{path.name}.{ending}") for ending in endings]


def live_and_keep(of: Life, every: int, edits: Sequence[Edit], path: Path, tell: Callable[[int], Any]) -> None:
    """Both lives, written down as soon as they are over."""
    ref, got, states = live(of, every, edits, tell)
    contents = (json.dumps(states).encode(), tape_bytes(ref), tape_bytes(got))
    for content, file in zip(contents, _files(path), strict=True):
        write_atomically(file, content)


def _lived(of: Life, every: int, edits: Sequence[Edit], path: Path) -> Lived:
    distances, *tapes = _files(path)
    ref, got = (tape_from(file.read_bytes(), of, DTYPE, 0) for file in tapes)
    states = [StateDistance(*one) for one in json.loads(distances.read_bytes())]
    return Lived(kind_of(of), of.name, DTYPE, compare(ref, got), {}, renewed=every, states=states)


def original_life(of: Life) -> tuple[Arrays, Any]:
    """The original's first parameters, and its life from there."""
    closed_loop = importlib.import_module("reference.closed_loop")
    params = closed_loop.initial_params(of)
    return params, closed_loop.OriginalLoop(of, DTYPE, params)


def live(
    of: Life,
    every: int,
    edits: Sequence[Edit],
    tell: Callable[[int], Any],
    begin: Callable[[Life], tuple[Arrays, Any]] = original_life,
) -> tuple[Tape, Tape, list[StateDistance]]:
    """Lives until the end, or until an action differs.

    Args:
        of: the life.
        every: so many steps the port goes on from where the original is.
        edits: changes to the port's source, to see whether they are noticed.
        tell: told after each step how many there are.
        begin: gives the first parameters and the life beside the port; the original's.

    Returns:
        The tape of the original, that of the port, and how far the port's state was off some steps after each renewal.
    """
    params, there = begin(of)
    with edited(*edits) if edits else nullcontext():
        here = PortLoop(of, DTYPE, params)
        ref, got = Recording(of, DTYPE), Recording(of, DTYPE)
        remembered, states, first = list[np.ndarray](), list[StateDistance](), None
        for step in there.steps():
            actions, perturbed = here.step(got)
            _check_noise(of, len(ref), step.noise, here.noise.last)
            ref.add(step.rollout["actions"], perturbed, step.noise, step.logs, step.params)
            remembered.append(step.rollout["logits"])
            tell(len(ref))
            first = first_difference(len(ref) - 1, step.rollout["actions"], actions, perturbed)
            if first is not None:
                break
            if len(ref) % every == STEPS_AFTER_RENEWAL % every:
                states.append(state_distance(len(ref), there.learner, port_state(here, of)))
            if len(ref) % every == 0:
                renew(here, of, there.learner, np.concatenate(remembered, axis=1))
    return ref.tape(), replace(got.tape(), first=first), states


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


def state_distance(step: int, ref: Arrays, got: Arrays) -> StateDistance:
    """The tensor that is furthest off, of its largest number.

    Infinitely, where that is 0 and the port's is not, and where shapes differ.
    """
    if ref.keys() != got.keys():
        odd = ", ".join(sorted(ref.keys() ^ got.keys()))
        raise CannotRun(f"After {step} steps only one of the port and the original has this in its state: {odd}.")
    found = {name: _distance(np.asarray(ref[name], np.float64), np.asarray(got[name], np.float64)) for name in ref}
    worst = max(found, key=lambda name: (np.isnan(found[name]), found[name]))
    return StateDistance(step, worst, found[worst])


def _distance(ref: np.ndarray, got: np.ndarray) -> float:
    if ref.shape != got.shape:
        return float("inf")
    off, scale = float(np.abs(ref - got).max(initial=0.0)), float(np.abs(ref).max(initial=0.0))
    if off == 0.0:
        return 0.0
    return off / scale if scale else float("inf")


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
