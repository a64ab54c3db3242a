"""Tree learning as in JTM (Zhu et al. 2019): every item moves to where the model would look for it."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from beamtree.builders.matching import match
from beamtree.data import Data
from beamtree.data.seeds import mix
from beamtree.model import Query, TreeModel
from beamtree.tree import PAD, Tree, distinct

LEVELS_AT_ONCE = 2  # levels in one step
PASSES = 2  # over sampled instances
MAX_WEIGHTS = 1 << 29  # weights of all items in a step, at most
WORST = -100.0  # log p of a node without items below
STAY = 5.0  # log p that an item gains by staying, so that few instances do not move it


@torch.no_grad()
def learn_tree(
    model: TreeModel,
    data: Data,
    *,
    levels_at_once: int = LEVELS_AT_ONCE,
    passes: int = PASSES,
    stay: float = STAY,
    max_weights: int = MAX_WEIGHTS,
    batch_size: int = 256,
    seed: int = 0,
) -> Tree:
    """A tree that raises the sum of log p_g(n | x) over every target's path, under the scorer as it is (JTM).

    All items are assigned to nodes of the first trained level, then some levels at a time to descendants of these: by
    the weights of their instances, and under the capacity of each node, which is its number of items in the old tree.
    So the same leaf slots are used. A leaf's vector moves with its item, so leaf scores are not used. Histories are
    lifted along the old tree, for which the scorer was trained.

    Args:
        model: a trained model, whose tree is the old one.
        data: the instances.
        levels_at_once: levels in one step.
        passes: passes over instances that are sampled; weights are the mean.
        stay: log p that an item gains by staying, so that few instances do not move it by chance.
        max_weights: weights of all items in a step, at most.
        batch_size: instances that are scored together.
        seed: of the sampled instances.
    """
    if levels_at_once < 1 or passes < 1:
        raise ValueError(f"levels_at_once={levels_at_once}, passes={passes}: both are at least 1")
    tree = model.tree
    tree.check_items(data.item_numbers())
    data = data.to(tree.device)
    model.eval()
    passes = passes if data.varies else 1  # else all passes would be the same
    node_of = torch.zeros(tree.num_items, dtype=torch.int64, device=tree.device)  # each item's node so far
    level = 0
    for bottom in _steps(tree, model.first_level, levels_at_once, max_weights):
        weights = torch.zeros(tree.num_items, tree.arity ** (bottom - level), device=tree.device)
        for x, y in _instances(data, passes, batch_size, seed, tree.device):
            item, gains = _gains(model.query(x), y, node_of, level, bottom)
            weights.index_add_(0, item, gains)
        node_of = _move(tree, weights.div_(passes), node_of, level, bottom, stay)
        level = bottom
    slots = torch.full_like(tree.items(), PAD)
    slots[node_of - tree.level(tree.height).start] = torch.arange(tree.num_items, device=tree.device)
    return Tree(slots, tree.arity, admit_empty=tree.admit_empty)


def _steps(tree: Tree, first: int, levels_at_once: int, max_weights: int) -> Iterator[int]:
    """The level that each step goes down to: few large steps to the first that is trained, then some at a time."""
    most = max(h for h in range(1, tree.height + 1) if h == 1 or tree.num_items * tree.arity**h <= max_weights)
    yield from range(most, first, most)
    yield from range(first, tree.height, levels_at_once)
    yield tree.height


def _instances(
    data: Data, passes: int, batch_size: int, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Every instance `passes` times, in batches; a repeated target counts once."""
    for turn in range(passes):
        for batch, rows in enumerate(torch.arange(len(data)).split(batch_size)):
            generator = torch.Generator(device).manual_seed(mix(seed, mix(turn, batch)))
            x, y = data.batch(rows.to(device), generator)
            yield x, distinct(y)


def _gains(query: Query, y: Tensor, node_of: Tensor, level: int, bottom: int) -> tuple[Tensor, Tensor]:
    """Targets of instances [n], and log p_g of the nodes that each may go to, along the way there [n, C]."""
    tree, first = query.tree, query.levels.start
    real = y != PAD
    below = tree.arity ** (bottom - level)
    if level < first:  # a node above the first level that is trained is as good as the best below it
        best = logsigmoid(query.whole_level(first)).clamp(min=WORST).unflatten(1, (len(tree.level(bottom)), -1)).amax(2)
        nodes = (node_of[y[real]] - tree.level(level).start).unsqueeze(1) * below + torch.arange(below, device=y.device)
        return y[real], best[real.nonzero()[:, :1], nodes]
    nodes = node_of[y.clamp(min=0)].unsqueeze(-1)  # [B, P, 1], and b times as many on every level
    total = torch.zeros_like(nodes, dtype=torch.get_default_dtype())
    for h in range(level + 1, min(bottom, tree.height - 1) + 1):
        nodes = tree.children(nodes).flatten(2)
        log_p = logsigmoid(query.logits(h, nodes.flatten(1))).view(nodes.shape)
        total = total.repeat_interleave(tree.arity, dim=2) + log_p.clamp(min=WORST)
    return y[real], total.repeat_interleave(below // total.shape[2], dim=2)[real]


def _move(tree: Tree, weights: Tensor, node_of: Tensor, level: int, bottom: int, stay: float) -> Tensor:
    """Each item's node on level `bottom`, below its node on `level`, by the weights of the nodes there [M, C]."""
    below = tree.arity ** (bottom - level)
    group = node_of - tree.level(level).start
    old = tree.ancestor(tree.leaf_of_item(torch.arange(len(node_of), device=node_of.device)), bottom)
    old = old - tree.level(bottom).start
    capacity = torch.bincount(old, minlength=len(tree.level(bottom))).view(-1, below)
    same = old // below == group
    weights[same, (old % below)[same]] += stay
    node: Tensor = tree.level(bottom).start + group * below + match(weights, group, capacity)
    return node
