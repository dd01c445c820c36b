"""Runs layers written in JAX: in either precision, jitted or eagerly, with VJPs, and with random roundings."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

# Read when JAX's backend starts, so they are set before it is imported. One thread, so that sums are always taken in
# the same order. Vectors of 128 bits, because with wider ones jaxlib 0.8.1 writes past the end of a buffer: the VJP of
# Retrace with respect to rewards, in float64 at T = 9 and B = 4, ends in "corrupted size vs. prev_size".
FLAGS = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false --xla_cpu_prefer_vector_width=128",
}
for _name, _value in FLAGS.items():
    os.environ.setdefault(_name, _value)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental.compilation_cache import compilation_cache  # noqa: E402

from parity.compare import compare  # noqa: E402
from parity.sigma import NONE, Rounding, measure  # noqa: E402
from parity.sketch import reduced  # noqa: E402
from parity.tolerance import PRECISIONS, SAMPLES  # noqa: E402
from reference import monte_carlo  # noqa: E402
from reference.flat_dict import LayerFn, Settings, Tensors  # noqa: E402

FLOAT64 = PRECISIONS["float64"]
Arrays = dict[str, np.ndarray]
Compiled = Literal["quickly", "as users do", "not at all"]


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))


def cast(inputs: Mapping[str, np.ndarray], dtype: str) -> Tensors:
    """NumPy to JAX; floats take the given precision. Call it inside `precision(dtype)`."""
    return {name: jnp.asarray(value) for name, value in in_numpy(inputs, dtype).items()}


def in_numpy(inputs: Mapping[str, np.ndarray], dtype: str) -> Arrays:
    """The same in NumPy, for a compiled program: it takes them over itself, in a hundredth of the time."""
    return {name: np.asarray(value, dtype if _is_float(value) else value.dtype) for name, value in inputs.items()}


def precision(dtype: str) -> Any:
    """The context in which JAX computes in float64 or float32."""
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype must be float64 or float32, not {dtype!r}.")
    switch = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    return switch(dtype == "float64")


def pull_back(
    fn: Callable[[Tensors], Tensors], inputs: Tensors, cotangents: Tensors, wrt: Sequence[str]
) -> tuple[Tensors, Tensors]:
    """Returns the outputs, and the VJP of those named in `cotangents` with respect to the inputs in `wrt`."""

    def of_chosen(chosen: Tensors) -> tuple[Tensors, Tensors]:
        outputs = fn({**inputs, **chosen})
        return {name: outputs[name] for name in cotangents}, outputs

    _, pull, outputs = jax.vjp(of_chosen, {name: inputs[name] for name in wrt}, has_aux=True)
    return outputs, pull(cotangents)[0]


PROGRAMS = 96  # kept at once; each holds many memory maps, of which a process may have 65,530
# Checks compile much and run little: without LLVM's optimisations they take half of the time. Goldens are compiled as
# users do.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}


@functools.cache
def is_known(option: str) -> bool:
    """Whether the installed jaxlib knows one of the options in `QUICK`."""
    try:
        jax.jit(lambda x: x, compiler_options={option: QUICK[option]})(0).block_until_ready()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _processor() -> str:
    """A digest of what machine code is made for."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    features = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return hashlib.sha256("\n".join([platform.machine(), platform.processor(), *features]).encode()).hexdigest()[:12]


def keep_programs(folder: Path) -> None:
    """From now on keeps what is compiled for the next process that compiles the same, which checks spend much time on.

    JAX keys a program by its version, flags, options and computation, so another original is another program. The
    recorder's processes keep nothing: two recordings that must agree are compiled twice.
    """
    if jax.config.jax_compilation_cache_dir:  # as the caller has set it
        return
    of_processor = folder / _processor()
    of_processor.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(of_processor))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # so that it looks there, if it has compiled something already


def _reduced(arrays: Arrays) -> Arrays:
    """[S, ...]; large arrays as the sketches that goldens hold of them."""
    return {name: np.stack([reduced(one) for one in several]) for name, several in arrays.items()}


class InterpreterError(RuntimeError):
    """Monte Carlo arithmetic does not compute what the program computes, so its sigma is that of something else."""


def check_without_noise(
    where: tuple[str, str], kind: str, compiled: Arrays, interpreted: Arrays, rounding: Rounding
) -> None:
    """Raises InterpreterError unless the interpreter without noise equals the compiled program, by the one rule.

    Args:
        where: layer and case.
        kind: `value` or `vjp`.
        compiled: the program's answer.
        interpreted: the interpreter's, large arrays as sketches.
        rounding: as just measured; sigma at float64 is in it.
    """
    for name, value in compiled.items():
        truth, got = reduced(value), interpreted[name]
        sigma = rounding.sigmas[kind].get(name, {}).get(FLOAT64, np.zeros(truth.shape))
        others = rounding.alternatives.get(name, {}).get(FLOAT64)
        row = compare((*where, name), kind, "float64", truth, got, sigma, None, others)
        if not row.equal:
            raise InterpreterError(
                f"{row.sentence().rstrip('.')}. Without noise the interpreter must give the compiled program's answer: "
                "an operation in reference/monte_carlo/ is wrong, or jaxlib wrote past a buffer (see FLAGS)."
            )


def on_host(layer: LayerFn) -> LayerFn:
    """Marks a layer that JAX cannot trace, because it is Python and NumPy: it runs as it is, on concrete arrays."""
    layer.is_on_host = True  # type: ignore[attr-defined]
    return layer


class JaxImplementation:
    """A named set of layers written in JAX; the harness's contract, and what the recorder needs besides."""

    def __init__(self, name: str, description: str, layers: Mapping[str, LayerFn], compiled: Compiled = "quickly"):
        """Takes the layers by name, and how to compile them."""
        self.name, self.description, self.layers, self.compiled = name, description, dict(layers), compiled
        self._compiled = functools.lru_cache(maxsize=PROGRAMS)(self._compile)

    @functools.cached_property
    def as_users_compile(self) -> JaxImplementation:
        """The same layers, compiled as users do: the originals of the goldens."""
        return JaxImplementation(self.name, self.description, self.layers, "as users do")

    @functools.cached_property
    def eagerly(self) -> JaxImplementation:
        """The same layers, op by op."""
        return JaxImplementation(self.name, self.description, self.layers, "not at all")

    keep_programs = staticmethod(keep_programs)

    def forget_programs(self) -> None:
        """Drops what was compiled; each program holds memory maps."""
        self._compiled.cache_clear()
        jax.clear_caches()

    def _compile(self, layer: str, settings: str, dtype: str, wrt: tuple[str, ...]) -> Any:
        fn, s = self.layers[layer], json.loads(settings)

        def bound(inputs: Tensors) -> Tensors:
            return fn(inputs, s)

        def call(inputs: Tensors, cotangents: Tensors) -> tuple[Tensors, Tensors]:
            if not wrt:
                return bound(inputs), {}
            return pull_back(bound, inputs, cotangents, wrt)

        if self.compiled == "not at all" or self.is_on_host(layer):
            return call
        quick = {option: value for option, value in QUICK.items() if is_known(option)}
        return jax.jit(call, compiler_options=quick if self.compiled == "quickly" else {})

    def is_on_host(self, layer: str) -> bool:
        """Whether a layer is Python and NumPy, which JAX cannot trace."""
        return getattr(self.layers[layer], "is_on_host", False)

    def samples(
        self,
        layer: str,
        inputs: Arrays,
        settings: Settings,
        cotangents: Arrays,
        wrt: Sequence[str],
        bits: Sequence[int],
        seed: str = "",
    ) -> tuple[Arrays, Arrays]:
        """Outputs and VJPs in float64 with random roundings, one sample for each of `bits`.

        All arrays have an axis of samples in front; that of an input may be of size 1.
        """
        with precision("float64"):
            program = self._compiled(layer, json.dumps(settings, sort_keys=True), "float64", tuple(wrt))
            arguments = in_numpy(inputs, "float64"), in_numpy(cotangents, "float64")
            traced = program.trace(*jax.tree.map(lambda x: x[0], arguments))
            answers = monte_carlo.run_samples(traced.jaxpr, jax.tree.leaves(arguments), bits, seed)
            return jax.tree.unflatten(jax.tree.structure(traced.out_info), answers)

    def perturbed(self, bits: Sequence[int]) -> Perturbed:
        """The same layers with random roundings in every call."""
        return Perturbed(self, bits)

    def rounding(
        self,
        layer: str,
        inputs: Arrays,
        settings: Settings,
        cotangents: Arrays,
        wrt: Sequence[str],
        bits: Sequence[int],
        case: str = "live",
    ) -> Rounding:
        """How far rounding takes each number of a layer, by Monte Carlo arithmetic; at float64 in any case.

        Raises InterpreterError where the interpreter without noise does not give the compiled program's answer.
        """
        if self.is_on_host(layer):
            return Rounding()
        bits = list(bits) if FLOAT64 in bits else [FLOAT64, *bits]
        sample_bits = [NONE, *(p for p in bits for _ in range(SAMPLES))]
        inputs_, cotangents_ = ({name: x[None] for name, x in arrays.items()} for arrays in (inputs, cotangents))
        answers = [_reduced(part) for part in self.samples(layer, inputs_, settings, cotangents_, wrt, sample_bits)]
        rounding = measure(sample_bits, *answers)
        compiled = self.run_and_vjp(layer, inputs, settings, "float64", cotangents, wrt)
        for kind, truth, several in zip(("value", "vjp"), compiled, answers, strict=True):
            without_noise = {name: x[0, ...] for name, x in several.items()}
            check_without_noise((layer, case), kind, truth, without_noise, rounding)
        return rounding

    def run_and_vjp(
        self,
        layer: str,
        inputs: Mapping[str, np.ndarray],
        settings: Settings,
        dtype: str,
        cotangents: Mapping[str, np.ndarray],
        wrt: Sequence[str],
    ) -> tuple[Arrays, Arrays]:
        """Outputs and VJPs from one compiled program, in half the time of two; without VJPs where `wrt` is empty."""
        with precision(dtype):
            call = self._compiled(layer, json.dumps(settings, sort_keys=True), dtype, tuple(wrt))
            convert = in_numpy if hasattr(call, "lower") else cast  # what is not compiled would compute in NumPy
            return jax.tree.map(np.array, call(convert(inputs, dtype), convert(cotangents, dtype)))  # no input's memory

    def run(self, layer: str, inputs: Arrays, settings: Settings, dtype: str) -> Arrays:
        """The layer's outputs."""
        return self.run_and_vjp(layer, inputs, settings, dtype, {}, ())[0]

    def vjp(
        self, layer: str, inputs: Arrays, settings: Settings, dtype: str, cotangents: Arrays, wrt: Sequence[str]
    ) -> Arrays:
        """The layer's vector-Jacobian product with respect to the inputs in `wrt`."""
        return self.run_and_vjp(layer, inputs, settings, dtype, cotangents, wrt)[1]


class Perturbed:
    """Layers in float64 under Monte Carlo arithmetic, for a chain of calls: arrays have an axis of samples in front."""

    def __init__(self, inner: JaxImplementation, bits: Sequence[int]):
        """Takes the layers, and the size of the noise in each sample."""
        self.inner, self.bits, self.calls = inner, bits, 0
        self.name, self.description, self.layers = inner.name, inner.description, inner.layers

    def run(self, layer: str, inputs: Arrays, settings: Settings, dtype: str) -> Arrays:
        """The layer's outputs."""
        self.calls += 1
        return self.inner.samples(layer, inputs, settings, {}, (), self.bits, f"call {self.calls}")[0]
