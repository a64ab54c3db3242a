"""The closed form over ranks, each with a part of the rows: the same as one rank fits."""

import pytest
import torch
from ranks import run_ranks
from sample_logs import tours

import beamtree as bt
from beamtree.builders import learn_tree
from beamtree.closed_form import als, cooccurrence, ridge
from beamtree.closed_form.als import implicit_als
from beamtree.closed_form.graph import graph_partners
from beamtree.closed_form.ridge import EASE, Regression, follow_partners, ridge_partners
from beamtree.closed_form.transitions import next_partners, past_and_future
from beamtree.data import Events
from beamtree.data.csr import CSR, concatenate
from beamtree.data.instances import Instances
from beamtree.data.seeds import draw_rows
from beamtree.distributed import exchange
from beamtree.distributed.closed_form import (
    sharded_als,
    sharded_cooccurrence,
    sharded_graph,
    sharded_partners,
    sharded_past_and_future,
    sharded_rules,
)
from beamtree.distributed.exchange import InterleavedTable, concatenate_all, own_rows
from beamtree.distributed.group import ranks
from beamtree.distributed.partition import Shard
from beamtree.distributed.sharding import shard_model
from beamtree.distributed.training import join
from beamtree.ingest.prepare import prepare
from beamtree.parts import PARTS
from beamtree.scorers import DeepScorer, FixedScorer
from beamtree.train.backend import current_backend
from beamtree.train.recipes import first_level

SIZES = (2, 3)


def make_events(users=41, num_items=53, longest=30, seed=0, weighted=False):
    """Users of taste: those of a group choose among the same third of the items, the first most often.

    With weights, about a fourth of the events are not to be predicted.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(2, longest, (users,), generator=generator)
    group = torch.repeat_interleave(torch.arange(users) % 3, counts)
    share = torch.rand(len(group), generator=generator).square()
    items = ((share * (num_items // 3)).long() * 3 + group).clamp(max=num_items - 1)
    weights = torch.rand(len(items), generator=generator) * 4 - 1 if weighted else None
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return Events(offsets, items.int(), f"{users} users, {seed}", weights=weights)


def on_ranks(size, work, *arguments):
    """What work gives on each rank; all must give the same."""
    found = run_ranks(size, work, *arguments)
    for other in found[1:]:
        assert other == found[0]
    return found[0]


# Routes


def ways():
    """Rows that go to the rank they name and come back, of uneven and empty shares."""
    join()
    rank, size = ranks().rank, ranks().size
    to = torch.arange(5 * rank) % size
    rows = torch.stack([to, torch.full_like(to, rank), torch.arange(len(to))], dim=1)
    route = exchange.Route(to)
    received = route.send(rows)
    assert bool((received[:, 0] == rank).all())
    assert torch.equal(received[:, 1], route.sender(received.device))
    assert torch.equal(route.reply(received), rows)
    table = torch.arange(22.0).view(11, 2)
    interleaved = InterleavedTable.of(table)
    assert torch.equal(interleaved.part, table[own_rows(11)])
    assert torch.equal(interleaved.whole(), table)
    wanted = torch.tensor([7, 0, 10, 3])[: 2 * rank]
    assert torch.equal(interleaved.at(wanted), table[wanted])
    uneven = torch.full((2 * rank, 3), rank)
    assert concatenate_all(uneven)[:, 0].tolist() == [each for each in range(size) for _ in range(2 * each)]
    assert list(exchange.lockstep(rank)) == [*range(rank), *[None] * (size - 1 - rank)]
    turned = torch.arange(6.0).view(2, 3).T * (rank + 1)
    assert ranks().broadcast_(turned, 1)[2, 1] == 10, "also where rows do not follow each other in memory"
    return "well"


@pytest.mark.extended
@pytest.mark.parametrize("size", SIZES)
def test_rows_go_where_they_belong_and_answers_come_back(size):
    assert on_ranks(size, ways) == "well"


def test_alone_nothing_goes_anywhere():
    rows = torch.arange(12).view(6, 2)
    assert exchange.send(torch.zeros(6, dtype=torch.int64), rows)[0] is rows
    assert InterleavedTable(rows, 6).whole() is rows
    assert concatenate_all(rows) is rows
    assert torch.equal(InterleavedTable(rows, 6).at(torch.tensor([3, 1])), rows[[3, 1]])


@pytest.mark.parametrize("count", [1, 31, 32, 33, 80])
def test_rows_drawn_in_pieces_are_those_drawn_at_once(monkeypatch, count):
    monkeypatch.setattr("beamtree.data.seeds.DRAWN", 16)
    pieces = [piece for _, piece in draw_rows(count, 5, torch.Generator().manual_seed(3))]
    assert torch.equal(torch.cat(pieces), torch.randn(count, 5, generator=torch.Generator().manual_seed(3)))


# Factors


FACTORS = {  # users, rows pulled at once, and whether events have weights
    "whole": (41, 1 << 19, False),
    "pulled": (41, 30, False),
    "few users": (2, 30, False),
    "weights": (41, 1 << 19, True),
    "weights, pulled": (41, 30, True),
}
HOW = {"dim": 7, "penalty": 0.05, "unobserved_weight": 0.1}


def products(found):
    """Products of all items: axes that are as strong as each other can be swapped."""
    items = InterleavedTable(found.items, 53).whole()
    return (items @ items.T).tolist(), found.gram_diagonal.tolist(), found.unobserved_weight


def factors_over_ranks():
    join()
    als.CELLS, found = 64, {}
    for name, (users, exchange.PULL_AT_ONCE, weighted) in FACTORS.items():
        own = sharded_als(make_events(users, weighted=weighted), 53, **HOW)
        assert len(own.items) == len(own_rows(53))
        found[name] = products(own)
    return found


@pytest.mark.extended
@pytest.mark.parametrize("size", SIZES)
def test_factors_do_not_depend_on_the_number_of_ranks(size):
    found = on_ranks(size, factors_over_ranks)
    for name, (users, _, weighted) in FACTORS.items():
        alone, diagonal, everywhere = products(implicit_als(make_events(users, weighted=weighted), 53, **HOW))
        theirs, their_diagonal, their_everywhere = found[name]
        assert everywhere == their_everywhere
        for ours, other in ((alone, theirs), (diagonal, their_diagonal)):
            ours, other = torch.tensor(ours), torch.tensor(other)
            torch.testing.assert_close(other, ours, atol=1e-5 * float(ours.abs().max()), rtol=1e-5)


# Partners

LIMITS = {
    # name: cells of a matrix that is summed whole, items up to which all explain all, popular items
    "small": (1 << 26, 100, 100),
    "by rows": (0, 0, 6),
    "by rows, in one block": (0, 100, 6),
    "by rows, all popular": (0, 0, 100),
}


def limits(name):
    cooccurrence.DENSE, ridge.SMALL_CATALOGUE, cooccurrence.POPULAR = LIMITS[name]
    cooccurrence.PENDING, ridge.BLOCK = 50, 4


def case(users, weighted):
    most = 9 if users > 2 else 53  # of few users much is equal, and which of these are the strongest says nothing
    order = torch.randperm(53, generator=torch.Generator().manual_seed(1))
    return make_events(users, weighted=weighted), order, torch.linspace(1, 0.1, 69), most


def all_partners(name, *which):
    """The partners of all kinds, and how many entries the Gram matrix has."""
    limits(name)
    events, order, recency, most = case(*which)
    gram = cooccurrence.cooccurrence(events, 53)
    past, future = past_and_future(events, 53, recency, readings=2, seed=0)
    found = {
        "together": ridge_partners(gram, order, 2.0, most, features=12),
        "some": ridge_partners(gram, order[:21], 2.0, most, features=12),
        "follows": follow_partners(past, future, order, 0.5, most, features=12),
        "graph": graph_partners(cooccurrence.cooccurrence(events, 53, 1.0), torch.arange(53), 53),
        "next": next_partners(events, 53, most=most),
    }
    return {kind: dense(each).tolist() for kind, each in found.items()}, len(gram.values)


def own_partners(name, *which):
    """The same over ranks."""
    limits(name)
    events, order, recency, most = case(*which)
    gram = sharded_cooccurrence(events, 53, order)
    past, future = sharded_past_and_future(events, 53, recency, 2, 0, order)
    found = {
        "together": sharded_partners(EASE(gram, 2.0, 12), order, most),
        "some": sharded_partners(EASE(gram, 2.0, 12), order[:21], most),
        "follows": sharded_partners(Regression(past, future, 0.5, 12), order, most),
        "graph": sharded_graph(events, 53, 53),
        "next": sharded_rules(events, 53, most),
    }
    return {kind: dense(gathered(each)).tolist() for kind, each in found.items()}, len(gram.values)


def gathered(own):
    """The lists of all items, from the interleaved ones of each rank."""
    parts = [CSR(*map(torch.tensor, part)) for part in ranks().gather([each.tolist() for each in vars(own).values()])]
    parts = [CSR(part.offsets, part.columns.long(), part.values.float()) for part in parts]
    rows = torch.cat([torch.arange(rank, 53, ranks().size) for rank in range(ranks().size)])
    return concatenate(parts).take(rows.argsort())


def dense(partners):
    found = torch.zeros(len(partners), len(partners))
    found[partners.row_of_entry(), partners.columns.long()] = partners.values
    return found


def partners_over_ranks(*which):
    join()
    found = {name: own_partners(name, *which) for name in LIMITS}
    return {name: each for name, (each, _) in found.items()}, sum(ranks().gather(found["by rows"][1]))


@pytest.mark.extended
@pytest.mark.parametrize(("size", "users", "weighted"), [(2, 41, False), (3, 41, False), (3, 2, False), (2, 41, True)])
def test_partners_do_not_depend_on_the_number_of_ranks(size, users, weighted, monkeypatch):
    found, entries = on_ranks(size, partners_over_ranks, users, weighted)
    for room, name in (
        (cooccurrence, "DENSE"),
        (cooccurrence, "PENDING"),
        *((ridge, n) for n in ("SMALL_CATALOGUE", "BLOCK")),
        (cooccurrence, "POPULAR"),
    ):
        monkeypatch.setattr(room, name, getattr(room, name))  # put back at the end
    for name in LIMITS:
        alone, held = all_partners(name, users, weighted)
        for kind, weights in alone.items():
            theirs, ours = torch.tensor(found[name][kind]), torch.tensor(weights)
            torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-4, msg=f"{name}, {kind}")
        assert held == entries, "every entry is with one rank"


# Trees

LEARNED = [(2, 1, 1), (2, 2, 2), (3, 2, 1), (2, 4, 3)]  # arity, levels at once, and first level


def learned(arity, at_once, first):
    """A tree from logits, and one from a scorer whose rows may lie on several ranks."""
    generator = torch.Generator().manual_seed(2)
    tree = bt.random_tree(40, arity, seed=1)
    y = torch.randint(40, (31, 3), generator=generator)
    fixed = bt.TreeModel(tree, FixedScorer(2 * torch.randn(31, tree.num_nodes, generator=generator)), first_level=first)
    how = {"levels_at_once": at_once, "stay": 1e-3, "batch_size": 7}
    one = learn_tree(fixed, Instances(FixedScorer.every(31), y), **how)
    deep = bt.TreeModel(tree, DeepScorer(tree.num_nodes, 4, scale=1.0), first_level=first)
    if ranks().size > 1:
        shard_model(deep, Shard.of(tree, ranks(), top=3))
    other = learn_tree(deep, Instances(torch.randint(40, (31, 5), generator=generator), y), **how)
    assert one.fingerprint() != tree.fingerprint() != other.fingerprint()
    return one.items().tolist(), other.items().tolist()


def all_trees():
    join()
    return {case: learned(*case) for case in LEARNED}


@pytest.mark.extended
@pytest.mark.parametrize("size", SIZES)
def test_trees_do_not_depend_on_the_number_of_ranks(size):
    for case, slots in on_ranks(size, all_trees).items():
        assert slots == learned(*case), case


# The start


def start_of(folder):
    """What was chosen, and what is said of the best items of the test users."""
    data = bt.load_data(folder)
    tree = bt.cluster_tree(data)
    first = first_level(tree, 60)
    parts = current_backend().closed_form(tree, data, 0, "cpu", first, parts=PARTS).fit()
    x = data.test.batch(torch.arange(len(data.test)))[0]
    return parts.hyperparameters, bt.retrieve(bt.TreeModel(tree, parts, first_level=first), x, beam_size=60, m=10)[
        1
    ].tolist()


def start_over_ranks(folder):
    join()
    cooccurrence.DENSE, ridge.SMALL_CATALOGUE, cooccurrence.POPULAR, ridge.BLOCK, exchange.PULL_AT_ONCE = (
        0,
        20,
        10,
        16,
        40,
    )
    return start_of(folder)


@pytest.mark.extended
def test_a_start_does_not_depend_on_the_number_of_ranks(tmp_path, monkeypatch):
    prepare(tours(1000, 61, 10), tmp_path / "data", val_users=300, test_users=300)
    made, scores = on_ranks(3, start_over_ranks, tmp_path / "data")
    monkeypatch.setattr(cooccurrence, "POPULAR", 10)
    for name, value in (("SMALL_CATALOGUE", 20), ("BLOCK", 16)):
        monkeypatch.setattr(ridge, name, value)
    chosen, expected = start_of(tmp_path / "data")
    for name in ("weights", "scales"):
        assert made.pop(name) == pytest.approx(chosen.pop(name), rel=1e-2), name
    calibrations = (torch.tensor(each.pop("calibration")) for each in (made, chosen))
    torch.testing.assert_close(*calibrations, rtol=1e-2, atol=1e-2)
    assert made == chosen
    torch.testing.assert_close(torch.tensor(scores), torch.tensor(expected), rtol=1e-2, atol=1e-2)
