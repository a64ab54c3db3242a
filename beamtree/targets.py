"""Pseudo targets: which nodes are relevant, z (Eq. 1) or ẑ (Eq. 15).

Off S_h⁺ = {n ∈ N_h: z_n = 1} every label is 0, so only positives are visited: O(Hb|I_x|) scorings.
"""

from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree import kernels
from beamtree.model import Query
from beamtree.tree import PAD, Tree, first_of_each

# A level of at most this many times b|I_x| nodes has no lists: cheaper than a list per row, and still O(b|I_x|).
WHOLE_LEVEL_FACTOR = 8
MAX_KERNEL_TARGETS = 128  # targets that the GPU version of `best_child` can hold


@dataclass(frozen=True)
class Targets:
    """The labels of the nodes of one level: those listed here, and 0 for every other.

    Either each row has its own list of nodes [B, P], sorted, PAD first, repeats allowed; or, on a small level,
    there is no list and labels run over PAD and the whole level.
    """

    span: range  # the level
    nodes: Tensor | None
    labels: Tensor  # bool [B, P or 1 + |N_h|], False at PAD
    most: int  # labels of a row that are 1, at most

    def at(self, nodes: Tensor) -> Tensor:
        """The labels [B, W] of any nodes [B or 1, W] of the level, False at PAD."""
        rows = len(self.labels)
        if self.nodes is None:
            index = (nodes - (self.span.start - 1)).clamp_(min=0)
            return self.labels.gather(1, index.expand(rows, -1))
        nodes = nodes.expand(rows, -1).contiguous()
        index = torch.searchsorted(self.nodes, nodes).clamp(max=self.nodes.shape[1] - 1)
        return self.labels.gather(1, index) & (self.nodes.gather(1, index) == nodes)

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

    Labels run over the whole level if it has at most `whole` times bP nodes.
    """
    span = tree.level(level)
    if len(span) > (WHOLE_LEVEL_FACTOR if whole is None else whole) * tree.arity * nodes.shape[1]:
        nodes = nodes.sort(dim=1).values
        return Targets(span, nodes, nodes != PAD, nodes.shape[1])
    labels = torch.zeros(len(nodes), 1 + len(span), dtype=torch.bool, device=nodes.device)
    labels.scatter_(1, (nodes - (span.start - 1)).clamp_(min=0), True)[:, 0] = False
    return Targets(span, None, labels, nodes.shape[1])


def any_relevant(tree: Tree, y: Tensor, whole: int | None = None) -> list[Targets]:
    """z_n (Eq. 1) of levels 0 … H: 1 where one of the items y [B, P] is below. It marks S_h⁺."""
    leaves = tree.leaf_of_item(y).sort(dim=1).values
    most = leaves.shape[1]
    small = (WHOLE_LEVEL_FACTOR if whole is None else whole) * tree.arity * most
    lists = range(sum(len(tree.level(h)) <= small for h in range(tree.height + 1)), tree.height + 1)
    real = leaves != PAD
    levels = [  # ancestors of sorted leaves are sorted
        Targets(tree.level(h), nodes, real, most) for h, nodes in zip(lists, tree.lift(leaves, lists), strict=True)
    ]
    for level in range(lists.start - 1, -1, -1):
        if level == lists.start - 1:  # the first that is marked whole
            levels.insert(0, mark(tree, level, tree.lift(leaves, range(level, level + 1))[0], whole))
        else:
            labels = reduce(torch.logical_or, _siblings(tree, levels[0].labels[:, 1:]))
            levels.insert(0, Targets(tree.level(level), None, pad(labels, (1, 0)), most))
    return levels


def labels_at(targets: list[Targets], levels: list[tuple[int, Tensor]]) -> list[Tensor]:
    """The labels [B, W] of nodes [B or 1, W] of each of some levels, in rising order.

    If all levels have lists they are looked up at once: no two levels share an id.
    """
    lists = [targets[level] for level, _ in levels if targets[level].nodes is not None]
    if len(lists) < len(levels):
        return [targets[level].at(nodes) for level, nodes in levels]
    # One sorted list: PAD becomes the last node of the level above, with label 0.
    keys = [t.nodes.clamp(min=t.span.start - 1) for t in lists if t.nodes is not None]
    widths = [nodes.shape[1] for _, nodes in levels]
    rows = len(lists[0].labels)
    joined = Targets(
        range(lists[0].span.start, lists[-1].span.stop),
        torch.cat(keys, dim=1),
        torch.cat([t.labels for t in lists], dim=1),
        sum(t.most for t in lists),
    )
    nodes = torch.cat([nodes.expand(rows, -1) for _, nodes in levels], dim=1)
    return list(joined.at(nodes).split(widths, dim=1))


@torch.no_grad()
def best_child(query: Query, positives: list[Targets]) -> list[Targets]:
    """ẑ_n (Eq. 15): a node takes the label of its highest-scored child, leaves first.

    `positives` is z. Siblings share their path, so comparing logits is comparing p_g for chained models
    too. A tie goes to the relevant child. Levels that are not trained keep z.
    """
    tree = query.tree
    above = positives[: query.levels.start]
    listed = [positives[level] for level in query.levels]
    if kernels.fits(listed[-1].labels) and all(t.nodes is not None and t.most <= MAX_KERNEL_TARGETS for t in listed):
        return [*above, *_pass_up(query, listed)]
    parents, children = _families(query, positives[-1].nodes)
    scored = dict(zip(children, query.logits_of(list(children.items())), strict=True))
    levels = [positives[-1]]
    for level in reversed(query.levels[:-1]):
        below, nodes = levels[-1], parents.get(level)
        if nodes is None:  # no list, on any level: the children are the level below, in order
            labels, logits = below.labels[:, 1:], query.whole_level(level + 1)
        else:
            labels, logits = below.at(children[level + 1]), scored[level + 1]
        (label, *rivals), (best, *others) = _siblings(tree, labels), _siblings(tree, logits)
        for i, (rival, logit) in enumerate(zip(rivals, others, strict=True)):
            best = best if i == 0 else torch.maximum(best, others[i - 1])  # of the siblings so far
            label = (label & (best >= logit)) | (rival & (logit >= best))
        label = pad(label, (1, 0)) if nodes is None else label
        levels.append(Targets(tree.level(level), nodes, label, below.most))
    return [*above, *levels[::-1]]


def _families(query: Query, nodes: Tensor | None) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """The nodes above leaves [B, P] by level, sorted as these are, and their children; nothing without a list."""
    parents: dict[int, Tensor] = {}
    children: dict[int, Tensor] = {}
    if nodes is None:
        return parents, children
    for level in reversed(query.levels[:-1]):
        nodes = parents[level] = query.tree.parent(nodes)
        children[level + 1] = query.tree.children(nodes).flatten(1)  # [B, Pb]
    return parents, children


def _pass_up(query: Query, positives: list[Targets]) -> list[Targets]:
    """ẑ of the trained levels, whose positives are lists, all at once."""
    from beamtree.kernels.best_child_gpu import pass_up

    nodes = torch.stack([t.nodes for t in positives if t.nodes is not None], dim=1)  # [B, L, P]
    children = query.tree.children(nodes[:, :-1]).flatten(2)  # [B, L - 1, Pb]
    logits = query.logits_of(list(zip(query.levels[1:], children.unbind(1), strict=True)))
    labels = (
        pass_up(nodes, torch.stack(logits, dim=1), query.tree.arity) if logits else positives[0].labels.unsqueeze(1)
    )
    return [replace(t, labels=label) for t, label in zip(positives, labels.unbind(1), strict=True)]


def _siblings(tree: Tree, values: Tensor) -> tuple[Tensor, ...]:
    """Values of children [B, Pb] as those of first children, second children, … b times [B, P].

    Reducing over an axis as short as b would be several times slower.
    """
    siblings: tuple[Tensor, ...] = values.unflatten(1, (-1, tree.arity)).unbind(-1)
    return siblings
