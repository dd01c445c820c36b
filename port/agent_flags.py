"""Sizes that a rule's weights do not tell, and an agent made from them: by name, from a file, or from flags."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from port import bundled, weights
from port.config import AgentConfig, eval_agent_config, get_settings_actor_critic, get_settings_disco

# By the part of the configuration that they belong to.
SIZES: dict[str, dict[str, Any]] = {
    "net": {"dense": (int,), "head_mlp_hiddens": (int,), "lstm_size": int},
    "rule": {"num_bins": int, "max_abs_value": float},
    "": {"learning_rate": float},
}
NAMES = tuple(name for sizes in SIZES.values() for name in sizes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares a flag for each size."""
    where = {"dense": "layers of the agent's torso, as 512,512", "learning_rate": "of the agent (default: 0.01)"}
    where |= {"head_mlp_hiddens": "hidden layers of its model's heads", "lstm_size": "of its model"}
    for sizes in SIZES.values():
        for name, kind in sizes.items():
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(flag, type=_reader(kind), help=where.get(name, "of its values"))


def _reader(kind: Any) -> Any:
    """Reads a flag of a kind; a tuple of one kind stands for several of it, separated by commas."""
    if not isinstance(kind, tuple):
        return kind

    def widths(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind[0](part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"give whole numbers, as 512,512, not {text!r}") from None

    return widths


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sizes that flags gave."""
    return {name: getattr(arguments, name) for name in NAMES if getattr(arguments, name, None) is not None}


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


def weights_of(rule: str, weights_file: Path | None) -> Path | None:
    """The file of a rule's weights: the one given, the rule in the box, or None for a rule that has none."""
    if rule == "disco":
        file = weights_file or bundled.path()
        weights.check_is_there(file)
        return file
    if weights_file is not None:
        raise ValueError(f"The rule {rule} has no weights; leave --weights out.")
    return None


def agent_config(
    rule: str, weights_file: Path | None, config_file: Path | None, sizes: Mapping[str, Any]
) -> AgentConfig:
    """The agent: the notebook's settings, then what weights and configuration file tell, then the sizes given.

    Args:
        rule: `disco` or `actor_critic`.
        weights_file: as `weights_of` gives it.
        config_file: JSON with sizes; if None, the one beside the weights, if there.
        sizes: by name.
    """
    config = eval_agent_config(get_settings_disco() if rule == "disco" else get_settings_actor_critic())
    beside = weights_file.with_suffix(".json") if weights_file else None
    file = config_file or (beside if beside and beside.is_file() else None)
    every = {**(read_config(file) if file else {}), **sizes}
    if weights_file:
        config = replace(config, meta_net=weights.meta_config_of(weights_file))
    for part, names in SIZES.items():
        chosen = {name: every[name] for name in names if name in every}
        config = replace(config, **({part: replace(getattr(config, part), **chosen)} if part else chosen))
    return config
