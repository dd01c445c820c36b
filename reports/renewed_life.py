"""The port beside the original through one life; every so many steps it goes on from where the original is.

Once learning has taken off, a difference in the last place grows tenfold every few tens of steps, so that after some
hundreds no two programs act alike, and the original, moved by one unit in the last place, does not act as itself. What
the rest of a life is like can be seen all the same: the port takes over the original's learner (parameters, optimiser,
the rule's memory) and the policies that it remembers, and lives by itself until the next time.
"""

from __future__ import annotations

import hashlib
import importlib
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
from reports.lockstep_verdict import Lived, Verdict
from reports.port_life import PortLoop

DTYPE = "float64"  # in float32 two programs part within some tens of steps, wherever they begin
LOGITS = "agent_outs/logits"


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
    """Of the original's tape and of the port's, which is written last."""
    return [path.with_name(f"{path.name}.{who}.safetensors") for who in ("original", "port")]


def live_and_keep(of: Life, every: int, edits: Sequence[Edit], path: Path, tell: Callable[[int], Any]) -> None:
    """Both lives, written down as soon as they are over."""
    for tape, file in zip(live(of, every, edits, tell), _files(path), strict=True):
        write_atomically(file, tape_bytes(tape))


def _lived(of: Life, every: int, edits: Sequence[Edit], path: Path) -> Lived:
    ref, got = (tape_from(file.read_bytes(), of, DTYPE, 0) for file in _files(path))
    return Lived(kind_of(of), of.name, DTYPE, compare(ref, got), {}, renewed=every)


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
) -> tuple[Tape, Tape]:
    """Lives until the end, or until an action differs.

    Args:
        of: the life.
        every: so many steps the port goes on from where the original is.
        edits: changes to the port's source, to see whether they are noticed.
        tell: told after each step how many there are.
        begin: gives the first parameters and the life beside the port; the original's.

    Returns:
        The tape of the original, and that of the port.
    """
    params, there = begin(of)
    with edited(*edits) if edits else nullcontext():
        here = PortLoop(of, DTYPE, params)
        ref, got = Recording(of, DTYPE), Recording(of, DTYPE)
        remembered, first = list[np.ndarray](), None
        for step in there.steps():
            actions, perturbed = here.step(got)
            _check_noise(of, len(ref), step.noise, here.noise.last)
            ref.add(step.rollout["actions"], perturbed, step.noise, step.logs, step.params)
            remembered.append(step.rollout["logits"])
            tell(len(ref))
            first = first_difference(len(ref) - 1, step.rollout["actions"], actions, perturbed)
            if first is not None:
                break
            if len(ref) % every == 0:
                renew(here, of, there.learner, np.concatenate(remembered, axis=1))
    return ref.tape(), replace(got.tape(), first=first)


def _check_noise(of: Life, step: int, theirs: np.ndarray, ours: np.ndarray) -> None:
    if not np.array_equal(theirs, ours):
        raise FixtureError(f"{of.name}: the noise of step {step} is not the same on both sides.")


def renew(here: PortLoop, of: Life, learner: Arrays, logits: np.ndarray) -> None:
    """Puts the port where the original is.

    Args:
        here: the port's life.
        of: which life.
        learner: the original's, flat, by the names of the learner step's layer.
        logits: [L, N, A], by which all N trajectories so far were acted there.
    """
    module, name = ("learning", "learner_state") if of.rule == "disco" else ("rules", "actor_critic_state")
    state_of = getattr(importlib.import_module(f"port.adapter.{module}"), name)
    here.life.state = state_of({name: torch.tensor(np.asarray(x)) for name, x in learner.items()}, of.settings)
    kept, rest = here.life.buffer.save()
    N = logits.shape[1]
    numbers = np.arange(N - len(here.life.buffer), N)  # of the trajectories that are kept
    places = torch.from_numpy(numbers % of.loop.capacity)
    renewed = kept[LOGITS].clone().index_copy_(1, places, torch.from_numpy(logits[:, numbers]))
    here.life.buffer.restore({**kept, LOGITS: renewed}, rest)
