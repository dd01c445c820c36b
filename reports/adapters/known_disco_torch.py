"""Where `disco-torch` departs from the original, in any of its releases. It imports nothing of the package."""

from __future__ import annotations

from reports.adapters.causes import Cause

VALUE_UTILS = "disco_rl/value_fns/value_utils.py"
NO_GRADIENT_IN_TRAINER = "The package's own trainer runs this without gradients, so training with it is not affected."

CAUSES = (
    Cause(
        name="tie_gradient",
        title="The gradient of a maximum between equal actions",
        module="transforms.py",
        edits=((r"x\.max\(dim=2\)\.values", "x.amax(dim=2)"),),
        original="disco_rl/update_rules/input_transforms.py (jnp.max)",
        says="Where two actions tie for the maximum, the whole gradient goes to one of them; the original divides it "
        "between them. Values are the same, and so are gradients where there is no tie.",
        means=f"{NO_GRADIENT_IN_TRAINER} Either is a valid subgradient; somebody who meta-trains gets another one.",
    ),
    Cause(
        name="log_of_one_plus",
        title="log(1 + |x|) in place of log1p(|x|)",
        module="utils.py",
        edits=((r"\(x\.abs\(\) \+ 1\.0\)\.log\(\)", "x.abs().log1p()"),),
        original="rlax.signed_logp1",
        says="The sum is rounded before the logarithm is taken.",
        means="Small inputs lose a few units in the last place in float32. In float64 it is within the budget.",
    ),
    Cause(
        name="two_hot_epsilon",
        title="Two-hot weights without the 1e-5",
        module="utils.py",
        edits=(
            (
                r"frac = idx - lo\.float\(\)",
                "frac = torch.where("
                "idx == lo, (idx - lo).detach(), 1.0 - (lo + 1 - idx) * bin_width / (bin_width + 1e-5))",
            ),
        ),
        original="rlax.transform_to_2hot, called by " + VALUE_UTILS + "::scalar_to_categorical_value",
        says="The weight of the lower bin is divided by the bin's width; the original divides by the width plus 1e-5.",
        means="The targets of the value loss move by about 1e-5 divided by a bin's width: little beside the noise of "
        "learning, but not nothing in an exact comparison.",
    ),
    Cause(
        name="root_epsilon",
        title="Normalisation without the epsilon under the root",
        module="utils.py",
        edits=((r"var\.sqrt\(\)", "(var + 1e-12).sqrt()"),),
        original="disco_rl/utils.py::MovingAverage.normalize",
        says="It divides by sqrt(var) + 1e-6; the original by sqrt(var + 1e-12) + 1e-6.",
        means="It shows where advantages are nearly constant: there the normalised ones come out up to twice as large, "
        "and where the variance is exactly zero a gradient through the root is not a number. With ordinary rewards the "
        "two agree.",
    ),
    Cause(
        name="inverse_signed_hyperbolic",
        title="A second inverse of the signed hyperbolic, with another formula",
        module="utils.py",
        edits=((r'"""Inverse of signed_hyperbolic\."""', '"""Corrected."""\n    return signed_hyperbolic_inv(x)'),),
        original="rlax.SIGNED_HYPERBOLIC_PAIR",
        says="`inverse_signed_hyperbolic` does not undo `signed_hyperbolic`; `signed_hyperbolic_inv` beside it does, "
        "and is the one that the package itself calls.",
        means="Only somebody who calls this function directly is affected.",
    ),
    Cause(
        name="retrace_index",
        title="Retrace's traces and action values taken one step too late",
        module="value_utils.py",
        edits=((r"min\(t \+ 2, T - 1\)", "t + 1"),),
        original=VALUE_UTILS + "::estimate_q_values",
        says="The trace coefficient and the action value that belong to step t+1 are read at t+2. A comment there puts "
        "it down to an off-by-one of the original; the original's recorded outputs show none: they agree with t+1.",
        means="Every value target, advantage and TD error after it is affected, and through them the inputs of the "
        "meta-network and the value loss: Disco103 is then fed with other numbers than by the original.",
    ),
    Cause(
        name="retrace_first_form",
        title="Retrace with the trace and the action value of step t",
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
        means="Every value target, advantage and TD error after it is affected, and through them the meta-network.",
    ),
    Cause(
        name="retrace_gradient",
        title="A gradient through the Retrace targets",
        module="value_utils.py",
        edits=((r"    qv_adv = target_q_values", "    q_target = q_target.detach()\n    qv_adv = target_q_values"),),
        original=VALUE_UTILS + "::estimate_q_values (stop_target_gradients=True)",
        says="The targets are used from here on with their gradient; the original stops it. Their values are the same.",
        means=f"{NO_GRADIENT_IN_TRAINER} Somebody who differentiates through the targets (meta-training, or a value "
        "loss of one's own) gets gradients that the original does not have.",
    ),
    Cause(
        name="discount_in_float32",
        title="Discounts in float32 whatever the precision",
        module="value_utils.py",
        edits=((r"rollout\.is_terminal\.float\(\)", "rollout.is_terminal.to(pi_logits.dtype)"),),
        original=VALUE_UTILS + "::get_value_outs",
        says="The flags are cast to float32, so 0.997 is rounded to float32 even if everything else is float64.",
        means="Only somebody who computes in float64 is affected: results carry float32's rounding of the discount.",
    ),
    Cause(
        name="vtrace_advantage",
        title="V-trace's advantage without lambda in its bootstrap",
        module="value_utils.py",
        edits=(
            (
                r"torch\.cat\(\[value_target\[1:\], v_t\[-1:\]\]\)",
                "torch.cat([lambda_ * value_target[1:] + (1 - lambda_) * v_tm1[1:], v_t[-1:]])",
            ),
        ),
        original="rlax.vtrace_td_error_and_advantage, called by " + VALUE_UTILS + "::estimate_values",
        says="The advantage bootstraps from the next V-trace target; the original from a mixture of it (lambda) and "
        "the next value (1 - lambda).",
        means="The Disco rule uses Retrace and never calls this, so training with Disco103 is not affected; somebody "
        "who builds an actor-critic on this function is.",
    ),
    Cause(
        name="polyak_reversed",
        title="Target averaging with its coefficients exchanged",
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
        means="The target network follows the online one almost at once instead of slowly.",
    ),
    Cause(
        name="first_step_counted",
        title="The loss of a rollout's first step is always counted",
        module="trainer.py",
        edits=(
            (
                r"masks = 1\.0 - shift",
                'masks = (batch["previous_discounts"] > 0).to(is_terminal.dtype)',
            ),
        ),
        original="disco_rl/agent.py::Agent._loss",
        says="The loss leaves out the first step of an episode, as the original does, but not where that is the first "
        "step of a rollout: the trainer's batch has no place for the discount at the first observation.",
        means="Where a rollout begins at the first step of an episode, that step's loss is counted and the average "
        "taken over one more. Rollouts that begin inside an episode are not affected.",
    ),
    Cause(
        name="terminal_step_left_out",
        title="The loss leaves out the terminal step instead of the first",
        module="trainer.py",
        edits=(
            (
                r"masks = 1\.0 - is_terminal",
                'masks = (batch["previous_discounts"] > 0).to(is_terminal.dtype)',
            ),
        ),
        original="disco_rl/agent.py::Agent._loss",
        says="The loss is weighted by whether a step is terminal; the original leaves out the first step of an episode "
        "and keeps the terminal one.",
        means="The step at which the outcome becomes known is not learned from.",
    ),
    Cause(
        name="weights_in_float32",
        title="The weights of the loss in float32 whatever the precision",
        module="trainer.py",
        edits=(
            (r'\(batch\["discounts"\] == 0\.0\)\.float\(\)', '(batch["discounts"] == 0.0).to(batch["rewards"].dtype)'),
        ),
        original="disco_rl/agent.py::Agent._loss",
        says="The weights are cast to float32; the 1e-8 that is added to their sum is lost in rounding there, and the "
        "discount is rounded with them.",
        means="Only somebody who computes in float64 is affected, by about 1e-9 of the loss.",
    ),
    Cause(
        name="clip_before_adam",
        title="Gradients clipped before Adam instead of updates after it",
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
        means="Gradients larger than the bound lose their size before Adam sees them, and updates larger than the "
        "bound pass.",
    ),
)
