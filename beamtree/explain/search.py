"""Look at one search: which nodes were kept on each level, and where single items were lost."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from beamtree.beam import walk
from beamtree.explain.explanation import Explanation, ItemPath, Level, Loss, Step
from beamtree.explain.parts import contributions
from beamtree.explain.subtrees import subtrees
from beamtree.mask import NodeMask
from beamtree.model import Query, State, TreeModel
from beamtree.tree import PAD

AT_ONCE = 4096  # leaves that are scored together
MOST = 40  # nodes of a level that are listed unless told otherwise


@torch.no_grad()
def explain(
    model: TreeModel,
    x: Tensor,
    *,
    beam_size: int | Sequence[int] = 400,
    m: int = 10,
    items: Sequence[int] | None = None,
    allowed: NodeMask | Tensor | None = None,
    exclude: Tensor | None = None,
    most: int = MOST,
) -> Explanation:
    """The search of `retrieve` for one user, with what it saw on the way.

    Args:
        model: a tree and a scorer.
        x: one user, as the scorer takes it [1, ...].
        beam_size: k, or the width of each level that is searched, first to last.
        m: how many items are retrieved.
        items: whose way down the tree is followed, found or not.
        allowed: the items that may be found, all unless given.
        exclude: items that are not to be found [1, E].
        most: nodes of a level that `Explanation.as_dict` lists; the others are counted.
    """
    last = beam_size if isinstance(beam_size, int) else beam_size[-1]
    if len(x) != 1:
        raise ValueError(f"x holds {len(x)} users: one is explained at a time")
    if not 1 <= m <= last:
        raise ValueError(f"m={m} with beam_size={last}: from 1 up to beam_size items can be retrieved")
    if most < 1:
        raise ValueError(f"most={most}: list one node of a level at least")
    asked = torch.tensor(list(items or ()), dtype=torch.int64, device=model.tree.device)
    model.tree.check_items(asked)
    model.scorer.check(x)
    if model.scorer.reads_items:
        model.tree.check_items(x)
    mask = model.tree.allow(allowed) if isinstance(allowed, Tensor) else allowed or model.tree.mask
    query = model.query(x)
    hidden = x.new_empty(1, 0) if exclude is None else exclude
    widths = beam_size if isinstance(beam_size, int) else tuple(max(width, m) for width in beam_size)
    levels = () if mask.is_empty else tuple(_levels(query, widths, mask, hidden))
    found = _found(model, levels, m)
    open_ = mask.allows(model.tree.leaf_of_item(asked)) & ~torch.isin(asked, hidden)
    paths = [_path(query, levels, item, may) for item, may in zip(asked.tolist(), open_.tolist(), strict=True)]
    below = subtrees(model.tree, model.popularity)
    shape = model.tree.arity, model.tree.height
    return Explanation(widths, m, *shape, levels, found, tuple(paths), below, most)


def _levels(query: Query, widths: int | tuple[int, ...], mask: NodeMask, hidden: Tensor) -> Iterator[Level]:
    """Every level, also those that the search passes over because it keeps all of their nodes."""
    heard: list[Tensor] = []

    def expand(logits: Tensor, parents: State) -> State:
        state = query.model.expand(logits, parents)
        heard.append(state[0])
        return state

    tree = query.tree
    excluded = mask.excluded(tree.leaf_of_item(hidden)) if hidden.shape[1] else None
    beams: Any = widths
    searched = walk(query, beams, expand, mask=mask, excluded=excluded, choices=not query.model.chained)
    step = next(searched)
    beam = mask.nodes(query.levels.start - 1)
    for level in query.levels:
        if level < step.level:
            nodes = tree.children(beam, mask=mask).flatten().unsqueeze(0)
            if excluded is not None:
                nodes = mask.keep_for(excluded, level, nodes)
            nodes = nodes[nodes != PAD]
            scores = query.logits(level, nodes.unsqueeze(0))[0] if len(nodes) else nodes.float()
            kept = torch.ones_like(nodes, dtype=torch.bool)
        else:
            real = step.candidates[0] != PAD
            nodes, scores = step.candidates[0][real], heard[-1][0][real]
            kept = torch.isin(nodes, step.beam[0])
        if not len(nodes):  # all that is allowed is excluded
            return
        order = scores.argsort(descending=True, stable=True)
        order = order[(~kept[order]).long().argsort(stable=True)]  # of equals, those that were kept come first
        yield Level(level, nodes[order], scores[order], int(kept.sum()), level < step.level)
        beam = nodes[kept]
        if level == step.level:
            step = next(searched, step)


def _found(model: TreeModel, levels: Sequence[Level], m: int) -> tuple[tuple[int, float], ...]:
    """The best m items of the last beam and their p_g."""
    if not levels:
        return ()
    last = levels[-1]
    items = model.tree.item_of_leaf(last.nodes[: last.kept])
    held = (items != PAD).nonzero().squeeze(1)[:m]  # empty leaves are there where they were admitted
    log_p = model.rank_to_log_prob(last.scores[held])
    return tuple(zip(items[held].tolist(), log_p.exp().tolist(), strict=True))


def _path(query: Query, levels: Sequence[Level], item: int, may_be_found: bool) -> ItemPath:
    """What became of an item."""
    model, leaf = query.model, query.tree.leaf_of_item(torch.tensor([item], device=query.tree.device))
    log_p = query.log_prob(query.tree.height, leaf.unsqueeze(0))
    p = float(log_p.exp())
    if not may_be_found or not levels:
        return ItemPath(item, may_be_found, None, None, p, (), None)
    steps, rank = [], torch.zeros(1, 1, device=leaf.device)
    for each in levels:
        node = query.tree.ancestor(leaf, each.level)
        (rank,) = model.expand(query.logits(each.level, node.unsqueeze(0)), (rank,))
        before = each.place(int(node))
        score = float(rank if before is None else each.scores[before])
        steps.append(Step(each.level, int(node), score, each.kth, before, before is not None and before < each.kept))
    last, leaves = steps[-1], levels[-1]
    held = query.tree.item_of_leaf(leaves.nodes[: leaves.kept]) != PAD
    if last.kept:
        return ItemPath(item, True, int(held[: last.before].sum()) + 1, None, p, tuple(steps), None)
    beaten = held & (leaves.scores[: leaves.kept] >= last.score)
    lost = next(place for place, step in enumerate(steps) if not step.kept)
    return ItemPath(item, True, None, int(beaten.sum()) + 1, p, tuple(steps), _loss(query, levels, steps, lost))


def _loss(query: Query, levels: Sequence[Level], steps: Sequence[Step], lost: int) -> Loss:
    """The level on which an item was lost, and the last node that was kept there."""
    step, level, tree = steps[lost], levels[lost], query.tree
    last = level.nodes[level.kept - 1]
    nodes = torch.stack([last.new_tensor(step.node), last])
    above = torch.zeros(2, device=nodes.device)
    if lost:
        parents, places = tree.parent(nodes).tolist(), levels[lost - 1]
        above = torch.stack([places.scores[places.place(parent) or 0] for parent in parents])
    below = subtrees(tree, query.model.popularity)
    parts, together = contributions(query, level.level, nodes, above)
    return Loss(step, int(last), int(below.items[last]), _best_below(query, int(last)), parts, together)


def _best_below(query: Query, node: int) -> int:
    """The item below a node that scores best."""
    leaves = torch.tensor(list(query.tree.leaves(node)), device=query.tree.device)
    leaves = leaves[query.tree.item_of_leaf(leaves) != PAD]
    scores = torch.cat([query.log_prob(query.tree.height, part.unsqueeze(0))[0] for part in leaves.split(AT_ONCE)])
    return int(query.tree.item_of_leaf(leaves[scores.argmax()]))
