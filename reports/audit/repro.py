"""A difference as one Python file that needs NumPy, torch and the port: no JAX, nothing of this project.

The expected numbers in it were recorded from the original. It ends with 1 while the port differs, with 0 once it
agrees, so that it can be sent to the port's authors as it is and serve them as a test.
"""

from __future__ import annotations

import os
import pprint
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.files import write_atomically
from parity.goldens.check import load as load_case
from parity.goldens.store import Golden, Store
from parity.layers.spec import Arrays
from parity.live.repro import literal
from parity.tolerance import PRECISIONS, scale_of, tolerance
from port.adapter.inputs import by_our_names
from port.networks import agent_net
from reports.audit.causes import REACHES, Cause, Shown, corrected_copy

HEADS = ("logits", "y", "z", "q", "aux_pi")
TEMPLATE = '''"""{title}

{says}

Where:    {place}
Original: {original}
Right:    {right}

{recorded}

    pip install {distribution}=={version}
    python {file}

It ends with 1 while the numbers differ and with 0 once they agree.
"""

import sys

import numpy as np
import torch
{imports}

DTYPE = torch.{dtype}
torch.set_default_dtype(DTYPE)  # some tensors of the package are made without a dtype

SETTINGS = {settings}
INPUTS = {inputs}
{cotangents}EXPECTED = {expected}
ALLOWED = {allowed}  # by rounding, for each number

x = {{name: torch.from_numpy(value) for name, value in INPUTS.items()}}
{gradients}{code}

got = got.detach().numpy()
error = np.abs(got.astype(np.float64) - EXPECTED)
worst = np.unravel_index(np.argmax(error - ALLOWED), error.shape)
print("compared:", {what!r})
print("expected:", EXPECTED[worst], "at", [int(i) for i in worst])
print("got:     ", got[worst])
print("difference:", error[worst], "allowed:", ALLOWED[worst])
sys.exit(int(not (error <= ALLOWED).all()))
'''


@dataclass(frozen=True)
class Figures:
    """What a file needs of a recorded case."""

    inputs: Arrays
    cotangents: Arrays
    settings: dict[str, Any]
    expected: np.ndarray
    allowed: np.ndarray


def _heads(golden: Golden) -> Arrays:
    """The agent network's outputs on a golden's rollout, by the port's network, which is equal to the original's."""
    given = {name: torch.from_numpy(np.array(value)) for name, value in golden.inputs.items()}
    outs = agent_net.step(by_our_names(given, golden.settings).under("params"), given["rollout/observations"], lead=2)
    return {f"agent_out/{name}": outs[name].numpy() for name in HEADS}


def _from_golden(store: Store, shown: Shown) -> Figures:
    golden = load_case(store, shown.source, shown.case)
    expected, bits = golden.truth(shown.kind)[shown.output], PRECISIONS[shown.dtype]
    allowed = tolerance(golden.sigma(shown.kind, shown.output, bits), scale_of(expected), bits)
    inputs = dict(golden.inputs)
    if shown.source == "agent/loss":
        inputs = {name: value for name, value in inputs.items() if not name.startswith("params/")} | _heads(golden)
    return Figures(inputs, golden.cotangents, golden.settings, expected, allowed)


def source(cause: Cause, place: str, version: str, distribution: str, store: Store, file: str) -> str:
    """The text of the file."""
    shown = cause.shown
    assert shown is not None, f"{cause.name} is not shown in a file"
    figures = _from_golden(store, shown)
    inputs = {k: v.astype(shown.dtype) if v.dtype.kind == "f" else v for k, v in figures.inputs.items()}
    is_gradient = shown.kind == "vjp"
    cotangents = {k: v.astype(shown.dtype) for k, v in figures.cotangents.items()}
    original = store.manifest["original"]
    came = f"The expected numbers were recorded by running {original['repository']} at commit {original['commit']}."
    needs = f"This file needs NumPy, torch and {distribution}, nothing else:"
    prefix = "gradient with respect to" if is_gradient else "output"
    return TEMPLATE.format(
        title=cause.title + ".",
        says=textwrap.fill(f"{cause.says} This {REACHES[cause.reach]}. {cause.means}", 116),
        place=place,
        original=cause.original,
        right=cause.right,
        recorded=textwrap.fill(f"{came} {shown.note} {needs}".replace("  ", " "), 116),
        distribution=distribution,
        version=version,
        file=file,
        imports=shown.imports,
        dtype=shown.dtype,
        settings=pprint.pformat(figures.settings, width=116),
        inputs=dictionary(inputs),
        cotangents=f"COTANGENTS = {dictionary(cotangents)}\n" if is_gradient and cotangents else "",
        expected=literal(figures.expected),
        allowed=literal(figures.allowed),
        gradients=GRADIENTS if is_gradient else "",
        code=shown.code,
        what=shown.what or f"{prefix} {shown.output}, case {shown.source}[{shown.case}] ({shown.dtype})",
    )


GRADIENTS = """\
for value in x.values():
    if value.is_floating_point():
        value.requires_grad_()
c = {name: torch.from_numpy(value) for name, value in globals().get("COTANGENTS", {}).items()}
"""


def dictionary(arrays: Arrays) -> str:
    """Arrays as Python text."""
    lines = ",\n".join(f"    {name!r}: {literal(value)}" for name, value in arrays.items())
    return "{\n" + lines + ",\n}"


def write(cause: Cause, place: str, version: str, distribution: str, store: Store, folder: Path) -> Path:
    """Writes the file and returns its path."""
    path = folder / f"repro_{cause.name}.py"
    write_atomically(path, source(cause, place, version, distribution, store, path.name).encode())
    return path


def run(path: Path, package_folder: Path) -> tuple[int, str]:
    """Runs a file with nothing but the environment and the port importable: exit code, and what it printed."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [sys.executable, "-P", str(path.resolve())],
            env={"OMP_NUM_THREADS": "1", **kept, "PYTHONPATH": str(package_folder)},
            cwd=elsewhere,
            capture_output=True,
            text=True,
        )
    return done.returncode, (done.stdout + done.stderr).strip()


def proves(path: Path, cause: Cause, package: Path) -> tuple[bool, str]:
    """Whether a file ends with 1 for the release, and with 0 for a copy in which this cause alone is corrected."""
    code, printed = run(path, package.parent)
    if code != 1 or "Traceback" in printed:
        return False, f"exit code {code}: {(printed.splitlines() or ['nothing was printed'])[-1]}"
    with tempfile.TemporaryDirectory() as scratch:
        code, mended = run(path, corrected_copy(package, [cause], Path(scratch)))
    if code != 0:
        return False, f"exit code {code} after the correction: {(mended.splitlines() or [''])[-1]}"
    return True, printed
