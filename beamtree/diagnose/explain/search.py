"""Look at one search: which nodes were kept on each level, and where single items were lost."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from beamtree.beam import BeamSize, walk, widths
from beamtree.diagnose.explain.explanation import Explanation, ItemPath, Level, Loss, Step
from beamtree.diagnose.explain.parts import Parts
from beamtree.diagnose.explain.subtrees import subtrees
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
    beam_size: BeamSize = 400,
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
    sizes = widths(model, beam_size, m)
    if len(x) != 1:
        raise ValueError(f"x holds {len(x)} users: one is explained at a time")
    if most < 1:
        raise ValueError(f"most={most}: list one node of a level at least")
    asked = torch.tensor(list(items or ()), dtype=torch.int64, device=model.tree.device)
    model.tree.check_items(asked)
    model.scorer.check(x)
    if model.scorer.reads_items:
        model.tree.check_items(x)
    mask = model.tree.mask_of(allowed)
    query = model.query(x)
    hidden = x.new_empty(1, 0) if exclude is None else exclude
    levels = () if mask.is_empty else tuple(_levels(query, sizes, mask, hidden))
    found = _found(model, levels, m)
    open_ = mask.allows(model.tree.leaf_of_item(asked)) & ~torch.isin(asked, hidden)
    paths = tuple(_paths(query, levels, asked, open_.tolist()))
    below = subtrees(model.tree, model.popularity)
    shape = model.tree.arity, model.tree.height
    size = beam_size if isinstance(beam_size, int) else sizes
    return Explanation(size, m, *shape, levels, found, paths, below, most)


def _levels(query: Query, sizes: tuple[int, ...], mask: NodeMask, hidden: Tensor) -> Iterator[Level]:
    """Every level, also those that the search passes over because it keeps all of their nodes."""
    heard: list[Tensor] = []

    def expand(logits: Tensor, parents: State) -> State:
        state = query.model.expand(logits, parents)
        heard.append(state[0])
        return state

    tree = query.tree
    excluded = mask.excluded(tree.leaf_of_item(hidden)) if hidden.shape[1] else None
    searched = walk(query, sizes, expand, mask=mask, excluded=excluded, choices=not query.model.chained)
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


def _paths(query: Query, levels: Sequence[Level], items: Tensor, may: list[bool]) -> Iterator[ItemPath]:
    """What became of each of some items."""
    if not len(items):
        return
    leaves = query.tree.leaf_of_item(items).unsqueeze(0)
    scores = query.log_prob(query.tree.height, leaves).exp()[0].tolist()
    ways = list(zip(*_steps(query, levels, leaves), strict=True)) or [()] * len(scores)
    parts = Parts(query)
    for item, may_be_found, p, steps in zip(items.tolist(), may, scores, ways, strict=True):
        if not may_be_found or not steps:
            yield ItemPath(item, may_be_found, None, None, p, (), None)
            continue
        last, leaf = steps[-1], levels[-1]
        held = query.tree.item_of_leaf(leaf.nodes[: leaf.kept]) != PAD
        if last.kept:
            yield ItemPath(item, True, int(held[: last.before].sum()) + 1, None, p, steps, None)
            continue
        beaten = held & (leaf.scores[: leaf.kept] >= last.score)
        lost = next(place for place, step in enumerate(steps) if not step.kept)
        yield ItemPath(item, True, None, int(beaten.sum()) + 1, p, steps, _loss(query, levels, steps, lost, parts))


def _steps(query: Query, levels: Sequence[Level], leaves: Tensor) -> Iterator[list[Step]]:
    """The ancestors of leaves [1, n] on each level."""
    rank = torch.zeros(leaves.shape, device=leaves.device)
    for each in levels:
        nodes = query.tree.ancestor(leaves, each.level)
        (rank,) = query.model.expand(query.logits(each.level, nodes), (rank,))
        places, compared, kth, found = each.places(), each.scores.tolist(), each.kth, []
        for node, score in zip(nodes[0].tolist(), rank[0].tolist(), strict=True):
            before = places.get(node)
            kept = before is not None and before < each.kept
            found.append(Step(each.level, node, score if before is None else compared[before], kth, before, kept))
        yield found


def _loss(query: Query, levels: Sequence[Level], steps: Sequence[Step], lost: int, parts: Parts) -> Loss:
    """The level on which an item was lost, and the last node that was kept there."""
    step, level, tree = steps[lost], levels[lost], query.tree
    last = level.nodes[level.kept - 1]
    nodes = torch.stack([last.new_tensor(step.node), last])
    above = torch.zeros(2, device=nodes.device)
    if lost and query.model.chained:
        places = levels[lost - 1].places()
        above = levels[lost - 1].scores[[places[parent] for parent in tree.parent(nodes).tolist()]]
    said, together = parts.of(level.level, nodes, above)
    below = int(subtrees(tree, query.model.popularity).items[last])
    return Loss(step, int(last), below, _best_below(query, int(last)), said, together)


def _best_below(query: Query, node: int) -> int:
    """The item below a node that scores best."""
    span = query.tree.leaves(node)
    leaves = torch.arange(span.start, span.stop, device=query.tree.device)
    leaves = leaves[query.tree.mask.allows(leaves) & (query.tree.item_of_leaf(leaves) != PAD)]
    scores = torch.cat([query.log_prob(query.tree.height, part.unsqueeze(0))[0] for part in leaves.split(AT_ONCE)])
    return int(query.tree.item_of_leaf(leaves[scores.argmax()]))
