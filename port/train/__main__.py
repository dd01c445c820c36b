"""Trains an agent in any Gymnasium environment with discrete actions, or in the port's own Catch (Catch, Catch-5x5).

A run that was interrupted goes on when it is started again with the same --out. Started by torchrun, its processes
learn together: each has --envs environments and batches of --batch-size of its own, and gradients are averaged.

example: python -m port.train CartPole-v1 --steps 800 --out runs/cartpole
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from port import agent_flags, command_line, distributed
from port.environments import Catch
from port.storage import folder_lock
from port.train import CatchWorld, Report, TrainConfig, Trainer, load_rule, ranks

CATCH = re.compile(r"Catch(?:-(\d+)x(\d+))?")
OUT = Path("runs/train")


def parser() -> argparse.ArgumentParser:
    """The command line: a flag for each setting, beside the run's own."""
    parser = command_line.make_parser("port.train", __doc__)
    parser.add_argument("environment", help="as Gymnasium calls it (package:Name-v0 imports the package), or Catch")
    agent_flags.add_arguments(parser)
    parser.add_argument("--envs", type=int, default=8, help="environments that act in parallel (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=800, help="rollouts, up to whole checkpoints (default: %(default)s)"
    )
    parser.add_argument(
        "--episodes", type=int, default=24, help="to judge the agent by, at the end (default: %(default)s)"
    )
    parser.add_argument("--greedy", action="store_true", help="judge the likeliest actions instead of drawn ones")
    parser.add_argument("--at-least", type=float, metavar="RETURN", help="exit with 1 if the mean return there is less")
    command_line.add_settings(parser, TrainConfig)
    command_line.add_outputs(parser, None, f"{OUT}/ENVIRONMENT-RULE-seedN")
    return parser


def default_out(arguments: argparse.Namespace) -> Path:
    """A folder of its own for each environment, rule and seed."""
    rule = arguments.weights.stem if arguments.weights else arguments.rule
    return OUT / re.sub(r"[^\w.-]+", "_", f"{arguments.environment}-{rule}-seed{arguments.seed}")


def check(arguments: argparse.Namespace) -> Path:
    """Raises ValueError for what could not be done, or would be regretted after hours; the file of the summary."""
    for option in ("envs", "steps", "episodes"):
        if getattr(arguments, option) < 1:
            raise ValueError(f"--{option} is {getattr(arguments, option)}; it must be at least 1.")
    target, out = command_line.summary_path(arguments), arguments.out
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out is {out}, a file; give a folder.")
    if out.is_dir() and not (out / "config.json").is_file():  # which is in every folder that holds a run
        others = sorted(path.name for path in out.iterdir() if path.name != folder_lock.FILE)
        if others:
            raise ValueError(f"--out is {out}, which holds other things ({others[0]}) and no run; give a new folder.")
    return target


def make_environment(name: str, num_envs: int, dtype: Any) -> Any:
    """The environments of a name; ValueError says why there are none."""
    if catch := CATCH.fullmatch(name):
        rows, columns = (int(size or 8) for size in catch.groups())
        return CatchWorld(Catch(rows, columns, dtype), num_envs)
    try:
        import gymnasium
    except ImportError:
        raise ValueError("Gymnasium is not installed; `pip install gymnasium` brings it, and so does `make`.") from None
    try:
        return gymnasium.make_vec(name, num_envs=num_envs)
    except (gymnasium.error.Error, ImportError) as problem:
        raise ValueError(
            f"Gymnasium cannot make {name or 'an environment without a name'}: {problem} `python -c 'import gymnasium; "
            "gymnasium.pprint_registry()'` lists what there is. An environment of another package is called "
            "package:Name, as ale_py:ALE/Pong-v5 after `pip install ale-py`."
        ) from None


def make_trainer(arguments: argparse.Namespace, averaging: distributed.Averaging | None = None) -> Trainer:
    """The run that the command line asks for, new or taken up."""
    config = TrainConfig(**{f.name: getattr(arguments, f.name) for f in fields(TrainConfig)})
    config = replace(config, device=distributed.own_device(config.device))
    env = make_environment(arguments.environment, arguments.envs, config.torch_dtype)
    sizes = command_line.chosen(arguments, agent_flags.NAMES)
    rule = load_rule(arguments.rule, arguments.weights, arguments.config, config.torch_dtype, **sizes)
    return Trainer(env, *rule, config, out=arguments.out, averaging=averaging)


def train(arguments: argparse.Namespace) -> int:
    """Trains; 0 done, 1 the agent does less well than asked for."""
    target = check(arguments)
    averaging = distributed.connect(arguments.device)
    trainer = make_trainer(arguments, averaging)
    every = trainer.config.checkpoint_every or 1
    steps = -(-arguments.steps // every) * every
    began, first = time.perf_counter(), trainer.step
    if trainer.rank > 0:
        trainer.run(steps)
        trainer.close()
        return 0
    if first:
        print(f"Going on after {first} rollouts, from {arguments.out}.")
    if steps != arguments.steps:
        print(f"It runs to rollout {steps}, where a checkpoint is due (--checkpoint-every {every}).")
    with command_line.progress(trainer.world.title, steps, first, arguments.quiet) as show:

        def on_step(report: Report) -> None:
            show(report.step, f"return {report.mean_return:.1f}  {report.frames:,} environment steps")

        trainer.run(steps, on_step)
    seconds = time.perf_counter() - began
    dtype = trainer.config.torch_dtype
    judges = make_environment(arguments.environment, min(arguments.envs, arguments.episodes), dtype)
    scores = trainer.evaluate(judges, arguments.episodes, arguments.greedy)
    found = {
        "environment": arguments.environment,
        "rule": arguments.rule,
        "weights": str(arguments.weights) if arguments.weights else None,
        "steps": trainer.step,
        "frames": trainer.frames,
        "ranks": averaging.size if averaging else 1,
        "mean_return_of_last_100": trainer.mean_return,
        "evaluation": {"mean": scores.mean, "returns": scores.returns.tolist(), "is_greedy": arguments.greedy},
        "seconds": round(seconds, 1),
    }
    command_line.write_summary(target, found)
    print(verdict(found, trainer.step - first, trainer.plot()))
    trainer.close()
    return 1 if arguments.at_least is not None and scores.mean < arguments.at_least else 0


def verdict(found: dict[str, Any], new_steps: int, picture: Path | None) -> str:
    """The outcome in words."""
    returns, of_each = found["evaluation"]["returns"], f" of each of {found['ranks']} processes"
    return (
        f"{found['environment']}: mean return {found['evaluation']['mean']:.1f} over {len(returns)} fresh episodes "
        f"(from {min(returns):.1f} to {max(returns):.1f}), after {found['steps']} rollouts, {found['frames']:,} "
        f"environment steps{of_each if found['ranks'] > 1 else ''}; {new_steps} of the rollouts now, in "
        f"{found['seconds']:.0f} s. The curve is {picture}."
    )


def stopped(out: Path) -> str:
    """What becomes of a run that was stopped."""
    if (out / ranks.NAME).is_file():
        return f"; the same command goes on from the last checkpoint in {out}"
    return " before the first checkpoint; the same command starts over"


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = parser().parse_args(argv)
    arguments.out = arguments.out or default_out(arguments)
    return command_line.run("port.train", lambda: train(arguments), lambda: stopped(arguments.out))


if __name__ == "__main__":
    sys.exit(main())
