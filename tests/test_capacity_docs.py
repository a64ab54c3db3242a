"""The arithmetic of docs/ranks.md counts what the package holds."""

import pytest
import torch
from plan_scale import LISTS, Group, plan

from beamtree.data.csr import CSR
from beamtree.distributed.partition import TOP, Shard
from beamtree.distributed.sharded_table import ShardedTable
from beamtree.scorers import MemoryScorer
from beamtree.scorers.memory import recency_weights
from beamtree.tree import Tree


@pytest.mark.parametrize(("items", "arity", "gpus"), [(9000, 2, 1), (9000, 2, 3), (40_000, 3, 4), (100, 8, 2)])
def test_a_plan_counts_the_rows_that_a_rank_has(items, arity, gpus):
    tree = Tree(range(items), arity)
    shard = Shard.of(tree, Group(gpus), TOP)
    table = ShardedTable(shard, torch.empty(shard.num_rows, 24))
    found = plan(items, gpus, arity=arity)
    assert (found.nodes, found.rows) == (tree.num_nodes, len(table.weight))
    assert found.weights_gb == pytest.approx(table.weight.nbytes / 1e9)


def test_a_plan_counts_the_parts_that_a_rank_has():
    """Of three ranks the first, of lists that are all full."""
    tree, gpus = Tree(range(9000), 2), Group(3)
    shard = Shard.of(tree, gpus, TOP)
    factors = ShardedTable(shard, torch.empty(shard.num_rows, 192, dtype=torch.float16))
    lists = CSR(torch.arange(0, 90_001, 10), torch.zeros(90_000, dtype=torch.int32), torch.rand(90_000))
    memory = MemoryScorer.from_partners([lists] * LISTS, [recency_weights(0.5)] * LISTS).rows
    alone, found = (plan(9000, size, factors=192, partners=10 * LISTS) for size in (1, 3))
    assert found.factors_gb == pytest.approx(factors.weight.nbytes / 1e9)
    assert alone.memory_gb == pytest.approx(
        sum(each.nbytes for each in (memory.offsets, memory.columns, memory.values)) / 1e9, rel=1e-4
    )
    assert found.memory_gb == pytest.approx(alone.memory_gb / 3)
    plain = plan(9000, 3)
    assert found.total_gb - plain.total_gb == pytest.approx(found.factors_gb + found.memory_gb)


def test_more_gpus_hold_less_each_and_send_more():
    one, some, many = (plan(1e9, gpus, arity=8) for gpus in (1, 8, 64))
    assert not one.fits
    assert some.fits
    own = [each.total_gb - each.tree_gb for each in (one, some, many)]
    assert own[0] > 7.9 * own[1] > 62 * own[2]
    assert one.sent_mb == 0 < some.sent_mb < many.sent_mb
    assert one.checkpoint_gb == some.checkpoint_gb == many.checkpoint_gb == pytest.approx(3 * 96 * one.nodes / 1e9)
    assert plan(1e9, 8, share=False).sums_gb == 0
    assert one.tree_gb == many.tree_gb


def test_what_was_measured_comes_out_again():
    measured = plan(1e8, 1)
    assert measured.step_ms == pytest.approx(49.7, abs=0.1)
    assert measured.total_gb == pytest.approx(131.6, rel=0.01)  # at most allocated
