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

    Where logits are NaN or infinite, so that they give no distribution, the action is -1 as in the original.

    Reference: distrax/_src/distributions/categorical.py::Categorical._sample_n
    """
    ops.check_tensors(gumbel_noise=gumbel_noise)
    if gumbel_noise.shape != logits.shape:
        raise ValueError(f"Noise is {tuple(gumbel_noise.shape)}; one number per logit {tuple(logits.shape)} is needed.")
    is_valid = logits.softmax(-1).isfinite().all(-1)
    draws = ops.gumbel_argmax(logits.log_softmax(-1), gumbel_noise)
    return torch.where(is_valid, draws, -1)


def rule_inputs(rollout: Rollout, agent_out: Outputs, value_out: ValueOuts | None = None) -> RuleInputs:
    """What the rule sees. A rollout's reward and discount at step t are of the transition into t; step 0 has none.

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
    """Parameters to take gradients for: leaves, or with `keep_graph` what the caller already tracks."""
    return {k: p if keep_graph and p.requires_grad else p.detach().requires_grad_() for k, p in params.items()}


class Agent:
    """An agent with a network, an update rule and an optimiser; parameters and states are arguments and results.

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
            config: of the agent; its `rule` selects the update rule, and with it the heads of the network.
            obs_spec: shape of one observation, or a dict of shapes.
            num_actions: A.
            network: of the agent; that of `config.net` if left out. `network.ModuleNetwork` makes one of a module.
            averaging: over ranks, where several processes learn together, each from its own rollouts.
            path: `plain` computes a learner step as written here. `fast` and `compiled` (`port.fast`) give the same
                numbers up to rounding, for Disco with the network of `config.net`. `auto` is `fast` where that works,
                else `plain`. Meta-training is always plain.
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
        """Fresh parameters, optimiser state and state of the rule, on the generator's device.

        Reference: disco_rl/agent.py::Agent.initial_learner_state
        """
        return self.learner_state(self.network.init(generator, dtype))

    def learner_state(self, params: Params) -> LearnerState:
        """The state of a learner that starts from the given parameters."""
        param_names.check_shapes(params, self.shapes, "agent's parameters")
        return LearnerState(params, optimizers.init_adam(params), self.rule.init_meta_state(params))

    @torch.no_grad()
    def actor_step(self, params: Params, timestep: Timestep, gumbel_noise: Tensor) -> ActorTimestep:
        """Samples an action for each observation [B, ...], with standard Gumbel noise [B, A].

        Returns:
            One step of a rollout: actions, and the network's outputs that they were sampled from.

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
        """The agent's loss: the mean over transitions that stay within an episode.

            L = sum_t c_t (L_rule[t] + L_value[t]) / (sum_t c_t + 1e-8)

        with c_t = 0 where step t is the last of its episode (its action only leads to a reset), else 1.

        Args:
            rollout: T+1 steps.
            agent_out: outputs of the online network, [T+1, B, ...] each.
            meta_out: targets and value estimates, from the rule's `unroll_meta_net`.
            is_meta_training: whether gradients flow into the targets.
            rule: computes L_rule and L_value; the agent's rule if left out.

        Returns:
            The loss, and logs; all scalars.

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
        """Gradient of the loss by parameter, with the targets held constant; and logs.

        With `is_meta_training` the gradient can be differentiated again. `agent_out`, the online network's outputs, is
        computed unless `learner_step` has done so.

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

        Args:
            rollout: T+1 steps.
            state: of the learner.
            meta_params: of the rule, if it has a meta-network.
            is_meta_training: whether results can be differentiated, for the meta-parameters and for each tensor of the
                state that requires a gradient. Otherwise they carry no graph.
            value_out: estimates of a separate value function, for the policy-gradient rule.

        Returns:
            The new state, and logs: scalars, and the rule's targets and value estimates as `meta_out`.

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
            sizes = (self.config.learning_rate, self.config.max_abs_update)  # of a step
            new_params, updates, opt_state = optimizers.update(params, grads, state.opt_state, *sizes)
            logs["global_gradient_norm"] = optimizers.global_norm(grads)
            logs["global_update_norm"] = optimizers.global_norm(updates)
            logs["meta_out"] = meta_out
        return LearnerState(new_params, opt_state, meta_state), logs

    def _check(self, rollout: Rollout, state: LearnerState, meta_params: Params | None) -> None:
        """Raises an error where the arguments of a learner step do not fit together, or are not finite."""
        rollout_checks.check_rollout(rollout)
        rollout_checks.check_policy(rollout, self.num_actions)
        self._check_state(state)
        self.rule.check_meta_params(meta_params)
        rollout_checks.check_params(rollout, state.params, meta_params)

    def _check_state(self, state: LearnerState) -> None:
        """Raises ValueError or TypeError where a state is not of this agent; its numbers are not checked."""
        if not isinstance(state, LearnerState):
            raise TypeError(f"The state is {type(state).__name__}; initial_learner_state makes one.")
        param_names.check_shapes(state.params, self.shapes, "agent's parameters")
        adam = state.opt_state
        if not isinstance(adam, AdamState):
            raise TypeError(f"The optimiser's state is {type(adam).__name__}; optimizers.init_adam makes one.")
        param_names.check_shapes(adam.mu, self.shapes, "optimiser's first moments")
        param_names.check_shapes(adam.nu, self.shapes, "optimiser's second moments")
        self.rule.check_meta_state(state.meta_state, state.params)
