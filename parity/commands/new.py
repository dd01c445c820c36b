"""`python -m parity new FILE`: writes an adapter to fill in, with what a porter would have to look up.

A file of `parity/templates/` has three parts, divided by lines of `%%`: the head, what is repeated for each layer, and
the end. A line with `$note` is repeated for each line of the layer's notes, one with `$families` for the names of
parameters.
"""

from __future__ import annotations

import argparse
import itertools
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from parity.command_line import chosen
from parity.errors import CannotRun
from parity.files import write_atomically
from parity.layers import REGISTRY
from parity.layers.spec import Layer, Spec

HELP = "write an adapter to fill in"
EXAMPLE = "python -m parity new my_adapter.py --framework torch --layers essentials"
TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
PYTHON = (".py", "python -m parity check --impl {}:implementation")
# Suffix of the file and the next command, by framework.
FRAMEWORKS = {
    **dict.fromkeys(("numpy", "torch", "jax"), PYTHON),
    "cmd": (".c", "cc -O2 -o {0} {0}.c -lm && python -m parity check --impl cmd:./{0}"),
}
WIDTH = 112
RANGES: dict[str, str] = {"uniform": " in [0, 1)", "simplex": ", sums to 1", "zero_one": ", 0 or 1"}
FAMILIES = ("meta_params/", "target_params/", "params/", "opt/mu/", "opt/nu/", "grads/", "updates/", "noise/")


@cache
def knowledge() -> dict[str, Any]:
    """`parity/templates/layers.toml`."""
    return tomllib.loads((TEMPLATES / "layers.toml").read_text(encoding="utf-8"))


def notes(layer: Layer) -> list[str]:
    """What stands beside a layer: what is known of it, its settings, inputs and outputs."""
    settings, wrt = layer.settings, layer.differentiable(layer.settings)
    known = str(knowledge()["notes"].get(layer.name, "")).replace("`", "").splitlines()
    numbers = ", ".join(f"{name}={value}" for name, value in settings.items())
    inputs = {
        name: spec.describe() + _range(spec) + (" (VJP)" if name in wrt else "")
        for name, spec in layer.inputs(settings).items()
    }
    outputs = {name: spec.describe() for name, spec in layer.outputs(settings).items()}
    lines = [*known, f"settings: {numbers}", *_listed("in", inputs), *_listed("out", outputs)]
    return [part for line in lines for part in textwrap.wrap(line, WIDTH)]


def _range(spec: Spec) -> str:
    return f" in [0, {spec.below})" if spec.kind == "int" else RANGES.get(spec.draw, "")


def _listed(word: str, specs: Mapping[str, str]) -> Iterator[str]:
    """Lines of names with their spec: neighbours of the same spec in one, of a set of parameters only the first."""
    shown: dict[str, str] = {}
    for name, text in specs.items():
        family = next((name[: name.find(part)] + part for part in FAMILIES if part in name), "")
        if not family:
            shown[name] = text
        elif not any(other.startswith(family) for other in shown):
            shown[name] = f"{text}, and so all other {family}..."
    for text, names in itertools.groupby(shown, lambda name: shown[name]):
        yield f"{word}: {', '.join(names)} {text}"


def _families(layers: Sequence[Layer]) -> Iterator[str]:
    """The names of parameters that the inputs of some layers have."""
    names = [name for layer in layers for name in layer.inputs(layer.settings)]
    for family, text in knowledge()["families"].items():
        if any(name.startswith(f"{family}/") for name in names):
            yield ""
            yield from (line for part in text.strip().splitlines() for line in textwrap.wrap(part, WIDTH))


def _filled(part: str, values: Mapping[str, str], repeated: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Lines of a part of a template; a line with a name in `repeated` stands once for each of its lines."""
    for line in part.splitlines():
        name = next((name for name in repeated if f"${name}" in line), None)
        copies = [line.replace(f"${name}", text).rstrip() for text in repeated[name]] if name else [line]
        yield from copies if name else (Template(copy).safe_substitute(values) for copy in copies)


def template(framework: str, module: str, names: Sequence[str]) -> str:
    """The whole file."""
    head, body, tail = (TEMPLATES / f"{framework}.txt").read_text(encoding="utf-8").split("%%\n")
    layers = [REGISTRY[name] for name in names]
    with_logs = [
        layer.name for layer in layers if any(name.startswith("log/") for name in layer.outputs(layer.settings))
    ]
    values = {"module": module, "all_optional": " ".join(f"{name}=log/*" for name in with_logs)}
    lines = list(_filled(head, values, {"families": list(_families(layers))}))
    for layer in layers:
        about = {
            "layer": layer.name,
            "function": layer.name.replace("/", "_"),
            "summary": layer.summary,
            "optional": ', optional=["log/*"]' if layer.name in with_logs else "",
        }
        lines += _filled(body, values | about, {"note": notes(layer)})
    calls = [f'  if (is("\\"layer\\":\\"{name}\\"")) {name.replace("/", "_")}(is_vjp);' for name in names]
    return "\n".join([*lines, *_filled(tail, values, {"calls": calls})]).rstrip() + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("file", type=Path, help="file to write; it must not exist yet")
    parser.add_argument("--framework", choices=list(FRAMEWORKS), default="numpy", help="cmd is a program, in C")
    parser.add_argument(
        "--layers", nargs="+", default=["essentials"], metavar="LAYER", help="essentials, all, or names"
    )


def run(args: argparse.Namespace) -> int:
    """Writes the file."""
    suffix, command = FRAMEWORKS[args.framework]
    if args.file.exists():
        raise CannotRun(f"{args.file} exists already; name a file that does not.")
    if not args.file.stem.isidentifier() or args.file.suffix != suffix:
        raise CannotRun(
            f"{args.file.name} is no name for --framework {args.framework}; choose one like my_port{suffix}."
        )
    groups = {"essentials": knowledge()["essentials"], "all": list(REGISTRY)}
    names = chosen([name for asked in args.layers for name in groups.get(asked, [asked])], list(REGISTRY))
    write_atomically(args.file, template(args.framework, args.file.stem, names).encode())
    count = f"{len(names)} layer{'s' if names[1:] else ''}"
    print(f"Wrote {args.file} with {count} to fill in. Then: {command.format(args.file.stem)}")
    return 0
