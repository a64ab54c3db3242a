"""S_h: the nodes that one instance trains, level by level.

A sampler takes (query, z of every level, which marks S_h⁺, randomness) and yields (level, nodes [B or 1, W]), PAD where
there are fewer. Its numbers, such as `beam_size`, are keyword arguments that `functools.partial` fills in.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from beamtree.beam import gumbel_expand, walk
from beamtree.model import Query
from beamtree.targets import Targets, mark
from beamtree.tree import PAD, Tree

Levels = Iterator[tuple[int, Tensor]]
Sampler = Callable[[Query, list[Targets], torch.Generator], Levels]


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
