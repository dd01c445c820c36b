"""Initial parameters with Haiku's distributions, from uniform noise given or drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from port.config import AgentConfig, MetaNetConfig
from port.networks import param_names
from port.networks.param_names import Shape, Shapes
from port.types import Params

BOUND = 2.0  # normals are cut off at two standard deviations


def truncated_normal(uniform: Tensor) -> Tensor:
    """Standard normal cut off at two deviations, by the inverse distribution function.

    Args:
        uniform: [...], numbers in [0, 1).

    Returns:
        [...], strictly between -2 and 2.

    Reference: jax/_src/random.py::truncated_normal
    """
    if uniform.numel() and not (float(uniform.min()) >= 0.0 and float(uniform.max()) < 1.0):
        raise ValueError("Noise for a truncated normal must be uniform in [0, 1).")
    wide = uniform.cpu().double()  # torch's erfinv in float32 is three times less exact than JAX's
    root2, bound = math.sqrt(2), wide.new_tensor(BOUND)
    low, high = torch.erf(-bound / root2), torch.erf(bound / root2)
    normal = (root2 * torch.erfinv(wide * (high - low) + low)).to(uniform.device, uniform.dtype)
    edge = uniform.new_tensor(BOUND)
    inside = torch.nextafter(edge, torch.zeros_like(edge))
    return torch.minimum(torch.maximum(normal, -inside), inside)


def fan_in_std(shape: Shape) -> float:
    """Haiku's default deviation: one over the root of the number of inputs.

    Reference: haiku/_src/basic.py::Linear.__call__
    """
    return 1.0 / math.sqrt(math.prod(shape[:-1]))


def agent_stds(config: AgentConfig, shapes: Shapes) -> dict[str, float]:
    """Deviation of each weight of an agent: flat heads have their own, if set."""
    head_std = config.net.head_w_init_std
    weights = {name: fan_in_std(shape) for name, shape in shapes.items() if name.endswith("/w")}
    return {name: head_std if head_std and name.startswith("heads/") else std for name, std in weights.items()}


def meta_stds(config: MetaNetConfig, shapes: Shapes) -> dict[str, float]:
    """Deviation of each weight of the meta-network."""
    special = {
        "gate/w": config.state_stddev,
        "meta_input/w": config.output_stddev,
        "y_head/w": config.aux_stddev,
        "z_head/w": config.aux_stddev,
        "pi_head/w": config.policy_target_stddev,
    }
    stds = {name: fan_in_std(shape) for name, shape in shapes.items() if name.endswith("/w")}
    return stds | {name: std for name, std in special.items() if std is not None}


def params_from_noise(noise: Mapping[str, Tensor], shapes: Shapes, stds: Mapping[str, float]) -> Params:
    """Parameters out of uniform noise, one tensor of the weight's shape per weight; biases are zero.

    Reference: haiku/_src/initializers.py::TruncatedNormal.__call__
    """
    params: Params = {}
    like = next(iter(noise.values()))
    for name, shape in shapes.items():
        if name not in stds:
            params[name] = like.new_zeros(shape)
            continue
        if name not in noise or noise[name].shape != shape:
            got = tuple(noise[name].shape) if name in noise else "nothing"
            raise ValueError(f"Noise for {name!r} must be of shape {shape}; got {got}.")
        params[name] = truncated_normal(noise[name]) * stds[name]
    return params


def draw_params(shapes: Shapes, stds: Mapping[str, float], generator: torch.Generator, dtype: torch.dtype) -> Params:
    """Fresh parameters from drawn noise, on the generator's device."""
    device = generator.device
    noise = {name: torch.rand(shapes[name], generator=generator, dtype=dtype, device=device) for name in stds}
    return params_from_noise(noise, shapes, stds)


def init_meta_params(config: MetaNetConfig, generator: torch.Generator, dtype: torch.dtype) -> Params:
    """Fresh meta-parameters, by our names, on the generator's device.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.init_params
    """
    shapes = param_names.meta_shapes(config)
    return draw_params(shapes, meta_stds(config, shapes), generator, dtype)
