"""A failure as one Python file: literal arrays, the expected numbers, and a call of the candidate; nothing else."""

from __future__ import annotations

import pprint
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.bridge import PREFIX
from parity.compare import Row
from parity.files import write_atomically
from parity.goldens.store import Golden
from parity.implementation import KNOWN
from parity.layers.spec import Arrays
from parity.tolerance import PRECISIONS, computed_in, scale_of, tolerance

TEMPLATE = '''"""{head}
"""

import sys

import numpy as np
{imports}

SETTINGS = {settings}
INPUTS = {inputs}
{cotangents}EXPECTED = {expected}
ALLOWED = {allowed}  # by rounding, for each number

{call}

print("compared:", {what!r})
if got.shape != EXPECTED.shape:
    print("expected the shape", EXPECTED.shape, "got", got.shape)
    sys.exit(1)
error = np.abs(got.astype(np.float64) - EXPECTED)
worst = np.unravel_index(np.argmax(error - ALLOWED), error.shape)
print("expected:", EXPECTED[worst], "at", [int(i) for i in worst])
print("got:     ", got[worst])
print("difference:", error[worst], "allowed:", ALLOWED[worst])
is_equal = bool((error <= ALLOWED).all())
print("equal" if is_equal else "DIFFERENT")
sys.exit(int(not is_equal))
'''
CALL = """\
sys.path.append(os.getcwd())
{loading}

got = implementation.{call}[{output!r}]"""


@dataclass(frozen=True)
class Script:
    """What is particular to one file.

    Attributes:
        head: its docstring.
        imports: besides NumPy and `sys`.
        call: code that sets `got` from `SETTINGS`, `INPUTS` and, for a VJP, `COTANGENTS`.
        what: what is compared, in words.
    """

    head: str
    imports: str
    call: str
    what: str


def in_docstring(text: str) -> str:
    """Text as it stands between triple quotes: backslashes, three quotes and what cannot be printed are escaped."""
    plain = (c if c == "\n" or (c.isprintable() and c != "\\") else c.encode("unicode_escape").decode() for c in text)
    return "".join(plain).replace('"""', r"\"\"\"")


def literal(array: np.ndarray) -> str:
    """An array as Python text that gives back the same bits."""
    with np.printoptions(threshold=10**9, floatmode="unique", linewidth=116):
        text = np.array2string(array, separator=", ")
    text = re.sub(r"\b(nan|inf)\b", r"np.\1", text)
    return f"np.array({text}, dtype=np.{array.dtype.name})"


def _dictionary(arrays: Arrays, dtype: str) -> str:
    typed = {name: value.astype(dtype) if value.dtype.kind == "f" else value for name, value in arrays.items()}
    lines = ",\n".join(f"    {name!r}: {literal(value)}" for name, value in typed.items())
    return "{\n" + lines + ",\n}"


def text_of(script: Script, golden: Golden, kind: str, output: str, precision: str) -> str:
    """The text of a file that compares one output, or one VJP, of a golden."""
    dtype, bits = computed_in(precision), PRECISIONS[precision]
    ref = allowed = np.zeros(0)  # of an output that there should not be
    if output in golden.truth(kind):
        ref = golden.truth(kind)[output]
        allowed = tolerance(golden.sigma(kind, output, bits), scale_of(ref), bits)
    has_cotangents = kind == "vjp" and golden.cotangents
    return TEMPLATE.format(
        head=in_docstring(script.head),
        imports=script.imports,
        settings=pprint.pformat(golden.settings, width=110),
        inputs=_dictionary(golden.inputs, dtype),
        cotangents=f"COTANGENTS = {_dictionary(golden.cotangents, dtype)}\n" if has_cotangents else "",
        expected=literal(ref),
        allowed=literal(allowed if ref.dtype.kind == "f" else np.zeros(ref.shape)),
        call=script.call,
        what=script.what,
    )


def source(golden: Golden, row: Row, implementation: str, file: str) -> str:
    """The text of a file that calls an implementation."""
    module, _, attribute = KNOWN.get(implementation, implementation).partition(":")
    loading = f"import importlib\n\nimplementation = getattr(importlib.import_module({module!r}), {attribute!r})"
    if implementation.startswith(PREFIX):
        loading = f"from parity.bridge import Program\n\nimplementation = Program({attribute!r})"
    is_vjp, dtype, output = row.kind == "vjp", computed_in(row.dtype), row.output
    given = f"{golden.layer!r}, INPUTS, SETTINGS, {dtype!r}"
    call = f"vjp({given}, COTANGENTS, [{output!r}])" if is_vjp else f"run({given})"
    head = (
        f"{row.sentence()}\n\nRun it from a folder where the implementation can be imported: python {file}\n"
        "It needs NumPy and the implementation, and prints what was expected and what came out."
    )
    script = Script(
        head,
        imports="import os",
        call=CALL.format(loading=loading, call=call, output=output),
        what=f"{'VJP with respect to' if is_vjp else 'output'} {output} of {golden.layer}",
    )
    return text_of(script, golden, row.kind, output, row.dtype)


def write(golden: Golden, row: Row, implementation: str, folder: Path) -> Path:
    """Writes the file and returns its path."""
    words = re.sub(r"[^A-Za-z0-9]+", "_", f"{golden.layer}_{row.output}_{row.kind}_{row.dtype}").strip("_")
    path = folder / f"repro_{words[:120]}.py"
    write_atomically(path, source(golden, row, implementation, path.name).encode())
    return path
