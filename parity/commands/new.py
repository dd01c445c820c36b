"""`python -m parity new FILE`: writes a commented adapter to start from, with every layer's signature."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from parity.errors import CannotRun
from parity.files import write_atomically
from parity.layers import REGISTRY
from parity.layers.spec import Layer, Spec

HELP = "write a template of an adapter"
EXAMPLE = "python -m parity new my_adapter.py"
HEAD = '''"""An adapter: shows your implementation of Disco to disco-parity.

    python -m parity check --impl {module}:implementation
    pytest --pyargs parity --parity-impl {module}:implementation

Each function below is one layer: a pure function from a dict of NumPy arrays to a dict of NumPy arrays. Fill in those
that you have, delete the rest: layers that are not here are listed as not provided. `settings` holds sizes and static
numbers, `dtype` is "float64" or "float32"; compute in it and answer in it. T counts transitions; T+1 is with the
bootstrap step. Inputs marked (VJP) are differentiated, if you give `vjp` too.
"""

import numpy as np

LAYERS = {{}}


def layer(name):
    def keep(function):
        LAYERS[name] = function
        return function

    return keep

'''

TAIL = '''

class Implementation:
    name = "{module}"
    description = "say here what it is and which version"
    layers = LAYERS

    def run(self, layer, inputs, settings, dtype):
        return LAYERS[layer](inputs, settings, dtype)

    def vjp(self, layer, inputs, settings, dtype, cotangents, wrt):
        """For each input named in `wrt`: the gradient of sum(output * cotangent) over the outputs in `cotangents`.

        With PyTorch: torch.autograd.grad(outputs, inputs, cotangents); with JAX: jax.vjp. Zeros where none flows.
        Without gradients, raise NotImplementedError: values are judged all the same.
        """
        raise NotImplementedError


implementation = Implementation()
'''


def layer_source(layer: Layer) -> str:
    """One layer of the template: signature as comments, and a body that does nothing yet."""
    settings = layer.settings
    wrt = set(layer.differentiable(settings))
    lines = ["", f'# @layer("{layer.name}")', f"# def {layer.name.replace('/', '_')}(inputs, settings, dtype):"]
    lines.append(f'#     """{layer.summary}"""')
    lines.append(f"#     # settings: {', '.join(settings)}")
    for name, spec in _shortened(layer.inputs(settings)).items():
        lines.append(f'#     inputs["{name}"]  # {spec}{" (VJP)" if name in wrt else ""}')
    outputs = ", ".join(f'"{name}": ...' for name in _shortened(layer.outputs(settings)))
    lines.append(f"#     return {{{outputs}}}")
    return "\n".join(lines) + "\n"


FAMILIES = ("meta_params/", "target_params/", "params/", "opt/mu/", "opt/nu/", "grads/", "updates/", "noise/")


def _shortened(specs: Mapping[str, Spec]) -> dict[str, str]:
    """Specs by name; of a whole set of parameters only the first one."""
    shown: dict[str, str] = {}
    seen: set[str] = set()
    for name, spec in specs.items():
        family = next((part for part in FAMILIES if part in name), None)
        prefix = name[: name.find(family)] + family if family else name
        if prefix not in seen:
            seen.add(prefix)
            shown[name] = spec.describe() + (f", and all other {prefix}..." if family else "")
    return shown


def template(module: str) -> str:
    """The whole file."""
    body = "\n".join(layer_source(layer) for layer in REGISTRY.values())
    return HEAD.format(module=module) + body + TAIL.format(module=module)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("file", type=Path, help="file to write; it must not exist yet")


def run(args: argparse.Namespace) -> int:
    """Writes the template of an adapter."""
    if args.file.exists():
        raise CannotRun(f"{args.file} exists already; name a file that does not.")
    if not args.file.stem.isidentifier() or args.file.suffix != ".py":
        raise CannotRun(f"{args.file.name} is not a valid module name; choose one like my_adapter.py.")
    write_atomically(args.file, template(args.file.stem).encode())
    print(f"Wrote {args.file}. Fill in a layer, then: python -m parity check --impl {args.file.stem}:implementation")
    return 0
