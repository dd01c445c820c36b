"""The golden files: how they are laid out, written atomically and read with every digest checked.

`fixtures/manifest.json` says where everything came from; `fixtures/golden/<layer>.safetensors.gz` holds the tensors of
one layer, each named `case:kind:name`. Kinds: `in` inputs; `cot` cotangents; `out` the original's outputs in float64;
`vjp` its vector-Jacobian products; `sigma_out` and `sigma_vjp` how far rounding takes each of those numbers, a row a
precision (`parity.tolerance`); `other_P` the other answers that rounding to P bits gives for an output of integers.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from parity.errors import FixtureError
from parity.files import reading
from parity.goldens import manifests
from parity.goldens.manifests import FIXTURES as FIXTURES
from parity.layers.spec import Arrays, Settings
from parity.sigma import Rounding, decode, encode
from parity.tolerance import RECORDED

FORMAT = 4


def digest(array: np.ndarray) -> str:
    """128 bits of sha256 over dtype, shape and bytes; there are many of these, and each file has a whole one."""
    header = f"{array.dtype.str}{array.shape}".encode()
    return hashlib.sha256(header + array.tobytes()).hexdigest()[:32]


def compact(array: np.ndarray) -> np.ndarray:
    """How an input is stored: in float32 where that loses nothing, as with all that is drawn."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    return single if np.array_equal(single, array, equal_nan=True) else array


def wide(array: np.ndarray) -> np.ndarray:
    """The inverse of `compact`."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


@dataclass(frozen=True)
class Golden:
    """One recorded case of a layer.

    Attributes:
        layer: its name.
        case: its name.
        settings: sizes and static numbers.
        origin: `generated`, `teacher_forced` or `live`.
        meta_params: `seeded` or `disco103`.
        inputs: what the original was given.
        cotangents: of its outputs; none where no VJP is judged.
        outputs: the truth: the original's outputs in float64.
        vjps: its vector-Jacobian products in float64.
        rounding: how far rounding takes each number of the outputs and VJPs.
        stored: whether the inputs are in the fixtures, or made again from their seed.
    """

    layer: str
    case: str
    settings: Settings
    origin: str
    meta_params: str
    inputs: Arrays
    cotangents: Arrays
    outputs: Arrays
    vjps: Arrays
    rounding: Rounding
    stored: bool = True

    @property
    def id(self) -> str:
        """E.g. `values/retrace[terminal_middle]`."""
        return f"{self.layer}[{self.case}]"

    def truth(self, kind: str) -> Arrays:
        """The outputs (`value`) or the VJPs (`vjp`)."""
        return self.outputs if kind == "value" else self.vjps

    def sigma(self, kind: str, name: str, bits: int) -> np.ndarray:
        """Sigma of each element of an output or VJP; 0 for integers."""
        by_bits = self.rounding.sigmas[kind].get(name)
        return by_bits[bits] if by_bits else np.zeros(self.truth(kind)[name].shape)

    def others(self, name: str, bits: int) -> np.ndarray | None:
        """[N, ...], the other answers that rounding gives for an output of integers."""
        return self.rounding.alternatives.get(name, {}).get(bits)

    def recorded_at(self, kind: str) -> tuple[int, ...]:
        """The bits of precision at which sigma is known, the most first."""
        known = [tuple(by_bits) for by_bits in self.rounding.sigmas[kind].values()]
        return known[0] if known else RECORDED[kind]


def file_name(layer: str) -> str:
    """The golden file of a layer."""
    return layer.replace("/", ".") + ".safetensors.gz"


SIGMA = {"value": "sigma_out", "vjp": "sigma_vjp"}


def tensors_of(golden: Golden) -> Arrays:
    """All tensors of a case that are written to its file, by `kind:name`."""
    flat: Arrays = {}
    if golden.stored:
        flat |= {f"in:{name}": compact(value) for name, value in golden.inputs.items()}
        flat |= {f"cot:{name}": compact(value) for name, value in golden.cotangents.items()}
    flat |= {f"out:{name}": value for name, value in golden.outputs.items()}
    flat |= {f"vjp:{name}": value for name, value in golden.vjps.items()}
    for kind, sigmas in golden.rounding.sigmas.items():
        for name, by_bits in sigmas.items():
            flat[f"{SIGMA[kind]}:{name}"] = np.stack([encode(sigma) for sigma in by_bits.values()])
    for name, by_bits in golden.rounding.alternatives.items():
        flat |= {f"other_{bits}:{name}": others for bits, others in by_bits.items()}
    return flat


def describe(golden: Golden) -> dict[str, Any]:
    """A case's entry in the manifest."""
    entry = {
        "settings": golden.settings,
        "origin": golden.origin,
        "meta_params": golden.meta_params,
        "stored": golden.stored,
        "bits": {kind: list(golden.recorded_at(kind)) for kind in SIGMA},
        "tensors": {name: digest(value) for name, value in sorted(tensors_of(golden).items())},
    }
    if not golden.stored:
        entry["made_from_seed"] = {name: digest(value) for name, value in sorted(golden.inputs.items())}
    return entry


def layer_bytes(goldens: list[Golden]) -> bytes:
    """The content of a layer's file."""
    # `np.array` keeps a scalar a scalar, which `ascontiguousarray` does not.
    flat = {f"{g.case}:{name}": np.array(v, order="C") for g in goldens for name, v in tensors_of(g).items()}
    return gzip.compress(save_tensors(dict(sorted(flat.items()))), mtime=0)


def _rounding(parts: dict[str, Arrays], bits: dict[str, list[int]]) -> Rounding:
    """What `tensors_of` wrote of it."""
    rounding = Rounding()
    for kind, prefix in SIGMA.items():
        for name, rows in parts.get(prefix, {}).items():
            rounding.sigmas[kind][name] = {p: decode(row) for p, row in zip(bits[kind], rows, strict=True)}
    for prefix in (key for key in parts if key.startswith("other_")):
        for name, others in parts[prefix].items():
            rounding.alternatives.setdefault(name, {})[int(prefix.removeprefix("other_"))] = others
    return rounding


CASE = {"settings": dict, "origin": str, "meta_params": str, "stored": bool, "tensors": {str: str}}
CASE |= {"bits": {"value": [int], "vjp": [int]}}
FORM = {"order": [str], "layers": {str: {"sha256": str, "cases": {str: CASE}}}}  # of a manifest, as of `check_form`
REMEDY = "Restore it with `git checkout -- fixtures`, or record again with `python -m reference record`."


@dataclass
class Store:
    """Reads goldens; nothing comes out of it that was not checked against the manifest."""

    root: Path = FIXTURES
    _files: dict[str, Arrays] = field(default_factory=dict, repr=False)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest, its own digest checked."""
        content = manifests.read(path := self.root / "manifest.json", REMEDY, FORM, FORMAT)
        if set(content["order"]) != set(content["layers"]):
            raise FixtureError(f"{path} is damaged: its order does not name the layers that it lists. {REMEDY}")
        return content

    def layers(self) -> list[str]:
        """Names of the recorded layers, in data-flow order."""
        return list(self.manifest["order"])

    def cases(self, layer: str) -> list[str]:
        """Names of the recorded cases of a layer."""
        return list(self.manifest["layers"][layer]["cases"])

    def entry(self, layer: str, case: str) -> dict[str, Any]:
        """A case's entry in the manifest."""
        entry: dict[str, Any] = self.manifest["layers"][layer]["cases"][case]
        return entry

    def _load_file(self, layer: str) -> Arrays:
        if layer in self._files:
            return self._files[layer]
        path = self.root / "golden" / file_name(layer)
        with reading(path, REMEDY, f"the goldens of {layer}"):
            content = path.read_bytes()
            tensors = load_tensors(gzip.decompress(content))
        self._check_digests(layer, tensors, path)
        if hashlib.sha256(content).hexdigest() != self.manifest["layers"][layer]["sha256"]:
            raise FixtureError(f"{path} is damaged outside its tensors: its sha256 is not the recorded one. {REMEDY}")
        self._files[layer] = tensors
        return tensors

    def _check_digests(self, layer: str, tensors: Arrays, path: Path) -> None:
        expected = {
            f"{case}:{name}": stated
            for case, entry in self.manifest["layers"][layer]["cases"].items()
            for name, stated in entry["tensors"].items()
        }
        absent, extra = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
        if absent or extra:
            raise FixtureError(f"{path} does not hold what the manifest lists: {(absent or extra)[0]}. {REMEDY}")
        for name, stated in expected.items():
            if digest(tensors[name]) != stated:
                raise FixtureError(f"{path} is damaged: tensor {name} has another digest than recorded. {REMEDY}")

    def load(self, layer: str, case: str, made_inputs: Arrays | None = None) -> Golden:
        """Reads one case; `made_inputs` are the inputs where they are made from a seed instead of stored."""
        with reading(self.root / "manifest.json", REMEDY):
            return self._golden(layer, case, made_inputs)

    def _golden(self, layer: str, case: str, made_inputs: Arrays | None) -> Golden:
        tensors, entry = self._load_file(layer), self.entry(layer, case)
        parts: dict[str, Arrays] = {}
        for key in entry["tensors"]:
            kind, _, name = key.partition(":")
            stored = tensors[f"{case}:{key}"]
            parts.setdefault(kind, {})[name] = wide(stored) if kind in ("in", "cot") else stored
        return Golden(
            layer=layer,
            case=case,
            settings=entry["settings"],
            origin=entry["origin"],
            meta_params=entry["meta_params"],
            inputs=parts.get("in", {}) if entry["stored"] else self._checked(layer, case, made_inputs or {}),
            cotangents=parts.get("cot", {}),
            outputs=parts.get("out", {}),
            vjps=parts.get("vjp", {}),
            rounding=_rounding(parts, entry["bits"]),
            stored=entry["stored"],
        )

    def _checked(self, layer: str, case: str, inputs: Arrays) -> Arrays:
        stated = self.entry(layer, case)["made_from_seed"]
        for name in sorted(set(stated) | set(inputs)):
            if name not in inputs or name not in stated or digest(inputs[name]) != stated[name]:
                raise FixtureError(
                    f"{layer}[{case}]: input {name} as made from its seed here is not the one recorded; "
                    "this NumPy draws other numbers, or the rule was changed without recording again."
                )
        return inputs
