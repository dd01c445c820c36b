"""`python -m reference record`: runs the original on the registry's cases and writes the goldens."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from parity import weights
from parity.command_line import chosen
from parity.errors import CannotRun
from parity.files import canonical, write_atomically
from parity.goldens import manifests
from parity.goldens.store import FIXTURES, FORMAT, Store, file_name
from parity.layers import REGISTRY
from parity.layers.spec import from_notebooks
from parity.tolerance import SAMPLES
from reference import identity
from reference.devices import flags_of
from reference.jax_runtime import FLAGS
from reference.record.worker import entries_name

HERE = Path(__file__).resolve().parents[1]
EXAMPLE = "example: python -m reference record values/retrace values/outs"
NUMERIC = ("jax", "jaxlib", "dm-haiku", "rlax", "distrax", "optax", "chex", "numpy", "safetensors", "tfp-nightly")
RULES = {
    "inputs": "parity/layers/draw.py: PCG64 seeded by sha256 of 'layer/case', exact in float32",
    "devices": "layers with flags of their own ran under jax.pmap, on as many host devices as the flags say",
    "sigma": "parity/tolerance.py: root mean square movement of each number under Monte Carlo arithmetic "
    f"(reference/monte_carlo/), {SAMPLES} samples at each of `bits`",
    "made_from_seed": "inputs of cases with stored = false are made again by that rule and checked by digest",
    "meta_params": "'seeded' weights follow the same rule; 'disco103' names the published file by its sha256",
    "sketch": "float arrays of more than 2,048 elements are kept as 256 sums with random signs (`sketch`)",
    "notebooks": "reference/original/ puts the package's functions together as the notebooks do, "
    "which are not installed: " + ", ".join(from_notebooks()),
    "teacher_forced": "inputs that reach the layer in the original's own learner step on 5x5 Catch",
}


class RecordError(CannotRun):
    """Recording was refused; the message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="layers to record (default: all)")
    parser.add_argument("--check", action="store_true", help="record again and say what would change")
    parser.add_argument(
        "--out", type=Path, default=FIXTURES, metavar="DIR", help="fixtures folder (default: fixtures/)"
    )


def run(args: argparse.Namespace) -> int:
    """Records; 0 done or nothing would change, 1 something would change."""
    names = chosen(args.layers, list(REGISTRY))
    require_original()
    weights.find_weights(download=False)
    folder = _work_folder(args.out)
    recorded = _record_twice(names, folder)
    code = _report_changes(args.out, folder / "a", recorded) if args.check else 0
    if not args.check:
        _write(args.out, folder / "a", recorded, bool(args.layers))
        print(f"Recorded {sum(len(c) for c in recorded.values())} cases of {len(recorded)} layers in {args.out}.")
    shutil.rmtree(folder)
    return code


def require_original() -> None:
    """Raises RecordError unless the genuine original is installed."""
    installed = identity.identify()
    if installed.state != "genuine":
        raise RecordError(f"only the genuine original will do. {installed.message}")


def _work_folder(root: Path) -> Path:
    """Where layers are kept as they are recorded, so that an interrupted recording goes on where it stopped.

    What was recorded by other code, or with other versions, is thrown away.
    """
    folder = root / ".recording"
    key = hashlib.sha256(canonical(provenance()).encode())
    for package in ("parity", "reference"):
        for path in sorted((HERE.parent / package).rglob("*.py")):
            key.update(path.read_bytes())
    stamp = folder / "key"
    if folder.exists() and not (stamp.is_file() and stamp.read_text() == key.hexdigest()):
        shutil.rmtree(folder)
    for part in ("a", "b"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    stamp.write_text(key.hexdigest())
    return folder


def _record_twice(names: list[str], folder: Path) -> dict[str, Any]:
    """Records all layers, those of the same flags together; returns the entries if both recordings are the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(canonical(flags_of(name)), []).append(name)
    return {name: entry for group in groups.values() for name, entry in _record_group_twice(group, folder).items()}


def _record_group_twice(names: list[str], folder: Path) -> dict[str, Any]:
    """Runs two processes side by side; returns the entries if both made the same bytes."""
    workers = []
    for part in ("a", "b"):
        command = [sys.executable, "-m", "reference.record.worker", "--out", str(folder / part), *names]
        output = None if part == "a" else subprocess.DEVNULL
        env = {**os.environ, **flags_of(names[0]), "OPENBLAS_NUM_THREADS": "1"}  # one core for each process
        workers.append(subprocess.Popen(command, env=env, stdout=output, start_new_session=True))
    started = time.perf_counter()
    try:
        codes = [worker.wait() for worker in workers]
    except BaseException:
        for worker in workers:
            worker.kill()
        raise
    if any(codes):
        raise RecordError("the recording process failed; what it printed stands above. Nothing was written.")
    recorded = {name: _entries(folder / "a", name) for name in names}
    differing = _differing(folder / "a", folder / "b", names)
    if differing:
        shutil.rmtree(folder)
        raise RecordError(f"two recordings differ in {', '.join(differing[:5])}; nothing was written.")
    print(f"Two recordings agree bit for bit ({time.perf_counter() - started:.0f} s).")
    return recorded


def _entries(folder: Path, layer: str) -> Any:
    return json.loads((folder / entries_name(layer)).read_text())


def _differing(first: Path, second: Path, names: list[str]) -> list[str]:
    """What two recordings do not agree on: tensors and measurements by case, else files by name."""
    differing = [change for name in names for change in changes(name, _entries(first, name), _entries(second, name))]
    files = (file_name(name) for name in names)
    return differing or [file for file in files if (first / file).read_bytes() != (second / file).read_bytes()]


def changes(layer: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Names the tensors and measurements in which two recordings of a layer differ."""
    names = []
    for case in sorted(set(old) | set(new)):
        if case not in old or case not in new:
            names.append(f"{layer}[{case}] {'added' if case in new else 'removed'}")
            continue
        for part in sorted(set(old[case]) | set(new[case])):
            before, after = old[case].get(part), new[case].get(part)
            if before == after:
                continue
            if part == "tensors":
                keys = [k for k in sorted(set(before) | set(after)) if before.get(k) != after.get(k)]
                names += [f"{layer}[{case}] {key}" for key in keys]
            else:
                names.append(f"{layer}[{case}] {part}")
    return names


def _report_changes(root: Path, folder: Path, recorded: dict[str, Any]) -> int:
    known = Store(root).manifest["layers"]
    changed = [
        c for layer, cases in recorded.items() for c in changes(layer, known.get(layer, {}).get("cases", {}), cases)
    ]
    for layer in recorded:
        path = root / "golden" / file_name(layer)
        if not path.is_file() or _unpacked(path) != _unpacked(folder / file_name(layer)):
            changed.append(f"{path.name} would be written anew")
    print("\n".join(changed) if changed else f"Nothing would change in {len(recorded)} layers.")
    return 1 if changed else 0


def _unpacked(path: Path) -> bytes:
    """What two files are compared by: how they are compressed depends on the machine."""
    return gzip.decompress(path.read_bytes())


def provenance() -> dict[str, Any]:
    """Where a recording comes from: the original, versions, flags."""
    table = identity.load_table()
    return {
        "format": FORMAT,
        "original": {"repository": table.repository, "commit": table.commit, "files": dict(table.files)},
        "disco103": {"sha256": weights.DISCO103.sha256},
        "packages": {name: importlib.metadata.version(name) for name in NUMERIC},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "flags": FLAGS,
        "rules": RULES,
    }


def _write(root: Path, folder: Path, recorded: dict[str, Any], partial: bool) -> None:
    header = provenance()
    layers: dict[str, Any] = {}
    if partial and (root / "manifest.json").exists():
        before = Store(root).manifest
        stale = [key for key in ("original", "packages", "flags") if before[key] != header[key]]
        if stale:
            raise RecordError(f"the other layers were recorded with other {', '.join(stale)}; record all again.")
        layers = {name: value for name, value in before["layers"].items() if name in REGISTRY}
    for name, cases in recorded.items():
        content = (folder / file_name(name)).read_bytes()
        write_atomically(root / "golden" / file_name(name), content)
        layers[name] = {"sha256": hashlib.sha256(content).hexdigest(), "cases": cases}
        if flags_of(name) != FLAGS:
            layers[name]["flags"] = flags_of(name)
    order = [name for name in REGISTRY if name in layers]
    manifests.write(root / "manifest.json", {**header, "order": order, "layers": layers})
    _remove_stale(root / "golden", {file_name(name) for name in layers})


def _remove_stale(folder: Path, wanted: set[str]) -> None:
    for path in folder.glob("*.safetensors.gz"):
        if path.name not in wanted:
            path.unlink()
    for path in folder.glob(".*.safetensors*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
