"""Tree learning as in JTM (Zhu et al. 2019): every item moves to where the model would look for it."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from beamtree.builders.matching import match
from beamtree.data import Data, Log, mix
from beamtree.model import Query, TreeModel
from beamtree.tree import PAD, Tree

GAP = 2  # levels at a time
WORST = -100.0  # log p of a node that nothing lies below
STAY = 10.0  # log p that an item gains by staying where it is: few instances alone do not move it


@torch.no_grad()
def learn_tree(
    model: TreeModel,
    data: Data,
    *,
    gap: int = GAP,
    passes: int = 2,
    stay: float = STAY,
    batch_size: int = 256,
    seed: int = 0,
) -> Tree:
    """π that raises the sum of log p_g(n | x) over every target's path, under the scorer as it is.

    Items go down together: first to a node of the first level that is trained, then `gap` levels at a time to one of
    the descendants, each by the weights of its own instances and under the capacity of each node, which is what the
    old tree has below it: every leaf slot that held an item holds one again. The users' histories are lifted along the
    old tree, which the scorer knows. Instances of a log that is drawn differ from pass to pass. An item that stays
    gains `stay`, so that few instances do not move it by chance.
    """
    if gap < 1 or passes < 1:
        raise ValueError(f"gap={gap}, passes={passes}: both are at least 1")
    tree = model.tree
    tree.check_items(data.item_numbers())
    data = data.to(tree.device)
    model.eval()
    place = torch.zeros(tree.num_items, dtype=torch.int64, device=tree.device)  # each item's node so far
    level, first = 0, model.first_level
    drawn = isinstance(data, Log) and data.random  # else every pass would be the same
    while level < tree.height:
        # Levels above the first that is trained say nothing: from the root, every node of that one is a choice.
        levels = range(level + 1, min(level + gap, tree.height) + 1) if level else range(first, first + 1)
        weights = torch.zeros(tree.num_items, tree.arity ** (levels[-1] - level), device=tree.device)
        for turn in range(passes if drawn else 1):
            for batch, rows in enumerate(torch.arange(len(data)).split(batch_size)):
                generator = torch.Generator(tree.device).manual_seed(mix(seed, mix(turn, batch)))
                x, y = data.batch(rows.to(tree.device), generator)
                _add(weights, model.query(x), y, place, level, levels)
        place = _move(tree, weights, place, level, levels[-1], stay)
        level = levels[-1]
    slots = torch.full_like(tree.items(), PAD)
    slots[place - tree.level(tree.height).start] = torch.arange(tree.num_items, device=tree.device)
    return Tree(slots, tree.arity, admit_empty=tree.admit_empty)


def _add(weights: Tensor, query: Query, y: Tensor, place: Tensor, level: int, levels: range) -> None:
    """Add each instance's log p_g of the nodes that its targets may go to, along the way there."""
    if level == 0:  # all targets have the same places: a level is scored once for each user
        log_p = logsigmoid(query.whole_level(levels[0])).clamp(min=WORST)
        user, column = (y != PAD).nonzero(as_tuple=True)
        weights.index_add_(0, y[user, column], log_p[user])
        return
    items = y.clamp(min=0)
    nodes = place[items].unsqueeze(-1)  # [B, P, 1], and b times as many on every level
    total = torch.zeros_like(nodes, dtype=weights.dtype)
    for h in levels:
        nodes = query.tree.children(nodes).flatten(2)
        log_p = logsigmoid(query.logits(h, nodes.flatten(1))).view(nodes.shape)
        total = total.repeat_interleave(query.tree.arity, dim=2) + log_p.clamp(min=WORST)
    weights.index_add_(0, items.flatten(), (total * (y != PAD).unsqueeze(-1)).flatten(0, 1))


def _move(tree: Tree, weights: Tensor, place: Tensor, level: int, bottom: int, stay: float) -> Tensor:
    """Each item's node on level `bottom`, below its node on `level`."""
    below = tree.arity ** (bottom - level)
    group = place - tree.level(level).start
    old = tree.ancestor(tree.leaf_of_item(torch.arange(len(place), device=place.device)), bottom)
    old = old - tree.level(bottom).start
    capacity = torch.bincount(old, minlength=len(tree.level(bottom))).view(-1, below)
    same = old // below == group
    weights[same, (old % below)[same]] += stay
    found: Tensor = tree.level(bottom).start + group * below + match(weights, group, capacity)
    return found
