"""A rule by name, with an agent that fits it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from port import evaluate, weights
from port.config import AgentConfig, DiscoConfig
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
        **sizes: any of `port.evaluate.SIZES`, such as `learning_rate` or `dense`.

    Returns:
        The agent's configuration, and the rule's meta-parameters if it has any.
    """
    if name not in ("disco", "actor_critic"):
        raise ValueError(f"There is no rule called {name!r} to train by; there are disco and actor_critic.")
    known = [size for sizes_of_part in evaluate.SIZES.values() for size in sizes_of_part]
    odd = [size for size in sizes if size not in known]
    if odd:
        raise ValueError(f"An agent has no size called {odd[0]!r}; there are: {', '.join(known)}.")
    asked = Namespace(
        rule=name,
        weights=Path(weights_file) if weights_file else None,
        config=Path(config_file) if config_file else None,
        **sizes,
    )
    config = evaluate.agent_config(asked)  # notes the file of the rule in the box in `asked`
    if not isinstance(config.rule, DiscoConfig):
        return config, None
    return config, weights.load_npz(asked.weights, config.meta_net, dtype)
