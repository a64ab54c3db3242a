"""What is summed over instances and levels: ℓ_BCE of the paper, and losses published since.

An objective takes a query, z of every level, the labels of every level, and S_h as the method's sampler yields it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from beamtree.candidates import Sampled
from beamtree.model import Query
from beamtree.targets import Targets, labels_at, mark
from beamtree.tree import PAD

Objective = Callable[[Query, list[Targets], list[Targets], Any], Tensor]
Nodes = list[tuple[int, Tensor]]  # S_h: levels and nodes [B or 1, W]

MARGIN_WEIGHT, MARGIN_TEMPERATURE = 1.0, 1.0  # of the penalty beside ℓ_BCE, and of its sigmoid, in logits
LEVEL_TEMPERATURE = 1.0  # of the weights of levels, in shares of positives


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
    """ℓ_BCE (Eq. 2, with the sign that makes it a loss), for labels as bool; a logit of -inf with label 0 adds nothing.

    It is Σ z·log(1 + e^{-g}) + (1 - z)·log(1 + e^g). The gradient has no limit, but no node adds more than 43 (float32)
    to the sum that is reported.
    """
    loss: Tensor = _BCE.apply(logits, labels)  # type: ignore[no-untyped-call]
    return loss


def sum_of_bce(query: Query, positives: list[Targets], targets: list[Targets], nodes: Nodes) -> Tensor:
    """L (Eq. 2; for OTM Eq. 16): the sum of ℓ_BCE over S_h."""
    return bce(torch.cat(query.logits_of(nodes), dim=1), torch.cat(labels_at(targets, nodes), dim=1))


def level_softmax(query: Query, positives: list[Targets], targets: list[Targets], nodes: list[Sampled]) -> Tensor:
    """The cross-entropy of the softmax over each level, sampled: the loss of DTR (Liu et al. 2024, arXiv 2408.11345).

    L = Σ_h Σ_{n ∈ S_h⁺} ẑ_n (log Z_h - g_n), where Z_h is the sum of e^g over S_h⁺ and, off S_h⁺, of e^g divided by how
    often a node is expected among the nodes of `candidates.softmax_paths`. Its expectation is the sum over the level.

    After the paper: softmax over a level, labels rectified so that a node counts only through its best child, nodes
    drawn down the tree, and the log q correction. The rectified label is OTM's ẑ here. The paper has instances with one
    target. With several, this is the sum of its losses: ẑ_n = 1 for the ancestors of at most one of them, ties aside.
    Not taken: the paper's way to learn the tree.
    """
    ancestors = [(level, positives[level].relevant()) for level, *_ in nodes]  # S_h⁺ [B, P]
    above = query.logits_of(ancestors)
    others = query.logits_of([(level, drawn) for level, drawn, _ in nodes])
    losses = []
    for (level, relevant), g, logits, (_, drawn, log_expected) in zip(ancestors, above, others, nodes, strict=True):
        rivals = (logits - log_expected).masked_fill(positives[level].at(drawn), -torch.inf)
        log_z = torch.cat([g, rivals], dim=1).logsumexp(dim=1, keepdim=True)
        losses.append((log_z - g).masked_fill(~targets[level].at(relevant), 0).sum())
    return torch.stack(losses).sum()


def bce_and_margin(
    query: Query, positives: list[Targets], targets: list[Targets], nodes: Nodes, *, beam_size: int
) -> Tensor:
    """ℓ_BCE, plus a penalty on the ancestors of positives that the beam would lose, after BEAR (arXiv 2601.22925).

    Each n ∈ S_h⁺ adds λ σ((τ_h - g_n) / T), where τ_h is the k-th highest logit of S_h: a smooth count of the ancestors
    that are not among the best k. It is 0 on a level where S_h has at most k nodes, since nothing is lost there. Both
    τ_h and g_n have gradients.

    After the paper: the margin to the k-th best, and its sigmoid. Its released code multiplies instead of adding: the
    cross-entropy of a token counts 1 + λ σ((log p - log q_B) / ξ), a weight without gradients, where q_B is the B-th
    highest probability of the next tokens of one prefix (in its example λ = 0.25 and ξ = 2.75).
    """
    logits = query.logits_of(nodes)
    loss = bce(torch.cat(logits, dim=1), torch.cat(labels_at(targets, nodes), dim=1))
    narrow = [(level, g) for (level, _), g in zip(nodes, logits, strict=True) if g.shape[1] > beam_size]
    ancestors = [(level, positives[level].relevant()) for level, _ in narrow]  # S_h⁺ [B, P]
    for (_, g), (_, relevant), own in zip(narrow, ancestors, query.logits_of(ancestors), strict=True):
        best = g.topk(beam_size + 1).values
        last = best[:, -2:-1].masked_fill(best[:, -1:] == -torch.inf, -torch.inf)  # τ_h; PAD is not lost
        margin = ((last - own) / MARGIN_TEMPERATURE).masked_fill(relevant == PAD, -torch.inf)
        loss = loss + MARGIN_WEIGHT * margin.sigmoid().sum()
    return loss


def weighted_bce(
    query: Query, positives: list[Targets], targets: list[Targets], nodes: Nodes, *, beam_size: int
) -> Tensor:
    """ℓ_BCE with weights of levels, after the worst prefixes of APAO (arXiv 2603.02730).

    The weights of an instance are the softmax over levels of lost_h / T, times the number of levels, so that their mean
    is 1. lost_h is the share of its relevant items whose ancestor is in B_{h-1} on the level above and not in B_h.

    After the paper: more weight on the prefixes that beam search would cut. Its released code adds β Σ_t w_t L_t to the
    cross-entropy, where L_t is the mean -log p of the prefixes of length t and w ∝ L exp(ηL), for each batch anew. Here
    nothing is added: ℓ_BCE is weighted, for each instance alone, by what the beam lost.
    """
    logits = query.logits_of(nodes)
    kept = kept_by_level(query, positives, nodes, logits, beam_size)
    lost = (kept[:-1] - kept[1:]) / kept[0].clamp(min=1)  # [L, B]
    weights = len(nodes) * (lost / LEVEL_TEMPERATURE).softmax(dim=0)
    signed = [torch.where(label, -g, g) for label, g in zip(labels_at(targets, nodes), logits, strict=True)]
    return (weights * torch.stack([softplus(each).sum(dim=1) for each in signed])).sum()


@torch.no_grad()
def kept_by_level(query: Query, positives: list[Targets], nodes: Nodes, logits: list[Tensor], beam_size: int) -> Tensor:
    """How many relevant items there are, and how many have their ancestor among the best k of S_h, by level [L + 1, B].

    An item that is lost on one level stays lost below.
    """
    leaves = positives[-1].relevant()
    above = dict(zip(query.levels, query.tree.lift(leaves, query.levels), strict=True))
    kept = leaves != PAD
    counts = [kept.sum(dim=1)]
    for (level, candidates), g in zip(nodes, logits, strict=True):
        beam = candidates.expand_as(g)
        if g.shape[1] > beam_size:
            beam = beam.gather(1, g.topk(beam_size, sorted=False).indices)
        kept = kept & mark(query.tree, level, beam).at(above[level])
        counts.append(kept.sum(dim=1))
    return torch.stack(counts).to(logits[0].dtype)
