"""The agent: it acts, and learns from rollouts by an update rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from port import distributed, ops, optimizers, rollout_checks, update_rules
from port.config import AgentConfig, DiscoConfig, is_size
from port.distributed import Averaging
from port.fast import parallel
from port.network import MlpNetwork, Network
from port.networks import param_names
from port.networks.agent_net import Learned
from port.networks.param_names import ObsSpec
from port.types import (
    ActorTimestep,
    AdamState,
    LearnerState,
    Logs,
    Outputs,
    Params,
    Rollout,
    RuleInputs,
    Timestep,
    ValueOuts,
)

LAST_STEP = 2  # the step type of the last step of an episode


def sample_actions(logits: Tensor, gumbel_noise: Tensor) -> Tensor:
    """Samples by the Gumbel trick: logits [..., A] and standard Gumbel noise of that shape to actions [...].

    Where the logits give no distribution the action is -1, as in the original.

    Reference: distrax/_src/distributions/categorical.py::Categorical._sample_n
    """
    ops.check_tensors(gumbel_noise=gumbel_noise)
    if gumbel_noise.shape != logits.shape:
        raise ValueError(f"Noise is {tuple(gumbel_noise.shape)}; one number per logit {tuple(logits.shape)} is needed.")
    is_valid = logits.softmax(-1).isfinite().all(-1)
    draws = (logits.log_softmax(-1) + gumbel_noise).argmax(-1)
    return torch.where(is_valid, draws, -1)


def rule_inputs(
    rollout: Rollout, agent_out: Outputs, value_out: ValueOuts | None = None, learned: Outputs | None = None
) -> RuleInputs:
    """What the rule sees: rewards and terminations belong to transitions, so the first of each is left out.

    Reference: disco_rl/agent.py::Agent._loss
    """
    return RuleInputs(
        observations=rollout.observations,
        actions=rollout.actions,
        rewards=rollout.rewards[1:],
        is_terminal=rollout.discounts[1:] == 0,
        agent_out=agent_out,
        behaviour_agent_out=rollout.agent_outs,
        learned=learned,
        value_out=value_out,
    )


def _tracked(params: Params, keep_graph: bool) -> Params:
    """Parameters that gradients can be taken for, still part of the caller's graph if asked to."""
    return {k: p if keep_graph and p.requires_grad else p.detach().requires_grad_() for k, p in params.items()}


def _merged(parts: Sequence[Params], order: Params) -> Params:
    """Parameters of all parts, in the order of others."""
    found = {name: x for part in parts for name, x in part.items()}
    return {name: found[name] for name in order}


class Agent:
    """An agent with a network, an update rule and an optimiser.

    Holds configuration only; parameters and states are given and returned.

    Reference: disco_rl/agent.py::Agent
    """

    def __init__(
        self,
        config: AgentConfig,
        obs_spec: ObsSpec,
        num_actions: int,
        network: Network | None = None,
        averaging: Averaging | None = None,
    ) -> None:
        """Makes an agent for an environment.

        Args:
            config: of the agent; its `rule` says which update rule, and with it which heads the network has.
            obs_spec: shape of one observation, or a dict of shapes.
            num_actions: A.
            network: of the agent; that of `config.net` if left out. `networks.ModuleNetwork` makes one of a module.
            averaging: over ranks, where several learn together, each from rollouts of its own.
        """
        if num_actions < 1:
            raise ValueError(f"An agent needs at least one action; got {num_actions}.")
        if not (is_size(num_actions) and is_size(param_names.observation_size(obs_spec))):
            raise ValueError(f"An agent needs observations and actions; got {obs_spec} and {num_actions}.")
        self.config, self.obs_spec, self.num_actions = config, obs_spec, num_actions
        self.network = network or MlpNetwork(config, obs_spec, num_actions)
        self.averaging = averaging
        self.rule = update_rules.make(config, self.network.unroll, averaging)
        self.shapes = self.network.shapes

    def initial_learner_state(self, generator: torch.Generator, dtype: torch.dtype) -> LearnerState:
        """Fresh parameters, optimiser and memory of the rule, on the generator's device.

        Reference: disco_rl/agent.py::Agent.initial_learner_state
        """
        return self.learner_state(self.network.init(generator, dtype))

    def learner_state(self, params: Params) -> LearnerState:
        """The state of a learner that starts from the given parameters."""
        param_names.check_shapes(params, self.shapes, "agent's parameters")
        return LearnerState(params, optimizers.init_adam(params), self.rule.init_meta_state(params))

    @torch.no_grad()
    def actor_step(self, params: Params, timestep: Timestep, gumbel_noise: Tensor) -> ActorTimestep:
        """Acts on a batch of observations.

        Args:
            params: of the agent.
            timestep: what the environments show, [B, ...].
            gumbel_noise: [B, A], standard Gumbel noise.

        Returns:
            The actions with all that a rollout keeps of this step.

        Reference: disco_rl/agent.py::Agent.actor_step
        """
        param_names.check_shapes(params, self.shapes, "agent's parameters")
        outs = self.network.step(params, timestep.observation)
        return ActorTimestep(
            observations=timestep.observation,
            actions=sample_actions(outs["logits"], gumbel_noise),
            rewards=timestep.reward,
            discounts=timestep.step_type != LAST_STEP,
            agent_outs=outs,
            logits=outs["logits"],
        )

    def loss(
        self,
        rollout: Rollout,
        agent_out: Outputs,
        meta_out: Mapping[str, Any],
        is_meta_training: bool = False,
        learned: Outputs | None = None,
    ) -> tuple[Tensor, Logs]:
        """The agent's loss, averaged over all steps but those that follow the end of an episode.

        Args:
            rollout: T+1 steps.
            agent_out: outputs of the online network, [T+1, B, ...] each.
            meta_out: what the rule made of the rollout, as of its `unroll_meta_net`.
            is_meta_training: whether gradients flow into the targets.
            learned: outputs that the loss learns on, if they are not to be taken from `agent_out`; see `RuleInputs`.

        Returns:
            The loss and logs, scalars.

        Reference: disco_rl/agent.py::Agent._loss
        """
        inputs = rule_inputs(rollout, agent_out, learned=learned)
        per_step, logs = self.rule.agent_loss(inputs, meta_out, backprop=is_meta_training)
        value_per_step, value_logs = self.rule.agent_loss_no_meta(inputs, meta_out)
        counts = (rollout.discounts[:-1] > 0).to(per_step.dtype)  # [T, B]
        total = ((per_step + value_per_step) * counts).sum() / (counts.sum() + 1e-8)
        return total, {"total_loss": total, **value_logs, **logs}

    def loss_and_grads(
        self,
        params: Params,
        rollout: Rollout,
        meta_out: Mapping[str, Any],
        is_meta_training: bool = False,
        agent_out: Outputs | None = None,
    ) -> tuple[Params, Logs]:
        """Gradient of the loss for the parameters, with the targets held constant.

        The targets may themselves depend on the network's outputs. So the loss is taken on aliases of the outputs: its
        gradient for the aliases is the partial one, and one more product carries it back to the parameters. That way a
        single forward pass serves both the targets and the loss.

        Args:
            params: of the agent.
            rollout: T+1 steps.
            meta_out: what the rule made of the rollout, as of its `unroll_meta_net`.
            is_meta_training: whether the gradients can be differentiated further.
            agent_out: outputs of the network for `params`, with their graph, if there already.

        Returns:
            Gradients by parameter, and logs.

        Reference: disco_rl/agent.py::Agent._loss
        """
        with torch.enable_grad():
            if agent_out is None:
                params = _tracked(params, is_meta_training)
                agent_out = self.network.unroll(params, rollout.observations)
            alias = {head: x.view_as(x) for head, x in agent_out.items()}
            total, logs = self.loss(rollout, alias, meta_out, is_meta_training)
            partial = torch.autograd.grad(
                total, list(alias.values()), create_graph=is_meta_training, materialize_grads=True
            )
            grads = torch.autograd.grad(
                list(agent_out.values()), list(params.values()), partial, create_graph=is_meta_training
            )
        if not is_meta_training:
            logs = {name: x.detach() for name, x in logs.items()}
        return dict(zip(params, grads, strict=True)), logs

    def _loss_and_grads_of(
        self, params: Params, rollout: Rollout, meta_out: Mapping[str, Any], agent_out: Outputs, learned: Learned
    ) -> tuple[Params, Logs]:
        """`loss_and_grads` where only what the loss learns on has a graph, and no target depends on it."""
        with torch.enable_grad():
            total, logs = self.loss(rollout, agent_out, meta_out, learned=learned)
            grads = learned.grads(total, params)
        return grads, {name: x.detach() for name, x in logs.items()}

    def learner_step(
        self,
        rollout: Rollout,
        state: LearnerState,
        meta_params: Params | None = None,
        is_meta_training: bool = False,
        value_out: ValueOuts | None = None,
    ) -> tuple[LearnerState, Logs]:
        """Learns from one rollout.

        With `is_meta_training`, results can be differentiated for meta-parameters and for every tensor of the state
        that requires a gradient; without, nothing that comes out carries a graph.

        Args:
            rollout: T+1 steps.
            state: of the learner.
            meta_params: of the rule, if it has a meta-network.
            is_meta_training: whether to keep the graph.
            value_out: estimates of a value function outside the agent, for the rule that needs them.

        Returns:
            The new state, and logs: scalars, and what the rule made of the rollout as `meta_out`.

        Reference: disco_rl/agent.py::Agent.learner_step
        """
        rollout_checks.check_rollout(rollout)
        rollout_checks.check_policy(rollout, self.num_actions)
        self._check_state(state)
        self.rule.check_meta_params(meta_params)
        rollout_checks.check_dtypes(rollout, state.params, meta_params)
        is_on_cpu = next(iter(state.params.values())).device.type == "cpu"
        with parallel.team() if is_on_cpu and self._learns_fast and not is_meta_training else nullcontext():
            return self._learn(rollout, state, meta_params, is_meta_training, value_out)

    def _learn(
        self,
        rollout: Rollout,
        state: LearnerState,
        meta_params: Params | None,
        is_meta_training: bool,
        value_out: ValueOuts | None,
    ) -> tuple[LearnerState, Logs]:
        """`learner_step` for what has been looked at."""
        with torch.enable_grad():
            params = _tracked(state.params, is_meta_training)
            agent_out, learned = self._unroll(params, rollout, is_meta_training)
        with torch.set_grad_enabled(is_meta_training):
            has_graph = not is_meta_training and learned is None
            seen = {head: x.detach() for head, x in agent_out.items()} if has_graph else agent_out
            inputs = rule_inputs(rollout, seen, value_out)
            meta_out, meta_state = self.rule.unroll_meta_net(meta_params or {}, params, state.meta_state, inputs)
            if learned is None:
                grads, logs = self.loss_and_grads(params, rollout, meta_out, is_meta_training, agent_out)
            else:
                grads, logs = self._loss_and_grads_of(params, rollout, meta_out, agent_out, learned)
            grads = distributed.averaged_params(self.averaging, grads)
            new_params, updates, opt_state = self._updated(params, grads, state.opt_state)
            logs["global_gradient_norm"] = optimizers.global_norm(grads)
            logs["global_update_norm"] = optimizers.global_norm(updates)
            logs["meta_out"] = meta_out
        return LearnerState(new_params, opt_state, meta_state), logs

    def _updated(self, params: Params, grads: Params, state: AdamState) -> tuple[Params, Params, AdamState]:
        """Parameters after a step of the optimiser, the updates that made them, and the optimiser's state."""

        def update(names: Sequence[str]) -> tuple[Params, Params, AdamState]:
            own, of, mu, nu = ({name: x[name] for name in names} for x in (params, grads, state.mu, state.nu))
            directions, moved = optimizers.adam_sg(of, AdamState(state.count, mu, nu))
            updates = optimizers.clip_and_scale(directions, self.config.max_abs_update, self.config.learning_rate)
            return optimizers.apply_updates(own, updates), updates, moved

        shares = parallel.shares({name: p.numel() for name, p in params.items()})
        done = list(parallel.side_by_side({i: partial(update, names) for i, names in enumerate(shares)}).values())
        new_params, updates, moved = zip(*done, strict=True)
        mu, nu = (_merged([getattr(x, field) for x in moved], params) for field in ("mu", "nu"))
        return _merged(new_params, params), _merged(updates, params), AdamState(moved[0].count, mu, nu)

    @property
    def _learns_fast(self) -> bool:
        """Whether the network can learn on what Disco's loss reads alone."""
        return hasattr(self.network, "unroll_learning") and isinstance(self.config.rule, DiscoConfig)

    def _unroll(self, params: Params, rollout: Rollout, is_meta_training: bool) -> tuple[Outputs, Learned | None]:
        """Outputs of the network, and, if only that has a graph, what the loss learns on.

        Disco's loss reads of its action model only what it says of the actions taken. Meta-gradients need the rest too.
        """
        if is_meta_training or not self._learns_fast:
            return self.network.unroll(params, rollout.observations), None
        network: Any = self.network
        every, learned = network.unroll_learning(params, rollout.observations, rollout.actions)
        return every, learned

    def _check_state(self, state: LearnerState) -> None:
        """Raises ValueError or TypeError where a state is not of this agent; its numbers are not looked at."""
        if not isinstance(state, LearnerState):
            raise TypeError(
                f"The state is {type(state).__name__}; give what initial_learner_state or the last step gave."
            )
        param_names.check_shapes(state.params, self.shapes, "agent's parameters")
        if not isinstance(state.opt_state, AdamState):
            raise TypeError(f"The optimiser's state is {type(state.opt_state).__name__}; optim.init_adam makes one.")
        param_names.check_shapes(state.opt_state.mu, self.shapes, "optimiser's first moments")
        param_names.check_shapes(state.opt_state.nu, self.shapes, "optimiser's second moments")
        self.rule.check_meta_state(state.meta_state, state.params)
