"""From a wide beam to narrow ones: which level loses least for what it saves."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from beamtree.beam import retrieve, walk
from beamtree.data.instances import Instances
from beamtree.metrics import hits
from beamtree.model import TreeModel
from beamtree.tree import PAD

RUNGS = 12  # widths from m up to the widest beam
BATCH = 32
LEAST = 1e-9  # of the recall: where nothing is lost, what saves most comes first


@torch.no_grad()
def needed_widths(model: TreeModel, users: Instances, sizes: Sequence[int], m: int) -> tuple[Tensor, Tensor]:
    """Of every relevant item that a beam of these widths finds, how wide each level must be to keep it [N, levels].

    That is the rank of its ancestor; of equals, the worst. And what finding it adds to the mean recall [N].
    """
    needed, weights = [], []
    for rows in torch.arange(len(users)).split(BATCH):
        x, y = (part.to(model.tree.device) for part in users.batch(rows))
        found = hits(y, retrieve(model, x, beam_size=sizes, m=m)[0])  # [B, P]
        user, _ = found.nonzero(as_tuple=True)
        leaves = model.tree.leaf_of_item(y[found])
        ranks = []
        for step in walk(model.query(x), sizes):
            ancestor = model.tree.ancestor(leaves, step.level).unsqueeze(1)
            rank = step.rank[user]  # [N, k]
            own = rank.masked_fill(step.beam.expand(len(x), -1)[user] != ancestor, -torch.inf).amax(1, keepdim=True)
            ranks.append((rank >= own).sum(1))
        needed.append(torch.stack(ranks, dim=1).cpu())
        weights.append((1 / (y != PAD).sum(1) / len(users))[user].double().cpu())
    return torch.cat(needed), torch.cat(weights)


def narrowed(
    model: TreeModel, sizes: Sequence[int], m: int, needed: Tensor, weights: Tensor
) -> Iterator[tuple[int, ...]]:
    """Narrower and narrower beams: each narrows one level of the last, where that saves most for what it loses."""
    rungs = sorted({round(m * (sizes[-1] / m) ** (step / RUNGS)) for step in range(RUNGS + 1)}, reverse=True)
    beam, kept = tuple(sizes), torch.ones(len(needed), dtype=torch.bool)
    while True:
        options = []
        for place in range(len(beam) - 1):
            for width in (rung for rung in rungs if rung < beam[place]):
                fewer = (*beam[:place], width, *beam[place + 1 :])
                saved = nodes_of(model, beam) - nodes_of(model, fewer)
                if saved > 0:  # one that narrows a level that was kept whole has to score it
                    lost = float(weights[kept & (needed[:, place] > width)].sum())
                    options.append((saved / (lost + LEAST), place, fewer))
                    break
        if not options:
            return
        _, place, beam = max(options)
        kept &= needed[:, place] <= beam[place]
        yield as_held(model, beam)


def as_held(model: TreeModel, sizes: Sequence[int]) -> tuple[int, ...]:
    """The same beam with no level but the last wider than what can come down to it."""
    found, above = [], len(model.tree.level(model.first_level - 1))
    for width in sizes[:-1]:
        above = min(width, above * model.tree.arity)
        found.append(above)
    return (*found, sizes[-1])


def nodes_of(model: TreeModel, sizes: Sequence[int]) -> int:
    """How many nodes a search with these widths scores at most: levels that it keeps whole are passed over."""
    tree, total = model.tree, 0
    held = tree.mask.count(model.first_level - 1)
    for level, width in zip(range(model.first_level, tree.height + 1), sizes, strict=True):
        candidates = held * tree.arity
        held = min(width, candidates)
        if model.chained or held < candidates or level == tree.height:
            total += min(candidates, tree.mask.count(level))
    return total
