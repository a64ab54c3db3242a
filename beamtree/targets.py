"""Pseudo targets: which nodes are relevant, z (Eq. 1) or ẑ (Eq. 15).

Off S_h⁺ = {n ∈ N_h: z_n = 1} every label is 0, so only positives are visited: O(Hb|I_x|) scorings.
"""

from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from beamtree.model import Query
from beamtree.tree import PAD, Tree, first_of_each

# A level of at most this many times b|I_x| nodes is held whole: cheaper than a list per row, and still O(b|I_x|).
WHOLE_LEVEL = 8


@dataclass(frozen=True)
class Targets:
    """The labels of the nodes of one level: those listed here, and 0 for every other.

    Either each row lists its own nodes [B, P], sorted, PAD first, repeats allowed; or, where the level is
    small, all rows share the whole level [1, |N_h|].
    """

    nodes: Tensor
    labels: Tensor  # bool [B, P or |N_h|], False at PAD
    whole: bool
    most: int  # no row has more than this many labels that are 1

    def at(self, nodes: Tensor) -> Tensor:
        """The labels [B, W] of any nodes [B or 1, W] of the level, False at PAD."""
        rows = len(self.labels)
        if self.whole:
            place = (nodes - self.nodes[:, :1]).clamp(min=0).expand(rows, -1)
            return self.labels.gather(1, place) & (nodes != PAD)
        nodes = nodes.expand(rows, -1).contiguous()
        place = torch.searchsorted(self.nodes, nodes).clamp(max=self.nodes.shape[1] - 1)
        return self.labels.gather(1, place) & (self.nodes.gather(1, place) == nodes)

    def relevant(self) -> Tensor:
        """The nodes with label 1, each once, PAD where there are fewer [B, ≤ most]."""
        if not self.whole:
            return torch.where(self.labels & first_of_each(self.nodes), self.nodes, PAD)
        nodes = torch.where(self.labels, self.nodes, PAD)
        if nodes.shape[1] > self.most:
            nodes = nodes.topk(self.most, sorted=False).values  # PAD is the lowest
        return nodes


def mark(tree: Tree, level: int, nodes: Tensor) -> Targets:
    """The targets whose label is 1 at nodes [B, P] of one level, in any order, PAD where there are fewer."""
    span = tree.level(level)
    if len(span) > WHOLE_LEVEL * tree.arity * nodes.shape[1]:
        nodes = nodes.sort(dim=1).values
        return Targets(nodes, nodes != PAD, False, nodes.shape[1])
    marks = torch.zeros(len(nodes), len(span) + 1, dtype=torch.bool, device=nodes.device)
    labels = marks.scatter_(1, (nodes - span.start + 1).clamp(min=0), True)[:, 1:]
    ids = torch.arange(span.start, span.stop, device=nodes.device).unsqueeze(0)
    return Targets(ids, labels, True, nodes.shape[1])


def any_relevant(tree: Tree, y: Tensor) -> list[Targets]:
    """z_n (Eq. 1) of levels 0 … H: 1 where one of the items y [B, P] is below. It marks S_h⁺."""
    levels = [mark(tree, tree.height, tree.leaf_of_item(y))]
    for level in range(tree.height - 1, -1, -1):
        below = levels[-1]
        if below.whole:
            ids = tree.parent(below.nodes[:, :: tree.arity])
            labels = reduce(torch.logical_or, _siblings(tree, below.labels))
            levels.append(Targets(ids, labels, True, below.most))
        else:
            levels.append(mark(tree, level, tree.parent(below.nodes)))
    return levels[::-1]


@torch.no_grad()
def best_child(query: Query, positives: list[Targets]) -> list[Targets]:
    """ẑ_n (Eq. 15): a node takes the label of its highest-scored child, leaves first.

    `positives` is z. Siblings share their path, so comparing logits is comparing p_g for chained models
    too. A tie goes to the relevant child. The root is never trained: its label stays z.
    """
    tree = query.tree
    levels = [positives[-1]]
    for level in range(tree.height - 1, 0, -1):
        below = levels[-1]
        if below.whole:  # and so is this level: its children are the level below, in order
            nodes = positives[level].nodes
            labels, logits = below.labels, query.whole_level(level + 1)
        else:
            nodes = tree.parent(below.nodes)  # sorted, as those below are
            children = tree.children(nodes).flatten(1)  # [B, Pb]
            labels, logits = below.at(children), query.logits(level + 1, children)
        (label, *rivals), (best, *others) = _siblings(tree, labels), _siblings(tree, logits)
        for i, (rival, logit) in enumerate(zip(rivals, others, strict=True)):
            best = best if i == 0 else torch.maximum(best, others[i - 1])  # of the siblings so far
            label = (label & (best >= logit)) | (rival & (logit >= best))
        levels.append(replace(below, nodes=nodes, labels=label))
    return [positives[0], *levels[::-1]]


def _siblings(tree: Tree, values: Tensor) -> tuple[Tensor, ...]:
    """Values of children [B, Pb] as those of first children, second children, … b times [B, P].

    Reducing over an axis as short as b would be several times slower.
    """
    siblings: tuple[Tensor, ...] = values.unflatten(1, (-1, tree.arity)).unbind(-1)
    return siblings
