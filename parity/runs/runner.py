"""One runner for all jobs in processes: on an embedded cluster of `dask.distributed`, or on that of a scheduler.

A job is a function of a module and its arguments. A job with a path leaves its result there, written atomically as soon
as it is there; a job whose file exists is not run again, so that a killed command goes on where it was. The name of the
file must change with everything that the result depends on (`key`). A job whose worker is killed runs again on another.

Workers of a scheduler are started in the project's folder, anew for each command, for example by
`OMP_NUM_THREADS=1 python -m distributed.cli.dask_worker ADDRESS --nthreads 1`; workers that have loaded other code are
refused. Nothing else is shared with them: arguments and results go over the network.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import numpy as np

from parity.command_line import SENTENCES, deaf_to_interrupts
from parity.errors import CannotRun, in_words
from parity.files import write_atomically
from parity.mutants.coverage import source_digest
from parity.runs.bars import Bars

TOPIC = "disco-parity progress"
REPORT_EVERY = 0.2  # seconds between two progress events of a job
LOOK_EVERY = 0.5  # seconds
CONNECT_WITHIN = 20  # seconds
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
HTTP_ROUTES = [f"distributed.{server}.http.routes" for server in ("scheduler", "worker", "nanny")]
PACKAGES = ("parity", "port", "reference", "reports")


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Workers:
    """Where jobs run.

    Attributes:
        processes: of the embedded cluster; with 0 jobs run in this process, which is for tests.
        scheduler: address of an existing scheduler, such as `tcp://127.0.0.1:8786`.
        has_dashboard: whether the embedded cluster serves dask's pages, on loopback.
        environment: variables for the processes that run jobs.
    """

    processes: int = field(default_factory=cores)
    scheduler: str | None = None
    has_dashboard: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one per core)")
        parser.add_argument(
            "--scheduler", metavar="ADDRESS", help="run jobs on the workers of this dask scheduler (tcp://HOST:PORT)"
        )
        parser.add_argument("--dashboard", action="store_true", help="serve dask's dashboard on loopback (needs bokeh)")

    @staticmethod
    def from_arguments(args: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Workers:
        """What the options ask for."""
        if args.jobs is not None and args.jobs < 0:
            raise CannotRun("--jobs takes at least 1, or 0 for this very process.")
        if args.dashboard and (args.scheduler or not find_spec("bokeh")):
            raise CannotRun("--dashboard goes without --scheduler, and needs bokeh: `pip install bokeh`.")
        return Workers(cores() if args.jobs is None else args.jobs, args.scheduler, args.dashboard, environment or {})


@dataclass(frozen=True)
class Job:
    """A unit of work.

    Attributes:
        name: for readers, and unique among the jobs that run together.
        function: of a module; may call `report_step`.
        arguments: picklable.
        steps: how many it reports at most.
        path: where its result, which is bytes then, is kept.
        cost: about how long it takes, in any unit; the longest begin first.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    steps: int = 1
    path: Path | None = None
    cost: float = 1.0


def key(*parts: str | bytes | np.ndarray) -> str:
    """A short digest of all that a result depends on."""
    total = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part if isinstance(part, bytes) else part.tobytes()
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()[:16]


_reported = 0.0


def report_step(step: int) -> None:
    """Called within a job: so many steps are done. Does nothing elsewhere."""
    global _reported
    if "distributed" not in sys.modules or time.monotonic() - _reported < REPORT_EVERY:
        return
    from distributed import get_worker

    with contextlib.suppress(ValueError):  # where no worker runs this
        worker = get_worker()
        worker.log_event(TOPIC, (worker.get_current_task(), step))
        _reported = time.monotonic()


@functools.cache
def loaded_code() -> str:
    """The sources of this process, as they were when it was first asked."""
    return key(*(source_digest(package) for package in PACKAGES))


def _work(
    function: Callable[..., Any], arguments: tuple[Any, ...], path: Path | None, environment: dict[str, str], code: str
) -> Any:
    """What a worker does; whatever goes wrong comes back as a sentence."""
    os.environ.update(environment)
    if code and code != loaded_code():
        raise CannotRun("a worker has loaded other code than this command; start the workers again, in this folder")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    try:
        result = function(*arguments)
        if path:
            write_atomically(path, result)
        return result
    except SENTENCES:
        raise
    except (Exception, SystemExit) as error:
        raise CannotRun(in_words(error)) from error


class Runner(contextlib.ExitStack):
    """Runs jobs; its workers start with the first job and end with the context."""

    def __init__(self, workers: Workers):
        """Starts nothing yet."""
        super().__init__()
        self.workers = workers

    def run(self, jobs: Sequence[Job], title: str = "jobs") -> Iterator[tuple[Job, Any]]:
        """Jobs with their results: first those whose results are kept, then the others as they end."""
        kept = {job.name: job.path for job in jobs if job.path and job.path.is_file()}
        if kept:
            print(f"{title}: {len(kept)} of {len(jobs)} had ended before", file=sys.stderr, flush=True)
        yield from ((job, kept[job.name].read_bytes()) for job in jobs if job.name in kept)
        fresh = sorted((job for job in jobs if job.name not in kept), key=lambda job: -job.cost)
        is_here = not self.workers.processes and not self.workers.scheduler
        ended = ((job, job.function(*job.arguments)) for job in fresh) if is_here else self._on_workers(fresh, title)
        for job, result in ended:
            if job.path and not job.path.is_file():  # a worker of the embedded cluster has written it
                write_atomically(job.path, result)
            yield job, result

    def _on_workers(self, jobs: Sequence[Job], title: str) -> Iterator[tuple[Job, Any]]:
        if not jobs:
            return
        client, bars, ended = self._client, Bars(title, {job.name: job.cost for job in jobs}), Queue[Any]()
        code = loaded_code() if self.workers.scheduler else ""
        environment = {**ONE_THREAD, **self.workers.environment}
        names = {f"{job.name}-{uuid.uuid4().hex}": job for job in jobs}
        waiting = {}
        for number, (task, job) in enumerate(names.items()):
            path = None if code or not job.path else job.path.absolute()
            work = (job.function, job.arguments, path, environment, code)
            waiting[task] = client.submit(_work, *work, key=task, priority=-number, pure=False)

        def show_progress(event: tuple[float, tuple[str, int]]) -> None:
            task, step = event[1]
            if task in waiting:  # not ended
                bars.step(names[task].name, step / names[task].steps)

        try:
            client.subscribe_topic(TOPIC, show_progress)
            for future in waiting.values():
                future.add_done_callback(ended.put)
            with bars:
                while waiting:
                    bars.look()
                    try:
                        task = ended.get(timeout=LOOK_EVERY).key
                    except Empty:
                        continue
                    job, result = names[task], _result(names[task], waiting.pop(task))
                    bars.end(job.name)
                    yield job, result
        finally:
            if client.status == "running":
                client.unsubscribe_topic(TOPIC)
                client.cancel(list(waiting.values()))

    @functools.cached_property
    def _client(self) -> Any:
        """Of the workers, which are started where they must be."""
        import dask.config
        from distributed import Client

        workers, address = self.workers, self.workers.scheduler
        if address:
            try:
                client = self.enter_context(Client(address, timeout=CONNECT_WITHIN, set_as_default=False))
                client.wait_for_workers(1, timeout=CONNECT_WITHIN)
            except (OSError, ValueError) as error:  # a TimeoutError is an OSError
                why = type(error).__name__
                raise CannotRun(f"There is no dask scheduler at {address}, or it has no workers ({why}).") from None
            return client
        settings: dict[str, Any] = {
            "distributed.nanny.pre-spawn-environ": {**ONE_THREAD, **workers.environment},
            "distributed.scheduler.worker-ttl": None,  # a compiler may keep a worker silent for minutes
            "distributed.scheduler.worker-saturation": 1.0,  # so that the longest jobs begin first
            **({} if workers.has_dashboard else {name: [] for name in HTTP_ROUTES}),
            "distributed.admin.large-graph-warning-threshold": "1GB",  # parameters are arguments
        }
        self.enter_context(dask.config.set(settings))
        with deaf_to_interrupts():  # its threads, too, so that workers that take the place of others are the same
            local_cluster = Client(
                n_workers=workers.processes,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                # any free port
                scheduler_kwargs={"dashboard": workers.has_dashboard, "dashboard_address": "127.0.0.1:0"},
                memory_limit=0,
                silence_logs=logging.CRITICAL,
                set_as_default=False,
            )
        client = self.enter_context(local_cluster)
        if workers.has_dashboard:
            print(f"dashboard: {client.dashboard_link}", file=sys.stderr, flush=True)
        return client


def _result(job: Job, future: Any) -> Any:
    """What a job returned; CannotRun says why there is nothing."""
    from concurrent.futures import CancelledError

    from distributed import KilledWorker

    try:
        return future.result()
    except KilledWorker:
        raise CannotRun(f"{job.name} failed: the process that ran it was killed, again and again.") from None
    except CancelledError:
        raise CannotRun(f"{job.name} failed: the scheduler has gone.") from None
    except CannotRun as error:
        raise CannotRun(f"{job.name} failed: {error}") from error


def run_all(jobs: Sequence[Job], workers: Workers, title: str = "jobs") -> Iterator[tuple[Job, Any]]:
    """The jobs with their results, on workers that end with them."""
    with Runner(workers) as runner:
        yield from runner.run(jobs, title)
