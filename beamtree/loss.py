"""ℓ_BCE (Eq. 2, with the sign that makes it a loss)."""

from typing import Any

import torch
from torch import Tensor


class _BCE(torch.autograd.Function):
    """The sum of -log q, q = σ(g) where z = 1 and σ(-g) where z = 0, and its gradient σ(g) - z.

    By hand because autograd would keep and pass over three times as many numbers.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        q = torch.sigmoid(torch.where(labels, logits, -logits))
        ctx.save_for_backward(q, labels)
        return -q.clamp(min=torch.finfo(q.dtype).tiny).log().sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        q, labels = ctx.saved_tensors
        return torch.where(labels, q - 1, 1 - q) * grads[0], None


def bce(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ z·log(1 + e^{-g}) + (1 - z)·log(1 + e^g), labels as bool; a logit of -inf with label 0 adds nothing."""
    loss: Tensor = _BCE.apply(logits, labels)  # type: ignore[no-untyped-call]
    return loss
