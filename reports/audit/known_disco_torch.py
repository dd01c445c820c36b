"""Where `disco-torch` departs from the original, in any of its releases. It imports nothing of the package."""

from __future__ import annotations

from reports.audit.causes import Cause, Shown

DISTRIBUTION = "disco-torch"
VALUE_UTILS = "disco_rl/value_fns/value_utils.py"

OUTSIDE = (
    "The language-model adapter (adapter.py, grpo.py), which has no counterpart in the original; the replay buffer and "
    "the sampling of actions, which draw their own random numbers; and the repository's examples, its agent network "
    "among them, which are not part of the distribution."
)
CONVENTIONS = (
    "collect_rollout(rollout_len=L) makes L transitions; the original learns from L - 1 transitions of a rollout of L "
    "steps. Neither is wrong; for the same number of transitions, give L - 1.",
)

NO_TRAINER = "this release has no trainer; the loop around the rule is its user's"
USERS_NETWORK = "the package leaves the agent's network to its user"
ONLY_DISCO = "the package has the Disco rule only"
IN_THE_VALUE_LOSS = "written out inside agent_loss_no_meta, and judged there"
REASONS = {
    "transforms/sign_hyp": "not among the package's transforms; Disco103's inputs do not use it",
    "transforms/normalize": "not among the package's transforms; Disco103's inputs do not use it",
    "ops/entropy": "not in the package; the Disco rule only logs it",
    "nets/action_model": USERS_NETWORK,
    "nets/agent": USERS_NETWORK,
    "nets/agent_init": USERS_NETWORK,
    "values/loss_from_target": IN_THE_VALUE_LOSS,
    "values/loss_from_td": IN_THE_VALUE_LOSS,
    "meta/init": "the package loads trained weights and has no initialisation like the original's",
    "optim/adam": "this release has no optimiser of its own",
    "optim/update": NO_TRAINER,
    "agent/actor_step": "collect_rollout, where there is one, draws its own random numbers; noise cannot be handed in",
    "agent/loss": NO_TRAINER,
    "agent/learner_step": NO_TRAINER,
    "agent/learner_steps": NO_TRAINER,
    "ops/policy_gradient_loss": ONLY_DISCO,
    "actor_critic/unroll": ONLY_DISCO,
    "actor_critic/agent_loss": ONLY_DISCO,
    "policy_gradient/loss": ONLY_DISCO,
    "agent/actor_critic_step": ONLY_DISCO,
}
NO_REASON = "the adapter knows no counterpart in the package"

ESTIMATE = """\
outs = value_utils.estimate_q_values(
    x["rewards"], x["actions"], x["continues"], x["rho"], x["target_values"], x["target_values"],
    x["target_q_values"], x["target_q_values"], SETTINGS["discount"], SETTINGS["lambda"],
)
"""
VTRACE = """\
columns = [
    value_utils.vtrace_td_error_and_advantage(
        x["target_values"][:-1, b], x["target_values"][1:, b], x["rewards"][:, b],
        x["continues"][:, b] * SETTINGS["discount"], x["rho"][:, b], lambda_=SETTINGS["lambda"],
    )
    for b in range(x["rewards"].shape[1])
]
errors, advantages = (torch.stack(parts, dim=1) for parts in zip(*columns))
"""
LEARNER = """\
class Agent(torch.nn.Module):
    \"\"\"Answers with the outputs that the recorded network has on this rollout; one bias may move.\"\"\"

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(SETTINGS["A"]))

    def forward(self, observations, should_reset):
        heads = {name: x["agent_out/" + name] for name in ("logits", "y", "z", "q", "aux_pi")}
        return {**heads, "logits": heads["logits"] + self.bias}


class NoStep:
    def zero_grad(self):
        pass

    def step(self):
        pass


rule = DiscoUpdateRule(SETTINGS["P"], max_abs_value=SETTINGS["max_abs_value"], num_bins=SETTINGS["K"])
targets = {name: x["meta_out/" + name] for name in ("pi", "y", "z", "q_td")}
rule.unroll_meta_net = lambda *unused: (targets, {"target_params": {}})
trainer = DiscoTrainer.__new__(DiscoTrainer)  # its constructor would load weights that play no part here
trainer.agent, trainer.rule, trainer.optimizer, trainer._meta_state = Agent(), rule, NoStep(), {}
trainer.hyper_params = {name: SETTINGS[name] for name in SETTINGS if name.endswith("_cost")}
trainer._unroll_fn = None
logs = trainer._gradient_step(
    {
        "observations": x["rollout/observations"],
        "actions": x["rollout/actions"],
        "rewards": x["rollout/rewards"][1:],
        "discounts": x["rollout/discounts"][1:].to(DTYPE),
        "agent_out": {"logits": x["rollout/logits"]},
        # The discount at each first observation: not read by the package, which has no name for it yet.
        "previous_discounts": x["rollout/discounts"][:-1],
    }
)
"""
POLICY_BIAS = "grads/mlp/~_head_pass/torso_head/~/linear_0/b"
TRAINER_IMPORTS = "from disco_torch import DiscoTrainer, DiscoUpdateRule"
NETWORK = (
    "The agent network's outputs (agent_out) were computed by disco-parity's port, which is equal to the original's."
)

CAUSES = (
    Cause(
        name="retrace_index",
        title="Retrace's traces and action values are taken one step too late",
        module="value_utils.py",
        edits=((r"min\(t \+ 2, T - 1\)", "t + 1"),),
        original=VALUE_UTILS + "::estimate_q_values",
        says="The trace coefficient and the action value of step t+1 are read at t+2. A comment there attributes this "
        "to an off-by-one of the original. The original's recorded outputs agree with t+1: rlax counts q_t and c_t "
        "from time 1, which together with the dummy first reward gives the textbook alignment. Release 0.2.0 had t+1.",
        right="G[t] = r[t] + d[t] * (V[t+1] + c[t+1] * (G[t+1] - Q[t+1, a[t+1]]))",
        means="Value targets, advantages and TD errors of rollouts of three transitions or more differ, and with them "
        "what the meta-network sees and what the value head learns.",
        shown=Shown(
            *("values/retrace", "B1", "q_target", "value", "float64"),
            "from disco_torch import value_utils",
            ESTIMATE + "got = outs.q_target",
        ),
    ),
    Cause(
        name="first_step_counted",
        title="The loss counts a rollout's first step even right after an episode's end",
        module="trainer.py",
        edits=((r"masks = 1\.0 - shift", 'masks = (batch["previous_discounts"] > 0).to(is_terminal.dtype)'),),
        original="disco_rl/agent.py::Agent._loss",
        says="As in the original, the loss leaves out the first step after an episode's end; but not where it is also "
        "the first step of a rollout, because the trainer's batch has no place for the discount at the first "
        "observation. The original's rollouts carry it.",
        right="weights = discounts[:-1] > 0, with discounts[0] that of the first observation",
        means="Rollouts that begin right after an episode's end are affected: one more step is learned from and the "
        "average is taken over one more. Others are not.",
        reach="trainer",
        cites=r"shift = torch\.cat",
        shown=Shown(
            *("agent/loss", "terminal_first", POLICY_BIAS, "value", "float32"),
            TRAINER_IMPORTS,
            LEARNER + "got = trainer.agent.bias.grad",
            note="In this rollout every environment's first step follows an episode's end. Compared is the gradient of "
            f"the policy head's bias, which no other difference reaches in float32. {NETWORK}",
        ),
    ),
    Cause(
        name="root_epsilon",
        title="Normalisation lacks the epsilon under the root",
        module="utils.py",
        edits=((r"var\.sqrt\(\)", "(var + 1e-12).sqrt()"),),
        original="disco_rl/utils.py::MovingAverage.normalize",
        says="It divides by sqrt(var) + 1e-6; the original by sqrt(var + 1e-12) + 1e-6.",
        right="(x - mean) / (sqrt(var + 1e-12) + 1e-6)",
        means="Where the variance is about 1e-12 or less, normalised advantages and TD errors come out up to twice as "
        "large; where it is far larger, the two agree. Where it is exactly zero, a gradient through the root is NaN.",
        reach="rarely",
        shown=Shown(
            *("moving_average/normalize", "small_variance", "out", "value", "float64"),
            "from disco_torch.types import EmaState\nfrom disco_torch.utils import MovingAverage",
            'average = MovingAverage(decay=SETTINGS["decay"], eps=SETTINGS["eps"])\n'
            'state = EmaState(x["state/moment1"], x["state/moment2"], x["state/decay_product"])\n'
            'got = average.normalize(x["values"], state, subtract_mean=SETTINGS["subtract_mean"])',
        ),
    ),
    Cause(
        name="two_hot_epsilon",
        title="Two-hot targets lack the 1e-5",
        module="utils.py",
        edits=(
            (
                r"    probs = torch\.zeros\(\*value\.shape",
                "    frac = torch.where(idx == lo, torch.zeros_like(frac),"
                " 1.0 - (1.0 - frac) * (bin_width / (bin_width + 1e-5)))\n    probs = torch.zeros(*value.shape",
            ),
        ),
        original="rlax.transform_to_2hot, called by " + VALUE_UTILS + "::scalar_to_categorical_value",
        says="The weight of the lower bin is divided by the bin's width; the original divides by the width plus 1e-5.",
        right="w_below = (above - v) / (above - below + 1e-5), w_above = 1 - w_below",
        means="The targets of the value loss move by up to 1e-5 divided by a bin's width, which for Disco103 (601 bins "
        "from -300 to 300) is 1e-5.",
        cites=r"frac = idx - lo\.float\(\)",
        shown=Shown(
            *("ops/two_hot", "plain", "probs", "value", "float64"),
            "from disco_torch.utils import transform_to_2hot",
            'limit = SETTINGS["max_abs_value"]\ngot = transform_to_2hot(x["value"], -limit, limit, SETTINGS["K"])',
        ),
    ),
    Cause(
        name="vtrace_advantage",
        title="V-trace's advantage bootstraps without lambda",
        module="value_utils.py",
        edits=(
            (
                r"torch\.cat\(\[value_target\[1:\], v_t\[-1:\]\]\)",
                "torch.cat([lambda_ * value_target[1:] + (1 - lambda_) * v_tm1[1:], v_t[-1:]])",
            ),
        ),
        original="rlax.vtrace_td_error_and_advantage, called by " + VALUE_UTILS + "::estimate_values",
        says="The advantage bootstraps from the next V-trace target; the original from a mixture of it (lambda) and "
        "the next value (1 - lambda). The V-trace errors, in the same function, are equal.",
        right="adv[t] = rho[t] * (r[t] + d[t] * (lambda * target[t+1] + (1 - lambda) * V[t+1]) - V[t])",
        means="The Disco rule uses Retrace, so training with Disco103 is not affected; an actor-critic built on this "
        "function is. With lambda = 1 the two are the same.",
        reach="direct",
        shown=Shown(
            *("values/vtrace", "plain", "adv", "value", "float64"),
            "from disco_torch import value_utils",
            VTRACE + "got = advantages",
        ),
    ),
    Cause(
        name="vtrace_gradient",
        title="A gradient flows through V-trace's targets",
        module="value_utils.py",
        edits=(
            (r"value_target = result \+ v_tm1", "value_target = (result + v_tm1).detach()"),
            (r"td_errors = result\b", "td_errors = value_target - v_tm1"),
        ),
        original="rlax.vtrace_td_error_and_advantage (stop_target_gradients=True)",
        says="The targets keep their gradient; the original stops it. The values are the same.",
        right="errors = stop_gradient(errors + V) - V",
        means="A value loss that detaches its target is not affected; one built directly on these errors is.",
        reach="direct",
        shown=Shown(
            *("values/vtrace", "plain", "rewards", "vjp", "float64"),
            "from disco_torch import value_utils",
            VTRACE + 'target = errors + x["target_values"][:-1]\n'
            'outputs = {"value_target": target, "adv": advantages, "td": target - x["values"][:-1]}\n'
            'sum((outputs[name] * c[name]).sum() for name in outputs).backward()\ngot = x["rewards"].grad',
        ),
    ),
    Cause(
        name="inverse_signed_hyperbolic",
        title="A second inverse of the signed hyperbolic has another formula",
        module="utils.py",
        edits=((r'"""Inverse of signed_hyperbolic\."""', '"""Corrected."""\n    return signed_hyperbolic_inv(x)'),),
        original="rlax.SIGNED_HYPERBOLIC_PAIR",
        says="inverse_signed_hyperbolic does not undo signed_hyperbolic; signed_hyperbolic_inv beside it does, "
        "and is the one that the package itself calls.",
        right="sign(x) * (((sqrt(1 + 4 e (e + 1 + |x|)) - 1) / (2 e))^2 - 1), e = 0.001",
        means="What it gives is not the number that signed_hyperbolic was given.",
        reach="direct",
        cites=r"def inverse_signed_hyperbolic",
        shown=Shown(
            *("ops/signed_parabolic", "plain", "out", "value", "float64"),
            "from disco_torch.utils import inverse_signed_hyperbolic",
            'got = inverse_signed_hyperbolic(x["x"])',
        ),
    ),
    Cause(
        name="retrace_gradient",
        title="A gradient flows through the Retrace targets",
        module="value_utils.py",
        edits=((r"    qv_adv = target_q_values", "    q_target = q_target.detach()\n    qv_adv = target_q_values"),),
        original=VALUE_UTILS + "::estimate_q_values (stop_target_gradients=True)",
        says="The targets are used from here on with their gradient; the original stops it. The values are the same.",
        right="G = stop_gradient(G)",
        means="Somebody who differentiates through the targets (meta-training, or a value loss of one's own) gets "
        "gradients that the original does not have.",
        reach="gradients",
        cites=r"adv = q_target - target_values",
        shown=Shown(
            *("values/retrace", "B1", "rewards", "vjp", "float64"),
            "from disco_torch import value_utils",
            ESTIMATE + "got = torch.zeros_like(x['rewards'])\nif outs.q_target.requires_grad:\n"
            '    (outs.q_target * c["q_target"]).sum().backward()\n    got = x["rewards"].grad',
        ),
    ),
    Cause(
        name="tie_gradient",
        title="Where actions tie for the maximum, one of them gets the whole gradient",
        module="transforms.py",
        edits=((r"x\.max\(dim=2\)\.values", "x.amax(dim=2)"),),
        original="disco_rl/update_rules/input_transforms.py (jnp.max)",
        says="Where actions tie for the maximum, the whole gradient goes to one of them; the original divides it "
        "between them. Values are the same, and so are gradients where there is no tie.",
        right="amax instead of max: its gradient is divided among equal entries",
        means="Either is a valid subgradient; somebody who meta-trains gets another one.",
        reach="gradients",
        shown=Shown(
            *("transforms/max_a", "ties", "x", "vjp", "float64"),
            "from disco_torch.transforms import apply_transform",
            'out = apply_transform("max_a", x["x"], None, None)\n(out * c["out"]).sum().backward()\ngot = x["x"].grad',
        ),
    ),
    Cause(
        name="clip_gradient",
        title="At a clip bound the whole gradient passes",
        module="transforms.py",
        edits=(
            (
                r"x\.clamp\(-2\.0, 2\.0\)",
                "torch.minimum(torch.maximum(x, torch.full_like(x, -2.0)), torch.full_like(x, 2.0))",
            ),
        ),
        original="disco_rl/update_rules/input_transforms.py (jnp.clip)",
        says="At an input of exactly 2 or -2 the whole gradient passes; in the original half of it does. Values are "
        "the same, and so are gradients elsewhere.",
        right="minimum(maximum(x, -2), 2), whose gradient is divided among equal arguments",
        means="Either is a valid subgradient; somebody who meta-trains gets another one.",
        reach="gradients",
        shown=Shown(
            *("transforms/clip", "bounds", "x", "vjp", "float64"),
            "from disco_torch.transforms import apply_transform",
            'out = apply_transform("clip", x["x"], None, None)\n(out * c["out"]).sum().backward()\ngot = x["x"].grad',
        ),
    ),
    Cause(
        name="ratio_gradient",
        title="V-trace passes the whole gradient at a ratio of 1",
        module="value_utils.py",
        edits=(
            (r"rho_t\.clamp\(max=clip_rho\)", "torch.minimum(rho_t, torch.full_like(rho_t, clip_rho))"),
            (r"rho_t\.clamp\(max=clip_c\)", "torch.minimum(rho_t, torch.full_like(rho_t, clip_c))"),
        ),
        original="rlax.vtrace_td_error_and_advantage, called by " + VALUE_UTILS + "::estimate_values",
        says="At an importance ratio of exactly 1 the whole gradient passes; in the original half of it does. Values "
        "are the same, and so are gradients elsewhere.",
        right="minimum(1, rho), whose gradient is divided among equal arguments",
        means="Either is a valid subgradient; somebody who differentiates with respect to the ratios gets another one.",
        reach="gradients",
    ),
    Cause(
        name="kl_normalised_once",
        title="The KL's gradient loses digits where a policy is saturated",
        module="utils.py",
        edits=(
            (
                r"p = torch\.softmax\(p_logits, dim=-1\)",
                "p_logits = torch.log_softmax(p_logits, dim=-1)\n    p = torch.log_softmax(p_logits, dim=-1).exp()",
            ),
        ),
        original="rlax.categorical_kl_divergence (distrax.Softmax)",
        says="Logits are normalised once; the original normalises them twice. The gradient of a saturated policy is "
        "far smaller than the terms that cancel in it. The second normalisation takes out the rounding of these terms.",
        right="log_p = log_softmax(log_softmax(p_logits)), p = exp(log_p)",
        means="Gradients with respect to the first policy of the KL, which is the target, are less exact than the "
        "original's. The package's own training does not take them.",
        reach="gradients",
        shown=Shown(
            *("ops/kl", "saturated", "p_logits", "vjp", "float64"),
            "from disco_torch.utils import categorical_kl_divergence",
            '(categorical_kl_divergence(x["p_logits"], x["q_logits"]) * c["out"]).sum().backward()\n'
            'got = x["p_logits"].grad',
        ),
    ),
    Cause(
        name="inverse_clamped",
        title="The inverse of the signed hyperbolic is clamped at 0",
        module="utils.py",
        edits=((r"\.square\(\) - 1\.0\)\.clamp\(min=0\.0\)\n", ".square() - 1.0)\n"),),
        original="rlax.SIGNED_HYPERBOLIC_PAIR",
        says="The magnitude is clamped at 0. In float32 rounding makes it negative for inputs below about 2e-5. At the "
        "recorded inputs the 0 that then comes out is no further from the truth than what the original gives, but the "
        "derivative is 0 as well. In float64 no recorded input shows a difference.",
        right="no clamp: the derivative near 0 is 1.996",
        means="Somebody who differentiates through values near 0 in float32 loses gradients.",
        reach="gradients",
        cites=r"\.square\(\) - 1\.0\)\.clamp\(min=0\.0\)\n",
        shown=Shown(
            *("ops/signed_parabolic", "zeros", "x", "vjp", "float32"),
            "from disco_torch.utils import signed_hyperbolic_inv",
            '(signed_hyperbolic_inv(x["x"]) * c["out"]).sum().backward()\ngot = x["x"].grad',
        ),
    ),
    Cause(
        name="discount_in_float32",
        title="Discounts are in float32 whatever the precision",
        module="value_utils.py",
        edits=((r"rollout\.is_terminal\.float\(\)", "rollout.is_terminal.to(pi_logits.dtype)"),),
        original=VALUE_UTILS + "::get_value_outs",
        says="The flags are cast to float32, so that 0.997 is rounded to float32 even if everything else is float64.",
        right="discounts in the precision of the values",
        means="Results carry float32's rounding of the discount.",
        reach="float64",
        shown=Shown(
            *("values/outs", "T1", "q_target", "value", "float64"),
            "from disco_torch import value_utils\nfrom disco_torch.types import EmaState, UpdateRuleInputs\n"
            "from disco_torch.utils import MovingAverage",
            'average = MovingAverage(decay=SETTINGS["decay"], eps=SETTINGS["eps"])\n'
            "rollout = UpdateRuleInputs(\n"
            '    observations=None, actions=x["actions"], rewards=x["rewards"],\n'
            '    is_terminal=x["is_terminal"].to(DTYPE), agent_out={},\n'
            '    behaviour_agent_out={"logits": x["mu_logits"]},\n'
            ")\n"
            'states = [EmaState(*(x[f"{k}_ema/{m}"] for m in ("moment1", "moment2", "decay_product")))'
            ' for k in ("adv", "td")]\n'
            "outs, _, _ = value_utils.get_value_outs(\n"
            '    x["q_logits"], x["target_q_logits"], rollout, x["pi_logits"], SETTINGS["discount"],'
            ' SETTINGS["lambda"],\n'
            '    SETTINGS["max_abs_value"], states[0], average, states[1], average,\n'
            ")\n"
            "got = outs.q_target",
        ),
    ),
    Cause(
        name="weights_in_float32",
        title="The weights of the loss are in float32 whatever the precision",
        module="trainer.py",
        edits=(
            (r'\(batch\["discounts"\] == 0\.0\)\.float\(\)', '(batch["discounts"] == 0.0).to(batch["rewards"].dtype)'),
        ),
        original="disco_rl/agent.py::Agent._loss",
        says="The weights are cast to float32, where the 1e-8 that is added to their sum is lost in rounding.",
        right="sum(weights * loss) / (sum(weights) + 1e-8) in the precision of the loss",
        means="The loss is larger by at most 1e-8 of itself.",
        reach="float64",
        shown=Shown(
            *("agent/loss", "T1_B1", POLICY_BIAS, "value", "float64"),
            TRAINER_IMPORTS,
            LEARNER + "got = trainer.agent.bias.grad",
            note=f"Compared is the gradient of the policy head's bias, which no other difference reaches. {NETWORK}",
        ),
    ),
    # What earlier releases had.
    Cause(
        name="retrace_first_form",
        title="Retrace mixes in the trace and the action value of step t",
        module="value_utils.py",
        edits=(
            (
                r"\(1\.0 - c_t\[t\]\) \* target_values\[t \+ 1\] \+ c_t\[t\] \* \(target_q_a\[t\] \+ acc\)",
                "target_values[t + 1] + c_t[min(t + 1, T - 1)] * acc",
            ),
        ),
        original=VALUE_UTILS + "::estimate_q_values",
        says="The target mixes the next value with the action value of the same step, weighted by the trace of that "
        "step; the original adds to the next value the trace of step t+1 times what the target of t+1 has over its "
        "action value.",
        right="G[t] = r[t] + d[t] * (V[t+1] + c[t+1] * (G[t+1] - Q[t+1, a[t+1]]))",
        means="Value targets, advantages and TD errors differ, and with them what the meta-network sees and what the "
        "value head learns.",
    ),
    Cause(
        name="polyak_reversed",
        title="Target averaging has its coefficients exchanged",
        module="update_rule.py",
        edits=(
            (
                r'agent_params\[k\] \* coeff \+ meta_state\["target_params"\]\[k\] \* \(1\.0 - coeff\)',
                'meta_state["target_params"][k] * coeff + agent_params[k] * (1.0 - coeff)',
            ),
        ),
        original="disco_rl/update_rules/disco.py::DiscoUpdateRule.unroll_meta_net",
        says="The coefficient (0.9 by default) multiplies the online parameters and the rest the old target; in the "
        "original it is the other way round.",
        right="target = coeff * target + (1 - coeff) * online",
        means="The target network takes over nine tenths of the online one at every step instead of one tenth.",
    ),
    Cause(
        name="terminal_step_left_out",
        title="The loss leaves out the terminal step instead of the first",
        module="trainer.py",
        edits=((r"masks = 1\.0 - is_terminal", 'masks = (batch["previous_discounts"] > 0).to(is_terminal.dtype)'),),
        original="disco_rl/agent.py::Agent._loss",
        says="The loss is weighted by whether a step is terminal; the original leaves out the first step after an "
        "episode's end and keeps the terminal one.",
        right="weights = discounts[:-1] > 0",
        means="The step at which the outcome becomes known is not learned from.",
        reach="trainer",
    ),
    Cause(
        name="clip_before_adam",
        title="Gradients are clipped before Adam instead of updates after it",
        module="trainer.py",
        edits=(
            (r"p\.grad\.data\.clamp_\(-self\.max_grad_value, self\.max_grad_value\)", "pass"),
            (
                r"        self\.optimizer\.step\(\)",
                "        before = [p.detach().clone() for p in self.agent.parameters()]\n"
                "        self.optimizer.step()\n"
                "        most = self.optimizer.param_groups[0]['lr'] * self.max_grad_value"
                " if hasattr(self.optimizer, 'param_groups') else float('inf')\n"
                "        for p, old in zip(self.agent.parameters(), before):\n"
                "            p.data.copy_(old + (p.data - old).clamp(-most, most))",
            ),
        ),
        original="disco_rl/agent.py::Agent.__init__ (optax.chain)",
        says="Each element of the gradient is clipped to the bound and then handed to Adam; in the original Adam comes "
        "first and its direction is clipped.",
        right="update = -learning_rate * clip(m / (sqrt(v) + 1e-8), -1, 1)",
        means="Gradients larger than the bound lose their size before Adam sees them, and updates larger than the "
        "bound pass.",
        reach="trainer",
    ),
    Cause(
        name="many_steps",
        title="32 gradient steps for each rollout",
        module="trainer.py",
        edits=((r"replay_ratio: int = 32", "replay_ratio: int = 1"),),
        original="colabs/eval.ipynb, training loop",
        says="The trainer takes 32 gradient steps for each rollout by default; the original's evaluation "
        "takes one, on a batch of 64 trajectories from its replay buffer.",
        right="one learner step for each rollout",
        means="The agent learns 32 times as often from the same experience.",
        reach="trainer",
    ),
)
