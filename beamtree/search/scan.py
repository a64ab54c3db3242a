"""A scan: every leaf is scored and the best m are kept, as a beam that keeps everything would find them.

Where the scores of parts are products, numbers of nodes or those of a few named items, a scan is one product and a few
additions: a kernel on a GPU, a compiled function on a CPU. `retrieve` chooses it where it is faster than a beam. Any
other scorer is scanned by its definition, some leaves at a time, and by `beam.brute_force` every scorer is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from beamtree import kernels
from beamtree.kernels import search_cpu
from beamtree.kernels.cuda_graphs import beside
from beamtree.kernels.search_cpu import (
    MAX_PRODUCTS,
    Columns,
    Entries,
    Memory,
    Network,
    NodeScores,
    Product,
    Repeats,
    SearchParts,
    WeightedParts,
)
from beamtree.mask import NodeMask
from beamtree.model import TreeModel
from beamtree.tree import PAD, Tree

LEAVES_AT_ONCE = 4096  # that are scored together where a scan is not one product
MAX_SCORES = 1 << 28  # of users and leaves, held at once
MAX_GROUP = 128  # leaves of a group
FEW = 8  # a mask that allows fewer than one leaf in so many is scanned by a list of them; on a GPU if they are few


class Table(NamedTuple):
    """A product on the leaves: ⟨u(x), v_n⟩ times a weight."""

    rows: Tensor  # v of the leaves from left to right, float16 [b^H, dim]
    weight: float
    users: Tensor  # u(x) [B, dim]


def covered_parts(model: TreeModel) -> WeightedParts | None:
    """The parts of a score that is one product and a few additions; None for any other."""
    parts = None if model.chained or model.tree.admit_empty else model.scorer.compiled_parts(model.tree)
    return None if parts is None or any(isinstance(part, Network) for _, part in parts) else parts


def scan(
    model: TreeModel, x: Tensor, mask: NodeMask, hidden: Tensor | None, m: int, compiled: SearchParts | None = None
) -> tuple[Tensor, Tensor]:
    """The m best items that may be entered and their scores [B, m], PAD and -inf where there are fewer.

    `hidden` are the leaves that each user is not shown [B, E], PAD for none; `compiled` what `search_parts` gives for
    these users, where they are on a CPU.
    """
    tree, few = model.tree, mask.num_leaves * FEW < mask.num_slots
    if compiled is not None and not compiled.has_network and not tree.admit_empty:
        leaves = mask.nodes(tree.height) if few else None
        return search_cpu.scan(tree, mask, compiled, model.scorer.histories(x), hidden, m, leaves)
    parts = None if few and mask.num_leaves <= LEAVES_AT_ONCE else covered_parts(model)
    if parts is None:
        return scan_by_definition(model, x, mask, hidden, m)
    at_once = max(1, MAX_SCORES // mask.num_slots)
    users = x.split(at_once)
    of_users = [None] * len(users) if hidden is None else hidden.split(at_once)
    found = [_scan_together(model, parts, *each, mask, m) for each in zip(users, of_users, strict=True)]
    items, scores = zip(*found, strict=True)
    return (items[0], scores[0]) if len(found) == 1 else (torch.cat(items), torch.cat(scores))


def scan_by_definition(
    model: TreeModel,
    x: Tensor,
    mask: NodeMask,
    hidden: Tensor | None,
    m: int,
    leaves_at_once: int = LEAVES_AT_ONCE,
) -> tuple[Tensor, Tensor]:
    """The same with any scorer: every leaf that may be entered is scored, some at a time."""
    tree, query = model.tree, model.query(x)
    hidden = None if hidden is None else hidden.sort(dim=1).values
    items = torch.empty(len(x), 0, dtype=torch.int64, device=x.device)
    scores = torch.empty(len(x), 0, device=x.device)
    for leaves in mask.nodes(tree.height).split(leaves_at_once):
        nodes = leaves.unsqueeze(0)
        more = query.log_prob(tree.height, nodes) if model.chained else query.logits(tree.height, nodes)
        shown = tree.item_of_leaf(leaves)
        more = more.masked_fill(shown == PAD, -torch.inf)  # empty slots, where they were admitted
        if hidden is not None:
            place = torch.searchsorted(hidden, nodes.expand(len(x), -1).contiguous()).clamp_(max=hidden.shape[1] - 1)
            more = more.masked_fill(hidden.gather(1, place) == nodes, -torch.inf)
        items = torch.cat([items, shown.expand(len(x), -1)], dim=1)
        scores = torch.cat([scores, more], dim=1)
        items, scores = best_items(items, scores, m)
    return items, scores


def best_items(items: Tensor, scores: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m items [B, m] with the highest scores, best first, PAD and -inf where there are fewer."""
    best = scores.topk(min(m, scores.shape[1]))
    return _filled(items.gather(1, best.indices), best.values, m)


def _filled(items: Tensor, scores: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Items and scores [B, ≤ m] as [B, m], PAD where a score is -inf."""
    items, missing = items.masked_fill(scores == -torch.inf, PAD), (0, m - items.shape[1])
    if not missing[1]:
        return items, scores
    return pad(items, missing, value=PAD), pad(scores, missing, value=-torch.inf)


def _scan_together(
    model: TreeModel, parts: WeightedParts, x: Tensor, hidden: Tensor | None, mask: NodeMask, m: int
) -> tuple[Tensor, Tensor]:
    """All leaves at once, for some users."""
    scores, added = named_scores(model, parts, x, hidden)
    group = group_size(model.tree, m)
    highest = add_tables(scores, *added, mask.blocked(model.tree.height), group)
    if group == 1:
        best = scores.topk(min(m, scores.shape[1]))
        return _filled(model.tree.items().take(best.indices), best.values, m)
    # An item among the best m is in one of the m groups with the highest maxima: each other one of these has an item
    # that is as good as the best of a group left out.
    groups = _best_columns(highest, m)
    within = scores.unflatten(1, (-1, group)).gather(1, groups.unsqueeze(2).expand(-1, -1, group)).flatten(1)
    best = within.topk(m)
    slots = groups.gather(1, best.indices // group) * group + best.indices % group
    return _filled(model.tree.items().take(slots), best.values, m)


def _best_columns(scores: Tensor, m: int) -> Tensor:
    """The columns of the m highest scores of each row [B, m], in no order."""
    if kernels.fits(scores) and scores.shape[1] <= kernels.MAX_SELECTED:
        from beamtree.kernels.select import select

        columns: Tensor = select(torch.arange(scores.shape[1], device=scores.device)[None], scores, m, 2, None, False)[
            1
        ]
        return columns
    return scores.topk(m, dim=1, sorted=False).indices


def group_size(tree: Tree, m: int) -> int:
    """How many neighbouring leaves are a group, of which the best is looked at first; 1 where that does not pay.

    So that there are about as many groups as leaves in m groups.
    """
    slots = len(tree.items())
    size = 1
    while size < MAX_GROUP and slots % (2 * size) == 0 and 2 * size * size * m <= slots:
        size *= 2
    return size if size >= 8 else 1


def named_scores(
    model: TreeModel, parts: WeightedParts, x: Tensor, hidden: Tensor | None
) -> tuple[Tensor, tuple[list[Table], Tensor | None]]:
    """The scores of the items that are named for users [B, b^H], -inf for hidden ones, and what is to be added.

    That is products, and the scores that are the same for every user [b^H]. Users are encoded beside each other.
    """
    tree, height = model.tree, model.tree.height
    columns: Columns = model.scorer.columns
    span = tree.level(height)
    tables: list[tuple[Tensor, float]] = []
    shared: Tensor | None = None
    encoders: list[Callable[[], Any]] = []
    lookups: list[Callable[[], Any]] = []

    def encode(part: Product) -> Tensor:
        return part.encode(columns.narrowed(x, part.columns, part.history))

    def look_up(part: Entries, weight: float) -> tuple[Tensor, Tensor]:
        items, scores = part.entries(columns.narrowed(x, part.columns, part.history))
        slots = tree.leaf_of_item(items) - span.start
        return slots.clamp(min=0), torch.where(slots < 0, 0.0, scores.float() * weight)

    for levels, part in parts:
        weight = float(levels[height])
        if isinstance(part, Product):
            tables.append((part.rows[span.start : span.stop], weight))
            encoders.append(partial(encode, part))
        elif isinstance(part, NodeScores):
            scores = part.scores[span.start : span.stop].float() * (part.scale * weight)
            shared = scores if shared is None else shared + scores
        else:
            named = part.named if isinstance(part, Memory | Repeats) else part
            assert isinstance(named, Entries)
            lookups.append(partial(look_up, named, weight))
    found = beside(x.device, [*encoders, *lookups])
    total = torch.zeros(len(x), len(span), device=x.device)
    for slots, scores in found[len(encoders) :]:
        total.scatter_add_(1, slots, scores)
    if hidden is not None:
        slots = hidden - span.start
        total.scatter_add_(1, slots.clamp(min=0), torch.where(slots < 0, 0.0, -torch.inf))
    return total, ([Table(*table, users) for table, users in zip(tables, found, strict=False)], shared)


def add_tables(total: Tensor, tables: list[Table], shared: Tensor | None, blocked: Tensor | None, group: int) -> Tensor:
    """Add products, and scores that all users share, to scores of leaves [B, b^H] in place, -inf for blocked leaves.

    Returns the highest of each group [B, b^H / group]: in groups of one leaf the scores.
    """
    if kernels.fits(total) and len(tables) <= MAX_PRODUCTS:
        from beamtree.kernels import scan_gpu

        best: Tensor = scan_gpu.add_tables(total, tables, shared, blocked, group)
        return best
    for rows, weight, users in tables:
        for scores, some in zip(total.split(LEAVES_AT_ONCE, dim=1), rows.split(LEAVES_AT_ONCE), strict=True):
            scores.addmm_(users, some.float().T, alpha=weight)
    if shared is not None:
        total += shared
    if blocked is not None:
        total.masked_fill_(blocked, -torch.inf)
    return total.unflatten(1, (-1, group)).amax(2) if group > 1 else total
