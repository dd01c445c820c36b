"""Monte Carlo arithmetic: a traced program is run again with every rounding replaced by a random one.

How far rounding takes a number depends on the number: a sum that cancels loses digits, a saturated softmax gains some.
Parker (1997) measures it: run the program many times with random roundings of relative size 2^-p, and look at the
spread. Here the program is a jaxpr, gradients included. NumPy interprets it in float64, operation by operation and all
samples at once, so nothing is compiled. The noise follows three rules:

- an elementwise result gets relative noise, uniform in [-2^-p, 2^-p], times the root of the number of roundings;
- a sum, or a matrix product, gets noise in proportion to the sum of the terms' magnitudes, and lands on a grid of that
  size, as partial sums do: a sum that cancels may be exactly 0;
- a constant that p bits cannot hold gets one draw for all places where it is read: its error does not average out.

Results that are exact get none: moves of data, comparisons, products with a power of two, small integers.

An array has an axis of samples in front, of size S, or of size 1 where it depends on constants and integers alone.
The values of arguments make no operation exact, because other programs for the same function round there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from parity.layers.draw import generator
from parity.sigma import NONE
from reference.monte_carlo.primitives import (
    BODIES,
    CALLS,
    EXACT,
    MOVED_BY_JAX,
    PRODUCTS,
    ROUNDED,
    SUMS,
    UnknownPrimitive,
    aligned,
    applied_by_jax,
    is_key,
    same_samples,
)

SHORT = 40  # bits: a constant that needs more is a rounded one, such as 0.1, in float64 too
AT_ONCE = 2**25  # numbers of arguments and results, over all samples that are run together


def run_samples(jaxpr: Any, args: Sequence[np.ndarray], bits: Sequence[int], seed: str = "") -> list[np.ndarray]:
    """The outputs [S, ...] of a closed jaxpr, once for each of the S numbers in `bits`: with noise of size 2^-bits.

    There is no noise for `NONE`. Arguments are flat, with an axis of samples in front: [S, ...] or [1, ...].
    """
    sizes = (math.prod(v.aval.shape) for v in (*jaxpr.jaxpr.invars, *jaxpr.jaxpr.outvars))
    together = max(1, AT_ONCE // (sum(sizes) + 1))
    rng = generator("monte carlo arithmetic", seed)
    parts = []
    with np.errstate(all="ignore"):
        for first in range(0, len(bits), together):
            some = bits[first : first + together]
            chunk = [x if len(x) == 1 else x[first : first + together] for x in args]
            chunk = [np.broadcast_to(x, (len(some), *x.shape[1:])) if x.dtype.kind == "f" else x for x in chunk]
            outs = Interpreter(np.array(some), rng).run(jaxpr, chunk)
            parts.append([np.broadcast_to(out, (len(some), *out.shape[1:])) for out in outs])
    return [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


def bits_of(values: np.ndarray) -> np.ndarray:
    """How many bits the mantissas of numbers need; 0 for those that are not finite."""
    finite = np.where(np.isfinite(values), values, 0).astype(np.float64)
    mantissas = (np.abs(np.frexp(finite)[0]) * 2.0**53).astype(np.int64)
    trailing_zeros = np.frexp((mantissas & -mantissas).astype(np.float64))[1] - 1
    return np.where(mantissas == 0, 0, 53 - trailing_zeros)


def _is_power_of_two(x: np.ndarray) -> np.ndarray:
    return (x == 0) | (np.frexp(np.abs(x))[0] == 0.5)


def _are_small_integers(x: np.ndarray) -> np.ndarray:
    return (np.rint(x) == x) & (np.abs(x) < 2**8)


def number_of_roundings(eqn: Any) -> Any:
    """How many roundings a product has seen."""
    name, params = eqn.primitive.name, eqn.params
    if name == "integer_pow":
        power = abs(params["y"])
        return max(power.bit_length() - 2 + power.bit_count(), 0) + (params["y"] < 0)
    if name == "reduce_prod":
        return max(eqn.invars[0].aval.size // max(eqn.outvars[0].aval.size, 1) - 1, 0)
    shape, axis = eqn.invars[0].aval.shape, params["axis"]  # of a cumulative product
    factors = np.arange(shape[axis])[:: -1 if params["reverse"] else 1]
    return np.broadcast_to(np.expand_dims(factors, tuple(range(1, len(shape) - axis))), shape)


def where_exact(name: str, operands: Sequence[np.ndarray], out: np.ndarray) -> np.ndarray | None:
    """Where an elementwise result is not rounded, as far as operands without noise show; None for nowhere."""
    places = []
    still = [x for x in operands if len(x) == 1]
    if name == "mul":
        places += [_is_power_of_two(x) for x in still]
    elif name == "div" and len(operands[1]) == 1:
        places.append(_is_power_of_two(operands[1]))
    elif name in ("add", "sub", "add_any"):
        places += [x == 0 for x in still]
    if len(out) == 1 and name in ROUNDED:
        places.append(functools.reduce(np.logical_and, map(_are_small_integers, (out, *operands))))
    elif len(out) == 1 and all(_are_small_integers(x).all() for x in operands):
        places.append(_are_small_integers(out))
    return functools.reduce(np.logical_or, places) if places else None


class Interpreter:
    """Runs programs under Monte Carlo arithmetic, S samples at once."""

    def __init__(self, bits: np.ndarray, rng: np.random.Generator):
        """Takes [S] sizes of noise, as the p of 2^-p, and the source of noise."""
        self.bits, self.rng = bits, rng
        self._constants: dict[bytes, np.ndarray] = {}

    def _sizes(self, dtype: Any, ndim: int) -> np.ndarray:
        """[S, 1, ...], of noise: 2^-p, or the least that numbers of this dtype carry where that is larger."""
        bits = np.where(self.bits == NONE, np.inf, np.minimum(self.bits, np.finfo(dtype).nmant))
        return np.exp2(-bits).reshape(-1, *[1] * (ndim - 1))

    def _noise(self, dtype: Any, shape: Sequence[int]) -> np.ndarray:
        """[S, ...], uniform in the sizes."""
        noise = self.rng.random((len(self.bits), *shape), np.float32)
        noise -= np.float32(0.5)
        return noise * (2.0 * self._sizes(dtype, noise.ndim)).astype(dtype)

    def _rounded(self, out: np.ndarray, size: np.ndarray, factor: Any = 1.0, exact: Any = None) -> np.ndarray:
        """A result with noise in proportion to `size`; infinities stay as they are."""
        change = self._noise(out.dtype, out.shape[1:])
        change *= size
        if np.any(factor != 1.0):
            change *= np.asarray(factor, out.dtype)
        is_still = ~np.isfinite(change)
        if exact is not None:
            is_still |= exact
        change[is_still] = 0.0
        change += out
        return change

    def _on_grid(self, out: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Sums as multiples of what their terms are rounded to."""
        grid = self._sizes(out.dtype, out.ndim) * size
        snapped = np.rint(out / grid) * grid
        return np.where(np.isfinite(snapped) & (grid > 0), snapped, out).astype(out.dtype)

    def constant(self, value: np.ndarray) -> np.ndarray:
        """A constant as p bits hold it, with noise where it needs more than that: the same wherever it is read."""
        if value.dtype.kind != "f":
            return value[None]
        needed = bits_of(value)
        if needed.max(initial=0) <= 8:
            return value[None]
        key = value.tobytes()
        if key not in self._constants:
            self._constants[key] = self._noise(value.dtype, value.shape)
        bits = self.bits.reshape(-1, *[1] * value.ndim)
        is_rounded = (needed > bits) | (needed > SHORT) & (bits != NONE)
        return np.where(is_rounded, value + self._constants[key] * value, value).astype(value.dtype)

    def operation(self, eqn: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
        """The results of an operation, rounded."""
        name, params = eqn.primitive.name, eqn.params
        is_float = any(jax.numpy.issubdtype(v.aval.dtype, np.inexact) for v in eqn.outvars)
        if any(jax.numpy.issubdtype(v.aval.dtype, np.complexfloating) for v in eqn.outvars):
            raise UnknownPrimitive(name)
        if any(is_key(v.aval) for v in (*eqn.invars, *eqn.outvars)):
            return applied_by_jax(eqn, operands)
        if name in EXACT:
            outs = EXACT[name](params, *operands)
            return outs if isinstance(outs, list) else [outs]
        if name in ROUNDED and is_float:
            function, roundings = ROUNDED[name]
            operands = aligned(operands)
            return [self._elementwise(name, function(*operands), operands, roundings)]
        if name in PRODUCTS and is_float:
            return [self._elementwise(name, PRODUCTS[name](params, *operands), operands, number_of_roundings(eqn))]
        if name in ("psum", "psum_invariant"):  # over an axis that `vmap` made of the devices
            return [self._sum(eqn, [x]) for x in operands]
        if name in SUMS and is_float:
            return [self._sum(eqn, operands)]
        if is_float and name not in MOVED_BY_JAX:
            raise UnknownPrimitive(name)
        return applied_by_jax(eqn, operands)

    def _elementwise(self, name: str, out: np.ndarray, operands: list[np.ndarray], roundings: Any) -> np.ndarray:
        exact = where_exact(name, operands, out)
        if exact is not None and exact.all():
            return out
        return self._rounded(out, out, np.sqrt(roundings), exact)

    def _sum(self, eqn: Any, operands: list[np.ndarray]) -> np.ndarray:
        def apply(xs: list[np.ndarray]) -> np.ndarray:
            by_numpy = SUMS[eqn.primitive.name]
            return by_numpy(eqn.params, *xs) if by_numpy else applied_by_jax(eqn, xs)[0]

        out = apply(operands)
        terms = [x for x in operands if x.dtype.kind == "f"]
        has_one_term = eqn.primitive.name == "reduce_sum" and eqn.invars[0].aval.size == eqn.outvars[0].aval.size
        if has_one_term or all(len(x) == 1 and _are_small_integers(x).all() for x in terms):
            return out
        size = apply([np.abs(x) if x.dtype.kind == "f" else x for x in operands])
        return self._on_grid(self._rounded(out, size, math.sqrt(0.75)), size)  # the grid is the rest of the noise

    def run(self, jaxpr: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs of a jaxpr, closed or without constants."""
        consts, jaxpr = getattr(jaxpr, "consts", ()), getattr(jaxpr, "jaxpr", jaxpr)
        known = dict(zip(jaxpr.invars, args, strict=True))
        known |= {v: self.constant(np.asarray(x)) for v, x in zip(jaxpr.constvars, consts, strict=True)}
        last_use = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not isinstance(v, core.Literal)}
        last_use |= dict.fromkeys((v for v in jaxpr.outvars if not isinstance(v, core.Literal)), len(jaxpr.eqns))

        def read(v: Any) -> np.ndarray:
            return self.constant(np.asarray(v.val, v.aval.dtype)) if isinstance(v, core.Literal) else known[v]

        for i, eqn in enumerate(jaxpr.eqns):
            name, operands = eqn.primitive.name, [read(v) for v in eqn.invars]
            if name in CALLS:
                outs = self.run(next(eqn.params[key] for key in BODIES if key in eqn.params), operands)
            elif name in CONTROL:
                outs = CONTROL[name](self, eqn.params, operands)
            else:
                outs = self.operation(eqn, operands)
            known.update(zip(eqn.outvars, outs, strict=True))
            for v in {v for v in (*eqn.invars, *eqn.outvars) if not isinstance(v, core.Literal)}:
                if last_use.get(v, i) <= i:
                    known.pop(v, None)
        return [read(v) for v in jaxpr.outvars]


def _scan(interpreter: Interpreter, params: dict[str, Any], operands: list[np.ndarray]) -> list[np.ndarray]:
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    fixed, carried, xs = operands[:first], operands[first:second], operands[second:]
    order = range(params["length"])
    rows: list[Any] = [None] * params["length"]
    for i in reversed(order) if params["reverse"] else order:
        outs = interpreter.run(params["jaxpr"], [*fixed, *carried, *(x[:, i] for x in xs)])
        carried, rows[i] = outs[: len(carried)], outs[len(carried) :]
    if not rows:
        avals = params["jaxpr"].out_avals[len(carried) :]
        return [*carried, *(np.zeros((1, 0, *aval.shape), aval.dtype) for aval in avals)]
    return [*carried, *(np.stack(same_samples(column), 1) for column in zip(*rows, strict=True))]


def _chosen(where: np.ndarray, yes: Sequence[np.ndarray], no: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Arrays of `yes` for the samples where a condition holds, and of `no` for the others."""
    return [np.where(where.reshape(-1, *[1] * (y.ndim - 1)), y, n) for y, n in zip(yes, no, strict=True)]


def _while(interpreter: Interpreter, params: dict[str, Any], operands: list[np.ndarray]) -> list[np.ndarray]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    state = operands[second:]
    while (goes_on := interpreter.run(params["cond_jaxpr"], [*operands[:first], *state])[0]).any():
        new = interpreter.run(params["body_jaxpr"], [*operands[first:second], *state])
        state = new if goes_on.all() else _chosen(goes_on, new, state)
    return state


def _cond(interpreter: Interpreter, params: dict[str, Any], operands: list[np.ndarray]) -> list[np.ndarray]:
    which = np.clip(operands[0].astype(int), 0, len(params["branches"]) - 1)
    wanted = np.unique(which)
    outs = interpreter.run(params["branches"][wanted[0]], operands[1:])
    for branch in wanted[1:]:
        outs = _chosen(which == branch, interpreter.run(params["branches"][branch], operands[1:]), outs)
    return outs


def _on_one_device(body: Any, axis: Any, in_axes: Any, out_axes: Any, args: Sequence[Any]) -> Any:
    """A program for several devices as one for one device, whose collectives are sums over an axis of an array."""
    mapped = jax.vmap(core.jaxpr_as_fun(body), axis_name=axis, in_axes=in_axes, out_axes=out_axes)
    return jax.make_jaxpr(mapped)(*(jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in args))


def _pmap(interpreter: Interpreter, params: dict[str, Any], operands: list[np.ndarray]) -> list[np.ndarray]:
    body, axes = core.ClosedJaxpr(params["call_jaxpr"], ()), (tuple(params["in_axes"]), list(params["out_axes"]))
    return interpreter.run(_on_one_device(body, params["axis_name"], *axes, operands), operands)


def _shard_map(interpreter: Interpreter, params: dict[str, Any], operands: list[np.ndarray]) -> list[np.ndarray]:
    (axis,), devices = params["mesh"].axis_names, params["mesh"].size

    def place(spec: Any) -> int | None:
        """Which axis of an array is spread over the devices."""
        return next((i for i, name in enumerate(spec) if name in (axis, (axis,))), None)

    places, split = [place(spec) for spec in params["in_specs"]], []
    for x, at in zip(operands, places, strict=True):
        shape = x.shape
        split.append(x if at is None else x.reshape(*shape[: at + 1], devices, -1, *shape[at + 2 :]))
    body = core.ClosedJaxpr(params["jaxpr"], ())
    outs = interpreter.run(_on_one_device(body, axis, tuple(places), 0, split), split)

    def join(out: np.ndarray, at: int | None) -> np.ndarray:
        if at is None:
            return out[:, 0]
        ordered = np.moveaxis(out, 1, at + 1)
        return ordered.reshape(*ordered.shape[: at + 1], -1, *ordered.shape[at + 3 :])

    return [join(out, place(spec)) for out, spec in zip(outs, params["out_specs"], strict=True)]


CONTROL = {"scan": _scan, "while": _while, "cond": _cond, "shard_map": _shard_map, "xla_pmap": _pmap}
