"""Adapters for JAX: layers are functions of arrays, compiled for each case; gradients come from `jax.vjp`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity.adapters import shared
from parity.adapters.shared import Tensors, check_cotangents, look_up
from parity.layers.spec import Arrays, Settings

__all__ = ["Adapter", "Tensors", "graft"]

PROGRAMS = 64  # kept compiled at once; each holds memory maps, of which a process may have 65,530


class Adapter(shared.Adapter):
    """Layers in JAX; see `parity.adapters`. The device is a platform with a number where there are several: "cuda:1".

    Layers are traced, with the settings as constants; `is_jitted = False` runs them op by op.
    """

    is_jitted = True

    @functools.cached_property
    def _programs(self) -> Any:
        return functools.lru_cache(maxsize=PROGRAMS)(self._compile)

    def _compile(self, layer: str, settings: str, dtype: str, wrt: tuple[str, ...], device: jax.Device) -> Any:
        def call(x: dict[str, Any], cotangents: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            def outputs_of(sources: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
                inputs = Tensors({**x, **sources}, jnp.dtype(dtype), device)
                outputs = self.apply(layer, inputs, json.loads(settings))
                check_cotangents(outputs, cotangents)
                return {name: outputs[name] for name in cotangents}, outputs

            _, pull, outputs = jax.vjp(outputs_of, {name: x[name] for name in wrt}, has_aux=True)
            return outputs, pull(cotangents)[0] if wrt else {}

        return jax.jit(call) if self.is_jitted else call

    def _compute(
        self, layer: str, inputs: Arrays, settings: Settings, dtype: str, cotangents: Arrays, wrt: Sequence[str]
    ) -> tuple[Arrays, Arrays]:
        platform, _, number = self.device.partition(":")
        device = jax.devices(platform)[int(number or 0)]
        with _precision(dtype), jax.default_device(device):
            call = self._programs(layer, json.dumps(settings, sort_keys=True), dtype, tuple(wrt), device)
            arrays = [{name: _array(value, dtype) for name, value in part.items()} for part in (inputs, cotangents)]
            outputs, gradients = jax.tree.map(np.array, call(*arrays))
        return outputs, gradients


def _precision(dtype: str) -> Any:
    """The context in which JAX computes in float64 or float32."""
    switch = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    return switch(dtype == "float64")


def _array(value: np.ndarray, dtype: str) -> Any:
    return jnp.array(value.astype(dtype) if value.dtype.kind == "f" else value)


def graft(tree: Any, table: Mapping[str, str], params: Mapping[str, Any]) -> Any:
    """A tree of parameters (a dict, or a module of Flax, Equinox or their like) with the original's in it.

    Args:
        tree: any pytree.
        table: path of a leaf, as `layers/0/weight` -> the original's name, as `mlp/linear/w`; with `.T` behind it
            where the tree has axes in the reverse order. Other leaves stay as they are.
        params: by the original's names.
    """
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in with_paths}
    for path, original in table.items():
        value = look_up(params, original.removesuffix(".T"))
        value = value.T if original.endswith(".T") else value
        before = look_up(leaves, path)
        if before.shape != value.shape:
            raise ValueError(f"{path} is {list(before.shape)}, the original's {original} is {list(value.shape)}.")
        leaves[path] = value
    return jax.tree.unflatten(structure, leaves.values())
