"""Monte Carlo arithmetic, against what rounding does: closed forms, exact fractions, and arithmetic in p bits."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed; `pip install 'disco-parity[jax]'` brings it")

import jax
import jax.numpy as jnp
from jax import lax

from parity.sigma import CARRIED
from reference import monte_carlo as mc
from reference.jax_runtime import QUICK, is_known, precision

PRECISIONS = (53, 24, 11, 8)
SAMPLES = 16
UNIFORM = 1 / np.sqrt(3)  # the root mean square of a number that is uniform in [-1, 1]
FACTOR = 3.0  # how far sigma may be from the truth


@pytest.fixture(autouse=True)
def in_double():
    with precision("float64"):
        yield


@functools.cache
def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(fn, compiler_options={option: value for option, value in QUICK.items() if is_known(option)})


def in_numpy(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def sampled(fn: Callable[..., Any], *args: Any, bits: Sequence[int], seed: str = "") -> Any:
    """Outputs with noise: [S, ...], one for each of `bits`."""
    jaxpr, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    outs = mc.run_samples(jaxpr, [np.asarray(x)[None] for x in jax.tree.leaves(args)], bits, seed)
    return jax.tree.unflatten(jax.tree.structure(shape), outs)


def errors(fn: Callable[..., Any], *args: Any, bits: int, samples: int = SAMPLES) -> Any:
    """What random roundings move each output by: [samples, ...]."""
    found = sampled(fn, *args, bits=[mc.NONE, *[bits] * samples])
    size = 2.0 ** (min(bits, CARRIED) - bits)
    return jax.tree.map(lambda x: (x[1:] - x[:1]) * size if x.dtype.kind == "f" else x[1:] != x[:1], found)


def rms(values: Any, axis: int | None = None) -> Any:
    return np.sqrt(np.mean(np.square(values), axis=axis))


def assert_close(got: float, truth: float, factor: float = FACTOR) -> None:
    assert truth / factor < got < truth * factor, f"sigma is {got:.3g}, {got / truth:.2f} times {truth:.3g}"


def uniform(*shape: int, low: float = 0.5, high: float = 2.0, seed: int = 0) -> np.ndarray:
    """Numbers that float32 holds exactly."""
    numbers = np.random.default_rng(seed).uniform(low, high, shape)
    return numbers.astype(np.float32).astype(np.float64)


def rounded_to(x: np.ndarray, p: int) -> np.ndarray:
    """Rounds to p bits."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(mantissa, p)), exponent - p)


# Known errors -----------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """A function, the same with each intermediate result rounded, and the closed form of its error in 2^-p."""

    fn: Callable[[jax.Array], jax.Array]
    steps: Callable[[Callable[..., Any], np.ndarray], np.ndarray]
    error: Callable[[np.ndarray], Any]
    low: float = 0.5
    high: float = 2.0


def add_pairwise(r: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    while x.shape[-1] > 1:
        n = x.shape[-1] // 2
        x = np.concatenate([r(x[..., :n] + x[..., n : 2 * n]), x[..., 2 * n :]], axis=-1)
    return x[..., 0]


def multiply_in_turn(r: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    return np.stack(list(_products(r, x)), axis=-1)


def _products(r: Callable[..., Any], x: np.ndarray) -> Any:
    product = x[..., 0]
    yield product
    for k in range(1, x.shape[-1]):
        product = r(product * x[..., k])
        yield product


N = 24  # terms and factors
KNOWN = {
    "sum": Known(lambda x: x.sum(-1), add_pairwise, lambda x: x.sum(-1)),
    "log_exp": Known(
        lambda x: jnp.log(jnp.exp(x)), lambda r, x: r(np.log(r(np.exp(x)))), lambda x: np.sqrt(1 + x**2), 0.1, 4.0
    ),
    "one_minus_cosine": Known(lambda x: 1 - jnp.cos(x), lambda r, x: r(1 - r(np.cos(x))), np.cos, 1e-3, 0.3),
    "plus_one_minus_one": Known(lambda x: (1 + x) - 1, lambda r, x: r(r(1 + x) - 1), lambda x: 1 + x, 1e-3, 0.1),
    "prod": Known(
        lambda x: jnp.prod(x, -1),
        lambda r, x: multiply_in_turn(r, x)[..., -1],
        lambda x: np.sqrt(N - 1) * x.prod(-1),
        0.8,
        1.25,
    ),
    "chain": Known(
        lambda x: functools.reduce(jnp.multiply, [x[..., k] for k in range(N)]),
        lambda r, x: multiply_in_turn(r, x)[..., -1],
        lambda x: np.sqrt(N - 1) * x.prod(-1),
        0.8,
        1.25,
    ),
    "cumprod": Known(
        lambda x: lax.cumprod(x, axis=1)[:, N // 2 :],
        lambda r, x: multiply_in_turn(r, x)[:, N // 2 :],
        lambda x: (np.sqrt(np.arange(N)) * x.cumprod(-1))[:, N // 2 :],
        0.8,
        1.25,
    ),
    "power": Known(lambda x: x**7, lambda r, x: power_of_seven(r, x), lambda x: 2 * x**7),
    "quotient": Known(lambda x: x / x[:, ::-1], lambda r, x: r(x / x[:, ::-1]), lambda x: x / x[:, ::-1]),
    "root": Known(jnp.sqrt, lambda r, x: r(np.sqrt(x)), np.sqrt),
    "constant": Known(lambda x: 0.1 * x, lambda r, x: r(r(np.float64(0.1)) * x), lambda x: np.sqrt(2) * 0.1 * x),
}


def power_of_seven(r: Callable[..., Any], x: np.ndarray) -> np.ndarray:
    square = r(x * x)
    return r(r(x * square) * r(square * square))


def all_known(inputs: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: known.fn(inputs[name]) for name, known in KNOWN.items()}


@functools.cache
def errors_of_known(bits: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The inputs, which p bits hold, and the errors."""
    inputs = {name: rounded_to(uniform(256, N, low=k.low, high=k.high), min(bits, 24)) for name, k in KNOWN.items()}
    return inputs, errors(all_known, inputs, bits=bits)


@pytest.mark.parametrize("bits", PRECISIONS)
def test_sigma_is_the_closed_form(bits):
    inputs, got = errors_of_known(bits)
    for name, known in KNOWN.items():
        truth = UNIFORM * 2.0**-bits * known.error(inputs[name])
        assert_close(rms(rms(got[name], axis=0) / truth), 1.0)


@pytest.mark.parametrize("bits", PRECISIONS[1:])
def test_sigma_is_what_rounding_to_p_bits_does(bits):
    inputs, got = errors_of_known(bits)
    for name, known in KNOWN.items():
        exact = known.steps(lambda x: x, inputs[name])
        real = known.steps(functools.partial(rounded_to, p=bits), inputs[name]) - exact
        scale = np.abs(known.error(inputs[name]))
        assert_close(rms(got[name] / scale), rms(real / scale))


def test_single_precision_is_2_to_the_29_times_double():
    inputs, double = errors_of_known(53)
    single = errors(all_known, inputs, bits=24)
    for name, error in double.items():
        assert_close(rms(single[name]) / 2**29, rms(error), factor=1.5)


def sums_and_products(x: dict[int, jax.Array], a: jax.Array, b: jax.Array) -> Any:
    return {n: rows.sum(-1) for n, rows in x.items()}, a @ b


ROWS = {n: uniform(300, n, seed=n) for n in (3, 30, 300, 3000)}


def test_sums_and_products_of_matrices_err_as_in_single_precision():
    a, b = uniform(8, 40, low=-2, seed=1), uniform(40, 8, low=-2, seed=2)
    sums, product = errors(sums_and_products, ROWS, a, b, bits=24)
    for n, rows in ROWS.items():
        real = rows.astype(np.float32).sum(-1).astype(np.float64) - rows.sum(-1)
        assert_close(rms(sums[n]), rms(real))
    in_fractions = np.vectorize(Fraction, otypes=[object])
    exact = in_fractions(a) @ in_fractions(b)
    real = in_fractions((a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)) - exact
    assert_close(rms(product), rms(real.astype(np.float64)))


@pytest.mark.parametrize("bits", [11, 8])
def test_products_of_matrices_err_as_in_short_formats(bits):
    a, b = (rounded_to(uniform(*shape, low=-2, seed=3), bits) for shape in ((8, 40), (40, 8)))
    total = np.zeros((8, 8))
    for k in range(40):
        total = rounded_to(total + rounded_to(np.outer(a[:, k], b[k]), bits), bits)
    assert_close(rms(errors(sums_and_products, ROWS, a, b, bits=bits)[1]), rms(total - a @ b))


def sums_that_cancel(x: jax.Array) -> dict[str, jax.Array]:
    """x: [n, n], of alternating signs."""
    rows = np.arange(len(x)) // 8
    return {
        "sum": x.sum(-1),
        "cumulative": jnp.cumsum(x, axis=1)[:, 7:],
        "matrices": x @ jnp.abs(x.T),
        "convolution": jnp.convolve(x[0], jnp.abs(x[1, :32]), mode="valid"),
        "scattered": jnp.zeros_like(x).at[rows].add(x)[: rows.max() + 1],
        "vmapped": jax.vmap(lambda row: lax.psum(row, "i"), axis_name="i")(x)[0],
        "gradient": jax.grad(lambda factor: (factor[None] * x).sum())(x[0]),
    }


@pytest.mark.parametrize("bits", PRECISIONS)
def test_sums_err_in_proportion_to_the_magnitudes_of_their_terms(bits):
    """However much of them cancels: here each number is followed by one that is nearly its opposite."""
    x = uniform(64, 64)
    x[:, 1::2] = -x[:, ::2] * (1 + 2.0**-9)
    x[1::2] = -x[::2] * (1 + 2.0**-10)
    got, sizes = errors(sums_that_cancel, x, bits=bits), in_numpy(compiled(sums_that_cancel)(np.abs(x)))
    for name, error in got.items():
        assert_close(rms(error / sizes[name]), UNIFORM * 2.0**-bits, factor=1.5)


# What is exact ----------------------------------------------------------------------------------------------------


def exact_operations(x: jax.Array, n: jax.Array, is_on: jax.Array) -> dict[str, jax.Array]:
    on, whole = is_on.astype(x.dtype), n.astype(x.dtype)
    one_hot = jax.nn.one_hot(n, 8, dtype=x.dtype)
    narrow = is_on.astype(jnp.float32)
    return {
        "negation": -x,
        "magnitude": jnp.abs(x),
        "maximum": jnp.maximum(x, x[::-1]) + 0.0,
        "minimum": jnp.clip(x, -1.0, 0.5),
        "largest": x.max(-1),
        "choice": jnp.where(is_on, x, -jnp.inf),
        "layout": jnp.concatenate([x.T.reshape(x.shape), x[:, ::-1]]),
        "padding": jnp.pad(x, 1)[1:, 2:],
        "transposed": lax.reshape(x, (5, 3, 2), (1, 0)),
        "lookup": jnp.take_along_axis(x, n % 2, axis=1),
        "lookup_out_of_range": x[n + 100],
        "slice": lax.dynamic_slice(x, (n[0, 0], 0), (2, 2)),
        "sorted": jnp.sort(x, axis=0),
        "order": jnp.argsort(x, axis=0),
        "comparison": (x > x[::-1]) & is_on,
        "powers_of_two": 0.25 * x * -8.0 / 2.0,
        "zero": 0 + x - 0.0,
        "integers": (3 * whole - whole * whole + 2.0).sum(0),
        "cumulative": jnp.cumsum(on, axis=0) * whole,
        "product_of_integers": whole.T @ on + jnp.prod(on, axis=0),
        "masked": x * on * jnp.cumprod(on, axis=0),
        "complement": x * (1.0 - on),
        "masked_by_lookup": x * on[n[:, 0]] * jnp.where(is_on, on, 0.0),
        "masked_by_constant": x * np.eye(*x.shape) * narrow.astype(x.dtype),
        "one_hot": x[..., None] * one_hot,
        "integer_arithmetic": n * 3 // 2 + n**2 - n % 3,
        "stopped": lax.stop_gradient(x),
        "floor": jnp.floor(x) - 0.0,
        "sign": jnp.sign(x),
        "gradient_of_lookup": jax.grad(lambda y: jnp.where(is_on, y, 0.0).sum())(x),
        "first_factor": lax.cumprod(x)[0],
        "last_factor": lax.cumprod(x, axis=1, reverse=True)[:, -1],
        "sum_of_one": x[:, :1].sum(1),
        "remainder": jnp.fmod(x, 0.25),
        "masked_in_loop": lax.scan(lambda c, t: (c, t[0] * t[1] * on[0]), 0.0, (x, on))[1],
        "masked_in_branch": lax.cond(is_on[0, 0], lambda m: x * m, lambda m: x - 0.0, on),
    }


def exact_inputs() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(6, 5)), rng.integers(0, 5, (6, 5)), rng.random((6, 5)) < 0.6


@pytest.mark.parametrize("bits", PRECISIONS)
def test_what_is_exact_has_no_noise(bits):
    args = exact_inputs()
    ref = in_numpy(compiled(exact_operations)(*args))
    got = sampled(exact_operations, *args, bits=[bits] * 4)
    for name, value in ref.items():
        np.testing.assert_array_equal(got[name], np.stack([value] * 4), err_msg=name)
        assert got[name].dtype == value.dtype


def rounded_operations(x: jax.Array, n: jax.Array, is_on: jax.Array) -> dict[str, jax.Array]:
    """Each has one rounding, although integers, masks or powers of two are in it."""
    on, whole = is_on.astype(x.dtype), n.astype(x.dtype)
    return {
        "times_integer": x * whole,
        "times_literal": 3 * x,
        "times_sum_of_masks": x * (on + on + 1),
        "times_choice": x * jnp.where(is_on, x, on + 1),
        "times_lookup": x * jnp.take_along_axis(x, n % 2, axis=1),
        "times_largest": x * jnp.maximum(on, x),
        "plus_mask": x + on,
        "plus_literal": x + 3.0,
        "over_integer": (whole + 1) / 3,
        "integer_over": 2 / x,
        "carried": lax.scan(lambda c, row: (row, c * row), on[0], x)[1][1:],
        "carried_by_while": lax.while_loop(
            lambda state: state[0] < 2, lambda state: (state[0] + 1, jnp.where(state[0] == 0, x, x * state[1])), (0, on)
        )[1],
        "in_branch": lax.cond(is_on[0, 0], lambda m: x * m, lambda m: x / m, x[::-1]),
        "in_call": jax.jit(lambda m: x * m)(x[::-1]) * on,
    }


@pytest.mark.parametrize("bits", PRECISIONS)
def test_what_is_nearly_exact_has_noise(bits):
    x, *others = exact_inputs()
    args = np.abs(x) + 0.1, *others
    values, got = in_numpy(compiled(rounded_operations)(*args)), errors(rounded_operations, *args, bits=bits)
    for name, value in values.items():
        is_some = value != 0
        assert_close(rms(got[name][:, is_some] / value[is_some]), UNIFORM * 2.0**-bits)


BITS_NEEDED = {1.5: 2, 1.0 + 2.0**-9: 10, 1.0 + 2.0**-19: 20, 0.1: 53, np.inf: 0}


def constants(x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Literals, and an array of them; x is smaller than all of them."""
    return [jnp.maximum(x, value) for value in BITS_NEEDED], jnp.maximum(x, np.array(list(BITS_NEEDED)))


@pytest.mark.parametrize("bits", PRECISIONS)
def test_a_constant_has_noise_where_p_bits_do_not_hold_it(bits):
    literals, array = jax.tree.map(lambda x: x[0], sampled(constants, np.float64(-1.0), bits=[bits]))
    is_rounded = [needed > min(bits, mc.SHORT) for needed in BITS_NEEDED.values()]
    values = np.array(list(BITS_NEEDED))
    if bits < 53:  # in float64 the noise may be too small to change the number
        assert (np.array(literals) != values).tolist() == is_rounded
        assert (np.asarray(array) != values).tolist() == is_rounded
    np.testing.assert_array_equal(np.array(literals)[~np.array(is_rounded)], values[~np.array(is_rounded)])


# Control flow and gradients ---------------------------------------------------------------------------------------


T, WIDTH = 64, 64


def loops(x: jax.Array, length: jax.Array) -> dict[str, jax.Array]:
    """Each output is a product of T factors, x: [T, WIDTH]; or of T times the same constant."""
    ones = jnp.ones(WIDTH)

    def multiply(product: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
        return product * factor, product * factor

    def decay(product: jax.Array, _: Any) -> tuple[jax.Array, None]:
        return product * 0.97, None

    def multiply_rows(product: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.scan(multiply, product, rows)

    def power(i: Any, product: jax.Array) -> jax.Array:
        return product * x[i]

    def read_constant(carried: Any, row: jax.Array) -> tuple[Any, jax.Array]:
        return carried, jnp.maximum(-row, 0.3)

    return {
        "scan": lax.scan(multiply, ones, x)[0],
        "reverse": lax.scan(multiply, ones, x, reverse=True)[0],
        "nested": lax.scan(multiply_rows, ones, x.reshape(8, 8, WIDTH))[0],
        "fori": lax.fori_loop(0, T, power, ones),
        "while": lax.fori_loop(0, length, power, ones),
        "nested_while": lax.fori_loop(0, 8, lambda i, c: lax.fori_loop(8 * i, 8 * i + length // 8, power, c), ones),
        "vmapped": jax.vmap(lambda row: lax.scan(multiply, 1.0, row)[0], in_axes=1)(x),
        "checkpointed": lax.scan(jax.checkpoint(multiply), ones, x)[0],
        "branches": lax.fori_loop(
            0, T, lambda i, c: lax.switch(i % 3, [lambda c: c * x[i], lambda c: x[i] * c, lambda c: c * x[i]], c), ones
        ),
        "constant_in_loop": lax.scan(decay, ones, None, length=T)[0],
        "constant_in_nested": lax.scan(lambda c, _: lax.scan(decay, c, None, length=8), ones, None, length=8)[0],
        "constant_unrolled": functools.reduce(lambda c, _: 0.97 * c, range(T), ones),
        "draws": lax.scan(lambda c, i: lax.scan(lambda d, j: (d, x[0] * x[1]), c, None, 16), 0.0, None, 16)[1],
        "constant_read": lax.scan(read_constant, 0.0, x)[1] - jnp.maximum(-x, 0.3),
    }


@functools.cache
def errors_of_loops(bits: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    args = uniform(T, WIDTH, low=0.9, high=1.1), np.int64(T)
    return in_numpy(compiled(loops)(*args)), errors(loops, *args, bits=bits, samples=48)


@pytest.mark.parametrize("bits", [53, 24])
def test_roundings_of_iterations_are_independent(bits):
    """Then errors grow as the root of the number of iterations; the same error each time would grow with the number."""
    values, got = errors_of_loops(bits)
    names = ("scan", "reverse", "nested", "fori", "while", "nested_while", "vmapped", "checkpointed", "branches")
    for name in names:
        assert_close(rms(got[name] / values[name]), UNIFORM * 2.0**-bits * np.sqrt(T), factor=1.5)


@pytest.mark.parametrize("bits", [53, 24])
def test_a_constant_is_rounded_the_same_way_in_all_iterations(bits):
    values, got = errors_of_loops(bits)
    for name in ("constant_in_loop", "constant_in_nested", "constant_unrolled"):
        assert_close(rms(got[name] / values[name]), UNIFORM * 2.0**-bits * T, factor=1.5)


def test_a_constant_is_the_same_in_all_places():
    """Its error in a loop cancels that outside."""
    _, got = errors_of_loops(24)
    assert np.all(got["constant_read"] == 0)


def test_no_iteration_repeats_the_draws_of_another():
    _, got = errors_of_loops(8)
    draws = got["draws"][0].reshape(256, WIDTH)  # of one product, in nested loops
    assert min(len(np.unique(column)) for column in draws.T) > 250
    correlations = np.corrcoef(draws)[np.triu_indices(256, 1)]
    assert rms(correlations) < 2 / np.sqrt(WIDTH)
    assert np.mean(correlations > 0.9) < 1e-3


@jax.custom_vjp
def with_own_gradient(x: jax.Array) -> jax.Array:
    return jnp.sin(x) * x


with_own_gradient.defvjp(lambda x: (with_own_gradient(x), x), lambda x, g: (g * (jnp.sin(x) + x * jnp.cos(x)),))


def network(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Recurrent, with a softmax; x: [T, n], weights: [n, n]."""

    @jax.checkpoint
    def cell(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.tanh(state @ weights + row), state * row

    hidden = lax.scan(cell, x[0], x)[1]
    return jax.nn.log_softmax(hidden) * jax.nn.softmax(2 * hidden) / jnp.sqrt(1 + jnp.var(x))


def with_gradients(x: jax.Array, weights: jax.Array, rows: jax.Array) -> dict[str, Any]:
    """Values and gradients, and a gradient of a gradient; x: [6, 32]."""

    def collective(row: jax.Array) -> jax.Array:
        return row * lax.psum(row, "i") - lax.pmean(row**2, "i")

    functions = {
        "activations": lambda y: jax.nn.softplus(y) + jax.nn.relu(y - 1.5) + jax.nn.sigmoid(y),
        "own_gradient": with_own_gradient,
        "collective": jax.vmap(collective, axis_name="i"),
        "sorted": lambda y: jnp.sort(y, axis=0) * jnp.cumsum(y, axis=0) + jnp.cumprod(y, axis=0),
        "product": lambda y: jnp.prod(y, axis=0),
        "scattered": lambda y: jnp.zeros_like(y).at[rows].add(y**3),
        "branch": lambda y: lax.cond(y[0, 0] > 0, lambda z: jnp.sin(z) * z, jnp.cos, y),
        "jitted": jax.jit(lambda y: jnp.mean(jnp.where(y > 1, jnp.log(y), y * 0.7), axis=0)),
        "network": lambda y: network(y, weights),
    }
    results = {name: jax.vjp(fn, x) for name, fn in functions.items()}
    return {
        "value": {name: value for name, (value, _) in results.items()},
        "gradient": {name: pull_back(jnp.ones_like(value))[0] for name, (value, pull_back) in results.items()},
        "second gradient": jax.grad(lambda y: jnp.square(jax.grad(lambda z: network(z, weights).sum())(y)).sum())(x),
    }


@functools.cache
def gradient_inputs() -> tuple[np.ndarray, ...]:
    return uniform(6, 32), uniform(32, 32, low=-0.3, high=0.3), np.array([0, 2, 2, 5, 0, 2])


def in_single(args: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, args)


def test_values_and_gradients_err_as_in_single_precision():
    truth = in_numpy(compiled(with_gradients)(*gradient_inputs()))
    got = errors(with_gradients, *gradient_inputs(), bits=24)
    with precision("float32"):
        single = in_numpy(compiled(with_gradients)(*in_single(gradient_inputs())))
    assert {leaf.dtype for leaf in jax.tree.leaves(single)} == {np.dtype(np.float32)}
    jax.tree.map(lambda noise, ref, real: assert_close(rms(noise), rms(real - ref)), got, truth, single)


# Without noise, and what is not finite ----------------------------------------------------------------------------


def not_finite(x: jax.Array, is_valid: jax.Array) -> dict[str, jax.Array]:
    """Infinities and NaN; x: [n] with a 0 in it, and an infinity."""
    logits = jnp.where(is_valid, x, -jnp.inf)
    return {
        "log": jnp.log(x),
        "inverse": 1 / x,
        "power": x**-2,
        "overflow": jnp.exp(x * 1e6),
        "underflow": jnp.exp(-x * 1e6),
        "log_softmax": jax.nn.log_softmax(logits),
        "entropy": -jnp.where(is_valid, jax.nn.softmax(logits) * jax.nn.log_softmax(logits), 0.0).sum(),
        "gradient": jax.grad(lambda y: jax.nn.logsumexp(jnp.where(is_valid, y, -jnp.inf)))(jnp.cos(x)),
        "undefined": jnp.sqrt(-x),
        "sum": jnp.cumsum(logits),
        "product": logits[None] @ jnp.ones((len(x), 2)),
        "constant": x * np.array([np.inf, 0.1, -np.inf, np.nan, 3.0]),
        "scan": lax.scan(lambda c, y: (c + y, c * y), 0.0, logits)[1],
        "scattered": jnp.zeros(3).at[jnp.array([0, 0, 1, 2, 2])].add(logits),
    }


NOT_FINITE = np.array([0.0, 1.5, 2.0, 0.3, 0.7]), np.array([True, False, True, True, False])


@pytest.mark.parametrize("bits", PRECISIONS)
def test_what_is_not_finite_stays_where_it_is(bits):
    ref = in_numpy(compiled(not_finite)(*NOT_FINITE))
    got = sampled(not_finite, *NOT_FINITE, bits=[bits] * 4)
    for name, value in ref.items():
        ref_pattern, got_pattern = (np.where(np.isfinite(x), 0.0, x) for x in (np.stack([value] * 4), got[name]))
        np.testing.assert_array_equal(got_pattern, ref_pattern, err_msg=name)


def test_a_program_without_noise_is_the_program():
    """To the last places: NumPy and XLA round otherwise."""
    inputs = errors_of_known(53)[0]
    cases = {
        exact_operations: exact_inputs(),
        not_finite: NOT_FINITE,
        all_known: (inputs,),
        loops: (uniform(T, WIDTH, low=0.9, high=1.1), np.int64(T)),
        with_gradients: gradient_inputs(),
    }
    for fn, args in cases.items():
        ref = in_numpy(compiled(fn)(*args))
        got = jax.tree.map(lambda x: x[0], sampled(fn, *args, bits=[mc.NONE]))
        assert jax.tree.structure(got) == jax.tree.structure(ref)
        for (path, r), g in zip(jax.tree.leaves_with_path(ref), jax.tree.leaves(got), strict=True):
            assert (g.dtype, g.shape) == (r.dtype, r.shape)
            scale = np.abs(r[np.isfinite(r)]).max(initial=0)
            np.testing.assert_allclose(g, r, rtol=2.0**-48, atol=2.0**-52 * scale, err_msg=f"{fn.__name__} {path}")


# What it does not know --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda x: jnp.linalg.cholesky(x), "cholesky"),
        (lambda x: jnp.linalg.inv(x), "lu"),
        (lambda x: jnp.fft.rfft(x), "fft"),
        (lambda x: x * 1j, "convert_element_type"),
        (lambda x: lax.cumlogsumexp(x), "cumlogsumexp"),
        (lambda x: lax.scan(lambda c, row: (c, lax.bessel_i0e(row)), 0.0, x)[1], "bessel_i0e"),
        (lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3, 3), np.float64), x), "pure_callback"),
    ],
)
def test_an_operation_that_it_does_not_know_is_an_error(fn, name):
    with pytest.raises(mc.UnknownPrimitive, match=repr(name)):
        sampled(fn, np.eye(3), bits=[24])


def in_mixed_precision(x: jax.Array) -> dict[str, jax.Array]:
    narrow = x.astype(jnp.float32)
    return {
        "product": narrow * narrow[::-1] * 0.1,
        "loop": lax.scan(lambda c, y: (c * y, c), jnp.float32(1), narrow[:100])[0],
        "double": x * x[::-1],
    }


@pytest.mark.parametrize("bits", PRECISIONS)
def test_single_precision_within_double_rounds_to_24_bits_at_best(bits):
    x = uniform(1000, low=0.9, high=1.1)
    got, values = errors(in_mixed_precision, x, bits=bits), in_numpy(compiled(in_mixed_precision)(x))
    relative = {name: rms(error / values[name]) for name, error in got.items()}
    assert got["product"].dtype == np.float32
    assert_close(relative["product"], UNIFORM * np.sqrt(3) * 2.0 ** -min(bits, 24))
    assert_close(relative["loop"], UNIFORM * 10 * 2.0 ** -min(bits, 24))
    assert_close(relative["double"], UNIFORM * 2.0**-bits)


# Samples ----------------------------------------------------------------------------------------------------------


def of_all_sizes(x: jax.Array) -> dict[str, jax.Array]:
    return {
        "long": x * x,
        "empty": x[:0] * 0.1,
        "no_columns": jnp.zeros((3, 0)) @ x[:0].reshape(0, 2),
        "scalar": x[0] * 0.1,
    }


def test_samples_are_independent_and_come_from_a_seed():
    x = uniform(1000)
    first, again, other = (sampled(of_all_sizes, x, bits=[24, 24], seed=seed) for seed in ("a", "a", "b"))
    assert first["empty"].shape == (2, 0) and first["no_columns"].shape == (2, 3, 2)
    for name in ("long", "scalar"):
        np.testing.assert_array_equal(first[name], again[name])
        assert np.all(first[name] != other[name]) and np.all(first[name][0] != first[name][1])


def test_samples_that_do_not_fit_at_once_are_run_one_after_the_other(monkeypatch):
    x, bits = uniform(50), [mc.NONE, 24, 24, 8, 8]
    monkeypatch.setattr(mc, "AT_ONCE", 2 * (50 + 102))
    found = sampled(of_all_sizes, x, bits=bits)
    sizes = rms((found["long"] - x * x) / (x * x), axis=1)
    np.testing.assert_array_less(sizes, [1e-300, 2.0**-24, 2.0**-24, 2.0**-8, 2.0**-8])
    assert np.all(sizes[1:] > 0.3 * 2.0 ** -np.array(bits[1:])) and found["no_columns"].shape == (5, 3, 2)


def data_dependent(x: jax.Array) -> dict[str, jax.Array]:
    """Samples take different branches and numbers of iterations: x is at the edge."""
    y = x * 0.1 * 10.0
    return {
        "branch": lax.cond(y > x, lambda z: z + 10, lambda z: z - 10, 1.0),
        "while": lax.while_loop(lambda state: state[0] < 4 * x, lambda state: (state[0] + y, state[1] + 1), (0.0, 0))[
            1
        ],
    }


def test_samples_go_ways_of_their_own():
    got = sampled(data_dependent, np.float64(1.7), bits=[mc.NONE, *[24] * 63])
    assert set(got["branch"][1:].tolist()) == {11.0, -9.0}
    assert set(got["while"][1:].tolist()) == {4, 5}


def cancelling(p: jax.Array) -> jax.Array:
    bins = np.arange(-300.0, 301.0)
    return jnp.sign((p * bins).sum(-1))


@pytest.mark.parametrize("bits", PRECISIONS)
def test_a_sum_that_cancels_may_be_exactly_zero(bits):
    got = sampled(cancelling, np.full(601, 0.7 / 601), bits=[bits] * 48)
    assert set(got.tolist()) == {-1.0, 0.0, 1.0}


def branches(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(x * 0.1 * 10.0 > y, 5.0, 7.0)


@pytest.mark.parametrize("bits", PRECISIONS)
def test_a_branch_that_rounding_may_take_has_a_large_sigma_there_alone(bits):
    x = uniform(9)
    y = x + np.where(np.arange(9) == 4, 0.0, 100 * 2.0**-bits)
    sigma = rms(errors(branches, x, y, bits=bits, samples=48), axis=0)
    assert np.flatnonzero(sigma).tolist() == [4]
    assert sigma[4] > 0.5


# Devices ----------------------------------------------------------------------------------------------------------


def on_devices(x: jax.Array) -> Any:
    """Three times, on two devices."""

    def step(row: jax.Array) -> Any:
        is_positive = (row > 0).astype(row.dtype)
        return row * row, lax.psum(row, "i"), lax.pmean(0.1 * row, "i"), 0.1, lax.psum(is_positive, "i")

    return lax.scan(lambda c, _: (c, jax.pmap(step, axis_name="i")(x)), 0.0, None, 3)[1]


def check_noise_on_devices() -> None:
    """For a process with two devices."""
    row = uniform(500)
    for is_shard_map in (True, False):
        jax.config.update("jax_pmap_shmap_merge", is_shard_map)
        jax.clear_caches()
        ref = in_numpy(jax.jit(on_devices)(np.stack([row, row])))
        noisy = jax.tree.map(lambda x: x[0], sampled(on_devices, np.stack([row, row]), bits=[24]))
        square, total, mean, constant, count = ((n - r) * 2.0**24 for n, r in zip(noisy, ref, strict=True))  # [3, 2, n]
        draws = (square / row**2).reshape(6, 500)
        assert np.abs(np.corrcoef(draws) - np.eye(6)).max() < 0.3, "devices or iterations have the same noise"
        assert_close(rms(draws), UNIFORM, factor=1.1)
        assert_close(rms(total / (2 * row)), UNIFORM, factor=1.2)
        assert_close(rms(mean / (0.1 * row)), UNIFORM * np.sqrt(3))
        assert np.all(total[:, 0] == total[:, 1]) and np.all(mean[:, 0] == mean[:, 1]), "a sum differs between devices"
        assert len(np.unique(constant)) == 1 and np.all(constant != 0)
        assert np.all(count == 0)


def test_each_device_has_noise_of_its_own():
    root = Path(__file__).parents[1]
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", __file__]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    with precision("float64"):
        check_noise_on_devices()
