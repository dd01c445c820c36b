"""What adapters share in any framework: named tensors, the names of parameters, and the calls of the contract."""

from __future__ import annotations

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from parity.layers import REGISTRY
from parity.layers.spec import Arrays, Settings

Record = TypeVar("Record")
Names = Iterable[tuple[str, str]]


class Tensors(dict[str, Any]):
    """A layer's inputs, flat: `x["adv_ema/moment1"]`, or `x.rewards` where the name is none of a dict's own (`values`).

    `dtype` is the framework's float dtype of this call, `device` where its tensors are.
    """

    def __init__(self, tensors: Mapping[str, Any], dtype: Any = None, device: Any = None):
        super().__init__(tensors)
        self.dtype, self.device = dtype, device

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"The layer has no input {name!r}; it has {', '.join(sorted(self))}.") from None

    def __or__(self, other: Mapping[str, Any]) -> Tensors:  # type: ignore[override]
        return Tensors({**self, **other}, self.dtype, self.device)

    def under(self, prefix: str) -> dict[str, Any]:
        """The entries below `prefix/`, without it."""
        return {name[len(prefix) + 1 :]: value for name, value in self.items() if name.startswith(prefix + "/")}

    def record(self, kind: type[Record], prefix: str = "", **known: Any) -> Record:
        """A NamedTuple or dataclass out of the entries below a prefix; a field that has entries below it is a dict.

        Args:
            kind: the class; what is not among the inputs keeps its default.
            prefix: where its fields are; empty for all inputs.
            known: fields whose values are not taken from the inputs, or the classes of those that are records again.
        """
        start = f"{prefix}/" if prefix else ""
        fields = {}
        for name in field_names(kind):
            inner = self.under(start + name)
            if isinstance(known.get(name), type):
                fields[name] = self.record(known[name], start + name)
            elif name in known or start + name in self or inner:
                fields[name] = known.get(name, self.get(start + name, inner))
        return kind(**fields)


def field_names(record: Any) -> list[str]:
    """Names of the fields of a NamedTuple or dataclass, class or object; none of anything else."""
    if dataclasses.is_dataclass(record):
        return [field.name for field in dataclasses.fields(record)]
    return list(getattr(record, "_fields", ()))


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of nested dicts, lists and records by their paths, `state/moment1`; None is no leaf."""
    if isinstance(tree, Mapping):
        inner = dict(tree)
    elif names := field_names(tree):
        inner = {name: getattr(tree, name) for name in names}
    elif isinstance(tree, list | tuple):
        inner = dict(enumerate(tree))
    else:
        return {} if tree is None else {prefix: tree}
    start = f"{prefix}/" if prefix else ""
    return {path: leaf for name, part in inner.items() for path, leaf in flatten(part, f"{start}{name}").items()}


def inside_names(name: str, table: Mapping[str, Sequence[str]]) -> list[str]:
    """A path by other names: its longest end that is in the table, and each part before that, are replaced.

    An end may have several names, as parameters do that are used twice.
    """
    parts = name.split("/")
    cut = next((i for i in range(len(parts)) if "/".join(parts[i:]) in table), len(parts))
    start = [table.get(part, [part])[0] for part in parts[:cut]]
    ends = [[end] for end in table["/".join(parts[cut:])]] if cut < len(parts) else [[]]
    return ["/".join(start + end) for end in ends]


def layer_name(pattern: str, i: int) -> str:
    """The original's name of a layer of a stack: `{i}` is its number, `{_i}` too, with nothing for the first."""
    return pattern.format(i=i, _i=f"_{i}" if i else "")


def look_up(params: Mapping[str, Any], name: str) -> Any:
    """A parameter of the original; KeyError with the nearest names if there is none of this one."""
    if name not in params:
        near = difflib.get_close_matches(name, params, n=3)
        raise KeyError(f"There is no parameter {name!r}; near it: {', '.join(near) or 'none'}.")
    return params[name]


def check_cotangents(outputs: Mapping[str, Any], cotangents: Mapping[str, Any]) -> None:
    """Without an output of the recorded shape there is no VJP through it; its value is judged all the same."""
    wrong = sorted(n for n, ct in cotangents.items() if n not in outputs or outputs[n].shape != ct.shape)
    if wrong:
        raise NotImplementedError(f"VJPs need the output {wrong[0]!r}, and of the shape in the registry.")


class Adapter(ABC):
    """An implementation made of functions of tensors, one for each layer.

    A layer takes its inputs as `Tensors` and the settings. It returns its outputs as a dict or record, which may hold
    others (`{"state": EmaState(...)}`), as a tuple in the registry's order, or as the one tensor that there is.
    """

    has_joint_pass = True  # False where code takes another path if no gradient is wanted: values are then made apart

    def __init__(
        self,
        name: str,
        description: str = "",
        device: str = "cpu",
        names: Callable[[Settings], Names] = lambda settings: (),
    ):
        """Makes an implementation without layers.

        Args:
            name: of the implementation.
            description: with its version.
            device: that it computes on, e.g. "cuda".
            names: settings -> pairs of names: the original's, of a parameter (`"mlp/linear/w"`) or a part of a path
                (`"opt"`), and this implementation's. Inputs and outputs have the latter inside of the layers.
        """
        self.name, self.description, self.device, self.names = name, description, device, names
        self.layers: dict[str, Callable[[Tensors, Settings], Any]] = {}
        self.without_gradients: set[str] = set()
        self.optional_outputs: dict[str, Sequence[str]] = {}
        self._unsupported: dict[str, Callable[[Settings], str]] = {}

    def layer(
        self,
        *layers: str,
        gradients: bool = True,
        optional: Sequence[str] = (),
        unsupported: Callable[[Settings], str] = lambda settings: "",
    ) -> Callable[[Any], Any]:
        """Registers a function as a layer, and declares what it does not have; that is listed, not failed.

        Args:
            layers: names in the registry.
            gradients: whether VJPs are judged, or values alone.
            optional: outputs that may be missing, as patterns: `log/*`.
            unsupported: why the function cannot compute with some settings; empty if it can.
        """

        def register(function: Any) -> Any:
            self.layers |= dict.fromkeys(layers, function)
            self.without_gradients |= set() if gradients else set(layers)
            self.optional_outputs |= dict.fromkeys(layers, optional)
            self._unsupported |= dict.fromkeys(layers, unsupported)
            return function

        return register

    def unsupported(self, layer: str, settings: Settings) -> str:
        """Why a layer cannot be computed with these settings; empty if it can."""
        return self._unsupported[layer](settings) if layer in self._unsupported else ""

    def _table(self, settings: Settings) -> dict[str, list[str]]:
        table: dict[str, list[str]] = {}
        for original, ours in self.names(settings):
            table.setdefault(original, []).append(ours)
        return table

    def inside(self, x: Tensors, settings: Settings) -> Tensors:
        """Inputs by this implementation's names."""
        table = self._table(settings)
        return Tensors({ours: x[name] for name in x for ours in inside_names(name, table)}, x.dtype, x.device)

    def outside(self, layer: str, outputs: Any, settings: Settings) -> dict[str, Any]:
        """A layer's outputs, flat, by the registry's names."""
        table, expected = self._table(settings), list(REGISTRY[layer].outputs(settings))
        if not isinstance(outputs, Mapping) and not field_names(outputs):
            outputs = dict(zip(expected, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
        to_registry = {ours: name for name in expected for ours in inside_names(name, table)}
        back = {ours: [original] for original, several in table.items() for ours in several}
        return {to_registry.get(name) or inside_names(name, back)[0]: value for name, value in flatten(outputs).items()}

    def apply(self, layer: str, x: Tensors, settings: Settings) -> dict[str, Any]:
        """A layer's outputs from its inputs, as tensors, flat, by the registry's names."""
        return self.outside(layer, self.layers[layer](self.inside(x, settings), settings), settings)

    def run(self, layer: str, inputs: Arrays, settings: Settings, dtype: str) -> Arrays:
        """The layer's outputs."""
        return self._compute(layer, inputs, settings, dtype, {}, ())[0]

    def vjp(
        self, layer: str, inputs: Arrays, settings: Settings, dtype: str, cotangents: Arrays, wrt: Sequence[str]
    ) -> Arrays:
        """The vector-Jacobian product with respect to the inputs in `wrt`; zeros where no gradient flows."""
        if layer in self.without_gradients:
            raise NotImplementedError
        return self._compute(layer, inputs, settings, dtype, cotangents, wrt)[1]

    def run_and_vjp(
        self, layer: str, inputs: Arrays, settings: Settings, dtype: str, cotangents: Arrays, wrt: Sequence[str]
    ) -> tuple[Arrays, Arrays]:
        """Both, from one pass where that gives the same values."""
        if self.has_joint_pass and layer not in self.without_gradients:
            return self._compute(layer, inputs, settings, dtype, cotangents, wrt)
        values = self.run(layer, inputs, settings, dtype)
        return values, self.vjp(layer, inputs, settings, dtype, cotangents, wrt)

    @abstractmethod
    def _compute(
        self, layer: str, inputs: Arrays, settings: Settings, dtype: str, cotangents: Arrays, wrt: Sequence[str]
    ) -> tuple[Arrays, Arrays]:
        """Outputs, and VJPs for the inputs in `wrt` if there are any."""
