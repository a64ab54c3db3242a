"""The closed-form parts fitted over ranks: each rank solves for its items and users, and requests what it needs.

Every rank has the events of the log. It counts the pairs of its own users, and keeps the rows of its own items.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from beamtree.closed_form import als, cooccurrence
from beamtree.closed_form.als import initial_vectors, principal_axes, solve_batch
from beamtree.closed_form.cooccurrence import (
    Entries,
    ItemMatrix,
    cooccurring_pairs,
    matrix_of_cells,
    sum_cells,
    sum_entries,
)
from beamtree.closed_form.graph import graph_partners
from beamtree.closed_form.part_weights import BATCH, Candidates, Results
from beamtree.closed_form.ridge import (
    EASE,
    FEATURES,
    Block,
    BlockSolver,
    Regression,
    blocks_of,
    entries_of,
    strongest_partners,
)
from beamtree.closed_form.transitions import near_pairs, pairs_of_cuts, rules_of
from beamtree.data import Events
from beamtree.data.csr import CSR, concatenate, group_rows, sum_duplicates
from beamtree.data.factors import weighted_pairs
from beamtree.distributed import exchange
from beamtree.distributed.exchange import InterleavedTable, Route, concatenate_all, lockstep, own_rows, send
from beamtree.distributed.group import ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharded_table import ShardedTable
from beamtree.distributed.sharding import ShardedMemoryScorer
from beamtree.evaluate import Find
from beamtree.kernels.threads import one_thread
from beamtree.parts.closed_form import ClosedForm
from beamtree.scorers import FactorScorer, MemoryScorer, PopularityScorer, TrendScorer
from beamtree.scorers.factors import Factors


class ShardedClosedForm(ClosedForm):
    """Fits the parts over ranks; factors and lists of partners stay divided."""

    def fit_als(self, **options: Any) -> Factors:
        return sharded_als(self.log, self.data.num_items, **options)

    def factor_scorer(self, factors: Factors) -> FactorScorer:
        shard = Shard.of(self.tree, ranks())
        table = ShardedTable(shard, torch.zeros(shard.num_rows, factors.items.shape[1]))
        table.add_interleaved_means(self.tree, InterleavedTable(factors.items.cpu(), self.data.num_items))
        return FactorScorer.from_table(table, factors)

    def popularity_scorer(self, counts: Tensor) -> PopularityScorer:
        part = super().popularity_scorer(counts)
        part.table = ShardedTable.of(part.table, Shard.of(self.tree, ranks()))
        return part

    def trend_scorer(
        self, counts: Tensor, half_lives: Sequence[float], weights: Sequence[float], end: int
    ) -> TrendScorer:
        part = super().trend_scorer(counts, half_lives, weights, end)
        part.table = ShardedTable.of(part.table, Shard.of(self.tree, ranks()))
        return part

    def count_pairs(self, power: float = 0.0) -> ItemMatrix:
        return sharded_cooccurrence(self.log, self.data.num_items, self.order, power)

    def fit_ridge(self, gram: ItemMatrix, order: Tensor, penalty: float, most: int, features: int = FEATURES) -> CSR:
        return sharded_partners(EASE(gram, penalty, features), order, most)

    def fit_graph(self, most: int) -> CSR:
        return sharded_graph(self.log, self.data.num_items, most)

    def fit_rules(self, most: int) -> CSR:
        return sharded_rules(self.log, self.data.num_items, most)

    def count_transitions(self, recency: Tensor, readings: int) -> tuple[ItemMatrix, ItemMatrix]:
        return sharded_past_and_future(self.log, self.data.num_items, recency, readings, self.seed, self.order)

    def fit_regression(self, past: ItemMatrix, future: ItemMatrix, order: Tensor, penalty: float, most: int) -> CSR:
        return sharded_partners(Regression(past, future, penalty), order, most)

    def memory(self, lists: Sequence[CSR], recency: Sequence[Tensor]) -> MemoryScorer:
        part = concatenate([each.cpu() for each in lists])
        stacked = pad_sequence([each.cpu() for each in recency], batch_first=True)
        return ShardedMemoryScorer.from_part(self.data.num_items, len(lists), part, stacked)

    def parallel(self, find: Find) -> tuple[Find, int]:
        return ranks().split_rows(find), BATCH * ranks().size


class ShardedCandidates(Candidates):
    """Each rank searches for its share of the users, and all get all results."""

    def collect(self, search: Callable[[Tensor], Results], users: int, device: str) -> Results:
        share = ranks().share(users)
        batches = torch.arange(share.start, share.stop).split(BATCH) if not share.is_empty else ()
        results = []
        for index in lockstep(len(batches)):
            batch = search(torch.arange(1) if index is None else batches[index])
            results.append(batch if index is not None else tuple(part[:0] for part in batch))
        scores, gain, real = (concatenate_all(torch.cat(each)) for each in zip(*results, strict=True))
        return scores, gain, real


def own_users(events: Events) -> Events:
    """The events of this rank's share of the users."""
    share = ranks().share(len(events))
    return replace(events, offsets=events.offsets[share.start : share.stop + 1])


# Factors


def sharded_als(
    events: Events,
    num_items: int,
    *,
    penalty: float,
    unobserved_weight: float,
    dim: int = als.DIM,
    rounds: int = als.ROUNDS,
    seed: int = 0,
    start: Tensor | None = None,
) -> Factors:
    """`implicit_als` with the vectors of this rank's items; users and items are interleaved over the ranks."""
    dim, size, device = min(dim, num_items), ranks().size, events.offsets.device
    own = events.of(own_rows(len(events), device), events.name)
    user, item, weight = weighted_pairs(own, num_items)
    weight = torch.ones(len(item), device=device) if weight is None else weight
    items_of_users = group_rows(user, item, len(own), weight)
    item, user, weight = send(item % size, item, user * size + ranks().rank, weight)
    users_of_items = group_rows(item // size, user, len(own_rows(num_items)), weight)
    first = initial_vectors(num_items, dim, seed, device) if start is None else start
    vectors = InterleavedTable.of(first).part
    for _ in range(rounds):
        items = _rotate_all(vectors, penalty, unobserved_weight, num_items)
        users = _rotate_all(_solve(items, items_of_users, num_items), penalty, unobserved_weight, len(events))
        vectors = _solve(users, users_of_items, len(events))
    return _rotate_all(vectors, penalty, unobserved_weight, num_items).normalized()


def _rotate_all(part: Tensor, penalty: float, unobserved_weight: float, count: int) -> Factors:
    """`rotate` for an interleaved table: along the axes that the first rank finds."""
    gram = ranks().sum_(part.T @ part)
    diagonal, axes = principal_axes(gram)
    ranks().broadcast_(diagonal)
    ranks().broadcast_(axes)
    return Factors(part @ axes, unobserved_weight * diagonal, penalty, unobserved_weight * count)


def _solve(other: Factors, chosen: CSR, count: int) -> Tensor:
    """The vectors of this rank's rows, given those of the `count` others [n, dim]; 0 for an empty row."""
    result = other.items.new_zeros(len(chosen), other.items.shape[1])
    table = InterleavedTable(other.items, count)
    batches = list(chosen.batches(als.CELLS, -(-4096 // ranks().size)))
    if count <= exchange.PULL_AT_ONCE:
        vectors = table.whole()
        for rows, width in batches:
            result[rows] = solve_batch(other, vectors, chosen.padded(rows, width)[0], chosen.padded_values(rows, width))
        return result
    runs = _runs(batches)
    for index in lockstep(len(runs)):
        run = runs[index] if index is not None else []
        padded = [chosen.padded(*batch) for batch in run]
        entries = [columns[real] for columns, real in padded]
        ids = torch.unique(torch.cat([other.items.new_empty(0, dtype=torch.int64), *entries]))
        vectors = table.at(ids)
        for (rows, width), (columns, _) in zip(run, padded, strict=True):
            at = torch.searchsorted(ids, columns).clamp_(max=len(ids) - 1)
            result[rows] = solve_batch(other, vectors, at, chosen.padded_values(rows, width))
    return result


def _runs(batches: list[tuple[Tensor, int]]) -> list[list[tuple[Tensor, int]]]:
    """Consecutive batches in runs of no more entries than a rank requests at once."""
    runs: list[list[tuple[Tensor, int]]] = []
    room = 0
    for rows, width in batches:
        room -= len(rows) * width
        if room < 0:
            runs.append([])
            room = exchange.PULL_AT_ONCE - len(rows) * width
        runs[-1].append((rows, width))
    return runs


# Matrices over items


@dataclass(frozen=True)
class ShardedMatrix(ItemMatrix):
    """A matrix over items of which each rank has some rows; here those of other ranks are empty."""

    owner: Tensor | None = None  # the rank of each row [M]

    def rows(self, which: Tensor, among: Tensor | None = None) -> Entries:
        """The entries of some rows, from the ranks that have them; all ranks must ask."""
        assert self.owner is not None
        is_remote = self.owner[which] != ranks().rank
        local, remote = (~is_remote).nonzero().squeeze(1), is_remote.nonzero().squeeze(1)
        index, column, value = super().rows(which[local])
        theirs = self._request(which[remote], among)
        if not len(theirs[0]):
            return local[index], column, value
        both = ((local[index], remote[theirs[0]]), (column, theirs[1]), (value, theirs[2]))
        index, column, value = (torch.cat(parts) for parts in both)
        order = index.argsort(stable=True)  # as one rank would find them
        return index[order], column[order], value[order]

    def _request(self, which: Tensor, among: Tensor | None) -> Entries:
        assert self.owner is not None
        route = Route(self.owner[which])
        requested, sender = route.send(which), route.sender(which.device)
        position = route.send(torch.arange(len(which), device=which.device))
        index, column, value = super().rows(requested)
        if among is not None:
            wanted = concatenate_all(among + ranks().rank * len(self))  # rank by rank, so in rising order
            key = sender[index] * len(self) + column
            keep = (wanted[torch.searchsorted(wanted, key).clamp_(max=len(wanted) - 1)] == key).nonzero().squeeze(1)
            index, column, value = index[keep], column[keep], value[keep]
        position, column, value = send(sender[index], position[index], column, value)
        return position, column, value

    def counts(self) -> Tensor:
        return ranks().sum_(super().counts())

    def row_of_entry(self) -> Tensor:
        return torch.repeat_interleave(super().counts())

    def row_sums(self) -> Tensor:
        return ranks().sum_(super().row_sums())

    def diagonal(self) -> Tensor:
        return ranks().sum_(super().diagonal())

    def dense(self, items: Tensor) -> Tensor:
        return ranks().sum_(super().dense(items))


def sum_sharded(
    entries: Iterable[Entries], num_items: int, device: torch.device, order: Tensor | None = None
) -> ItemMatrix:
    """The matrix that adds up the entries of all ranks: dense sums where it is small, else divided by rows.

    The rows of items that are neighbours in `order` are on the same rank; those of all others are interleaved.
    """
    if num_items**2 <= cooccurrence.DENSE:
        return matrix_of_cells(ranks().sum_(sum_cells(entries, num_items, device)), num_items)
    owner = torch.arange(num_items, device=device) % ranks().size
    if order is not None:
        owner[order] = torch.arange(len(order), device=device) * ranks().size // len(order)
    matrix = sum_entries(_sent(iter(entries), num_items, owner), num_items, device)
    return ShardedMatrix(matrix.offsets, matrix.columns, matrix.values, owner)


def _sent(entries: Iterator[Entries], num_items: int, owner: Tensor) -> Iterator[Entries]:
    """Send entries to the ranks of their rows, summed before, some at a time until all ranks have sent theirs."""
    more = True
    while any(ranks().gather(more)):
        keys, values, pending = [owner[:0]], [torch.empty(0, device=owner.device)], 0
        for row, column, value in entries:
            keys.append(row * num_items + column)
            values.append(value)
            pending += len(row)
            if pending > cooccurrence.PENDING // ranks().size:
                break
        else:
            more = False
        key, total = sum_duplicates(torch.cat(keys), torch.cat(values))
        row, column, total = send(owner[key // num_items], key // num_items, key % num_items, total)
        yield row, column, total


@one_thread()
def sharded_cooccurrence(events: Events, num_items: int, order: Tensor | None = None, power: float = 0.0) -> ItemMatrix:
    """`cooccurrence` over ranks; `order` as for `sum_sharded`."""
    pairs = cooccurring_pairs(own_users(events), num_items, power)
    return sum_sharded(pairs, num_items, events.offsets.device, order)


@one_thread()
def sharded_past_and_future(
    events: Events, num_items: int, recency: Tensor, readings: int, seed: int, order: Tensor | None = None
) -> tuple[ItemMatrix, ItemMatrix]:
    """`past_and_future` over ranks; `order` as for `sum_sharded`."""
    past, future = pairs_of_cuts(events, recency, readings, seed, ranks().rank, ranks().size)
    device = events.offsets.device
    return sum_sharded(past, num_items, device, order), sum_sharded(future, num_items, device, order)


# Partners: lists of this rank's items, interleaved


@one_thread()
def sharded_rules(events: Events, num_items: int, most: int) -> CSR:
    """`next_partners` of this rank's items."""
    own = own_users(events)
    matrix = sum_sharded(near_pairs(own), num_items, events.offsets.device)
    popularity = ranks().sum_(own.popularity(num_items))
    return rules_of(matrix, own_rows(num_items, events.offsets.device), popularity, most)


@one_thread()
def sharded_graph(events: Events, num_items: int, most: int) -> CSR:
    """`graph_partners` of this rank's items."""
    gram = sharded_cooccurrence(events, num_items, power=1.0)
    return graph_partners(gram, own_rows(num_items, events.offsets.device), most)


def sharded_partners(solver: BlockSolver, order: Tensor, most: int) -> CSR:
    """`collect` of this rank's items: each rank solves for some of the blocks, or for a part of the only one."""
    blocks = blocks_of(order)
    if len(blocks) == 1:
        (block, _), share = blocks[0], ranks().share(len(order))
        own = [(block, block[share.start : share.stop])]
    else:
        share = ranks().share(len(blocks))
        own = blocks[share.start : share.stop]
    empty: Block = (order[:0], order[:0])  # while others still solve, a rank answers their requests
    steps = [empty if index is None else own[index] for index in lockstep(len(own))]
    source, target, weight = entries_of(solver, steps, most)
    size = ranks().size
    source, target, weight = send(source % size, source // size, target, weight)
    return strongest_partners((source, target, weight), len(own_rows(solver.num_items)), most)
