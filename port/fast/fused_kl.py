"""The learner step's two large losses: how far predictions are from targets that are held constant.

The general way, `ops.kl_and_entropy`, goes over the whole tensors [T, B, P] some twenty times, forth and back, and a
processor spends that time waiting for memory. Here the predictions are normalised once for all states that share them,
the targets go by in chunks that stay in the processor's cache, and the gradient is what the calculus gives:
probabilities predicted less probabilities wanted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from port import ops
from port.fast.parallel import chunks, for_each, parts
from port.fast.unique_rows import Shared


def kl_and_entropy(target: Tensor, predicted: Shared) -> tuple[Tensor, Tensor]:
    """KL(target || predicted) and the prediction's entropy, [T, B] each, of logits [T, B, P].

    The gradient of KL can be taken once, and for the prediction only; the entropy has none.

    Reference: rlax/_src/distributions.py::categorical_kl_divergence
    """
    kl, entropy, _, _ = _Divergence.apply(predicted.rows[0], target.detach().flatten(0, 1), predicted.of)
    if bool((kl + entropy).isnan().any()):  # infinite logits, which the general way knows about
        kl, entropy = ops.kl_and_entropy(target.detach(), predicted.spread())
        return kl, entropy.detach()
    return kl.unflatten(0, predicted.lead), entropy.unflatten(0, predicted.lead)


def normalised(logits: Tensor, probs: Tensor) -> Tensor:
    """Log-probabilities [..., P]; `probs` is filled with the probabilities."""
    log_probs = logits.log_softmax(-1)
    torch.exp(log_probs, out=probs)
    return log_probs


class _Divergence(torch.autograd.Function):
    """From rows [U, P] of predictions, targets [N, P] and the row of each target [N] to KL and entropy, [N] each."""

    @staticmethod
    def forward(rows: Tensor, target: Tensor, of: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        log_predicted, predicted, wanted = torch.empty_like(rows), torch.empty_like(rows), torch.empty_like(target)
        entropy, kl = rows.new_empty(len(rows)), rows.new_empty(len(target))

        def predict(chunk: slice) -> None:
            log_predicted[chunk] = normalised(rows[chunk], predicted[chunk])
            entropy[chunk] = -(predicted[chunk] * log_predicted[chunk]).sum(-1)

        def compare(chunk: slice) -> None:
            log_wanted = normalised(target[chunk], wanted[chunk])
            kl[chunk] = log_wanted.sub_(log_predicted.index_select(0, of[chunk])).mul_(wanted[chunk]).sum(-1)

        for_each(chunks(rows), predict)
        for_each(chunks(target), compare)
        return kl, entropy.index_select(0, of), predicted, wanted

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        _, entropy, predicted, wanted = output
        ctx.mark_non_differentiable(entropy, predicted, wanted)
        ctx.save_for_backward(inputs[2], predicted, wanted)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("This loss can be differentiated once only; meta-gradients take is_meta_training=True.")
        of, predicted, wanted = ctx.saved_tensors
        total = predicted.new_zeros(len(predicted)).index_add_(0, of, grad)  # [U]
        found = torch.empty_like(predicted)

        def carry(columns: slice) -> None:
            own = torch.mul(predicted[:, columns], total.unsqueeze(-1), out=found[:, columns])
            for chunk in chunks(wanted):
                own.index_add_(0, of[chunk], wanted[chunk, columns] * grad[chunk].unsqueeze(-1), alpha=-1)

        for_each(parts(predicted.t()), carry)
        return found, None, None
