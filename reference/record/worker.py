"""One of the recorder's two processes: runs the original on the cases and writes its answers to a folder."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.command_line import end_with_parent
from parity.files import canonical, write_atomically
from parity.goldens.check import with_disco103
from parity.goldens.store import Golden, describe, file_name, layer_bytes
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.layers.spec import Arrays, Case, Layer, Settings
from parity.tolerance import Uninformative
from parity.trace.data_flow import Traced, trace
from reference.jax_runtime import InterpreterError
from reference.record.case import record

FORBIDDEN = ("torch", "port")
TEACHER_FORCED = "teacher_forced"


def entries_name(layer: str) -> str:
    """The file that holds what the manifest will say of a layer's cases; written last."""
    return file_name(layer).replace(".safetensors.gz", ".json")


def refuse_the_port() -> None:
    """A golden must come from the original alone: stops if the port or torch is loaded in this process."""
    loaded = [name for name in FORBIDDEN if name in sys.modules]
    if loaded:
        names = " and ".join(loaded)
        raise SystemExit(f"Not recorded: this process has loaded {names}; goldens come from the original alone.")


def cases(layer: Layer, traced: Traced) -> list[tuple[Case, Arrays, Settings, str]]:
    """All cases of a layer: the registry's, and the one traced in a real learner step."""
    listed = []
    for case in layer.cases:
        inputs = case_inputs(layer, case)
        if case.meta_params == "disco103":
            inputs = with_disco103(inputs)
        listed.append((case, inputs, layer.case_settings(case), "generated"))
    if layer.name in traced:
        inputs, settings = traced[layer.name]
        listed.append((Case(TEACHER_FORCED), inputs, settings, TEACHER_FORCED))
    return listed


def record_layer(original: Any, layer: Layer, traced: Traced) -> tuple[list[Golden], list[str]]:
    """Records every case of a layer; why some of them were refused."""
    goldens, refusals = [], []
    for case, inputs, settings, origin in cases(layer, traced):
        started = time.perf_counter()
        try:
            golden = record(original, layer, case, inputs, json.loads(json.dumps(settings)), origin)
        except (Uninformative, InterpreterError) as reason:
            refusals.append(str(reason))
            continue
        goldens.append(golden)
        print(f"{golden.id}  {time.perf_counter() - started:.1f} s", flush=True)
    return goldens, refusals


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<layer>.safetensors.gz` and `<layer>.json` to the folder given; what is there already is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("layers", nargs="+")
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    end_with_parent()
    waiting = [name for name in chosen.layers if not (chosen.out / entries_name(name)).exists()]
    if not waiting:
        return 0
    from reference.original import implementation as original
    from reference.original.short_run import root

    users = original.as_users_compile
    traced = trace(lambda layer, x, s: users.run(layer, x, s, "float64"), *root())  # the original's own run on Catch
    refused = []
    for name in waiting:
        goldens, refusals = record_layer(original, REGISTRY[name], traced)
        users.forget_programs()
        refuse_the_port()
        if refusals:
            print(*refusals, sep="\n", file=sys.stderr, flush=True)
            refused.append(name)
            continue
        write_atomically(chosen.out / file_name(name), layer_bytes(goldens))
        entries = {golden.case: describe(golden) for golden in goldens}
        write_atomically(chosen.out / entries_name(name), canonical(entries).encode())
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
