"""The trainer: an agent and its environments in one object that acts, learns, logs, saves and resumes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from port import trees, weights
from port.agent_flags import load_rule
from port.config import AgentConfig
from port.distributed import Averaging
from port.evaluate import eval_loop
from port.network import MlpNetwork, ModuleNetwork
from port.replay import ReplayBuffer
from port.rollout_checks import check_learned
from port.storage import checkpoint
from port.storage.checkpoint import Checkpoint
from port.storage.files import replace_file
from port.storage.folder_lock import FolderLock
from port.train import gym, logs, ranks, rollouts, setup
from port.train.config import TrainConfig
from port.train.rollouts import Episode, Stream
from port.train.world import obs_spec
from port.types import LearnerState, Params, Rollout

LAST_EPISODES = 100  # over which the running mean is taken


class Report(NamedTuple):
    """What a caller sees of each rollout.

    Attributes:
        step: rollouts so far.
        frames: steps that the environments have made so far.
        episodes: that ended in this rollout.
        mean_return: over the last 100 episodes, NaN before the first has ended.
        row: what is logged.
    """

    step: int
    frames: int
    episodes: list[Episode]
    mean_return: float
    row: dict[str, float]

    def sentence(self) -> str:
        """The newest figures in words."""
        return f"rollout {self.step}, {self.frames:,} environment steps: return {self.mean_return:.1f}"


class Scores(NamedTuple):
    """How an agent did in an evaluation: return and length of each episode."""

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())


class Trainer:
    """Acts for a rollout, keeps it, learns from a batch of those kept; and so on.

    All that is random comes from the seed. With `out`, a run that is killed at any moment and made again with the same
    arguments goes on from its last checkpoint to the same bits. Environments that cannot be saved are started over at
    every checkpoint, killed or not, which is what makes that so; their running episodes are dropped there.

    Where learning is spread over ranks, each has a trainer with environments, replay and random numbers of its own, and
    the agent averages what the original averages inside its learner step: gradients, moments and the meta-RNN's input.
    Batches, environments and capacity are those of each rank. What has been learned is the same everywhere, which is
    checked at the start and at every checkpoint; rank 0 logs, and every rank saves what is its own.
    """

    def __init__(
        self,
        env: Any,
        agent: AgentConfig | None = None,
        meta_params: Params | None = None,
        config: TrainConfig | None = None,
        network: nn.Module | None = None,
        out: str | Path | None = None,
        averaging: Averaging | None = None,
    ) -> None:
        """Sets a run up, or takes up the one that `out` holds; what does not fit is said before anything is done.

        A folder is one run's: another process that uses it is a ValueError, and an older trainer of this process on the
        same folder does not go on.

        Args:
            env: a Gymnasium vector environment with discrete actions, `StepFunctions` or `CatchWorld`.
            agent: its configuration, with `meta_params` as of `load_rule`; the bundled rule if both are left out.
            meta_params: of the rule, if it has a meta-network.
            config: of the run.
            network: of the agent, a module that gives the rule's heads; the original's MLP if left out.
            out: folder for checkpoints and logs; nothing is written if left out.
            averaging: over ranks, as of `distributed.connect`; then every rank makes a trainer with the same arguments.
        """
        self.config = config or TrainConfig()
        dtype = self.config.torch_dtype
        if agent is None:
            agent, meta_params = load_rule(dtype=dtype)
        if not isinstance(agent, AgentConfig):
            raise TypeError(
                f"The agent is a {type(agent).__name__}; give its configuration and the rule's weights as `load_rule` "
                "does. A network of your own goes to `network`."
            )
        eval_loop.check_rule(agent)
        self.world = setup.as_world(env, dtype)
        self.averaging = averaging
        self.agent = setup.make_agent(agent, self.world, network, dtype, averaging)
        self.meta_params = meta_params and {name: p.to(self.config.device, dtype) for name, p in meta_params.items()}
        self.out = Path(out) if out is not None else None
        self._generator = torch.Generator(self.config.device).manual_seed(self.config.seed)
        self.state: LearnerState = self.agent.initial_learner_state(self._generator, dtype)
        self._check_ranks("first")
        if self.rank > 0:  # all have drawn the same parameters; from here on each draws for itself
            self._generator.manual_seed(ranks.own_seed(self.config.seed, self.rank))
        self._log_names = setup.names_from_a_trial_step(
            self.agent, self.state, self.meta_params, self.world, self.config.device
        )
        self._buffer = ReplayBuffer(self.config.capacity, ranks.own_seed(self.config.replay_seed, self.rank))
        self._stream: Stream | None = None
        self._recent: deque[float] = deque(maxlen=LAST_EPISODES)
        self.step = self.frames = self.episodes = 0
        if isinstance(self.world, gym.GymWorld) and self.config.checkpoint_every:
            self.world.check_repeats()
        self._lock: FolderLock | None = None
        self._logs = self._resume()

    @property
    def rank(self) -> int:
        """Of this trainer among those that learn together; rank 0 is the one that logs."""
        return self.averaging.rank if self.averaging else 0

    @property
    def params(self) -> Params:
        """The agent's parameters."""
        return self.state.params

    @property
    def mean_return(self) -> float:
        """Over the last 100 episodes, NaN before the first has ended."""
        return eval_loop.mean(self._recent)

    def run(self, steps: int, on_step: Callable[[Report], None] | None = None) -> float:
        """Goes on until so many rollouts have been made since the beginning; the mean return at the end.

        Args:
            steps: rollouts, those of earlier runs into the same folder included.
            on_step: called after each.
        """
        self._check_folder()
        while self.step < steps:
            report = self.advance()
            if on_step:
                on_step(report)
        self.save_agent()
        return self.mean_return

    def advance(self) -> Report:
        """One rollout and what is learned after it."""
        self._check_folder()
        rollout, ended = self._act()
        learned = self._learn(rollout)
        self._recent.extend(episode.total for episode in ended)
        self.episodes += len(ended)
        row = self._row(ended, learned)
        if self._logs:
            self._logs.add(row)
        self.step += 1
        if self.config.is_checkpoint(self.step):
            self._checkpoint()
        return Report(self.step, self.frames, ended, self.mean_return, row)

    def _act(self) -> tuple[Rollout, list[Episode]]:
        """A rollout by the agent as it is; on an error nothing is kept of it, and the environments start over next."""
        config = self.config
        if self._stream is None:
            self._stream = rollouts.begin(self.world, self._generator, config.torch_dtype)
        try:
            rollout, self._stream, ended, frames = rollouts.unroll(
                self.world,
                self.agent,
                self.params,
                self._stream,
                config.rollout_length,
                self._generator,
                config.reward_scale,
                config.truncation == "bootstrap",
            )
        except ValueError as problem:
            first, self._stream = self.step * config.rollout_length, None
            raise ValueError(f"Rollout {self.step} (from step {first} of each environment on): {problem}") from problem
        self.frames += frames
        return rollout, ended

    def _learn(self, rollout: Rollout) -> dict[str, float]:
        """Keeps a rollout, and learns from batches once there are enough; the logs of the last, empty if none."""
        self._buffer.add(rollout)
        logs: dict[str, float] = {}
        if len(self._buffer) < self.config.batch_size:
            return logs
        for _ in range(self.config.updates_per_rollout):
            batch = self._buffer.sample(self.config.batch_size)
            state, learned = self.agent.learner_step(batch, self.state, self.meta_params)
            check_learned(state, learned, f"after rollout {self.step}")
            self.state, logs = state, eval_loop.scalars(learned)
        return logs

    def _row(self, ended: list[Episode], learned: dict[str, float]) -> dict[str, float]:
        row = {"step": float(self.step), "frames": float(self.frames), "episodes": float(self.episodes)}
        row["return"] = eval_loop.mean([e.total for e in ended])
        row["length"] = eval_loop.mean([e.length for e in ended])
        row["return_100"] = self.mean_return
        return row | {name: learned.get(name, float("nan")) for name in self._log_names}

    def evaluate(self, env: Any, episodes: int = 20, is_greedy: bool = False, seed: int = 0) -> Scores:
        """Plays whole episodes in environments of their own; training is not touched by it.

        Args:
            env: as for the trainer, but not the trainer's own.
            episodes: how many at least; each environment plays the same number.
            is_greedy: whether to take the likeliest action instead of drawing one.
            seed: of actions and environments.
        """
        world = setup.as_world(env, self.config.torch_dtype)
        eval_loop.check_agent(self.agent, obs_spec(world), world.num_actions)
        if env is getattr(self.world, "env", self.world):
            raise ValueError("The agent learns in these environments; evaluate in others of the same kind.")
        generator = torch.Generator(self.config.device).manual_seed(seed)
        policy = self.agent.network.policy(self.params)
        found = rollouts.play(world, policy, episodes, generator, self.config.torch_dtype, is_greedy)
        return Scores(np.array([e.total for e in found]), np.array([e.length for e in found]))

    def plot(self) -> Path | None:
        """Draws the log as `curve.png`; None where there is nothing to draw."""
        return logs.draw(self.out, self.world.title) if self.out else None

    def close(self) -> None:
        """Ends the logs and leaves the folder to others; a closed trainer does not go on, one made anew does."""
        if self._logs:
            self._logs.close()
        if self._lock:
            self._lock.release()

    def _check_folder(self) -> None:
        """Raises ValueError where the folder is no longer this trainer's to write to."""
        if self._lock and not self._lock.is_held:
            raise ValueError(f"This trainer was closed, or another one took {self.out} up; make it anew to go on.")

    def save_agent(self) -> None:
        """Writes the agent's parameters as `agent.npz`: in the original's names if it is the original's network."""
        if self.out is None or self.rank > 0:
            return
        if isinstance(self.agent.network, MlpNetwork):
            weights.save_agent_params(self.out / "agent.npz", self.params, self.agent.config)
        else:
            arrays = {name: p.cpu().numpy() for name, p in {**self._constants(), **self.params}.items()}
            weights.write_npz(self.out / "agent.npz", arrays)

    def _constants(self) -> Params:
        return self.agent.network.constants if isinstance(self.agent.network, ModuleNetwork) else {}

    def settings(self) -> dict[str, Any]:
        """All that the numbers of this run depend on, as JSON; the same on every rank."""
        train = asdict(self.config)
        if self.averaging:
            train |= {"ranks": self.averaging.size, "device": self.config.device.partition(":")[0]}
        return {
            "rule": type(self.agent.config.rule).__name__.removesuffix("Config"),
            "train": train,
            "agent": asdict(self.agent.config),
            "meta_params": checkpoint.digest(self.meta_params),
            "environment": {
                "title": self.world.title,
                "num_envs": self.world.num_envs,
                "num_actions": self.world.num_actions,
                "observation": str(obs_spec(self.world)),
            },
            "parameters": {name: list(shape) for name, shape in self.agent.shapes.items()},
        }

    def _checkpoint(self) -> None:
        """Saves the run, if it has a folder; what cannot be saved starts over either way."""
        saved = self.world.save()
        self._check_ranks(f"after {self.step} rollouts")
        if self.out is not None:
            if self._logs:
                self._logs.flush()
            self.save_agent()
            ranks.save(self.out, self.averaging, self.step, self._pack(saved))
        if saved is None:
            self._stream = None

    def _pack(self, world: dict[str, torch.Tensor] | None) -> Checkpoint:
        kept, rest = self._buffer.save()
        tree: dict[str, Any] = {"learner": self.state, "replay": kept, "constants": self._constants()}
        tree["generator"] = self._generator.get_state()
        if world is not None and self._stream is not None:
            tree |= {"world": world, "stream": self._stream}
        numbers: dict[str, Any] = {"step": self.step, "frames": self.frames, "episodes": self.episodes}
        numbers |= {"recent": list(self._recent), "replay": rest}
        return Checkpoint(trees.flatten(tree), numbers, self.settings())

    def _check_ranks(self, when: str) -> None:
        """Raises ValueError where ranks that should be equal are not, before they average what does not fit."""
        if self.averaging:
            self.averaging.check_same(self.settings(), f"The setting ({when})")
            state = checkpoint.digest(trees.flatten(self.state))
            self.averaging.check_same(state, f"The digest of the learner's state ({when})")

    def _resume(self) -> logs.Logs | None:
        """Takes up the run in the folder, if there is one: rank 0 by its checkpoint, the others from the same step."""
        if self.out is None:
            return None
        if self.averaging is None:
            return self._take_up(self.out)
        found, problem = None, ""
        if self.rank == 0:
            try:
                found = self._take_up(self.out)
            except (ValueError, OSError) as reason:
                problem = str(reason)
        step, problem = self.averaging.gather((self.step, problem))[0]
        if problem:
            raise ValueError(problem)
        self.out.mkdir(parents=True, exist_ok=True)  # of each machine
        if self.rank > 0 and step:
            self._load(ranks.path_of(self.out, self.averaging, step))
        self._check_ranks(f"after {self.step} rollouts")
        return found

    def _take_up(self, out: Path) -> logs.Logs:
        """The run in a folder, or a new one; nobody else may write there from here on."""
        out.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(out, takes_over=True)
        path = out / ranks.NAME
        try:
            if path.is_file():
                self._load(path)
            text = json.dumps(self.settings(), indent=1, sort_keys=True) + "\n"
            replace_file(out / "config.json", text.encode())
            return logs.Logs(out, self.step)
        except BaseException:
            self._lock.release()
            raise

    def _load(self, path: Path) -> None:
        found = checkpoint.load(path, self.settings(), self.config.device)
        with checkpoint.reading(path):
            self._unpack(found)

    def _unpack(self, found: Checkpoint) -> None:
        numbers, tensors = found.numbers, found.tensors
        self.state = trees.unflatten(self.state, checkpoint.part(tensors, "learner/"))
        self._buffer.restore(checkpoint.part(tensors, "replay/"), numbers["replay"])
        self._generator.set_state(tensors["generator"].cpu())
        if isinstance(self.agent.network, ModuleNetwork):
            self.agent.network.constants = checkpoint.part(tensors, "constants/")
        if world := checkpoint.part(tensors, "world/"):
            self.world.restore(world)
            like = rollouts.begin(self.world, torch.Generator(self.config.device), self.config.torch_dtype)
            self.world.restore(world)
            self._stream = trees.unflatten(like, checkpoint.part(tensors, "stream/"))
        self.step, self.frames, self.episodes = (index(numbers[name]) for name in ("step", "frames", "episodes"))
        self._recent.extend(map(float, numbers["recent"]))
