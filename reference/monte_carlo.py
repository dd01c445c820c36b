"""Monte Carlo arithmetic: a traced program is run again with every rounding replaced by a random one.

How far rounding takes a number depends on the number: a sum that cancels loses digits, a saturated softmax gains some.
Parker (1997) measures it: run the program many times with random roundings of relative size 2^-p, and look at the
spread. Here the program is a jaxpr, gradients included. It runs in float64, and the noise follows three rules:

- an elementwise result gets relative noise, uniform in [-2^-p, 2^-p], times the root of the number of roundings;
- a sum, or a matrix product, gets noise in proportion to the sum of the terms' magnitudes;
- a constant that p bits cannot hold gets one draw for all places where it is read: its error does not average out.

Results that are exact get none: moves of data, comparisons, products with a power of two, small integers.
Noise comes from a table that is an argument, so one compiled program serves all samples and all precisions.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from parity.layers.draw import generator

TABLE = 2**18
WINDOW = TABLE // 2  # the most that is taken from the table at once
SHORT = 40  # bits: a constant that needs more is a rounded one, such as 0.1, in float64 too


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Elementwise operations, and how many roundings their result has seen.
ROUNDED = dict.fromkeys(_names("add sub mul div add_any sqrt square exp exp2 expm1 log log1p sin cos tan tanh cbrt"), 1)
ROUNDED |= dict.fromkeys(_names("rsqrt logistic pow erf erfc erf_inv atan2 lgamma digamma"), 2)
ROUNDED |= dict.fromkeys(_names("asin acos atan sinh cosh asinh acosh atanh"), 2)
PRODUCTS = _names("integer_pow reduce_prod cumprod")
SUMS = _names("reduce_sum cumsum dot_general conv_general_dilated scatter-add reduce_window_sum psum psum_invariant")
MOVES = _names(
    "broadcast_in_dim concatenate copy copy_p dynamic_slice dynamic_update_slice expand_dims gather name pad reshape "
    "rev scatter select_n slice split squeeze stop_gradient transpose optimization_barrier all_gather all_to_all "
    "ppermute pbroadcast pvary max min pmax pmin reduce_max reduce_min cummax cummin sort clamp reduce_precision "
    "convert_element_type"
)
EXACT = MOVES | _names("abs bitcast_convert_type ceil floor iota neg nextafter rem round sign top_k")
KEEPS_BITS = MOVES | _names("mul square abs sign reduce_prod cumprod")
KEEPS_INTEGERS = KEEPS_BITS | SUMS | _names("add sub add_any neg floor ceil round iota")
KNOWN = EXACT | PRODUCTS | SUMS | ROUNDED.keys()
CALLS = _names("jit pjit closed_call core_call remat2 checkpoint custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr")
BODIES = ("call_jaxpr", "jaxpr", "fun_jaxpr")  # where a call keeps the program that it calls

ANY, INTEGER, BIT = 0, 1, 2  # what is known of a number: nothing, a small integer, 0 or 1


class UnknownPrimitive(NotImplementedError):
    """A program contains an operation whose rounding is not modelled."""

    def __init__(self, name: str):
        """Takes the primitive's name."""
        super().__init__(f"no rounding is modelled for the JAX primitive {name!r}; add it to reference/monte_carlo.py.")


class Roundings(NamedTuple):
    """The random roundings of one sample: [TABLE] noise of size 2^-p, and p."""

    table: Any
    bits: Any


def roundings(sample: int, bits: int) -> Roundings:
    """The roundings of a sample at p = `bits`; the same directions at every p."""
    return Roundings(_directions(sample) * 2.0**-bits, np.int32(bits))


@functools.lru_cache(maxsize=64)
def _directions(sample: int) -> np.ndarray:
    return 2.0 * generator("monte carlo arithmetic", str(sample)).random(TABLE) - 1.0


def none() -> Roundings:
    """No noise: the program as it is."""
    return Roundings(np.zeros(TABLE), np.int32(53))


@dataclass
class Noise:
    """Hands out windows of the table, a new one each time; loops move all of them on by `shift`."""

    roundings: Roundings
    shift: jax.Array | None = None
    count: list[int] = field(default_factory=lambda: [0])

    def draw(self, shape: Sequence[int], dtype: Any, constant: np.ndarray | None = None) -> jax.Array:
        """Noise of a shape: of size 2^-p, or of the dtype's own roundings where those are larger.

        What is drawn for a constant depends on its value alone: it is the same in all iterations and on all devices.
        """
        size, pieces = math.prod(shape), []
        for first in range(0, size, WINDOW):
            self.count[0] += 1
            seed = self.count[0] if constant is None else zlib.crc32(constant.tobytes()) + first
            shift = self.shift if constant is None else None
            pieces.append(self._window(seed * 2654435761 % 2**32, min(WINDOW, size - first), shift))
        noise = lax.reshape(lax.concatenate(pieces, 0) if pieces else jnp.zeros(0), shape)
        bits = jnp.finfo(dtype).nmant + 1
        if bits == 53:
            return noise
        return (noise * jnp.exp2(jnp.maximum(self.roundings.bits - bits, 0.0))).astype(dtype)

    def _window(self, start: int, size: int, shift: jax.Array | None) -> jax.Array:
        if shift is None:
            start %= TABLE - size
            return lax.slice(self.roundings.table, (start,), (start + size,))
        moved = (shift + np.uint32(start)) % np.uint32(TABLE - size)
        return lax.dynamic_slice(self.roundings.table, (moved.astype(jnp.int32),), (size,))

    def within(self, iteration: jax.Array) -> Noise:
        """The noise inside a loop, or on one device: the shift is a hash of the iteration and of the shift outside."""
        self.count[0] += 1
        shift = iteration.astype(jnp.uint32) + np.uint32(self.count[0] * 2654435761 % 2**32)
        if self.shift is not None:
            shift += self.shift
        for multiplier in (0x85EBCA6B, 0xC2B2AE35):  # as in MurmurHash3
            shift = (shift ^ (shift >> 16)) * np.uint32(multiplier)
        return Noise(self.roundings, shift, self.count)


def bits_of(values: Any) -> np.ndarray:
    """How many bits the mantissas of numbers need; 0 for those that are not finite."""
    finite = np.where(np.isfinite(values), values, 0).astype(np.float64)
    mantissas = (np.abs(np.frexp(finite)[0]) * 2.0**53).astype(np.int64)
    trailing_zeros = np.frexp((mantissas & -mantissas).astype(np.float64))[1] - 1
    return np.where(mantissas == 0, 0, 53 - trailing_zeros)


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def kind_by_dtype(value: Any) -> int:
    """What the dtype tells of a number."""
    return ANY if _is_float(value) else BIT if value.dtype == bool else INTEGER


def kind_of_constant(value: np.ndarray) -> int:
    """What is known of a floating-point constant."""
    if np.isin(value, (0.0, 1.0)).all():
        return BIT
    return INTEGER if np.all((np.rint(value) == value) & (np.abs(value) < 2**8)) else ANY


def kind_of_result(eqn: Any, kinds: Sequence[int]) -> int:
    """What is known of floating-point results."""
    name, numbers = eqn.primitive.name, [kind for kind, v in zip(kinds, eqn.invars, strict=True) if _is_float(v.aval)]
    least = min(numbers or kinds or [INTEGER])  # an index tells nothing of what it selects
    is_complement = name == "sub" and isinstance(eqn.invars[0], core.Literal) and np.all(eqn.invars[0].val == 1)
    if name in KEEPS_BITS or (is_complement and least == BIT):
        return least
    return min(least, INTEGER) if name in KEEPS_INTEGERS else ANY


def is_exact(eqn: Any, kinds: Sequence[int]) -> bool:
    """Whether a result is not rounded."""
    name = eqn.primitive.name
    if name in EXACT or not _is_float(eqn.outvars[0].aval) or (name in KEEPS_INTEGERS and min(kinds) >= INTEGER):
        return True
    literals = [np.asarray(v.val) for v in eqn.invars if isinstance(v, core.Literal)]
    if name == "mul":
        return BIT in kinds or any((bits_of(value) <= 1).all() for value in literals)
    if name == "div":
        return isinstance(eqn.invars[1], core.Literal) and bool((bits_of(literals[-1]) <= 1).all())
    if name in ("add", "sub", "add_any"):
        return any((value == 0).all() for value in literals)
    return name == "reduce_sum" and eqn.invars[0].aval.size == eqn.outvars[0].aval.size


def number_of_roundings(eqn: Any) -> Any:
    """How many roundings a result has seen."""
    name, params = eqn.primitive.name, eqn.params
    if name == "integer_pow":
        power = abs(params["y"])
        return max(power.bit_length() - 2 + power.bit_count(), 0) + (params["y"] < 0)
    if name == "reduce_prod":
        return max(eqn.invars[0].aval.size // max(eqn.outvars[0].aval.size, 1) - 1, 0)
    if name == "cumprod":
        shape, axis = eqn.invars[0].aval.shape, params["axis"]
        factors = np.arange(shape[axis])[:: -1 if params["reverse"] else 1]
        return np.broadcast_to(np.expand_dims(factors, tuple(range(1, len(shape) - axis))), shape)
    return ROUNDED.get(name, 1)


def number_of_devices(eqn: Any) -> int:
    """How many devices a result is a sum over; the axes that `vmap` makes are numbers, and on one device."""
    axes = tuple(axis for axis in eqn.params.get("axes", ()) if not isinstance(axis, (int, np.integer)))
    return lax.psum(1, axes, axis_index_groups=eqn.params.get("axis_index_groups")) if axes else 1


def perturbed(noise: Noise, out: Any, size: Any, factor: Any = 1.0, constant: np.ndarray | None = None) -> Any:
    """A result with noise in proportion to `size`; infinities stay as they are."""
    drawn = noise.draw(out.shape, out.dtype, constant)
    if np.any(factor != 1.0):
        drawn = drawn * np.asarray(factor, out.dtype)
    largest = jnp.finfo(out.dtype).max
    return lax.add(out, lax.mul(lax.clamp(-largest, size, largest), drawn))


def rounded_constant(noise: Noise, value: Any) -> tuple[Any, int]:
    """A constant as p bits hold it, with noise where it needs more than that; and what is known of it."""
    if not _is_float(value):
        return value, kind_by_dtype(value)
    value = np.asarray(value)
    kind, needed = kind_of_constant(value), bits_of(value)
    if needed.max(initial=0) <= 8:
        return value, kind
    is_rounded = jnp.logical_or(needed > noise.roundings.bits, needed > SHORT)
    return perturbed(noise, value, jnp.where(is_rounded, value, 0), constant=value), kind


def operation(noise: Noise, eqn: Any, operands: list[Any], kinds: list[int]) -> list[Any]:
    """The results of an operation, rounded."""
    name, params = eqn.primitive.name, eqn.params
    dtypes = [v.aval.dtype for v in eqn.outvars if jnp.issubdtype(v.aval.dtype, jnp.inexact)]
    if dtypes and (name not in KNOWN or any(jnp.issubdtype(dtype, jnp.complexfloating) for dtype in dtypes)):
        raise UnknownPrimitive(name)

    def bind(operands: Sequence[Any]) -> list[Any]:
        functions, bound = eqn.primitive.get_bind_params(params)
        result = eqn.primitive.bind(*functions, *operands, **bound)
        return list(result) if eqn.primitive.multiple_results else [result]

    if is_exact(eqn, kinds):
        return bind(operands)
    devices = number_of_devices(eqn)
    if devices > 1:  # noise on the terms, so that all devices have the same sum
        return bind([perturbed(noise, x, x, math.sqrt(devices)) for x in operands])
    outs = bind(operands)
    sizes = bind([lax.abs(x) if _is_float(x) else x for x in operands]) if name in SUMS else outs
    factor = np.sqrt(number_of_roundings(eqn))
    return [perturbed(noise, out, size, factor) for out, size in zip(outs, sizes, strict=True)]


def run(
    noise: Noise, jaxpr: Any, args: Sequence[Any], kinds: Sequence[int] | None = None
) -> tuple[list[Any], list[int]]:
    """The outputs of a jaxpr with noise, and what is known of them; `kinds` tells what is known of the arguments."""
    consts, jaxpr = getattr(jaxpr, "consts", ()), getattr(jaxpr, "jaxpr", jaxpr)
    kinds = [kind_by_dtype(value) for value in args] if kinds is None else kinds
    known = dict(zip(jaxpr.invars, zip(args, kinds, strict=True), strict=True))
    known |= {v: rounded_constant(noise, value) for v, value in zip(jaxpr.constvars, consts, strict=True)}

    def read(v: Any) -> tuple[Any, int]:
        return rounded_constant(noise, np.asarray(v.val, v.aval.dtype)) if isinstance(v, core.Literal) else known[v]

    for eqn in jaxpr.eqns:
        name, pairs = eqn.primitive.name, [read(v) for v in eqn.invars]
        operands, kinds = [value for value, _ in pairs], [kind for _, kind in pairs]
        if name in CALLS:
            outs, kinds = run(noise, next(eqn.params[key] for key in BODIES if key in eqn.params), operands, kinds)
        elif name in CONTROL:
            outs = CONTROL[name](noise, eqn.params, operands, kinds)
            kinds = [kind_by_dtype(out) for out in outs]
        else:
            outs, kind = operation(noise, eqn, operands, kinds), kind_of_result(eqn, kinds)
            kinds = [kind if _is_float(out) else kind_by_dtype(out) for out in outs]
        known |= dict(zip(eqn.outvars, zip(outs, kinds, strict=True), strict=True))
    pairs = [read(v) for v in jaxpr.outvars]
    return [value for value, _ in pairs], [kind for _, kind in pairs]


def _scan(noise: Noise, params: dict[str, Any], operands: list[Any], kinds: list[int]) -> list[Any]:
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    fixed, start, xs = operands[:first], operands[first:second], operands[second:]
    kinds = [*kinds[:first], *map(kind_by_dtype, start), *kinds[second:]]  # what is carried may lose its kind

    def step(state: Any, x: Any) -> Any:
        i, carried = state
        outs, _ = run(noise.within(i), params["jaxpr"], [*fixed, *carried, *x], kinds)
        return (i + 1, outs[: len(start)]), outs[len(start) :]

    options = {"length": params["length"], "reverse": params["reverse"]}
    (_, carried), ys = lax.scan(step, (jnp.uint32(0), start), xs, **options)
    return [*carried, *ys]


def _while(noise: Noise, params: dict[str, Any], operands: list[Any], kinds: list[int]) -> list[Any]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def goes_on(state: Any) -> Any:
        return run(noise.within(state[0]), params["cond_jaxpr"], [*operands[:first], *state[1]])[0][0]

    def step(state: Any) -> Any:
        i, carried = state
        return i + 1, run(noise.within(i), params["body_jaxpr"], [*operands[first:second], *carried])[0]

    return lax.while_loop(goes_on, step, (jnp.uint32(0), operands[second:]))[1]


def _cond(noise: Noise, params: dict[str, Any], operands: list[Any], kinds: list[int]) -> list[Any]:
    branches = [lambda *args, body=body: run(noise, body, args, kinds[1:])[0] for body in params["branches"]]
    return lax.switch(operands[0], branches, *operands[1:])


def _shard_map(noise: Noise, params: dict[str, Any], operands: list[Any], kinds: list[int]) -> list[Any]:
    mesh = params["mesh"]

    def body(outside: tuple[Roundings, Any], *args: Any) -> Any:
        index = jnp.uint32(0)
        for axis in mesh.axis_names:
            index = index * jnp.uint32(lax.axis_size(axis)) + lax.axis_index(axis).astype(jnp.uint32)
        return run(Noise(*outside, noise.count).within(index), params["jaxpr"], args, kinds)[0]

    in_specs = (jax.sharding.PartitionSpec(), *params["in_specs"])
    options = {"mesh": mesh, "in_specs": in_specs, "out_specs": list(params["out_specs"]), "check_vma": False}
    return list(jax.shard_map(body, **options)((noise.roundings, noise.shift), *operands))


def _pmap(noise: Noise, params: dict[str, Any], operands: list[Any], kinds: list[int]) -> list[Any]:
    def body(*args: Any) -> Any:
        return run(noise.within(lax.axis_index(params["axis_name"])), params["call_jaxpr"], args, kinds)[0]

    axes = {"in_axes": tuple(params["in_axes"]), "out_axes": list(params["out_axes"])}
    return list(jax.vmap(body, axis_name=params["axis_name"], **axes)(*operands))


CONTROL = {"scan": _scan, "while": _while, "cond": _cond, "shard_map": _shard_map, "xla_pmap": _pmap}


def randomised(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with random roundings: takes those of a sample first, then its own arguments; to be jitted."""

    def call(sample: Roundings, *args: Any) -> Any:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        outs, _ = run(Noise(sample), closed, [jnp.asarray(leaf) for leaf in jax.tree.leaves(args)])
        return jax.tree.unflatten(jax.tree.structure(shape), outs)

    return call
