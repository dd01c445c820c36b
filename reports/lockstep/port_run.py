"""The port repeats a run of the original's: its own actions, replay and updates; the original's noise and balls."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from parity.errors import CannotRun
from parity.layers.spec import Arrays
from parity.mutants.mutate import Edit, edited
from parity.runs import runner
from parity.runs.spec import RunSpec, gumbel
from parity.runs.trace import Recording, Trace

LOGITS = "agent_outs/logits"


def adapter() -> tuple[Callable[..., Any], ...]:
    """Of the port as it is imported now: its agent, and the functions from a learner's flat state and back."""
    inputs, learning = (importlib.import_module(f"port.adapter.{name}") for name in ("inputs", "learning"))
    return inputs.agent, learning.learner_state, learning.flat_learner_state


class OriginalNoise:
    """Noise and balls as the original's notebook draws them from a seed, on one device; without JAX.

    Reference: colabs/eval.ipynb::unroll_jittable_actor
    """

    def __init__(self, spec: RunSpec, dtype: torch.dtype, environments: Any):
        """Takes the port's environments, which may be a changed copy."""
        self._spec, self._dtype, self._threefry = spec, dtype, environments.threefry
        board = environments.Catch(spec.loop.rows, spec.loop.columns)
        self._columns = environments.OriginalColumns(board, spec.loop.num_envs, spec.seed)
        self._key = self._threefry.prng_key(spec.seed)
        self.last = np.zeros(0, np.float32)

    def first_columns(self) -> torch.Tensor:
        """Columns of the first balls, [B]."""
        return self._columns.first()

    def rollout(self) -> tuple[torch.Tensor, torch.Tensor]:
        """For the next rollout: Gumbel noise [L, B, A], and columns of new balls [L, B]."""
        (L, B), A = self._spec.rollout_shape, self._spec.settings["A"]
        self._key, actor_key, _ = self._threefry.split(self._key, 3)
        step_keys = self._threefry.split(self._threefry.split(actor_key, 1)[0], L)
        self.last = gumbel(self._threefry.uniform(step_keys, B * A)).reshape(L, B, A)
        return torch.from_numpy(self.last).to(self._dtype), self._columns.draw(L)


def run(spec: RunSpec, dtype: str, params: Arrays, reference: Trace | None = None, edits: Sequence[Edit] = ()) -> Trace:
    """Runs the port to the end, or until some steps after the first action that differs from the reference's."""
    with edited(*edits) if edits else nullcontext():
        loop, recording = PortLoop(spec, dtype, params), Recording(spec, dtype, 0, reference)
        while not recording.is_over:
            loop.step(recording)
            runner.report_step(len(recording))
        return recording.trace()


class PortLoop:
    """A run of the port in one precision, from given parameters; of the port as it is imported when this is made.

    Attributes:
        spec: of the run.
        agent: the port's.
        loop: the port's evaluation loop.
        noise: the original's.
    """

    def __init__(self, spec: RunSpec, dtype: str, params: Arrays):
        """Sets everything up."""
        evaluation, self._weights = (
            importlib.import_module(f"port.{name}") for name in ("evaluate.eval_loop", "weights")
        )
        precision = getattr(torch, dtype)
        make_agent, self._state_from, self._flat_state = adapter()
        self.spec, self.agent = spec, make_agent(spec.settings)
        agent = self.agent
        start = self._weights.load_agent_params(params, agent.config, agent.obs_spec, agent.num_actions, precision)
        meta = {}
        if spec.weights:
            meta = self._weights.load_npz(spec.meta_params(), agent.config.meta_net, precision)
        config = evaluation.EvalConfig(**asdict(spec.loop), seed=spec.seed)
        self.noise = OriginalNoise(spec, precision, importlib.import_module("port.environments"))
        self.loop = evaluation.EvalLoop(agent, meta, config, precision, agent.learner_state(start), self.noise)

    def step(self, recording: Recording) -> tuple[np.ndarray, np.ndarray]:
        """Takes one step and records it; returns its actions [L, B], and the scores that they maximise [L, B, A].

        CannotRun where the port has diverged.
        """
        try:
            report = self.loop.step()
        except (ValueError, FloatingPointError) as error:
            raise CannotRun(f"The port cannot go on after {len(recording)} steps: {error}") from None
        logits = report.rollout.agent_outs["logits"]
        scores = (logits.log_softmax(-1) + torch.from_numpy(self.noise.last)).numpy()
        params = self._weights.agent_params_to_original(report.state.params, self.agent.config)
        actions: np.ndarray = report.rollout.actions.numpy()
        recording.add(actions, scores, self.noise.last, report.logs, params)
        return actions, scores

    @property
    def learner(self) -> Arrays:
        """Its learner, flat, by the names of the learner step's layer."""
        return {name: x.numpy() for name, x in self._flat_state(self.loop.state, self.spec.settings).items()}

    def resynchronise(self, learner: Arrays, logits: np.ndarray) -> None:
        """Puts the port where the original is.

        Args:
            learner: the original's, flat, by the names of the learner step's layer.
            logits: [L, N, A], by which all N trajectories so far were acted there.
        """
        tensors = {name: torch.tensor(np.asarray(x)) for name, x in learner.items()}
        self.loop.state = self._state_from(tensors, self.spec.settings)
        columns, rest = self.loop.buffer.save()
        N = logits.shape[1]
        numbers = np.arange(N - len(self.loop.buffer), N)  # of the trajectories that are in the buffer
        places = torch.from_numpy(numbers % self.spec.loop.capacity)
        replaced = columns[LOGITS].clone().index_copy_(1, places, torch.from_numpy(logits[:, numbers]))
        self.loop.buffer.restore({**columns, LOGITS: replaced}, rest)
