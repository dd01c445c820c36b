"""Lives side by side in processes: each is kept as soon as it has ended, and none is lived twice.

A life's file bears a digest of everything that makes it what it is: setting, weights, seed, the learner's code and the
versions under it. A run that was killed finds the lives that had ended and goes on with the others; a life by other
code is another life. Whoever wants figures reads them from the files, so that they are the same to the last bit.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple, TypeAlias

from parity import mutants
from parity.errors import CannotRun, FixtureError
from parity.files import canonical, write_atomically
from parity.implementation import KNOWN, Implementation, load
from parity.mutants import edits_of
from parity.mutants.mutate import load_edited
from parity.runs.curves import Curve, Learner, Setting, from_csv, to_csv

TELL_EVERY = 10  # steps
SAY_EVERY = 15.0  # seconds
NUMERIC = ("torch", "numpy", "jax", "jaxlib", "dm-haiku", "rlax", "distrax", "optax", "disco_rl", "disco-torch")
# Each life has one core: several run side by side.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}
HERE = Path(__file__).resolve().parent


def implementation(name: str) -> Implementation:
    """The implementation of that name; `port+MISTAKE` is the port with a mistake of the catalogue, or `slower`."""
    base, _, mistake = name.partition("+")
    if not mistake:
        return load(name)
    if base != "port":
        raise CannotRun(f"Mistakes are planted in the port only: port+{mistake}, not {name}.")
    return load_edited(KNOWN["port"], edits_of([mistake]))


def learner(name: str) -> Learner:
    """An implementation that learns, by name; CannotRun where it does not."""
    found: Any = implementation(name)
    if not hasattr(found, "live"):
        raise CannotRun(
            f"{name} has layers but does not learn: it has no method `live` (parity/runs/curves.py says what)."
        )
    made: Learner = found
    return made


@dataclass(frozen=True)
class Life:
    """A life to be lived."""

    learner: str
    setting: Setting
    seed: int

    @property
    def key(self) -> str:
        """A name for it, such as `port/embedded/seed 3`."""
        return f"{self.learner}/{self.setting.name}/seed {self.seed}"

    @property
    def cost(self) -> float:
        """About the seconds it takes."""
        return self.setting.num_steps * self.setting.seconds_per_step

    def digest(self) -> str:
        """Of all that makes it what it is."""
        parts = {"setting": self.setting.as_json(), "seed": self.seed, "code": code_digest(self.learner)}
        return hashlib.sha256(canonical(parts).encode()).hexdigest()


def _sources(module: str) -> list[Path]:
    """The files of the package, or the module, that a name such as `port.adapter` belongs to."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise CannotRun(f"There is no module {top!r}, neither installed nor in {os.getcwd()}.")
    if spec.submodule_search_locations:
        return sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))
    return [Path(spec.origin)] if spec.origin else []


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


@lru_cache(maxsize=64)
def code_digest(name: str) -> str:
    """Of a learner's code, of what lives it, and of the versions under both."""
    base = name.partition("+")[0]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    key = hashlib.sha256(name.encode())
    own = [HERE / "curves.py", HERE / "spec.py"]
    planted = sorted(mutants.FOLDER.rglob("*.toml")) if "+" in name else []
    for path in [*own, *planted, *_sources(KNOWN.get(base, base).partition(":")[0])]:
        key.update(path.read_bytes())
    key.update(canonical({package: _version(package) for package in NUMERIC}).encode())
    return key.hexdigest()


@dataclass(frozen=True)
class Work:
    """The folder of lives that have ended."""

    folder: Path

    def path(self, life: Life) -> Path:
        """Where a life is kept."""
        name = re.sub(r"[^A-Za-z0-9_+-]", "_", life.learner)
        return self.folder / f"{name}_{life.setting.name}_seed{life.seed}_{life.digest()[:16]}.csv"

    def read(self, life: Life) -> Curve | None:
        """A life that has ended; None where it has not."""
        try:
            curve = from_csv(self.path(life).read_bytes(), str(self.path(life)))
        except (OSError, FixtureError):
            return None
        return curve if len(curve) == life.setting.num_steps else None


class Told(NamedTuple):
    """News of a life: so many steps done, or why it failed."""

    key: str
    steps: int
    failure: str = ""


def live_through(life: Life, tell: Callable[[Told], None]) -> Curve:
    """Lives one life in this process."""
    steps = learner(life.learner).live(life.setting, life.seed)
    if steps is None:
        raise CannotRun(f"{life.learner} cannot live {life.setting.name}.")
    lived = []
    for step in steps:
        lived.append(step)
        if len(lived) % TELL_EVERY == 0:
            tell(Told(life.key, len(lived)))
    if len(lived) != life.setting.num_steps:
        raise CannotRun(f"{life.key} ended after {len(lived)} of {life.setting.num_steps} steps.")
    return Curve.of(lived)


def _in_process(life: Life, path: Path, told: Any, parent: int) -> None:
    """What a process does: lives one life, and leaves its file."""
    os.environ.update(ENVIRONMENT)

    def tell(news: Told) -> None:
        if os.getppid() != parent:  # nobody waits for this life any more
            os._exit(1)
        told.put(news)

    try:
        write_atomically(path, to_csv(live_through(life, tell)))
    except Exception as error:  # whatever a learner raises is told in a sentence
        text = str(error) if isinstance(error, CannotRun) else f"{type(error).__name__}: {error}"
        told.put(Told(life.key, 0, text))
        raise SystemExit(1) from None


Listener: TypeAlias = Callable[[Told], None]


def run_all(lives: Iterable[Life], work: Work, jobs: int, listener: Listener | None = None) -> Iterator[Life]:
    """Lives all that have not ended yet, so many at a time, the longest first; gives each as its file is there.

    Args:
        lives: to be lived.
        work: where they are kept.
        jobs: processes.
        listener: told every few steps how far a life is.
    """
    waiting = sorted((life for life in lives if work.read(life) is None), key=lambda life: -life.cost)
    context = get_context("spawn")
    told: Any = context.Queue()
    running: dict[str, tuple[Life, Any]] = {}
    failures: dict[str, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                life = waiting.pop(0)
                given = (life, work.path(life), told, os.getpid())
                process = context.Process(target=_in_process, args=given, daemon=True)
                process.start()
                running[life.key] = life, process
            _listen(told, listener, failures)
            for key, (life, process) in list(running.items()):
                if not process.is_alive():
                    del running[key]
                    _check(life, work, process, told, failures)
                    yield life
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()


def _check(life: Life, work: Work, process: Any, told: Any, failures: dict[str, str]) -> None:
    """Raises CannotRun unless an ended process has left its life."""
    if work.read(life) is None:
        _listen(told, None, failures)
        why = failures.get(life.key, f"its process ended with exit code {process.exitcode}")
        raise CannotRun(f"{life.key} failed: {why}")


def _listen(told: Any, listener: Listener | None, failures: dict[str, str]) -> None:
    """Passes on what has been told, waiting a moment for it."""
    try:
        news = told.get(timeout=0.2)
        while True:
            if news.failure:
                failures[news.key] = news.failure
            elif listener:
                listener(news)
            news = told.get_nowait()
    except Empty:
        return


class Progress:
    """Lines on stderr: how far all lives are, and about how long the rest takes."""

    def __init__(self, lives: Iterable[Life], work: Work, clock: Callable[[], float] = time.monotonic):
        """Counts what is left to be lived."""
        lives = list(lives)
        self._left = {life.key: life for life in lives if work.read(life) is None}
        self._all, self._ended = len(lives), len(lives) - len(self._left)
        self._cost, self._done = sum(life.cost for life in self._left.values()), {key: 0.0 for key in self._left}
        self._clock, self._began, self._last = clock, clock(), clock()
        if self._ended:
            print(f"{self._ended} of {self._all} lives had ended before", file=sys.stderr, flush=True)

    def hear(self, news: Told) -> None:
        """Takes news of a life; prints a line now and then."""
        life = self._left[news.key]
        self._done[news.key] = news.steps * life.setting.seconds_per_step
        if self._clock() - self._last >= SAY_EVERY:
            self._last = self._clock()
            print(self.line(), file=sys.stderr, flush=True)

    def end(self, life: Life) -> None:
        """A life has ended."""
        self._done[life.key] = life.cost
        self._ended += 1
        print(f"{life.key} has ended; {self.line()}", file=sys.stderr, flush=True)

    def line(self) -> str:
        """The state of things."""
        share = sum(self._done.values()) / self._cost if self._cost else 1.0
        elapsed = self._clock() - self._began
        left = f"about {_minutes(elapsed * (1 - share) / share)} left" if share > 0.01 else "no estimate yet"
        return f"{self._ended} of {self._all} lives, {share:.0%} of the work, {_minutes(elapsed)} so far, {left}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def run(lives: Iterable[Life], work: Work, jobs: int) -> Mapping[str, Curve]:
    """Lives what has not ended yet, with progress; all lives by key, read from their files."""
    lives = list(lives)
    progress = Progress(lives, work)
    for life in run_all(lives, work, jobs, progress.hear):
        progress.end(life)
    found = {life.key: work.read(life) for life in lives}
    return {key: curve for key, curve in found.items() if curve is not None}
