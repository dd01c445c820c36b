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
COUNTERS = ("step", "frames", "episodes")


class Report(NamedTuple):
    """The progress of a training run after a rollout."""

    step: int  # rollouts so far
    frames: int  # environment steps so far
    episodes: list[Episode]  # that ended in this rollout
    mean_return: float  # over the last 100 episodes; NaN before the first has ended
    row: dict[str, float]  # of the log

    def sentence(self) -> str:
        """The newest figures in words."""
        return f"rollout {self.step}, {self.frames:,} environment steps: return {self.mean_return:.1f}"


class Scores(NamedTuple):
    """Return and length of each episode of an evaluation."""

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())


class Trainer:
    """Repeats: acts for a rollout, stores it, and learns from a batch of stored rollouts.

    All randomness comes from the seed. With `out`, a killed run that is started again with the same arguments continues
    from its last checkpoint, with bit-identical results. Environments that cannot be saved are therefore restarted at
    every checkpoint, also in runs that are never killed; their running episodes are dropped.

    With several ranks, each has a trainer with its own environments, replay and random numbers; sizes are per rank. The
    learner step averages over ranks as the original does over devices. The learned state is equal on all ranks, which
    is checked at the start and at every checkpoint. Rank 0 logs.
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
        """Starts a run, or resumes the one in `out`.

        Args:
            env: a Gymnasium vector environment with discrete actions, `StepFunctions` or `CatchWorld`.
            agent: its configuration, with `meta_params` from `load_rule`; the bundled rule if both are left out.
            meta_params: of the rule, if it has a meta-network.
            config: of the run.
            network: of the agent, a module with the rule's heads; the original's MLP if left out.
            out: folder for checkpoints and logs, which no other process may use; nothing is written if left out.
            averaging: over ranks, from `distributed.connect`; every rank makes a trainer with the same arguments.
        """
        self.config = config or TrainConfig()
        dtype = self.config.torch_dtype
        if agent is None:
            agent, meta_params = load_rule(dtype=dtype)
        if not isinstance(agent, AgentConfig):
            raise TypeError(
                f"The agent is a {type(agent).__name__}; pass a configuration, and your network as `network`."
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
        trial = (self.agent, self.state, self.meta_params, self.world, self.config.device)
        self._log_names = setup.names_from_a_trial_step(*trial)
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
        """Of this process among those that learn together."""
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
        """Continues up to `steps` rollouts, counted from the beginning of the run; returns the mean return."""
        self._check_folder()
        while self.step < steps:
            report = self.advance()
            if on_step:
                on_step(report)
        self.save_agent()
        return self.mean_return

    def advance(self) -> Report:
        """Makes one rollout, and the learner steps after it."""
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
        """A rollout by the current agent; after an error it is discarded, and the environments restart."""
        config = self.config
        if self._stream is None:
            self._stream = rollouts.begin(self.world, self._generator, config.torch_dtype)
        try:
            rollout, self._stream, ended, frames = rollouts.unroll(
                self.world, self.agent, self.params, self._stream, config, self._generator
            )
        except ValueError as problem:
            first, self._stream = self.step * config.rollout_length, None
            raise ValueError(f"Rollout {self.step} (from step {first} of each environment on): {problem}") from problem
        self.frames += frames
        return rollout, ended

    def _learn(self, rollout: Rollout) -> dict[str, float]:
        """Stores a rollout, and learns from batches once there are enough; logs of the last one, empty if none."""
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
        """Plays at least `episodes` whole episodes; training does not change.

        Args:
            env: other environments of the same kind; each plays the same number of episodes.
            episodes: in total.
            is_greedy: whether to take the likeliest action instead of sampling one.
            seed: of actions and environments.
        """
        world = setup.as_world(env, self.config.torch_dtype)
        eval_loop.check_agent(self.agent, obs_spec(world), world.num_actions)
        if env is getattr(self.world, "env", self.world):
            raise ValueError("The agent learns in these environments; evaluate in others of the same kind.")
        generator = torch.Generator(self.config.device).manual_seed(seed)
        policy = self.agent.network.policy(self.params)
        played = rollouts.play(world, policy, episodes, generator, self.config.torch_dtype, is_greedy)
        return Scores(np.array([e.total for e in played]), np.array([e.length for e in played]))

    def plot(self) -> Path | None:
        """Draws the log as `curve.png`; None where there is nothing to draw."""
        return logs.draw(self.out, self.world.title) if self.out else None

    def close(self) -> None:
        """Closes the logs and unlocks the folder. To continue, make a new trainer."""
        if self._logs:
            self._logs.close()
        if self._lock:
            self._lock.release()

    def _check_folder(self) -> None:
        if self._lock and not self._lock.is_held:
            raise ValueError(f"This trainer was closed, or a newer one uses {self.out}; make a new one to continue.")

    def save_agent(self) -> None:
        """Writes the agent's parameters as `agent.npz`; those of the original's network under the original's names."""
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
        """Everything that determines the numbers of this run, as JSON; equal on all ranks."""
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
        """Saves the run, if it has a folder; environments that cannot be saved restart in any case."""
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
        stored, indices = self._buffer.save()
        tree: dict[str, Any] = {"learner": self.state, "replay": stored, "constants": self._constants()}
        tree["generator"] = self._generator.get_state()
        if world is not None and self._stream is not None:
            tree |= {"world": world, "stream": self._stream}
        numbers = {name: getattr(self, name) for name in COUNTERS}
        numbers |= {"recent": list(self._recent), "replay": indices}
        return Checkpoint(trees.flatten(tree), numbers, self.settings())

    def _check_ranks(self, when: str) -> None:
        """Raises ValueError where ranks that should be equal are not."""
        if self.averaging:
            self.averaging.check_same(self.settings(), f"The setting ({when})")
            state = checkpoint.digest(trees.flatten(self.state))
            self.averaging.check_same(state, f"The digest of the learner's state ({when})")

    def _resume(self) -> logs.Logs | None:
        """Resumes the run in the folder, if there is one: rank 0 from its checkpoint, the others from the same step."""
        if self.out is None:
            return None
        if self.averaging is None:
            return self._open(self.out)
        log, problem = None, ""
        if self.rank == 0:
            try:
                log = self._open(self.out)
            except (ValueError, OSError) as reason:
                problem = str(reason)
        step, problem = self.averaging.gather((self.step, problem))[0]
        if problem:
            raise ValueError(problem)
        self.out.mkdir(parents=True, exist_ok=True)  # of each machine
        if self.rank > 0 and step:
            self._load(ranks.path_of(self.out, self.averaging, step))
        self._check_ranks(f"after {self.step} rollouts")
        return log

    def _open(self, out: Path) -> logs.Logs:
        """Locks the folder, and resumes the run in it or starts a new one."""
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
        saved = checkpoint.load(path, self.settings(), self.config.device)
        with checkpoint.reading(path):
            self._unpack(saved)

    def _unpack(self, saved: Checkpoint) -> None:
        numbers, tensors = saved.numbers, saved.tensors
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
        self.step, self.frames, self.episodes = (index(numbers[name]) for name in COUNTERS)
        self._recent.extend(map(float, numbers["recent"]))
