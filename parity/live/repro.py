"""A failure as one Python file: literal arrays, the expected number, and a call of the candidate; nothing else."""

from __future__ import annotations

import pprint
import re
from pathlib import Path

import numpy as np

from parity.compare import Row
from parity.files import write_atomically
from parity.goldens.judge import cast
from parity.goldens.store import Golden
from parity.implementation import KNOWN
from parity.layers.spec import Arrays
from parity.tolerance import PRECISIONS, computed_in, scale_of, tolerance

TEMPLATE = '''"""{summary}

Run it from a folder where the implementation can be imported: python {file}
It needs NumPy and the implementation, and prints what was expected and what came out.
"""

import os
import sys

import numpy as np

sys.path.append(os.getcwd())
from {module} import {attribute} as implementation

LAYER = {layer!r}
DTYPE = {dtype!r}
SETTINGS = {settings}
INPUTS = {inputs}
{cotangents}
EXPECTED = {expected}
ALLOWED = {allowed}

{call}
is_equal = got.shape == EXPECTED.shape and bool((np.abs(got.astype(np.float64) - EXPECTED) <= ALLOWED).all())
print({what!r}, "of", LAYER)
print("expected", EXPECTED)
print("got     ", got)
print("allowed ", ALLOWED)
print("equal" if is_equal else "DIFFERENT")
raise SystemExit(int(not is_equal))
'''


def literal(array: np.ndarray) -> str:
    """An array as Python text that gives back the same bits."""
    with np.printoptions(threshold=10**9, floatmode="unique", linewidth=116):
        text = np.array2string(array, separator=", ")
    text = re.sub(r"\b(nan|inf)\b", r"np.\1", text)
    return f"np.array({text}, dtype=np.{array.dtype.name})"


def _dictionary(arrays: Arrays) -> str:
    lines = ",\n".join(f"    {name!r}: {literal(value)}" for name, value in arrays.items())
    return "{\n" + lines + ",\n}"


def source(golden: Golden, row: Row, implementation: str, file: str) -> str:
    """The text of the file."""
    module, _, attribute = KNOWN.get(implementation, implementation).partition(":")
    is_vjp = row.kind == "vjp"
    ref, dtype, bits = golden.truth(row.kind)[row.output], computed_in(row.dtype), PRECISIONS[row.dtype]
    allowed = tolerance(golden.sigma(row.kind, row.output, bits), scale_of(ref), bits)
    method, more = ("vjp", f", COTANGENTS, [{row.output!r}]") if is_vjp else ("run", "")
    return TEMPLATE.format(
        summary=row.sentence(),
        file=file,
        module=module,
        attribute=attribute,
        layer=golden.layer,
        dtype=dtype,
        settings=pprint.pformat(golden.settings, width=110),
        inputs=_dictionary(cast(golden.inputs, dtype)),
        cotangents=f"COTANGENTS = {_dictionary(golden.cotangents)}" if is_vjp else "",
        expected=literal(ref),
        allowed=literal(allowed if ref.dtype.kind == "f" else np.zeros(ref.shape)),
        call=f"got = implementation.{method}(LAYER, INPUTS, SETTINGS, DTYPE{more})[{row.output!r}]",
        what=f"{'VJP with respect to' if is_vjp else 'output'} {row.output}",
    )


def write(golden: Golden, row: Row, implementation: str, folder: Path) -> Path:
    """Writes the file and returns its path."""
    words = re.sub(r"[^A-Za-z0-9]+", "_", f"{golden.layer}_{row.output}_{row.kind}_{row.dtype}").strip("_")
    path = folder / f"repro_{words}.py"
    write_atomically(path, source(golden, row, implementation, path.name).encode())
    return path
