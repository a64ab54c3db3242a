"""Trees that are learned along with the scorer over ranks: rows follow their items as on one rank."""

from itertools import product

import pytest
import torch
from ranks import errors_of, farthest, run_ranks, whole

import beamtree as bt
from beamtree.data.instances import Instances
from beamtree.distributed import partition as shards
from beamtree.distributed import sharded_table
from beamtree.distributed.group import ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.remote_rows import ShardedVectors
from beamtree.distributed.sharded_table import ShardedTable
from beamtree.distributed.sharding import is_sharded, shard_model
from beamtree.distributed.training import join
from beamtree.methods import sized
from beamtree.scorers import DeepScorer, SumScorer
from beamtree.scorers.table import NodeTable, same_depth
from beamtree.train import Checkpoints, Schedule, constant
from beamtree.train.joint import fit_jointly
from beamtree.tree import PAD, Tree

ITEMS, DIM = 37, 5
PULLED = 40  # rows that a rank pulls at once


def scattered(arity, slots, seed, num_items=ITEMS, removed=()):
    """A tree with empty slots anywhere, and without some of the items."""
    items = torch.tensor([item for item in range(num_items) if item not in removed])
    found = torch.full((slots,), PAD)
    found[torch.randperm(slots, generator=torch.Generator().manual_seed(seed))[: len(items)]] = items
    return Tree(found, arity, num_items=num_items)


def pairs_of_trees():
    """Old and new trees: of one shape and of others, with empty slots, and with items that one of them lacks."""
    binary, ternary = bt.random_tree(ITEMS, 2, seed=1), bt.random_tree(ITEMS, 3, seed=2)
    gone = {"removed": (3, 11, 30)}
    return {
        "the same": (binary, binary),
        "one shape": (binary, bt.random_tree(ITEMS, 2, seed=3)),
        "wider": (binary, ternary),
        "narrower": (bt.random_tree(ITEMS, 5, seed=4), binary),
        "empty slots": (scattered(2, 64, 5), scattered(2, 64, 6)),
        "empty subtrees": (scattered(2, 128, 7), Tree(torch.arange(ITEMS).flip(0).tolist() + [PAD] * 90, 2)),
        "deeper": (ternary, scattered(3, 243, 8)),
        "flatter": (scattered(2, 256, 9), binary),
        "as many nodes": (scattered(5, 25, 10, num_items=16), bt.random_tree(16, 2, seed=5)),
        "removed before": (scattered(2, 64, 11, **gone), binary),
        "removed since": (binary, scattered(2, 64, 12, **gone)),
        "all on every rank": (bt.random_tree(4, 2, seed=6), bt.random_tree(4, 4, seed=7)),
        "to every rank": (scattered(2, 64, 13, num_items=4), bt.random_tree(4, 2, seed=8)),
    }


def cases():
    return {(name, share): trees for (name, trees), share in product(pairs_of_trees().items(), (False, True))}


def table_of(old):
    return NodeTable(old.num_nodes, DIM, seed=4, dtype=torch.float64)


def plain(table, old, new, share):
    """The definition, node by node."""
    vectors = table.read(old, share=share).values.detach()
    items = [item for item in range(new.num_items) if PAD not in (leaf(old, item), leaf(new, item))]
    one_shape = (old.arity, old.height) == (new.arity, new.height)
    found = torch.zeros(new.num_nodes, DIM, dtype=vectors.dtype)
    for level in range(new.height + 1):
        for node in new.level(level):
            below = [item for item in items if leaf(new, item) in new.leaves(node)]
            above = [above_of(old, leaf(old, item), same_depth(new, level, old)) for item in below]
            if above:
                found[node] = vectors[above].mean(0)
            elif one_shape:
                found[node] = vectors[node]
    parents = found[[max(0, (node - 1) // new.arity) for node in range(new.num_nodes)]]
    parents[0] = 0
    return found - parents if share else found


def leaf(tree, item):
    return int(tree.leaf_of_item(torch.tensor(item)))


def above_of(tree, node, level):
    while node not in tree.level(level):
        node = (node - 1) // tree.arity
    return node


@pytest.mark.parametrize(("name", "share"), list(cases()))
def test_rows_follow_their_items(name, share):
    old, new = cases()[name, share]
    table = table_of(old)
    torch.testing.assert_close(table.on_tree(old, new, share=share).weight.detach(), plain(table, old, new, share))


def carry_all(top):
    """How far this rank's rows are from those of one rank, and the most rows that it pulled at once."""
    shards.TOP, sharded_table.PULL_AT_ONCE = top, PULLED
    join()
    fill, pulled, away = ShardedVectors._append, [0], {}

    def counted(self, rows):
        pulled.append(sum(map(len, rows)))
        fill(self, rows)

    ShardedVectors._append = counted
    for case, (old, new) in cases().items():
        table, share = table_of(old), case[1]
        own = ShardedTable.of(table, Shard.of(old, ranks())).on_tree(old, new, share=share).weight
        whole = Shard.of(new, ranks()).part(table.on_tree(old, new, share=share).weight)
        assert own.shape == whole.shape, case
        away[case] = float((own - whole).detach().abs().max())
    ShardedVectors._append = fill
    scorers_are_carried()
    return away, max(pulled)


def scorers_are_carried():
    """Models with rows on several ranks stay so on another tree, and score as the whole ones do."""
    old, new = bt.random_tree(ITEMS, 2, seed=1), bt.random_tree(ITEMS, 3, seed=2)
    x = torch.randint(ITEMS, (4, 6), generator=torch.Generator().manual_seed(ranks().rank))  # users of its own
    for wrap in (lambda scorer: scorer, lambda scorer: SumScorer({"deep": scorer}, old.height, "deep").double()):
        one, other = (
            bt.TreeModel(old, wrap(DeepScorer(old.num_nodes, DIM, scale=1.0).double()), first_level=2) for _ in range(2)
        )
        shard_model(other)
        one, other = one.on_tree(new), other.on_tree(new)
        assert is_sharded(other)
        assert (one.first_level, one.scorer.settings()) == (other.first_level, other.scorer.settings())
        with torch.no_grad():
            for level in range(1, new.height + 1):
                nodes = new.mask.nodes(level).unsqueeze(0)
                torch.testing.assert_close(other.query(x).logits(level, nodes), one.query(x).logits(level, nodes))


@pytest.mark.extended
@pytest.mark.parametrize(("size", "top"), [(2, 5), (3, 9)])
def test_rows_on_several_ranks_follow_their_items_as_those_of_one(size, top):
    for away, pulled in run_ranks(size, carry_all, top):
        assert max(away.values()) < 1e-12, away
        assert 0 < pulled <= PULLED


# Training and learning trees in turn


def instances(users, seed):
    """What follows an item is the next one, so that a tree can be learned."""
    x = torch.randint(ITEMS, (users, 6), generator=torch.Generator().manual_seed(seed))
    return Instances(x, (x[:, :3] + 1) % ITEMS)


class CutShortError(Exception):
    """Somebody ends a run."""


def train_jointly(folder=None, cut_short=None, seed=0):
    """What was said of each tree, the last one that was kept, and all weights; nothing of a run that is cut short."""
    shards.TOP = 5
    join()
    torch.set_default_dtype(torch.float64)
    try:
        return _train_jointly(folder, cut_short, seed)
    except CutShortError:
        return None
    finally:
        torch.set_default_dtype(torch.float32)


def _train_jointly(folder, cut_short, seed):
    tree, lines = bt.random_tree(ITEMS, seed=1), []
    model = bt.TreeModel(tree, DeepScorer(tree.num_nodes, DIM, scale=0.3, seed=2), first_level=2)

    def train(model, turn, place):
        how = {"batch_size": 10, "schedule": Schedule(0.01, constant)}
        how["checkpoints"] = None if place is None else Checkpoints(place, resume=True)
        bt.fit(model, instances(30, 3), sized("otm", 6, 6), steps=2 if turn == cut_short else 3 + turn, **how)
        if turn == cut_short:
            raise CutShortError

    how = {"rounds": 3, "stay": 0.0, "seed": seed, "folder": folder, "on_message": lines.append}
    model = fit_jointly(model, instances(40, 4), instances(25, 5), train, **how)
    assert is_sharded(model) == (ranks().size > 1)
    return lines, model.tree.fingerprint(), whole(model)


def check_runs(runs, expected):
    for lines, tree, weights in runs:
        assert (lines, tree) == expected[:2]
        assert farthest(expected[2], weights) < 1e-6


@pytest.fixture(scope="module")
def alone():
    """A run by one rank, in which one new tree is kept and the next one rejected."""
    before, shards.TOP = shards.TOP, 5
    found = train_jointly()
    shards.TOP = before
    assert [line.rsplit(": ", 1)[1] for line in found[0][1:]] == ["kept", "rejected, the old is kept"]
    return found


def several_runs(begun, begins):
    """By these ranks: one from the start, one that others began, one that others will go on with, and a wrong one."""
    runs = [train_jointly(), train_jointly(begun), train_jointly(begins, cut_short=1)]
    return runs, errors_of(lambda: train_jointly(seed=ranks().rank))


@pytest.mark.extended
def test_trees_are_learned_with_the_scorer_over_ranks_as_by_one(tmp_path, monkeypatch, alone):
    """Also where another number of ranks began a round."""
    monkeypatch.setattr(shards, "TOP", 5)
    assert train_jointly(tmp_path / "by one", cut_short=1) is None
    for runs, told in run_ranks(2, several_runs, tmp_path / "by one", tmp_path / "by two"):
        check_runs(runs[:2], alone)
        assert runs[2] is None
        assert told == "seed is 0 on rank 0 and 1 on rank 1: start all ranks alike"
    assert len(list((tmp_path / "by two" / "round-1" / "start").glob("shard-*"))) == 2
    check_runs([train_jointly(tmp_path / "by two")], alone)
