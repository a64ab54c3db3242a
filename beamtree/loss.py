"""ℓ_BCE (Eq. 2, with the sign that makes it a loss)."""

from typing import Any

import torch
from torch import Tensor


class _BCE(torch.autograd.Function):
    """The sum of -log q, where q = p_g(z), and its gradient σ(g) - z.

    Written by hand because autograd would store and read three times as many numbers.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        sign = labels.to(logits.dtype).mul_(2).sub_(1)  # 2z - 1: q is σ(g) where z = 1, σ(-g) elsewhere
        q = (logits * sign).sigmoid_()
        ctx.save_for_backward(q, sign)
        q = q.clamp(min=torch.finfo(q.dtype).tiny ** 0.5).flatten()  # the product of two does not underflow
        half = len(q) // 2
        pairs, last = q[:half] * q[half : 2 * half], q[2 * half :]
        return -pairs.log_().sum() - last.log().sum()  # log a + log b = log ab: half as many logs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        q, sign = ctx.saved_tensors
        return (q - 1).mul_(sign).mul_(grads[0]), None


def bce(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ z·log(1 + e^{-g}) + (1 - z)·log(1 + e^g), labels as bool; a logit of -inf with label 0 adds nothing.

    The gradient has no limit, but no node adds more than 43 (float32) to the sum that is reported.
    """
    loss: Tensor = _BCE.apply(logits, labels)  # type: ignore[no-untyped-call]
    return loss
