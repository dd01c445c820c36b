"""A rule by name, and an agent that fits it. Sizes that weights do not show come from a file, flags or the caller."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from port import bundled, command_line, weights
from port.config import AgentConfig, eval_agent_config, get_settings_actor_critic, get_settings_disco
from port.types import Params

RULES = {"disco": get_settings_disco, "actor_critic": get_settings_actor_critic}
# Sizes by the part of the configuration that they belong to, with what their flags say.
SIZES = {
    "net": {
        "dense": "layers of the agent's torso, as 512,512",
        "head_mlp_hiddens": "hidden layers of its model's heads",
        "lstm_size": "of its model",
    },
    "rule": {"num_bins": "of its values", "max_abs_value": "of its values"},
    "": {"learning_rate": "of the agent (default: 0.01)"},
}
NAMES = tuple(name for sizes in SIZES.values() for name in sizes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares flags for the rule, its weights, and each size of the agent."""
    parser.add_argument("--rule", choices=tuple(RULES), default="disco", help="(default: %(default)s)")
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="Disco's weights, .npz in the original's names (default: the bundled rule)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="JSON with sizes of agent and rule, such as port.meta_train writes (default: beside the weights, "
        "with .json for .npz, if there)",
    )
    config = eval_agent_config()
    for part, sizes in SIZES.items():
        for name, text in sizes.items():
            example = getattr(getattr(config, part) if part else config, name)
            parser.add_argument(command_line.flag(name), type=command_line.reader(example), help=text)


def chosen_config(arguments: argparse.Namespace) -> tuple[AgentConfig, Path | None]:
    """The agent that flags ask for, and the file of its rule's weights, if it has any."""
    sizes = command_line.chosen(arguments, NAMES)
    return agent_config(arguments.rule, arguments.weights, arguments.config, sizes)


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
        weights_file: of Disco's meta-network; the bundled rule if left out.
        config_file: JSON with sizes of the agent; if left out, the one beside the weights, if there.
        dtype: of the weights.
        **sizes: any of `port.agent_flags.NAMES`, such as `learning_rate` or `dense`.

    Returns:
        The agent's configuration, and the rule's meta-parameters if it has any.
    """
    weights_path, config_path = (Path(path) if path else None for path in (weights_file, config_file))
    config, file = agent_config(name, weights_path, config_path, sizes)
    return config, weights.load_npz(file, config.meta_net, dtype) if file else None


def agent_config(
    rule: str, weights_file: Path | None, config_file: Path | None, sizes: Mapping[str, Any]
) -> tuple[AgentConfig, Path | None]:
    """The agent: the notebook's settings, then sizes from weights and configuration file, then the `sizes` passed.

    Args:
        rule: `disco` or `actor_critic`.
        weights_file: of Disco's meta-network; the bundled rule if None.
        config_file: JSON with sizes; if None, the one beside the weights, if there.
        sizes: by name.

    Returns:
        Its configuration, and the file of the rule's weights; None for a rule that has none.
    """
    if rule not in RULES:
        raise ValueError(f"There is no rule called {rule!r} to train by; there are {' and '.join(RULES)}.")
    if odd := [size for size in sizes if size not in NAMES]:
        raise ValueError(f"An agent has no size called {odd[0]!r}; there are: {', '.join(NAMES)}.")
    if rule != "disco" and weights_file:
        raise ValueError(f"The rule {rule} has no weights; leave --weights out.")
    config, file = eval_agent_config(RULES[rule]()), None
    if rule == "disco":
        file = weights_file or bundled.path()
        weights.check_is_there(file)
        config = replace(config, meta_net=weights.meta_config_of(file))
        beside = file.with_suffix(".json")
        config_file = config_file or (beside if beside.is_file() else None)
    sizes = {**(read_config(config_file) if config_file else {}), **sizes}
    for part, names in SIZES.items():
        known = {name: sizes[name] for name in names if name in sizes}
        config = replace(config, **({part: replace(getattr(config, part), **known)} if part else known))
    return config, file


def read_config(path: Path) -> dict[str, Any]:
    """The sizes that a JSON file gives; what it says of other things is left alone."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"There is no configuration at {path}.") from None
    except ValueError as problem:
        raise ValueError(f"{path} is no JSON ({problem}).") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object.")
    return {name: tuple(x) if isinstance(x, list) else x for name, x in found.items() if name in NAMES}
