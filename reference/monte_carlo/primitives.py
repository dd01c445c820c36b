"""JAX's primitives in NumPy, for arrays with an axis of samples in front; and which of them round.

Tables say for each primitive how its result is computed and how it is rounded: `ROUNDED` elementwise, `PRODUCTS`,
`SUMS`, and `EXACT` not at all. What moves data in a way that NumPy has no short form for is left to JAX.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from scipy import special


class UnknownPrimitive(NotImplementedError):
    """A program contains an operation whose rounding is not modelled."""

    def __init__(self, name: str):
        """Takes the primitive's name."""
        super().__init__(
            f"no rounding is modelled for the JAX primitive {name!r}; add it to reference/monte_carlo/primitives.py."
        )


def aligned(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Scalars, which some operations take beside an array, with as many axes as the array."""
    ndim = max(x.ndim for x in arrays)
    return [x.reshape(x.shape + (1,) * (ndim - x.ndim)) for x in arrays]


def axes(dimensions: Sequence[int]) -> tuple[int, ...]:
    """The same axes behind that of the samples."""
    return tuple(axis + 1 for axis in dimensions)


# Elementwise operations: from arrays to an array, and how many roundings the result has seen.
ROUNDED: dict[str, tuple[Callable[..., np.ndarray], int]] = {
    **{name: (getattr(np, name), 1) for name in ("sqrt", "square", "exp", "log", "log1p")},
    **{name: (getattr(np, name), 1) for name in ("sin", "cos", "tanh")},
    "add": (np.add, 1),
    "add_any": (np.add, 1),
    "sub": (np.subtract, 1),
    "mul": (np.multiply, 1),
    "div": (np.true_divide, 1),
    "pow": (np.power, 2),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2),
    "logistic": (special.expit, 2),
    "erf": (special.erf, 2),
    "erf_inv": (special.erfinv, 2),
}
COMPARED: dict[str, Callable[..., np.ndarray]] = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater},
    **{"ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or},
    **{"not": np.invert, "is_finite": np.isfinite, "max": np.maximum, "min": np.minimum, "abs": np.abs},
    **{"neg": np.negative, "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "rem": np.fmod, "copy": np.copy},
    **{"stop_gradient": np.copy, "optimization_barrier": np.copy, "nextafter": np.nextafter},
}


def _dot_general(params: dict[str, Any], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (contract_x, contract_y), (batch_x, batch_y) = params["dimension_numbers"]
    free_x = [axis for axis in range(x.ndim - 1) if axis not in (*contract_x, *batch_x)]
    free_y = [axis for axis in range(y.ndim - 1) if axis not in (*contract_y, *batch_y)]
    left = x.transpose(0, *axes(batch_x), *axes(free_x), *axes(contract_x))
    right = y.transpose(0, *axes(batch_y), *axes(contract_y), *axes(free_y))
    batch, inner = left.shape[1 : 1 + len(batch_x)], math.prod(x.shape[axis + 1] for axis in contract_x)
    shape_x, shape_y = [x.shape[axis + 1] for axis in free_x], [y.shape[axis + 1] for axis in free_y]
    left = left.reshape(len(x), *batch, math.prod(shape_x), inner)
    right = right.reshape(len(y), *batch, inner, math.prod(shape_y))
    if len(y) == 1 and not batch:  # all samples in one product
        out = left.reshape(len(x) * math.prod(shape_x), inner) @ right[0]
    else:
        out = left @ right
    return out.reshape(max(len(x), len(y)), *batch, *shape_x, *shape_y)


def _cumulative(ufunc: np.ufunc) -> Callable[..., np.ndarray]:
    def call(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
        axis, step = params["axis"] + 1, -1 if params["reverse"] else 1
        return np.flip(ufunc.accumulate(np.flip(x, axis), axis=axis), axis) if step < 0 else ufunc.accumulate(x, axis)

    return call


def _broadcast_in_dim(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], x.shape[1:], strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(len(x), *shape), (len(x), *params["shape"]))


def _pad(params: dict[str, Any], x: np.ndarray, value: np.ndarray) -> np.ndarray:
    config = params["padding_config"]
    inner = [n + max(n - 1, 0) * gap for n, (_, _, gap) in zip(x.shape[1:], config, strict=True)]
    shape = [n + max(low, 0) + max(high, 0) for n, (low, high, _) in zip(inner, config, strict=True)]
    out = np.empty((max(len(x), len(value)), *shape), x.dtype)
    out[...] = value.reshape(len(value), *[1] * len(shape))
    places = [slice(max(low, 0), max(low, 0) + n, gap + 1) for n, (low, _, gap) in zip(inner, config, strict=True)]
    out[(slice(None), *places)] = x
    inside = [slice(max(-low, 0), n - max(-high, 0)) for n, (low, high, _) in zip(shape, config, strict=True)]
    return out[(slice(None), *inside)]


def _reshape(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    order = params["dimensions"]
    return (x if order is None else x.transpose(0, *axes(order))).reshape(len(x), *params["new_sizes"])


def _slice(params: dict[str, Any], x: np.ndarray) -> np.ndarray:
    steps = params["strides"] or [1] * (x.ndim - 1)
    return x[(slice(None), *map(slice, params["start_indices"], params["limit_indices"], steps))]


def _concatenate(params: dict[str, Any], *xs: np.ndarray) -> np.ndarray:
    return np.concatenate(same_samples(xs), params["dimension"] + 1)


def same_samples(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The same arrays, each with as many samples as the one that has most."""
    count = max(len(x) for x in xs)
    return list(xs) if count == 1 else [np.broadcast_to(x, (count, *x.shape[1:])) for x in xs]


def _select_n(params: dict[str, Any], which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    which, *chosen = aligned([which, *cases])
    if which.dtype == bool:
        return np.where(which, chosen[1], chosen[0])
    return np.select([which == i for i in range(len(chosen))], chosen)


def _iota(params: dict[str, Any]) -> np.ndarray:
    shape, axis = params["shape"], params["dimension"]
    numbers = np.arange(shape[axis], dtype=params["dtype"]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(numbers, (1, *shape))


def _clamp(params: dict[str, Any], *xs: np.ndarray) -> np.ndarray:
    low, x, high = aligned(xs)
    return np.minimum(np.maximum(x, low), high)


def _reduced(reduce: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda params, x: reduce(x, axis=axes(params["axes"]))


# Operations with parameters: (parameters, arrays) -> an array, or a list of arrays.
EXACT: dict[str, Callable[..., Any]] = {
    **{f"reduce_{name}": _reduced(getattr(np, name)) for name in ("max", "min")},
    "reduce_and": _reduced(np.all),
    "argmax": lambda params, x: np.argmax(x, params["axes"][0] + 1).astype(params["index_dtype"]),
    "broadcast_in_dim": _broadcast_in_dim,
    "clamp": _clamp,
    "concatenate": _concatenate,
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "expand_dims": lambda params, x: np.expand_dims(x, axes(params["dimensions"])),
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "rev": lambda params, x: np.flip(x, axes(params["dimensions"])),
    "select_n": _select_n,
    "slice": _slice,
    "split": lambda params, x: np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"] + 1),
    "squeeze": lambda params, x: x.squeeze(axes(params["dimensions"])),
    "transpose": lambda params, x: x.transpose(0, *axes(params["permutation"])),
    **{name: (lambda params, *xs, fn=fn: fn(*aligned(xs))) for name, fn in COMPARED.items()},
}
SUMS: dict[str, Callable[..., Any] | None] = {
    **dict.fromkeys(("reduce_sum", "psum", "psum_invariant"), _reduced(np.sum)),
    "cumsum": _cumulative(np.add),
    "dot_general": _dot_general,
    **dict.fromkeys(("conv_general_dilated", "scatter-add")),
}
PRODUCTS: dict[str, Callable[..., Any]] = {
    "integer_pow": lambda params, x: x ** params["y"],
    "reduce_prod": _reduced(np.prod),
    "cumprod": _cumulative(np.multiply),
}
# Moves of data, and operations on integers alone, that JAX does itself.
MOVED_BY_JAX = frozenset(["gather", "dynamic_slice", "dynamic_update_slice", "sort"])
CALLS = frozenset(["jit", "pjit", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call"])
BODIES = ("call_jaxpr", "jaxpr", "fun_jaxpr")  # where a call keeps the program that it calls


@functools.lru_cache(maxsize=4096)
def _by_jax(primitive: Any, params: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """An operation, compiled, for one sample after the other."""

    def bind(operands: Sequence[Any]) -> Any:
        functions, bound = primitive.get_bind_params(dict(params))
        return primitive.bind(*functions, *operands, **bound)

    return jax.jit(lambda operands: lax.map(bind, operands))


def is_key(value: Any) -> bool:
    """Whether something is a key of JAX's random numbers, which NumPy cannot hold."""
    return jax.numpy.issubdtype(value.dtype, jax.dtypes.extended)


def applied_by_jax(eqn: Any, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of an operation that JAX computes, one sample after the other."""
    hashable = tuple(sorted(eqn.params.items(), key=lambda item: item[0]))
    outs = _by_jax(eqn.primitive, hashable)(same_samples(operands) if operands else [np.zeros(1)])
    outs = outs if eqn.primitive.multiple_results else [outs]
    return [out if is_key(out) else np.asarray(out) for out in outs]
