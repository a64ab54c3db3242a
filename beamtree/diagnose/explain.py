"""Explain one search: the beam level by level, and where single items were found or lost."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from beamtree.beam import DEFAULT_BEAM_SIZE, BeamSize, walk, widths
from beamtree.mask import NodeMask, level_span
from beamtree.model import Query, State, TreeModel
from beamtree.scorers import as_sum
from beamtree.tree import PAD, Tree

CHUNK = 4096  # leaves that are scored at once
MAX_NODES = 40  # nodes of a level that are listed by default
BINS = 64  # of the histogram of a level's nodes, for a picture
TOLERANCE = 1e-6  # relative: smaller differences between sums of parts are rounding

Name = Callable[[int], Any]  # item number -> what is shown for it


class PartScores(NamedTuple):
    """What one part of the score adds for two nodes: the item's ancestor and the last node that was kept."""

    name: str
    item: float
    kept: float

    @property
    def difference(self) -> float:
        """Negative if the part favours the node that was kept."""
        return self.item - self.kept

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "difference": self.difference}


class SearchLevel(NamedTuple):
    """One step down: all candidates, the kept ones first, then by score."""

    level: int
    nodes: Tensor  # [n]
    scores: Tensor  # the ranking scores: logits, or log p_g down the path of a chained model [n]
    kept: int  # the first `kept` nodes are the beam
    passed: bool  # the beam was wide enough to keep all nodes, so the search scored none of them

    @property
    def kth(self) -> float:
        """The score of the last node that was kept."""
        return float(self.scores[self.kept - 1])

    def positions(self) -> dict[int, int]:
        """The position of each node among the candidates."""
        return {node: position for position, node in enumerate(self.nodes.tolist())}


class PathStep(NamedTuple):
    """An item's ancestor on one level."""

    level: int
    node: int
    score: float
    kth: float  # the score of the last node that was kept there
    before: int | None  # number of better candidates; None if an ancestor had been lost, so it was no candidate
    kept: bool

    @property
    def margin(self) -> float:
        """Distance to the score of the last node that was kept; negative if the item was lost."""
        return self.score - self.kth


class Pruning(NamedTuple):
    """Where the beam dropped an item, and the last node that it kept there."""

    step: PathStep
    to: int  # the last node that was kept there
    to_items: int  # the number of items below that node
    to_item: int  # the item below it that scores best for this user
    parts: tuple[PartScores, ...]  # they add up to the scores of both nodes
    combined: PartScores | None  # the parts whose subtree maximum is taken of their sum, if that is below the sum

    @property
    def decided(self) -> str | None:
        """The part that favoured the kept node most; None if no part did."""
        worst = min(self.parts, key=lambda part: part.difference, default=None)
        return None if worst is None or worst.difference >= 0 else worst.name

    def as_dict(self, name: Name) -> dict[str, Any]:
        return {
            **self.step._asdict(),
            "margin": self.step.margin,
            "to": {"node": self.to, "item": name(self.to_item), "items": self.to_items},
            "decided": self.decided,
            "parts": [part.as_dict() for part in self.parts],
            "together": None if self.combined is None else self.combined.as_dict(),
        }


class ItemPath(NamedTuple):
    """The path of one item."""

    item: int
    may_be_found: bool  # allowed, and not excluded
    rank: int | None  # among the items of the last beam, from 1; None if it is not among them
    would_rank: int | None  # of a lost item: the rank that its own leaf's score would have
    score: float | None  # p_g(z_n = 1 | x) of its own leaf
    steps: tuple[PathStep, ...]  # its ancestors on the searched levels, the leaf last
    pruned: Pruning | None  # of a lost item

    def as_dict(self, name: Name) -> dict[str, Any]:
        return {
            "item": name(self.item),
            "may_be_found": self.may_be_found,
            "rank": self.rank,
            "would_rank": self.would_rank,
            "score": self.score,
            "steps": [{**step._asdict(), "margin": step.margin} for step in self.steps],
            "lost": None if self.pruned is None else self.pruned.as_dict(name),
        }


class Subtrees(NamedTuple):
    """The items below every node of a tree, level by level."""

    items: Tensor  # their number [num_nodes]
    popular: Tensor  # the one with the most events, on ties the lowest number; PAD if there is none [num_nodes]


class Explanation(NamedTuple):
    """One search, step by step."""

    beam_size: int | tuple[int, ...]
    m: int
    arity: int
    height: int
    levels: tuple[SearchLevel, ...]
    found: tuple[tuple[int, float], ...]  # the best m items and their p_g
    items: tuple[ItemPath, ...]
    subtrees: Subtrees
    max_nodes: int

    @property
    def scored(self) -> int:
        """How many nodes the search scored."""
        return sum(len(level.nodes) for level in self.levels if not level.passed)

    def as_dict(self, name: Name) -> dict[str, Any]:
        """The explanation as JSON values; `name` maps an item number to what is shown for it."""
        return {
            "beam_size": list(self.beam_size) if isinstance(self.beam_size, tuple) else self.beam_size,
            "m": self.m,
            "arity": self.arity,
            "height": self.height,
            "scored": self.scored,
            "found": [
                {"rank": rank, "item": name(item), "score": p} for rank, (item, p) in enumerate(self.found, start=1)
            ],
            "levels": [self._level_as_dict(level, name) for level in self.levels],
            "items": [path.as_dict(name) for path in self.items],
        }

    def _level_as_dict(self, level: SearchLevel, name: Name) -> dict[str, Any]:
        listed = self._listed(level)
        nodes = level.nodes[listed]
        rows = zip(
            listed,
            nodes.tolist(),
            level.scores[listed].tolist(),
            self.subtrees.items[nodes].tolist(),
            self.subtrees.popular[nodes].tolist(),
            strict=True,
        )
        return {
            "level": level.level,
            "candidates": len(level.nodes),
            "kept": level.kept,
            "passed": level.passed,
            "best": float(level.scores[0]),
            "kth": level.kth,
            "worst": float(level.scores.min()),
            "nodes": [
                {
                    "node": node,
                    "rank": position + 1,
                    "score": score,
                    "kept": position < level.kept,
                    "items": items,
                    "popular": None if popular == PAD else name(popular),
                }
                for position, node, score, items, popular in rows
            ],
            "more": {
                "kept": level.kept - sum(position < level.kept for position in listed),
                "all": len(level.nodes) - len(listed),
            },
            "spread": {
                "kept": self._histogram(level, level.kept),
                "candidates": self._histogram(level, len(level.nodes)),
            },
        }

    def _listed(self, level: SearchLevel) -> list[int]:
        """The positions of at most `max_nodes` nodes, in this priority: ancestors of the requested items, the last
        node that was kept, some that were pruned, ancestors of the retrieved items, and the best of the others.
        """
        positions = level.positions()
        index = level.level - self.levels[0].level
        last = self.levels[-1]
        leaves = last.nodes[: self.m] - level_span(self.arity, last.level).start
        ancestors = leaves.div(self.arity ** (last.level - level.level), rounding_mode="floor")
        ancestors += level_span(self.arity, level.level).start
        wanted = [
            *(positions.get(path.steps[index].node) for path in self.items if path.steps),
            level.kept - 1,
            *range(level.kept, min(len(level.nodes), level.kept + self.max_nodes // 4)),
            *(positions.get(node) for node in ancestors.tolist()),
            *range(len(level.nodes)),
        ]
        distinct = dict.fromkeys(position for position in wanted if position is not None)
        return sorted(list(distinct)[: self.max_nodes])

    def _histogram(self, level: SearchLevel, count: int) -> list[int]:
        """The first `count` nodes, counted in BINS equal stretches of the level."""
        span = level_span(self.arity, level.level)
        bins = (level.nodes[:count] - span.start) * BINS // len(span)
        counts: list[int] = torch.bincount(bins.cpu(), minlength=BINS).tolist()
        return counts


@torch.no_grad()
def explain(
    model: TreeModel,
    x: Tensor,
    *,
    beam_size: BeamSize = DEFAULT_BEAM_SIZE,
    m: int = 10,
    items: Sequence[int] | None = None,
    allowed: NodeMask | Tensor | None = None,
    exclude: Tensor | None = None,
    max_nodes: int = MAX_NODES,
) -> Explanation:
    """Run the search of `retrieve` for one user, and record every step.

    Args:
        model: a tree and a scorer.
        x: one user, as the scorer takes it [1, ...].
        beam_size: k, or the width of each searched level, first to last.
        m: how many items are retrieved.
        items: items whose path down the tree is followed, found or not.
        allowed: the items that may be retrieved; all unless given.
        exclude: items that may not be retrieved [1, E].
        max_nodes: nodes of a level that `Explanation.as_dict` lists; the others are counted.
    """
    sizes = widths(model, beam_size, m)
    if len(x) != 1:
        raise ValueError(f"x holds {len(x)} users: one is explained at a time")
    if max_nodes < 1:
        raise ValueError(f"max_nodes={max_nodes}: must be at least 1")
    followed = torch.tensor(list(items or ()), dtype=torch.int64, device=model.tree.device)
    model.tree.check_items(followed)
    model.scorer.check(x)
    if model.scorer.reads_items:
        model.tree.check_items(model.scorer.histories(x))
    mask = model.tree.mask_of(allowed)
    query = model.query(x)
    hidden = x.new_empty(1, 0) if exclude is None else exclude
    levels = () if mask.is_empty else tuple(_levels(query, sizes, mask, hidden))
    found: tuple[tuple[int, float], ...] = ()
    if levels:
        last = levels[-1]
        last_items = model.tree.item_of_leaf(last.nodes[: last.kept])
        real = (last_items != PAD).nonzero().squeeze(1)[:m]  # admitted empty leaves have no item
        p = model.scores_to_log_prob(last.scores[real]).exp()
        found = tuple(zip(last_items[real].tolist(), p.tolist(), strict=True))
    may_be_found = mask.allows(model.tree.leaf_of_item(followed)) & ~torch.isin(followed, hidden)
    return Explanation(
        beam_size=beam_size if isinstance(beam_size, int) else sizes,
        m=m,
        arity=model.tree.arity,
        height=model.tree.height,
        levels=levels,
        found=found,
        items=tuple(_paths(query, levels, followed, may_be_found.tolist())),
        subtrees=subtrees(model.tree, model.popularity),
        max_nodes=max_nodes,
    )


def _levels(query: Query, sizes: tuple[int, ...], mask: NodeMask, hidden: Tensor) -> Iterator[SearchLevel]:
    """Every level, including those that the search passes over because it keeps all of their nodes."""
    candidate_scores: list[Tensor] = []

    def expand(logits: Tensor, parents: State) -> State:
        state = query.model.expand(logits, parents)
        candidate_scores.append(state[0])
        return state

    tree = query.tree
    excluded = mask.excluded(tree.leaf_of_item(hidden)) if hidden.shape[1] else None
    searched = walk(query, sizes, expand, mask=mask, excluded=excluded, skip_full_levels=True)
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
            nodes, scores = step.candidates[0][real], candidate_scores[-1][0][real]
            kept = torch.isin(nodes, step.beam[0])
        if not len(nodes):  # everything that is allowed is excluded
            return
        order = scores.argsort(descending=True, stable=True)
        order = order[(~kept[order]).long().argsort(stable=True)]  # on ties, kept nodes come first
        yield SearchLevel(level, nodes[order], scores[order], int(kept.sum()), level < step.level)
        beam = nodes[kept]
        if level == step.level:
            step = next(searched, step)


def _paths(query: Query, levels: Sequence[SearchLevel], items: Tensor, may_be_found: list[bool]) -> Iterator[ItemPath]:
    """The path of each item."""
    if not len(items):
        return
    leaves = query.tree.leaf_of_item(items).unsqueeze(0)
    scores = query.log_prob(query.tree.height, leaves).exp()[0].tolist()
    paths = list(zip(*_steps(query, levels, leaves), strict=True)) or [()] * len(scores)
    parts = Parts(query)
    for item, may, p, steps in zip(items.tolist(), may_be_found, scores, paths, strict=True):
        if not may or not steps:
            yield ItemPath(item, may, None, None, p, (), None)
            continue
        leaf, last = steps[-1], levels[-1]
        real = query.tree.item_of_leaf(last.nodes[: last.kept]) != PAD
        if leaf.kept:
            yield ItemPath(item, True, int(real[: leaf.before].sum()) + 1, None, p, steps, None)
            continue
        better = real & (last.scores[: last.kept] >= leaf.score)
        index = next(index for index, step in enumerate(steps) if not step.kept)
        yield ItemPath(item, True, None, int(better.sum()) + 1, p, steps, _pruning(query, levels, steps, index, parts))


def _steps(query: Query, levels: Sequence[SearchLevel], leaves: Tensor) -> Iterator[list[PathStep]]:
    """The ancestors of leaves [1, n] on each level."""
    path_scores = torch.zeros(leaves.shape, device=leaves.device)
    for level in levels:
        nodes = query.tree.ancestor(leaves, level.level)
        (path_scores,) = query.model.expand(query.logits(level.level, nodes), (path_scores,))
        positions, scores, kth, steps = level.positions(), level.scores.tolist(), level.kth, []
        for node, own_score in zip(nodes[0].tolist(), path_scores[0].tolist(), strict=True):
            before = positions.get(node)
            score = own_score if before is None else scores[before]
            kept = before is not None and before < level.kept
            steps.append(PathStep(level.level, node, score, kth, before, kept))
        yield steps


def _pruning(
    query: Query, levels: Sequence[SearchLevel], steps: Sequence[PathStep], index: int, parts: "Parts"
) -> Pruning:
    """Why the item was pruned at the level of this index, and which node was kept."""
    step, level, tree = steps[index], levels[index], query.tree
    last = level.nodes[level.kept - 1]
    nodes = torch.stack([last.new_tensor(step.node), last])
    above = torch.zeros(2, device=nodes.device)
    if index and query.model.chained:
        positions = levels[index - 1].positions()
        above = levels[index - 1].scores[[positions[parent] for parent in tree.parent(nodes).tolist()]]
    num_items = int(subtrees(tree, query.model.popularity).items[last])
    span = tree.leaves(int(last))
    leaves = torch.arange(span.start, span.stop, device=tree.device)
    leaves = leaves[tree.mask.allows(leaves) & (tree.item_of_leaf(leaves) != PAD)]
    scores = torch.cat([query.log_prob(tree.height, part.unsqueeze(0))[0] for part in leaves.split(CHUNK)])
    best_item = int(tree.item_of_leaf(leaves[scores.argmax()]))
    return Pruning(step, int(last), num_items, best_item, *parts.of(level.level, nodes, above))


class Parts:
    """The parts of the scores of one user.

    A sum of scorers has one part per scorer with a weight, w_hp · g_p. A chained model has two: the levels above, and
    this one. Other models have none. A search takes the subtree maximum of the sum of all parts that are sparse over
    items; here each is taken alone. Their sum can exceed the maximum of the sum, which is then given too.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self.sum = None if query.model.chained else as_sum(query.model.scorer)
        self._prepared: dict[str, Any] = {}  # by part, made on first use

    def of(self, level: int, nodes: Tensor, above: Tensor) -> tuple[tuple[PartScores, ...], PartScores | None]:
        """The parts for two nodes [2] of a level, and those combined in one maximum; `above`: their parents' scores."""
        if self.query.model.chained:
            here = logsigmoid(self.query.logits(level, nodes.unsqueeze(0)))[0]
            return (_part("levels above", above), _part(f"level {level}", here)), None
        if self.sum is None:
            return (), None
        scores = {}
        for name, column in zip(self.sum.names, self.sum.weights.T, strict=True):
            if bool(column.any()):
                part = self.sum.part(name)
                if name not in self._prepared:
                    self._prepared[name] = part.prepare(self.query.tree, self.sum.input_of(part, self.query.x))
                scores[name] = part.scores(self._prepared[name], level, nodes.unsqueeze(0))[0] * column[level]
        return tuple(_part(name, values) for name, values in scores.items()), self._combined(level, nodes, scores)

    def _combined(self, level: int, nodes: Tensor, scores: dict[str, Tensor]) -> PartScores | None:
        """The scores of the parts that share one subtree maximum, if they differ from the sum of each alone."""
        assert self.sum is not None
        with_maximum = [part for _, part in self.sum.active_parts()[1]]
        names = [name for name in scores if any(self.sum.part(name) is part for part in with_maximum)]
        if len(names) < 2:
            return None
        exact = self.query.prepared.subtree_max.at(level, nodes.unsqueeze(0))[0]
        alone = torch.stack([scores[name] for name in names]).sum(0)
        if bool(((alone - exact).abs() <= TOLERANCE * alone.abs()).all()):
            return None
        return _part(", ".join(names), exact)


def _part(name: str, values: Tensor) -> PartScores:
    item, kept = values.tolist()
    return PartScores(name, item, kept)


def parts_of(model: TreeModel) -> list[str]:
    """The names of the parts of a score that have a weight."""
    return model.scorer.drop_zero_parts().names


def without_part(model: TreeModel, name: str) -> TreeModel:
    """The same model without one part of its score, sharing the weights."""
    names = parts_of(model)
    scorer = as_sum(model.scorer.drop_zero_parts())
    if name not in names or len(names) < 2 or scorer is None:
        parts = ", ".join(names) or "no parts"
        raise ValueError(f"there is no part {name[:80]!r} to leave out: the score of this model is the sum of {parts}")
    return model.with_scorer(scorer.without(name)).eval()


_SUBTREES: "WeakKeyDictionary[Tree, tuple[Tensor | None, Subtrees]]" = WeakKeyDictionary()


def subtrees(tree: Tree, popularity: Tensor | None = None) -> Subtrees:
    """The items below each node, cached per tree; without event counts [M], the lowest number is the most popular."""
    cached = _SUBTREES.get(tree)
    if cached is not None and cached[0] is popularity:
        return cached[1]
    best = slots = tree.visible()
    events = torch.zeros_like(slots) if popularity is None else popularity.to(slots.device, torch.int64)[slots]
    key = (events * tree.num_items - slots).masked_fill(slots == PAD, torch.iinfo(torch.int64).min)
    count = (slots != PAD).long()
    counts, popular = [count], [best]
    for _ in range(tree.height):
        count = count.view(-1, tree.arity).sum(1)
        key, which = key.view(-1, tree.arity).max(1)
        best = best.view(-1, tree.arity).gather(1, which.unsqueeze(1)).squeeze(1)
        counts.append(count)
        popular.append(best)
    result = Subtrees(torch.cat(counts[::-1]), torch.cat(popular[::-1]))
    _SUBTREES[tree] = popularity, result
    return result
