"""Trains an agent in any Gymnasium environment with discrete actions, or in the port's own Catch (Catch, Catch-5x5).

A run that was interrupted goes on when it is started again with the same --out. Started by torchrun, its processes
learn together: each has --envs environments and batches of --batch-size of its own, and gradients are averaged.

example: python -m port.train CartPole-v1 --steps 800 --out runs/cartpole
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

from port import agent_flags, distributed
from port.environments import Catch
from port.train import CatchWorld, Report, TrainConfig, Trainer, checks, load_rule, ranks

CATCH = re.compile(r"Catch(?:-(\d+)x(\d+))?")


def parser() -> argparse.ArgumentParser:
    """The command line: a flag for each setting, beside the run's own."""
    text, _, example = (__doc__ or "").partition("example: ")
    made = argparse.ArgumentParser(
        "python -m port.train", description=text, epilog=f"example: {example}", allow_abbrev=False
    )
    made.add_argument("environment", help="as Gymnasium calls it (package:Name-v0 imports the package), or Catch")
    made.add_argument("--rule", choices=("disco", "actor_critic"), default="disco", help="(default: %(default)s)")
    made.add_argument(
        "--weights", type=Path, metavar="FILE", help="Disco's weights, .npz (default: the rule in the box)"
    )
    made.add_argument("--config", type=Path, metavar="FILE", help="JSON with sizes of the agent (default: beside them)")
    made.add_argument("--envs", type=int, default=8, help="environments side by side (default: %(default)s)")
    made.add_argument("--steps", type=int, default=800, help="rollouts, up to whole checkpoints (default: %(default)s)")
    made.add_argument(
        "--episodes", type=int, default=24, help="to judge the agent by, at the end (default: %(default)s)"
    )
    made.add_argument("--greedy", action="store_true", help="judge the likeliest actions instead of drawn ones")
    made.add_argument("--at-least", type=float, metavar="RETURN", help="exit with 1 if the mean return there is less")
    agent_flags.add_arguments(made)
    for setting in fields(TrainConfig):
        flag, kind = f"--{setting.name.replace('_', '-')}", type(setting.default)
        made.add_argument(flag, type=kind, default=setting.default, help=f"{setting.metadata['help']} (%(default)s)")
    own = f"{checks.OUT}/ENVIRONMENT-RULE-seedN"
    made.add_argument("--out", type=Path, metavar="DIR", help=f"for everything (default: {own})")
    made.add_argument("--json", type=Path, metavar="FILE", help="the summary for machines (default: in --out)")
    made.add_argument("--quiet", action="store_true", help="no progress bar")
    return made


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
    given = {f.name: getattr(arguments, f.name) for f in fields(TrainConfig)}
    config = TrainConfig(**{**given, "device": distributed.own_device(arguments.device)})
    env = make_environment(arguments.environment, arguments.envs, config.torch_dtype)
    rule = (arguments.rule, arguments.weights, arguments.config, config.torch_dtype)
    agent, meta_params = load_rule(*rule, **agent_flags.given(arguments))
    return Trainer(env, agent, meta_params, config, out=arguments.out, averaging=averaging)


class Progress:
    """A bar with the time left and the newest figures beside it."""

    def __init__(self, title: str, done: int, total: int) -> None:
        """Makes the bar."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Bar(*columns, TextColumn("{task.fields[figures]}"))
        self._task = self.bar.add_task("", total=total, completed=done, figures="")

    def show(self, report: Report) -> None:
        """Moves the bar."""
        figures = f"return {report.mean_return:.1f}  {report.frames:,} environment steps"
        self.bar.update(self._task, completed=report.step, figures=figures)


def run(arguments: argparse.Namespace) -> int:
    """Trains; 0 done, 1 the agent does less well than asked for."""
    checks.check(arguments)
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
    progress = None if arguments.quiet else Progress(trainer.world.title, first, steps)
    with progress.bar if progress else nullcontext():
        trainer.run(steps, progress.show if progress else None)
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
    target = arguments.json or arguments.out / "summary.json"
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
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
        return f"stopped; the same command goes on from the last checkpoint in {out}."
    return "stopped before the first checkpoint; the same command starts over."


@contextmanager
def ended_like_by_a_key() -> Iterator[None]:
    """SIGTERM ends what is in the block as Ctrl-C does; the processes of torchrun have a way of their own."""
    if distributed.is_one_of_many() or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = parser().parse_args(argv)
    arguments.out = arguments.out or checks.default_out(arguments)
    try:
        with ended_like_by_a_key():
            code = run(arguments)
    except (ValueError, TypeError, OSError, FloatingPointError, distributed.RankLost) as problem:
        print(f"port.train: {checks.in_options(str(problem))}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print(f"\nport.train: {stopped(arguments.out)}", file=sys.stderr)
        code = 2
    return distributed.leave(code)


if __name__ == "__main__":
    sys.exit(main())
