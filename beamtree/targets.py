"""Pseudo targets: which nodes are relevant, z (Eq. 1) or ẑ (Eq. 15).

Off S_h⁺ = {n ∈ N_h: z_n = 1} every label is 0, so only positives are visited: O(Hb|I_x|) scorings.
"""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree.model import Query
from beamtree.tree import PAD, Tree, first_of_each

# A level of at most this many times b|I_x| nodes is marked whole: cheaper than a list per row, and still O(b|I_x|).
WHOLE_LEVEL = 8


@dataclass(frozen=True)
class Targets:
    """The labels of the nodes of one level: those listed here, and 0 for every other.

    Either each row lists nodes of its own [B, P], sorted, PAD first, repeats allowed; or, where the level is
    small, there is no list and labels run over PAD and the whole level.
    """

    span: range  # the level
    nodes: Tensor | None
    labels: Tensor  # bool [B, P or 1 + |N_h|], False at PAD
    most: int  # no row has more than this many labels that are 1

    def at(self, nodes: Tensor) -> Tensor:
        """The labels [B, W] of any nodes [B or 1, W] of the level, False at PAD."""
        rows = len(self.labels)
        if self.nodes is None:
            place = (nodes - (self.span.start - 1)).clamp_(min=0)
            return self.labels.gather(1, place.expand(rows, -1))
        nodes = nodes.expand(rows, -1).contiguous()
        place = torch.searchsorted(self.nodes, nodes).clamp(max=self.nodes.shape[1] - 1)
        return self.labels.gather(1, place) & (self.nodes.gather(1, place) == nodes)

    def relevant(self) -> Tensor:
        """The nodes with label 1, each once, PAD where there are fewer [B, ≤ most]."""
        if self.nodes is not None:
            return torch.where(self.labels & first_of_each(self.nodes), self.nodes, PAD)
        ids = torch.arange(self.span.start, self.span.stop, device=self.labels.device)
        nodes = torch.where(self.labels[:, 1:], ids, PAD)
        if nodes.shape[1] > self.most:
            nodes = nodes.topk(self.most, sorted=False).values  # PAD is the lowest
        return nodes


def mark(tree: Tree, level: int, nodes: Tensor, whole: int | None = None) -> Targets:
    """The targets whose label is 1 at nodes [B, P] of one level, in any order, PAD where there are fewer.

    They are held whole where the level has at most `whole` times bP nodes.
    """
    span = tree.level(level)
    if len(span) > (WHOLE_LEVEL if whole is None else whole) * tree.arity * nodes.shape[1]:
        nodes = nodes.sort(dim=1).values
        return Targets(span, nodes, nodes != PAD, nodes.shape[1])
    labels = torch.zeros(len(nodes), 1 + len(span), dtype=torch.bool, device=nodes.device)
    labels.scatter_(1, (nodes - (span.start - 1)).clamp_(min=0), True)[:, 0] = False
    return Targets(span, None, labels, nodes.shape[1])


def any_relevant(tree: Tree, y: Tensor, whole: int | None = None) -> list[Targets]:
    """z_n (Eq. 1) of levels 0 … H: 1 where one of the items y [B, P] is below. It marks S_h⁺."""
    levels = [mark(tree, tree.height, tree.leaf_of_item(y), whole)]
    for level in range(tree.height - 1, -1, -1):
        below = levels[-1]
        if below.nodes is None:
            labels = reduce(torch.logical_or, _siblings(tree, below.labels[:, 1:]))
            levels.append(Targets(tree.level(level), None, pad(labels, (1, 0)), below.most))
        else:
            levels.append(mark(tree, level, tree.parent(below.nodes), whole))
    return levels[::-1]


@torch.no_grad()
def best_child(query: Query, positives: list[Targets]) -> list[Targets]:
    """ẑ_n (Eq. 15): a node takes the label of its highest-scored child, leaves first.

    `positives` is z. Siblings share their path, so comparing logits is comparing p_g for chained models
    too. A tie goes to the relevant child. Levels that are not trained keep z.
    """
    tree = query.tree
    levels = [positives[-1]]
    for level in reversed(query.levels[:-1]):
        below = levels[-1]
        if below.nodes is None:  # nor is there a list here: the children are the level below, in order
            nodes = None
            labels, logits = below.labels[:, 1:], query.whole_level(level + 1)
        else:
            nodes = tree.parent(below.nodes)  # sorted, as those below are
            children = tree.children(nodes).flatten(1)  # [B, Pb]
            labels, logits = below.at(children), query.logits(level + 1, children)
        (label, *rivals), (best, *others) = _siblings(tree, labels), _siblings(tree, logits)
        for i, (rival, logit) in enumerate(zip(rivals, others, strict=True)):
            best = best if i == 0 else torch.maximum(best, others[i - 1])  # of the siblings so far
            label = (label & (best >= logit)) | (rival & (logit >= best))
        label = pad(label, (1, 0)) if nodes is None else label
        levels.append(Targets(tree.level(level), nodes, label, below.most))
    return [*positives[: query.levels.start], *levels[::-1]]


def _siblings(tree: Tree, values: Tensor) -> tuple[Tensor, ...]:
    """Values of children [B, Pb] as those of first children, second children, … b times [B, P].

    Reducing over an axis as short as b would be several times slower.
    """
    siblings: tuple[Tensor, ...] = values.unflatten(1, (-1, tree.arity)).unbind(-1)
    return siblings
