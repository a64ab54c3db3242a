"""S_h: the nodes that one instance trains, level by level."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from beamtree.beam import gumbel_expand, walk
from beamtree.model import Query
from beamtree.targets import Targets, mark
from beamtree.tree import PAD, Tree

# (query, z of every level, which marks S_h⁺, randomness) -> (level, nodes [B or 1, W], PAD where there are fewer)
Sampler = Callable[[Query, list[Targets], torch.Generator], Iterator[tuple[int, Tensor]]]


def children_of_positives(
    query: Query, positives: list[Targets], generator: torch.Generator
) -> Iterator[tuple[int, Tensor]]:
    """PLT: S_h = {n: z_ρ(n) = 1}. A search begins with all nodes of the first level, as if one parent had them all."""
    first, *rest = query.levels
    if first > 1:
        yield first, query.tree.nodes(first).unsqueeze(0)
    for level in rest if first > 1 else query.levels:
        yield level, query.tree.children(positives[level - 1].relevant()).flatten(1)


def uniform(count: int) -> Sampler:
    """The authors' TDM: `count` nodes of each level, whether positive or not."""

    def sample(query: Query, positives: list[Targets], generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        for level in query.levels:
            yield level, query.tree.sample(level, len(query.x), count, generator)

    return sample


def uniform_leaves(count: int) -> Sampler:
    """`count` nodes of the leaf level, and none above."""

    def sample(query: Query, positives: list[Targets], generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        yield query.tree.height, query.tree.sample(query.tree.height, len(query.x), count, generator)

    return sample


def with_negatives(count: int) -> Sampler:
    """TDM: S_h = S_h⁺ ∪ S_h⁻, where S_h⁻ is up to `count` uniform nodes off S_h⁺."""

    def sample(query: Query, positives: list[Targets], generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        for level, nodes in uniform(count)(query, positives, generator):
            yield level, _join(query.tree, level, positives[level].relevant(), nodes)

    return sample


def beam_candidates(beam_size: int) -> Sampler:
    """OTM: S_h = B̃_h, the nodes that beam search queries under the current weights (Eq. 3)."""

    def sample(query: Query, positives: list[Targets], generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        for step in walk(query, beam_size):
            yield step.level, step.candidates

    return sample


def stochastic_beam(beam_size: int) -> Sampler:
    """B̃_h of a stochastic beam search: every node has a positive chance, as Proposition 3 asks."""

    def sample(query: Query, positives: list[Targets], generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        for step in walk(query, beam_size, gumbel_expand(generator)):
            yield step.level, step.candidates

    return sample


def union(first: Sampler, second: Sampler) -> Sampler:
    """S_h ∪ S'_h: each level of the first, with what the second adds to it."""

    def sample(query: Query, positives: list[Targets], generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        more = dict(second(query, positives, generator))
        for level, nodes in first(query, positives, generator):
            yield level, _join(query.tree, level, nodes, more[level]) if level in more else nodes

    return sample


def _join(tree: Tree, level: int, nodes: Tensor, more: Tensor) -> Tensor:
    """Both, less the repeats: a node trained twice would weigh twice."""
    rows = max(len(nodes), len(more))
    nodes, more = nodes.expand(rows, -1), more.expand(rows, -1)
    return torch.cat([nodes, more.masked_fill(mark(tree, level, nodes).at(more), PAD)], dim=1)
