"""The port lives a life of the original's: its own actions, replay and updates; the original's noise and balls."""

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
from parity.runs.spec import Life, gumbel, meta_params
from parity.runs.trace import Recording, Tape


def _silent(step: int) -> None:
    """Tells nobody."""


class OriginalNoise:
    """Noise and balls as the original's notebook draws them from a seed, on one device; without JAX.

    Reference: colabs/eval.ipynb::unroll_jittable_actor
    """

    def __init__(self, life: Life, dtype: torch.dtype, environments: Any):
        """Takes the port's environments, which may be a changed copy."""
        self._life, self._dtype, self._threefry = life, dtype, environments.threefry
        board = environments.Catch(life.loop.rows, life.loop.columns)
        self._columns = environments.OriginalColumns(board, life.loop.num_envs, life.seed)
        self._key = self._threefry.prng_key(life.seed)
        self.last = np.zeros(0, np.float32)

    def first_columns(self) -> torch.Tensor:
        """Columns of the first balls, [B]."""
        return self._columns.first()

    def rollout(self) -> tuple[torch.Tensor, torch.Tensor]:
        """For the next rollout: Gumbel noise [L, B, A], and columns of new balls [L, B]."""
        (L, B), A = self._life.acted, self._life.settings["A"]
        self._key, actor_key, _ = self._threefry.split(self._key, 3)
        step_keys = self._threefry.split(self._threefry.split(actor_key, 1)[0], L)
        self.last = gumbel(self._threefry.uniform(step_keys, B * A)).reshape(L, B, A)
        return torch.from_numpy(self.last).to(self._dtype), self._columns.draw(L)


def live(
    of: Life,
    dtype: str,
    params: Arrays,
    beside: Tape | None = None,
    edits: Sequence[Edit] = (),
    tell: Callable[[int], Any] = _silent,
) -> Tape:
    """Lives beside a tape, until its end or some steps after the first different action; or alone, to the end.

    Args:
        of: the life.
        dtype: in which to live.
        params: initial ones, by the original's names.
        beside: the tape.
        edits: changes to the port's source, to see whether they are noticed.
        tell: told after each step how many there are.
    """
    with edited(*edits) if edits else nullcontext():
        return _live(of, dtype, params, Recording(of, dtype, 0, beside), tell)


def _live(of: Life, dtype: str, params: Arrays, recording: Recording, tell: Callable[[int], Any]) -> Tape:
    loop = PortLoop(of, dtype, params)
    while not recording.is_over:
        loop.step(recording)
        tell(len(recording))
    return recording.tape()


class PortLoop:
    """A life of the port in one precision, from given parameters; of the port as it is imported when this is made.

    Attributes:
        life: the port's evaluation loop.
        noise: the original's.
    """

    def __init__(self, of: Life, dtype: str, params: Arrays):
        """Sets everything up."""
        evaluation, self._weights = (
            importlib.import_module(f"port.{name}") for name in ("evaluate.eval_loop", "weights")
        )
        precision = getattr(torch, dtype)
        self.agent = agent = agent_of(of)
        start = self._weights.load_agent_params(params, agent.config, agent.obs_spec, agent.num_actions, precision)
        meta = {}
        if of.rule == "disco":
            meta = self._weights.load_npz(meta_params(of), agent.config.meta_net, precision)
        config = evaluation.EvalConfig(**{**asdict(of.loop), "seed": of.seed})
        self.noise = OriginalNoise(of, precision, importlib.import_module("port.environments"))
        self.life = evaluation.EvalLoop(agent, meta, config, precision, agent.learner_state(start), self.noise)

    def step(self, recording: Recording) -> tuple[np.ndarray, np.ndarray]:
        """Lives one step and writes it down; returns its actions [L, B], and what they are the largest of [L, B, A].

        CannotRun where the port has diverged.
        """
        try:
            report = self.life.step()
        except ValueError as error:
            raise CannotRun(f"The port cannot live on after {len(recording)} steps: {error}") from None
        logits = report.rollout.agent_outs["logits"]
        perturbed = (logits.log_softmax(-1) + torch.from_numpy(self.noise.last)).numpy()
        now = self._weights.agent_params_to_original(report.state.params, self.agent.config)
        actions: np.ndarray = report.rollout.actions.numpy()
        recording.add(actions, perturbed, self.noise.last, report.logs, now)
        return actions, perturbed


def agent_of(life: Life) -> Any:
    """The port's agent for a life."""
    if life.rule == "disco":
        return importlib.import_module("port.adapter.inputs").agent(life.settings)
    return importlib.import_module("port.adapter.rules").actor_critic_agent(life.settings)
