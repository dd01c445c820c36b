"""The fast learner step: one strategy, made of parts that can be switched off to see what each buys."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from port.fast import network, parallel
from port.fast.disco import FastDisco
from port.fast.network import EAGER, Passes, TakenOutputs
from port.network import MlpNetwork
from port.strategy import Loss, Plain
from port.types import Logs, Observations, Outputs, Params, Rollout
from port.update_rules.disco import Disco

PATHS = ("auto", "plain", "fast", "compiled")


@dataclass(frozen=True)
class Parts:
    """What makes the learner step fast; each can be left out, and changes no number beyond rounding.

    Attributes:
        has_unique_rows: states that show the same share the networks' outputs.
        has_taken_actions: of the action model, only predictions for the actions taken get a graph.
        has_fused_losses: large losses and their gradients in one go, by unique rows; needs `has_taken_actions`.
        has_threads: threads take large parts of the work, where torch by itself shares out each operation.
    """

    has_unique_rows: bool = True
    has_taken_actions: bool = True
    has_fused_losses: bool = True
    has_threads: bool = True


def choose(path: str, plain: Plain) -> Plain:
    """The strategy by its name; ValueError where it does not work for this network and rule."""
    if path not in PATHS:
        raise ValueError(f"There is no path called {path!r}; there are: {', '.join(PATHS)}.")
    is_disco, is_mlp = isinstance(plain.rule, Disco), isinstance(plain.network, MlpNetwork)
    if path == "plain" or (path == "auto" and not (is_disco and is_mlp)):
        return plain
    if not is_disco:
        raise ValueError(f"The {path} path is for Disco, not for {type(plain.rule).__name__}; take plain or auto.")
    if not is_mlp:
        kind = type(plain.network).__name__
        raise ValueError(f"The {path} path is for an MlpNetwork, not for a {kind}; take plain or auto.")
    return make(plain, passes=network.compiled() if path == "compiled" else EAGER)


def make(plain: Plain, parts: Parts | None = None, passes: Passes = EAGER) -> Fast:
    """The fast strategy that computes what a plain one does, by Disco."""
    parts = parts or Parts()
    disco = {name: getattr(plain.rule, name) for name in Disco.__dataclass_fields__}

    def unroll(params: Params, observations: Observations) -> Outputs:
        return network.unroll(params, observations, passes, parts.has_unique_rows)

    rule = FastDisco(**{**disco, "unroll_policy": unroll}, has_fused_losses=parts.has_fused_losses)
    return Fast(plain.network, rule, parts, passes)


@dataclass(frozen=True)
class Fast(Plain):
    """A learner step in less time, outside of meta-training."""

    parts: Parts
    passes: Passes

    def threads(self, params: Params) -> AbstractContextManager[None]:
        """Torch's threads take whole parts of the work; on an accelerator there is nothing for them to do."""
        is_on_cpu = next(iter(params.values())).device.type == "cpu"
        return parallel.worker_threads() if self.parts.has_threads and is_on_cpu else nullcontext()

    def unroll(self, params: Params, rollout: Rollout) -> Outputs:
        """All heads for T+1 steps, with a graph only of what the loss reads."""
        if not self.parts.has_taken_actions:
            return super().unroll(params, rollout)
        given = (params, rollout.observations, rollout.actions)
        return network.unroll_learning(*given, self.passes, self.parts.has_unique_rows)

    def grads(self, loss: Loss, params: Params, agent_out: Outputs, keep_graph: bool) -> tuple[Params, Logs]:
        """Gradient of the loss; no target depends on what has a graph."""
        if not isinstance(agent_out, TakenOutputs):
            return super().grads(loss, params, agent_out, keep_graph)
        total, logs = loss(agent_out)
        return agent_out.learned.grads(total, params), logs
