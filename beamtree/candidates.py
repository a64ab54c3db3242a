"""S_h: the nodes that one instance trains, level by level.

A sampler takes (query, z of every level, which marks S_h⁺, randomness) and yields (level, nodes [B or 1, W]), PAD where
there are fewer. Its numbers, such as `beam_size`, are keyword arguments that `functools.partial` fills in.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from beamtree.beam import gumbel_expand, walk
from beamtree.model import Query
from beamtree.targets import Targets, mark
from beamtree.tree import PAD, Tree

Levels = Iterator[tuple[int, Tensor]]
Sampler = Callable[[Query, list[Targets], torch.Generator], Levels]


class Sampled(NamedTuple):
    """Nodes of a level that stand for all of it, for losses that are a sum over the level."""

    level: int
    nodes: Tensor  # [B or 1, W], with repeats
    log_expected: Tensor  # the logarithm of how often each is expected among them [B or 1, W]


def children_of_positives(query: Query, positives: list[Targets], generator: torch.Generator) -> Levels:
    """PLT: S_h = {n: z_ρ(n) = 1}. A search begins with all nodes of the first level, as if one parent had them all."""
    first, *rest = query.levels
    if first > 1:
        yield first, query.tree.mask.nodes(first).unsqueeze(0)
    for level in rest if first > 1 else query.levels:
        yield level, query.tree.children(positives[level - 1].relevant()).flatten(1)


def uniform(query: Query, positives: list[Targets], generator: torch.Generator, *, nodes: int) -> Levels:
    """The authors' TDM: some nodes of each level, drawn uniformly, whether positive or not."""
    for level in query.levels:
        yield level, _sampled(query, level, nodes, generator)


def uniform_leaves(query: Query, positives: list[Targets], generator: torch.Generator, *, nodes: int) -> Levels:
    """Some nodes of the leaf level, drawn uniformly, and none above."""
    yield query.tree.height, _sampled(query, query.tree.height, nodes, generator)


def _sampled(query: Query, level: int, nodes: int, generator: torch.Generator) -> Tensor:
    return query.drawn(lambda rows: query.tree.sample(level, rows, nodes, generator))


def with_negatives(query: Query, positives: list[Targets], generator: torch.Generator, *, negatives: int) -> Levels:
    """TDM: S_h = S_h⁺ ∪ S_h⁻, where S_h⁻ is up to `negatives` uniform nodes off S_h⁺."""
    for level, nodes in uniform(query, positives, generator, nodes=negatives):
        yield level, _join(query.tree, level, positives[level].relevant(), nodes)


def beam_candidates(query: Query, positives: list[Targets], generator: torch.Generator, *, beam_size: int) -> Levels:
    """OTM: S_h = B̃_h, the nodes that beam search queries under the current weights (Eq. 3)."""
    for step in walk(query, beam_size):
        yield step.level, step.candidates


def stochastic_beam(query: Query, positives: list[Targets], generator: torch.Generator, *, beam_size: int) -> Levels:
    """B̃_h of a stochastic beam search: every node has a positive chance, as Proposition 3 asks."""
    for step in walk(query, beam_size, gumbel_expand(generator, query.drawn)):
        yield step.level, step.candidates


def beam_and_leaves(
    query: Query, positives: list[Targets], generator: torch.Generator, *, beam_size: int, extra: int
) -> Levels:
    """B̃_h, and `extra` uniform leaves."""
    more = uniform_leaves(query, positives, generator, nodes=extra)
    return union(query.tree, beam_candidates(query, positives, generator, beam_size=beam_size), more)


def beam_and_uniform(
    query: Query, positives: list[Targets], generator: torch.Generator, *, beam_size: int, extra: int
) -> Levels:
    """B̃_h, and `extra` uniform nodes of every level."""
    more = uniform(query, positives, generator, nodes=extra)
    return union(query.tree, beam_candidates(query, positives, generator, beam_size=beam_size), more)


def softmax_paths(
    query: Query, positives: list[Targets], generator: torch.Generator, *, nodes: int
) -> Iterator[Sampled]:
    """DTR: nodes drawn down the tree with replacement, each step to a child by the softmax over siblings.

    Levels with up to `nodes` nodes are taken whole. The draws begin on the last of them, by the softmax over it, or on
    the first level if that has more. q is the product down the path, and a node is expected `nodes` · q times.
    """
    tree, first, draws = query.tree, query.levels.start, nodes

    def noise(rows: int) -> Tensor:
        drawn = torch.rand(rows, draws, generator=generator, device=tree.device)
        return drawn.mul_(1 - 1e-5)  # so that sums rounded below 1 do not lead to a last child that is PAD

    top = max([level for level in query.levels if len(tree.level(level)) <= draws], default=first)
    every = [tree.mask.nodes(level).unsqueeze(0) for level in range(first, top + 1)]
    if len(tree.level(top)) <= draws:
        for level, whole in enumerate(every, first):
            yield Sampled(level, whole, torch.zeros(whole.shape, device=tree.device))
    with torch.no_grad():
        log_p = query.logits(top, every[-1]).log_softmax(dim=1)  # [B, |N_top|]
        share = log_p.exp().cumsum(dim=1)
        column = torch.searchsorted(share, query.drawn(noise).to(share.dtype), right=True).clamp_(
            max=share.shape[1] - 1
        )
        drawn, log_q = every[-1].expand_as(log_p).gather(1, column), log_p.gather(1, column)  # [B, draws]
    if len(tree.level(top)) > draws:
        yield Sampled(top, drawn, log_q + math.log(draws))
    for level in range(top + 1, tree.height + 1):
        with torch.no_grad():
            siblings = tree.children(drawn, level - 1).transpose(1, 2)  # [B, b, draws]
            log_p = query.logits(level, siblings.flatten(1)).view(siblings.shape).log_softmax(dim=1)
            share = log_p[:, :-1].exp().cumsum(dim=1)
            best = (share <= query.drawn(noise).unsqueeze(1)).sum(dim=1, keepdim=True)
            drawn = siblings.gather(1, best).squeeze(1)
            log_q = log_q + log_p.gather(1, best).squeeze(1)
        yield Sampled(level, drawn, log_q + math.log(draws))


def union(tree: Tree, first: Levels, second: Levels) -> Levels:
    """S_h ∪ S'_h: each level of the first, with what the second adds to it."""
    more = dict(second)
    for level, nodes in first:
        yield level, _join(tree, level, nodes, more[level]) if level in more else nodes


def _join(tree: Tree, level: int, nodes: Tensor, more: Tensor) -> Tensor:
    """Both without repeats: a node trained twice would count twice."""
    rows = max(len(nodes), len(more))
    nodes, more = nodes.expand(rows, -1), more.expand(rows, -1)
    return torch.cat([nodes, more.masked_fill(mark(tree, level, nodes).at(more), PAD)], dim=1)
