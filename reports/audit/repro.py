"""A difference as one Python file that needs NumPy, torch and the port: no JAX, nothing of this project.

The expected numbers in it were recorded from the original. It ends with 1 while the port differs, with 0 once it
agrees, so that it can be sent to the port's authors as it is and serve them as a test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from parity.goldens.check import load as load_case
from parity.goldens.store import Golden, Store
from parity.layers.spec import Arrays
from parity.live.repro import Script, text_of
from port.adapter.inputs import by_our_names
from port.networks import agent_net
from reports.audit.causes import REACHES, Cause, Shown, corrected_copy

HEADS = ("logits", "y", "z", "q", "aux_pi")
HEAD = """{title}.

{says}

Where:    {place}
Original: {original}
Right:    {right}

{recorded}

    pip install {distribution}=={version}
    python {file}

It ends with 1 while the numbers differ and with 0 once they agree."""
CALL = """\
DTYPE = torch.{dtype}
torch.set_default_dtype(DTYPE)  # some tensors of the package are made without a dtype
x = {{name: torch.from_numpy(value) for name, value in INPUTS.items()}}
{gradients}{code}
got = got.detach().numpy()"""
GRADIENTS = """\
for value in x.values():
    if value.is_floating_point():
        value.requires_grad_()
c = {name: torch.from_numpy(value) for name, value in globals().get("COTANGENTS", {}).items()}
"""


def _heads(golden: Golden) -> Arrays:
    """The agent network's outputs on a golden's rollout, by the port's network, which is equal to the original's."""
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in golden.inputs.items()}
    params = by_our_names(tensors, golden.settings).under("params")
    outs = agent_net.step(params, tensors["rollout/observations"], lead=2)
    return {f"agent_out/{name}": outs[name].numpy() for name in HEADS}


def _golden(store: Store, shown: Shown) -> Golden:
    """The recorded case, with the network's outputs in place of its parameters: the package has no such network."""
    golden = load_case(store, shown.source, shown.case)
    if shown.source != "agent/loss":
        return golden
    rest = {name: value for name, value in golden.inputs.items() if not name.startswith("params/")}
    return replace(golden, inputs=rest | _heads(golden))


def source(cause: Cause, place: str, version: str, distribution: str, file: str) -> str:
    """The text of the file."""
    shown = cause.shown
    assert shown is not None, f"{cause.name} is not shown in a file"
    store, is_gradient = Store(), shown.kind == "vjp"
    original = store.manifest["original"]
    came = f"The expected numbers were recorded by running {original['repository']} at commit {original['commit']}."
    needs = f"This file needs NumPy, torch and {distribution}, nothing else:"
    head = HEAD.format(
        title=cause.title,
        says=textwrap.fill(f"{cause.says} This {REACHES[cause.reach]}. {cause.means}", 116),
        place=place,
        original=cause.original,
        right=cause.right,
        recorded=textwrap.fill(f"{came} {shown.note} {needs}".replace("  ", " "), 116),
        distribution=distribution,
        version=version,
        file=file,
    )
    call = CALL.format(dtype=shown.dtype, gradients=GRADIENTS if is_gradient else "", code=shown.code)
    prefix = "gradient with respect to" if is_gradient else "output"
    what = f"{prefix} {shown.output}, case {shown.source}[{shown.case}] ({shown.dtype})"
    script = Script(head, f"import torch\n{shown.imports}", call, what)
    return text_of(script, _golden(store, shown), shown.kind, shown.output, shown.dtype)


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
        code, after = run(path, corrected_copy(package, [cause], Path(scratch)))
    if code != 0:
        return False, f"exit code {code} after the correction: {(after.splitlines() or [''])[-1]}"
    return True, printed
