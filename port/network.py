"""The networks that an agent can have: the original's MLP, or any module that gives the heads that the rule reads.

A network is given its parameters with every call, because target networks and resumed runs bring their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from port import update_rules
from port.config import AgentConfig
from port.networks import agent_net, init, param_names
from port.networks.param_names import ObsSpec, Shapes
from port.types import Heads, Observations, Outputs, Params

LEAVES_CHANCE_OR_STATE = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class Network(Protocol):
    """What an agent asks of a network."""

    @property
    def shapes(self) -> Shapes:
        """Shapes of its parameters, by name."""
        ...

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        """Fresh parameters, on the generator's device."""
        ...

    def step(self, params: Params, observations: Observations) -> Outputs:
        """All heads for observations [B, ...]."""
        ...

    def unroll(self, params: Params, observations: Observations) -> Outputs:
        """All heads for observations [T+1, B, ...]."""
        ...

    def policy(self, params: Params) -> Callable[[Observations], Tensor]:
        """A function from observations [B, ...] to logits [B, A]."""
        ...


def shapes_of_agent(config: AgentConfig, obs_spec: ObsSpec, num_actions: int) -> Shapes:
    """Shapes of the agent's parameters for an environment."""
    features = param_names.observation_size(obs_spec)
    return param_names.agent_shapes(config.net, features, num_actions, update_rules.make(config).heads(num_actions))


def init_agent_params(
    config: AgentConfig, obs_spec: ObsSpec, num_actions: int, generator: torch.Generator, dtype: torch.dtype
) -> Params:
    """Fresh parameters of an agent, by our names, on the generator's device."""
    shapes = shapes_of_agent(config, obs_spec, num_actions)
    return init.draw_params(shapes, init.agent_stds(config, shapes), generator, dtype)


@dataclass(frozen=True)
class MlpNetwork:
    """The original's network: an MLP on the flattened observation, heads, and an action model if the rule asks for one.

    Reference: disco_rl/networks/nets.py::MLP
    """

    config: AgentConfig
    obs_spec: ObsSpec
    num_actions: int

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of the parameters by name."""
        return shapes_of_agent(self.config, self.obs_spec, self.num_actions)

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        """Fresh parameters with Haiku's distributions."""
        return init_agent_params(self.config, self.obs_spec, self.num_actions, generator, dtype)

    def step(self, params: Params, observations: Observations) -> Outputs:
        """All heads for observations [B, ...]."""
        return agent_net.step(params, observations)

    def unroll(self, params: Params, observations: Observations) -> Outputs:
        """All heads for observations [T+1, B, ...]."""
        return agent_net.unroll(params, observations)

    def policy(self, params: Params) -> Callable[[Observations], Tensor]:
        """A function from observations [B, ...] to logits [B, A]."""
        return agent_net.policy(params)


class ModuleNetwork:
    """A network of the caller's own: any module from observations [N, ...] to a dict with the rule's heads.

    The module itself is never changed. Its parameters are where learning starts; those that require no gradient or
    that no head depends on, and buffers, stay as they are.

    Attributes:
        shapes: of the parameters that learn, by name.
        constants: what stays as it is, by name.
    """

    def __init__(self, module: nn.Module, config: AgentConfig, num_actions: int, example: Observations) -> None:
        """Takes a module and tries it; ValueError says what does not fit.

        Args:
            module: for Disco it must give logits [N, A], y [N, P], z [N, A, P], aux_pi [N, A, A] and q [N, A, K]; for
                actor-critic logits [N, A] and v [N, K]. It may not keep a state, nor leave anything to chance.
            config: of the agent, whose rule says which heads.
            num_actions: A.
            example: observations [N, ...] to try the module on, such as zeros.
        """
        _check_is_function(module)
        self._module, self._heads = module, update_rules.make(config).heads(num_actions)
        learns = _learning(module, self._heads, num_actions, example)
        self._start = {name: p.detach().clone() for name, p in module.named_parameters() if name in learns}
        constants = {name: p.detach().clone() for name, p in module.named_parameters() if name not in learns}
        self.constants: Params = {**constants, **{name: x.clone() for name, x in module.named_buffers()}}
        self.shapes: Shapes = {name: tuple(p.shape) for name, p in self._start.items()}

    def init(self, generator: torch.Generator, dtype: torch.dtype) -> Params:
        """The module's own parameters: it has made its choices already, so the generator is not drawn from."""
        self.constants = {
            name: x.to(generator.device, dtype if x.is_floating_point() else x.dtype)
            for name, x in self.constants.items()
        }
        return {name: p.clone().to(generator.device, dtype) for name, p in self._start.items()}

    def step(self, params: Params, observations: Observations) -> Outputs:
        """The rule's heads for observations [N, ...]."""
        out = torch.func.functional_call(self._module, {**self.constants, **params}, (observations,))
        return {head: out[head] for head in (*self._heads.flat, *self._heads.model)}

    def unroll(self, params: Params, observations: Observations) -> Outputs:
        """The rule's heads for observations [T+1, B, ...]; the network has no memory."""
        lead = agent_net.leaves(observations)[0].shape[:2]
        out = self.step(params, _map(lambda x: x.flatten(0, 1), observations))
        return {head: x.unflatten(0, lead) for head, x in out.items()}

    def policy(self, params: Params) -> Callable[[Observations], Tensor]:
        """A function from observations [B, ...] to logits [B, A]."""
        return lambda observations: self.step(params, observations)["logits"]


def _learning(module: nn.Module, heads: Heads, num_actions: int, example: Observations) -> set[str]:
    """Names of the parameters that the heads depend on; ValueError where a head is not as it must be."""
    params = {name: p.detach().requires_grad_() for name, p in module.named_parameters() if p.requires_grad}
    if not params:
        raise ValueError("The module has no parameter that requires a gradient; there is nothing to learn.")
    with torch.enable_grad():
        try:
            out = torch.func.functional_call(module, params, (example,))
        except RuntimeError as problem:
            seen = ", ".join(str(tuple(x.shape)) for x in agent_net.leaves(example))
            raise ValueError(f"The module cannot take observations of {seen}: {problem}") from problem
        check_heads(out, heads, num_actions, len(agent_net.leaves(example)[0]))
        given = {head: out[head] for head in (*heads.flat, *heads.model)}
        idle = [head for head, x in given.items() if not x.requires_grad]
        if idle:
            raise ValueError(f"The head {idle[0]} does not depend on the module's parameters; it cannot learn.")
        total = torch.stack([x.sum() for x in given.values()]).sum()
        grads = torch.autograd.grad(total, list(params.values()), allow_unused=True)
    return {name for name, grad in zip(params, grads, strict=True) if grad is not None}


def check_heads(out: Any, heads: Heads, num_actions: int, batch: int) -> None:
    """Raises ValueError where a module's output for `batch` observations is not what a rule reads."""
    wanted: Shapes = {name: (batch, width) for name, width in heads.flat.items()}
    wanted |= {name: (batch, num_actions, width) for name, width in heads.model.items()}
    table = ", ".join(f"{name} {('N', *shape[1:])}".replace("'", "") for name, shape in wanted.items())
    if not isinstance(out, Mapping):
        raise ValueError(f"The module gives a {type(out).__name__}; it must give a dict with {table}.")
    missing = [name for name in wanted if name not in out]
    if missing:
        raise ValueError(
            f"The module gives no {', '.join(missing)}; the rule reads {table}. `port.WithHeads` adds all heads to a "
            "plain torso."
        )
    for name, shape in wanted.items():
        got = out[name]
        if not isinstance(got, Tensor) or tuple(got.shape) != shape or not got.is_floating_point():
            what = f"{got.dtype} {tuple(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
            raise ValueError(f"For {batch} observations the head {name} must be floats of {shape}; got {what}.")


def _check_is_function(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, LEAVES_CHANCE_OR_STATE):
            raise ValueError(
                f"The module's part {name or 'itself'} is a {type(part).__name__}, which changes or draws with every "
                "call; learning by a target network needs the same output for the same input. LayerNorm does not."
            )


def _map(function: Callable[[Tensor], Tensor], observations: Observations) -> Observations:
    if isinstance(observations, Mapping):
        return {key: _map(function, x) for key, x in observations.items()}
    return function(observations)


class WithHeads(nn.Module):
    """A plain torso, observations [N, ...] to embeddings [N, E], with all the heads that a rule reads.

    The heads are the original's: linear ones for logits and y (or v), and an LSTM asked once per action for the others.
    """

    def __init__(
        self, torso: nn.Module, embedding_size: int, config: AgentConfig, num_actions: int, seed: int = 0
    ) -> None:
        """Adds fresh heads.

        Args:
            torso: a module from observations [N, ...] to [N, E].
            embedding_size: E.
            config: of the agent; its rule says which heads, its `net` how large.
            num_actions: A.
            seed: of the heads' parameters.
        """
        super().__init__()
        self.torso, self.embedding_size = torso, embedding_size
        dtype = next((p.dtype for p in torso.parameters()), torch.float32)
        net, heads = replace(config.net, dense=(embedding_size,)), update_rules.make(config).heads(num_actions)
        every = param_names.agent_shapes(net, embedding_size, num_actions, heads)
        shapes = {name: shape for name, shape in every.items() if not name.startswith("torso/")}
        generator, stds = torch.Generator().manual_seed(seed), init.agent_stds(config, shapes)
        self._names = list(shapes)
        for name, p in init.draw_params(shapes, stds, generator, dtype).items():
            self.register_parameter(name, nn.Parameter(p))

    def forward(self, observations: Observations) -> Outputs:
        """All heads, [N, ...] each."""
        embedding = self.torso(observations)
        lead = len(agent_net.leaves(observations)[0])
        if not isinstance(embedding, Tensor) or tuple(embedding.shape) != (lead, self.embedding_size):
            got = tuple(embedding.shape) if isinstance(embedding, Tensor) else type(embedding).__name__
            raise ValueError(f"The torso must give [N, E] = {(lead, self.embedding_size)}; got {got}.")
        return agent_net.heads({name: getattr(self, name) for name in self._names}, embedding)
