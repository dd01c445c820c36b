"""The agent: it acts, and learns from rollouts by an update rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from port import distributed, ops, optimizers, rollout_checks, update_rules
from port.config import AgentConfig, is_size
from port.distributed import Averaging
from port.fast import learner
from port.network import MlpNetwork, Network
from port.networks import param_names
from port.networks.param_names import ObsSpec
from port.strategy import Plain
from port.types import (
    LAST_STEP,
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
from port.update_rules.base import UpdateRule


def sample_actions(logits: Tensor, gumbel_noise: Tensor) -> Tensor:
    """Samples by the Gumbel trick: logits [..., A] and standard Gumbel noise of that shape to actions [...].

    Where the logits give no distribution the action is -1, as in the original.

    Reference: distrax/_src/distributions/categorical.py::Categorical._sample_n
    """
    ops.check_tensors(gumbel_noise=gumbel_noise)
    if gumbel_noise.shape != logits.shape:
        raise ValueError(f"Noise is {tuple(gumbel_noise.shape)}; one number per logit {tuple(logits.shape)} is needed.")
    is_valid = logits.softmax(-1).isfinite().all(-1)
    draws = ops.gumbel_argmax(logits.log_softmax(-1), gumbel_noise)
    return torch.where(is_valid, draws, -1)


def rule_inputs(rollout: Rollout, agent_out: Outputs, value_out: ValueOuts | None = None) -> RuleInputs:
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
        value_out=value_out,
    )


def _tracked(params: Params, keep_graph: bool) -> Params:
    """Parameters that gradients can be taken for, still part of the caller's graph if asked to."""
    return {k: p if keep_graph and p.requires_grad else p.detach().requires_grad_() for k, p in params.items()}


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
        path: str = "auto",
    ) -> None:
        """Makes an agent for an environment.

        Args:
            config: of the agent; its `rule` says which update rule, and with it which heads the network has.
            obs_spec: shape of one observation, or a dict of shapes.
            num_actions: A.
            network: of the agent; that of `config.net` if left out. `networks.ModuleNetwork` makes one of a module.
            averaging: over ranks, where several learn together, each from rollouts of its own.
            path: how a learner step is computed; its numbers are the same up to rounding. `plain` is the algorithm as
                it stands here, `fast` and `compiled` are those of `port.fast`, and `auto` is `fast` where that works:
                for Disco with the network of `config.net`. Meta-training always takes the plain path.
        """
        if num_actions < 1:
            raise ValueError(f"An agent needs at least one action; got {num_actions}.")
        if not (is_size(num_actions) and is_size(param_names.observation_size(obs_spec))):
            raise ValueError(f"An agent needs observations and actions; got {obs_spec} and {num_actions}.")
        self.config, self.obs_spec, self.num_actions = config, obs_spec, num_actions
        self.network = network or MlpNetwork(config, obs_spec, num_actions)
        self.averaging = averaging
        self.rule = update_rules.make(config, self.network.unroll, averaging)
        self.plain = Plain(self.network, self.rule)
        self.strategy = learner.choose(path, self.plain)
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
        rule: UpdateRule | None = None,
    ) -> tuple[Tensor, Logs]:
        """The agent's loss, averaged over all steps but those that follow the end of an episode.

            L = sum_t c_t (L_rule[t] + L_value[t]) / (sum_t c_t + 1e-8),  c_t = 1 unless step t ended an episode

        Args:
            rollout: T+1 steps.
            agent_out: outputs of the online network, [T+1, B, ...] each.
            meta_out: what the rule made of the rollout, as of its `unroll_meta_net`.
            is_meta_training: whether gradients flow into the targets.
            rule: that computes it; the agent's if left out.

        Returns:
            The loss and logs, scalars.

        Reference: disco_rl/agent.py::Agent._loss
        """
        rule, inputs = rule or self.rule, rule_inputs(rollout, agent_out)
        per_step, logs = rule.agent_loss(inputs, meta_out, backprop=is_meta_training)
        value_per_step, value_logs = rule.agent_loss_no_meta(inputs, meta_out)
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

        Args:
            params: of the agent.
            rollout: T+1 steps.
            meta_out: what the rule made of the rollout, as of its `unroll_meta_net`.
            is_meta_training: whether the gradients can be differentiated further.
            agent_out: outputs for `params` that the strategy's `unroll` gave, if there already.

        Returns:
            Gradients by parameter, and logs.

        Reference: disco_rl/agent.py::Agent._loss
        """
        strategy = self.plain if is_meta_training else self.strategy

        def loss(outputs: Outputs) -> tuple[Tensor, Logs]:
            return self.loss(rollout, outputs, meta_out, is_meta_training, strategy.rule)

        with torch.enable_grad():
            if agent_out is None:
                params = _tracked(params, is_meta_training)
                agent_out = strategy.unroll(params, rollout)
            grads, logs = strategy.grads(loss, params, agent_out, is_meta_training)
        return grads, logs if is_meta_training else {name: x.detach() for name, x in logs.items()}

    def learner_step(
        self,
        rollout: Rollout,
        state: LearnerState,
        meta_params: Params | None = None,
        is_meta_training: bool = False,
        value_out: ValueOuts | None = None,
    ) -> tuple[LearnerState, Logs]:
        """Learns from one rollout: targets from the rule, the gradient of the loss against them, one step of Adam.

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
        self._check(rollout, state, meta_params)
        strategy = self.plain if is_meta_training else self.strategy
        with strategy.threads(state.params), torch.set_grad_enabled(is_meta_training):
            params = _tracked(state.params, is_meta_training)
            with torch.enable_grad():
                agent_out = strategy.unroll(params, rollout)
            inputs = rule_inputs(rollout, agent_out, value_out)
            meta_out, meta_state = strategy.rule.unroll_meta_net(meta_params or {}, params, state.meta_state, inputs)
            grads, logs = self.loss_and_grads(params, rollout, meta_out, is_meta_training, agent_out)
            grads = distributed.averaged_params(self.averaging, grads)
            speeds = (self.config.learning_rate, self.config.max_abs_update)
            new_params, updates, opt_state = optimizers.update(params, grads, state.opt_state, *speeds)
            logs["global_gradient_norm"] = optimizers.global_norm(grads)
            logs["global_update_norm"] = optimizers.global_norm(updates)
            logs["meta_out"] = meta_out
        return LearnerState(new_params, opt_state, meta_state), logs

    def _check(self, rollout: Rollout, state: LearnerState, meta_params: Params | None) -> None:
        """Raises an error where what a learner step is given does not fit together."""
        rollout_checks.check_rollout(rollout)
        rollout_checks.check_policy(rollout, self.num_actions)
        self._check_state(state)
        self.rule.check_meta_params(meta_params)
        rollout_checks.check_dtypes(rollout, state.params, meta_params)

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
