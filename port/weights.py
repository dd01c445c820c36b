"""Reading and writing parameters under the original's names."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from port import update_rules
from port.config import AgentConfig, MetaNetConfig
from port.network import shapes_of_agent
from port.networks import param_names
from port.networks.param_names import ObsSpec, Shapes
from port.types import Params

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]


def check_is_there(path: Path) -> None:
    """Raises FileNotFoundError where there is no file of weights."""
    if not path.is_file():
        what = ", which is a folder" if path.is_dir() else ""
        raise FileNotFoundError(
            f"There is no weights file at {path}{what}. Disco103's is disco_103.npz of DeepMind's disco_rl; "
            "`python -m reference weights --download` fetches it and says to where."
        )


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """All arrays of an .npz file; ValueError says what is wrong with a file that is not one."""
    path = Path(path)
    check_is_there(path)
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an .npz file, or it is cut short; fetch it again.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as problem:  # readers of zip and npy raise many kinds
        what = "holds pickled objects, which are not read" if "pickle" in str(problem).lower() else "is damaged"
        raise ValueError(f"{path} {what} ({problem}).") from None
    odd = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if odd:
        raise ValueError(f"{path} holds entries that are no arrays: {', '.join(odd)}.")
    return arrays


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Joins the keys of nested dicts by "/"; a flat dict stays as it is."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}/") if isinstance(value, Mapping) else {name: value}
    return flat


def _read(source: Source) -> dict[str, Any]:
    return flatten(source) if isinstance(source, Mapping) else read_npz(source)


def _to_ours(
    arrays: Mapping[str, Any],
    table: Mapping[str, str],
    shapes: Shapes,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Params:
    """Translates names after checking that exactly the expected tensors are there, with the expected shapes."""
    if not dtype.is_floating_point:
        raise ValueError(f"Parameters in {dtype} cannot be learned with; give a floating-point dtype.")
    missing, extra = sorted(set(table.values()) - set(arrays)), sorted(set(arrays) - set(table.values()))
    if missing or extra:
        parts = [f"{label} {', '.join(found)}" for label, found in (("lacks", missing), ("also has", extra)) if found]
        raise ValueError(f"These are not weights for this configuration: the source {'; it '.join(parts)}.")
    for ours, original in table.items():
        got = tuple(np.shape(arrays[original]))
        if got != shapes[ours]:
            raise ValueError(f"Tensor {original!r} must be of shape {shapes[ours]} for this configuration; got {got}.")
    params = {}
    for ours, original in table.items():
        # Copied, so that neither side changes under the other's hands.
        array = np.array(arrays[original])
        if array.dtype.kind != "f":
            raise ValueError(f"Tensor {original!r} holds {array.dtype}; weights are floating point.")
        if not np.isfinite(array).all():
            raise ValueError(f"Tensor {original!r} holds numbers that are not finite; these weights are spoilt.")
        params[ours] = torch.from_numpy(array).to(device=device, dtype=dtype)
    return params


def _to_original(params: Mapping[str, Tensor], table: Mapping[str, str]) -> dict[str, np.ndarray]:
    if params.keys() != table.keys():
        odd = sorted(params.keys() ^ table.keys())
        raise ValueError(f"The parameters do not belong to this configuration; it differs in {', '.join(odd)}.")
    return {table[name]: p.detach().cpu().numpy().copy() for name, p in params.items()}


def load_npz(
    source: Source,
    config: MetaNetConfig | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Params:
    """Meta-parameters from the original's file, or from arrays under the original's names.

    Args:
        source: path of an .npz file, or a mapping, flat or nested as Haiku's.
        config: of the meta-network that the weights are for; Disco103's if left out.
        dtype: of the parameters.
        device: of the parameters.

    Returns:
        Parameters by our names.
    """
    config = config or MetaNetConfig()
    return _to_ours(_read(source), param_names.meta_names(config), param_names.meta_shapes(config), dtype, device)


def meta_config_of(source: Source) -> MetaNetConfig:
    """The sizes that weights are for, read off their shapes; the meta-network's inputs are taken to be Disco103's."""
    return param_names.meta_config_of({name: tuple(np.shape(array)) for name, array in _read(source).items()})


def to_original(params: Params, config: MetaNetConfig | None = None) -> dict[str, np.ndarray]:
    """Meta-parameters as arrays under the original's flat names and in its shapes."""
    return _to_original(params, param_names.meta_names(config or MetaNetConfig()))


def save_npz(path: str | os.PathLike[str], params: Params, config: MetaNetConfig | None = None) -> None:
    """Writes meta-parameters so that the original reads them."""
    write_npz(path, to_original(params, config))


def load_agent_params(
    source: Source,
    config: AgentConfig,
    obs_spec: ObsSpec,
    num_actions: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Params:
    """Agent parameters from arrays under the original's names.

    Args:
        source: path of an .npz file, or a mapping, flat or nested as Haiku's.
        config: of the agent.
        obs_spec: shape of one observation, or a dict of shapes.
        num_actions: A.
        dtype: of the parameters.
        device: of the parameters.

    Returns:
        Parameters by our names.
    """
    shapes = shapes_of_agent(config, obs_spec, num_actions)
    return _to_ours(_read(source), _agent_names(config), shapes, dtype, device)


def _agent_names(config: AgentConfig) -> dict[str, str]:
    return param_names.agent_names(config.net, update_rules.make(config).heads(1))


def agent_params_to_original(params: Params, config: AgentConfig) -> dict[str, np.ndarray]:
    """Agent parameters as arrays under the original's flat names."""
    return _to_original(params, _agent_names(config))


def save_agent_params(path: str | os.PathLike[str], params: Params, config: AgentConfig) -> None:
    """Writes agent parameters under the original's flat names."""
    write_npz(path, agent_params_to_original(params, config))


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes beside the target first, so that an interrupted write leaves nothing half done."""
    path = Path(path)
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            np.savez(file, **dict(arrays))  # type: ignore[arg-type]
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
