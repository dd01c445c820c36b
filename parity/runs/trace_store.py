"""The files in which the original's traces are kept, written atomically and read with every digest checked.

`fixtures/traces/manifest.json` holds their provenance. The safetensors files with it are the initial parameters of each
run, once, in float32; its traces, `RUN.float32` and `RUN.float64`; and `RUN.float32.perturbed1` and so on, the same run
with every initial parameter perturbed by one unit in the last place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from parity.errors import FixtureError
from parity.files import reading, write_atomically
from parity.goldens import manifests
from parity.goldens.manifests import FIXTURES
from parity.layers.spec import Arrays
from parity.runs.spec import RunSpec
from parity.runs.trace import Trace, trace_bytes, trace_from, trace_name

T = TypeVar("T")

FORMAT = 2
TRACES = FIXTURES / "traces"
SPEC = {"preset": str, "rule": str, "weights": object, "seed": int, "agent": dict, "loop": {str: int}}
TRACE = {"sha256": str, "dtype": str, "direction": int}
FORM = {"runs": {str: {"spec": SPEC, "params": {"sha256": str}, "traces": {str: TRACE}}}}  # as of `check_form`
REMEDY = "Restore it with `git checkout -- fixtures`, or record again with `python -m reference trace`."


@dataclass
class TraceStore:
    """Reads and writes traces; nothing comes out that was not checked against the manifest."""

    root: Path = TRACES

    @property
    def path(self) -> Path:
        """Of the manifest."""
        return self.root / "manifest.json"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest, its own digest checked."""
        return manifests.read(self.path, REMEDY, FORM, FORMAT, "there are no traces")

    @property
    def _runs(self) -> dict[str, Any]:
        runs: dict[str, Any] = self.manifest["runs"]
        return runs

    def specs(self) -> dict[str, RunSpec]:
        """The recorded runs by name."""
        with reading(self.path, REMEDY):
            return {name: RunSpec.from_json(entry["spec"]) for name, entry in self._runs.items()}

    def traces(self, run: str) -> list[tuple[str, int]]:
        """Dtype and direction of each trace of a run, the unperturbed ones first."""
        entries = self._runs[run]["traces"].values()
        return sorted(((entry["dtype"], entry["direction"]) for entry in entries), key=lambda trace: trace[::-1])

    def has_run(self, spec: RunSpec) -> bool:
        """Whether this very run was begun."""
        entry = self._runs.get(spec.name)
        return entry is not None and entry["spec"] == spec.as_json()

    def has(self, spec: RunSpec, dtype: str, direction: int = 0) -> bool:
        """Whether this trace of this very run was recorded."""
        return self.has_run(spec) and trace_name(spec, dtype, direction) in self._runs[spec.name]["traces"]

    def params(self, run: str) -> Arrays:
        """Initial parameters by the original's names, float32."""
        return self._read(f"{run}.params", self._runs[run]["params"], load_tensors)

    def load(self, run: str, dtype: str, direction: int = 0) -> Trace:
        """Reads a trace."""
        spec = self.specs()[run]
        name = trace_name(spec, dtype, direction)
        if name not in self._runs[run]["traces"]:
            raise FixtureError(f"There is no trace {name} in {self.root}; `python -m reference trace` records it.")
        entry = self._runs[run]["traces"][name]
        return self._read(name, entry, lambda content: trace_from(content, spec, dtype, direction))

    def _file(self, name: str) -> Path:
        return self.root / f"{name}.safetensors"

    def _read(self, name: str, entry: dict[str, Any], parse: Callable[[bytes], T]) -> T:
        path = self._file(name)
        with reading(path, REMEDY):
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                raise FixtureError(f"{path} is damaged: its sha256 is not the recorded one. {REMEDY}")
            return parse(content)

    def begin(self, provenance: dict[str, Any]) -> None:
        """Makes sure that what is added goes with what is there: same original, packages and flags."""
        if not self.path.is_file():
            self._write_manifest({**provenance, "format": FORMAT, "runs": {}})
            return
        stale = [key for key in provenance if self.manifest.get(key) != provenance[key]]
        if stale:
            raise FixtureError(
                f"The traces in {self.root} were recorded with other {', '.join(stale)}; record into another folder."
            )

    def write_params(self, spec: RunSpec, params: Arrays) -> None:
        """Begins a run that is not there yet, or is another one under this name, whose traces are then dropped."""
        if self.has_run(spec):
            return
        replaced = self._runs.get(spec.name, {"traces": {}})
        content = save_tensors({name: np.ascontiguousarray(x, np.float32) for name, x in sorted(params.items())})
        write_atomically(self._file(f"{spec.name}.params"), content)
        digest = {"sha256": hashlib.sha256(content).hexdigest()}
        self._write_run(spec.name, {"spec": spec.as_json(), "params": digest, "traces": {}})
        for name in replaced["traces"]:
            self._file(name).unlink(missing_ok=True)

    def write(self, trace: Trace) -> None:
        """Adds a trace to a run that was begun."""
        content = trace_bytes(trace)
        write_atomically(self._file(trace.name), content)
        entry = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "dtype": trace.dtype,
            "direction": trace.direction,
            "steps": trace.steps,
            "first": None if trace.first is None else list(trace.first[:3]),
        }
        run = self._runs[trace.spec.name]
        self._write_run(trace.spec.name, {**run, "traces": {**run["traces"], trace.name: entry}})

    def _write_run(self, name: str, entry: dict[str, Any]) -> None:
        self._write_manifest({**self.manifest, "runs": {**self._runs, name: entry}})

    def _write_manifest(self, content: dict[str, Any]) -> None:
        manifests.write(self.path, content)
        self.__dict__.pop("manifest", None)  # is read again
