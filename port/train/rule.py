"""A rule by name, with an agent that fits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from port import agent_flags as known_sizes
from port import weights
from port.config import AgentConfig
from port.types import Params


def load_rule(
    name: str = "disco",
    weights_file: str | Path | None = None,
    config_file: str | Path | None = None,
    dtype: torch.dtype = torch.float32,
    **sizes: Any,
) -> tuple[AgentConfig, Params | None]:
    """A rule, and an agent to learn by it: sizes come from the weights, the file beside them, and the caller.

    Args:
        name: `disco` or `actor_critic`.
        weights_file: of Disco's meta-network; the rule in the box if left out.
        config_file: JSON with sizes of the agent; if left out, the one beside the weights, if there.
        dtype: of the weights.
        **sizes: any of `port.agent_flags.NAMES`, such as `learning_rate` or `dense`.

    Returns:
        The agent's configuration, and the rule's meta-parameters if it has any.
    """
    if name not in ("disco", "actor_critic"):
        raise ValueError(f"There is no rule called {name!r} to train by; there are disco and actor_critic.")
    odd = [size for size in sizes if size not in known_sizes.NAMES]
    if odd:
        raise ValueError(f"An agent has no size called {odd[0]!r}; there are: {', '.join(known_sizes.NAMES)}.")
    file = known_sizes.weights_of(name, Path(weights_file) if weights_file else None)
    config = known_sizes.agent_config(name, file, Path(config_file) if config_file else None, sizes)
    return config, weights.load_npz(file, config.meta_net, dtype) if file else None
