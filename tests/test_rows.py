"""What is made over ranks, each having a part of the rows: the same as one rank makes."""

import sys

import pytest
import torch
from ranks import run_ranks

import beamtree as bt
from beamtree.builders import learn_tree, split
from beamtree.builders.matching import rank_in
from beamtree.builders.select import parts_over_ranks
from beamtree.closed_form import follow_partners, next_partners, ridge, ridge_partners
from beamtree.closed_form import ials as factorise
from beamtree.closed_form import pairs as pairs_room
from beamtree.closed_form.als import ials_by_rows
from beamtree.closed_form.builder import Start
from beamtree.closed_form.cooccurrence import followed, together
from beamtree.data import Events, factors
from beamtree.data.factors import pairs
from beamtree.data.instances import Instances
from beamtree.data.seeds import draw_rows
from beamtree.distributed import exchange as routes
from beamtree.distributed.group import Ranks, join, ranks
from beamtree.distributed.partition import Shard
from beamtree.research.baselines.sparse import partner_matrix
from beamtree.scorers import DeepScorer, FixedScorer
from beamtree.train.recipes import first_level

SIZES = (2, 3)


def a_log(users=41, num_items=53, longest=30, seed=0):
    """Users of taste: those of a group choose among the same third of the items, the first most often."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(2, longest, (users,), generator=generator)
    group = torch.repeat_interleave(torch.arange(users) % 3, counts)
    share = torch.rand(len(group), generator=generator).square()
    items = ((share * (num_items // 3)).long() * 3 + group).clamp(max=num_items - 1)
    return Events(torch.nn.functional.pad(counts.cumsum(0), (1, 0)), items.int(), f"{users} users, {seed}")


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
    route = routes.Route(to)
    came = route.there(rows)
    assert bool((came[:, 0] == rank).all())
    assert torch.equal(came[:, 1], route.sender(came.device))
    assert torch.equal(route.back(came), rows)
    table = torch.arange(22.0).view(11, 2)
    part = table[routes.dealt(11)]
    assert torch.equal(routes.whole(part, 11), table)
    wanted = torch.tensor([7, 0, 10, 3])[: 2 * rank]
    assert torch.equal(routes.pull(part, wanted), table[wanted])
    uneven = torch.full((2 * rank, 3), rank)
    assert routes.joined(uneven)[:, 0].tolist() == [each for each in range(size) for _ in range(2 * each)]
    assert list(routes.in_step(rank)) == [*range(rank), *[None] * (size - 1 - rank)]
    turned = torch.arange(6.0).view(2, 3).T * (rank + 1)
    assert ranks().broadcast_(turned, 1)[2, 1] == 10, "also where rows do not follow each other in memory"
    return "well"


@pytest.mark.parametrize("size", SIZES)
def test_rows_go_where_they_belong_and_answers_come_back(size):
    assert on_ranks(size, ways) == "well"


def test_alone_nothing_goes_anywhere():
    rows = torch.arange(12).view(6, 2)
    assert routes.send(torch.zeros(6, dtype=torch.int64), rows)[0] is rows
    assert routes.whole(rows, 6) is rows
    assert routes.joined(rows) is rows
    assert torch.equal(routes.pull(rows, torch.tensor([3, 1])), rows[[3, 1]])


@pytest.mark.parametrize("count", [1, 31, 32, 33, 80])
def test_rows_drawn_in_pieces_are_those_drawn_at_once(monkeypatch, count):
    monkeypatch.setattr("beamtree.data.seeds.DRAWN", 16)
    pieces = [piece for _, piece in draw_rows(count, 5, torch.Generator().manual_seed(3))]
    assert torch.equal(torch.cat(pieces), torch.randn(count, 5, generator=torch.Generator().manual_seed(3)))


# Factors


FACTORS = {"whole": (41, 1 << 19), "pulled": (41, 30), "few users": (2, 30)}  # users, and rows pulled at once
HOW = {"dim": 7, "penalty": 0.05, "everywhere": 0.1}


def products(events):
    """Products of all items, by factors of both kinds: axes that are as strong as each other can turn."""
    found = factorise(events, 53, **HOW)
    other = [factors(events, 53, dim=5, run_length=length) for length in (None, 4)]
    return [(each @ each.T).tolist() for each in (found.items, *other)], found.spread.tolist(), found.everywhere


def factors_over_ranks():
    import beamtree.closed_form.als as room

    join()
    sys.modules["beamtree.data.factors"].ALIKE = 0  # the package has a function of this name
    room.ROOM, found = 64, {}
    for name, (users, room.PULLED) in FACTORS.items():
        found[name] = products(a_log(users))
    own = ials_by_rows(a_log(), 53, **HOW, rounds=1, seed=0)
    assert len(own.items) == len(routes.dealt(53))
    return found


@pytest.mark.parametrize("size", SIZES)
def test_factors_do_not_depend_on_the_number_of_ranks(size):
    found = on_ranks(size, factors_over_ranks)
    for name, (users, _) in FACTORS.items():
        (alone, *others), spread, everywhere = products(a_log(users))
        (theirs, *their_others), their_spread, their_everywhere = found[name]
        assert everywhere == their_everywhere
        for ours, other in ((alone, theirs), (spread, their_spread)):
            ours, other = torch.tensor(ours), torch.tensor(other)
            torch.testing.assert_close(other, ours, atol=1e-5 * float(ours.abs().max()), rtol=1e-5)
        torch.testing.assert_close(torch.tensor(their_others), torch.tensor(others), atol=1e-4, rtol=1e-4)


# Partners

LIMITS = {
    # name: cells of a matrix that is summed whole, items up to which all explain all, popular items
    "small": (1 << 26, 100, 100),
    "by rows": (0, 0, 6),
    "by rows, in one block": (0, 100, 6),
    "by rows, all popular": (0, 0, 100),
}


def all_partners(name, users):
    """The partners of all three kinds, and how many entries of the Gram matrix are here."""
    most = 9 if users > 2 else 53  # of few users much is equal, and which of these are the strongest says nothing
    pairs_room.DENSE, ridge.WHOLE, ridge.POPULAR = LIMITS[name]
    pairs_room.WAITING, ridge.BLOCK = 50, 4
    events, order = a_log(users), torch.randperm(53, generator=torch.Generator().manual_seed(1))
    gram = together(events, 53, order)
    past, future = followed(events, 53, torch.linspace(1, 0.1, 69), readings=2, seed=0, order=order)
    found = {
        "together": ridge_partners(gram, order, 2.0, most, features=12),
        "some": ridge_partners(gram, order[:21], 2.0, most, features=12),
        "follows": follow_partners(past, future, order, 0.5, most, features=12),
        "next": next_partners(events, 53, most=most),
    }
    return {kind: dense(each).tolist() for kind, each in found.items()}, len(gram.values)


def dense(partners):
    partners, found = partners.whole(), torch.zeros(len(partners), len(partners))
    found[torch.repeat_interleave(partners.offsets.diff()), partners.items.long()] = partners.weights
    return found


def partners_over_ranks(users):
    join()
    found = {name: all_partners(name, users) for name in LIMITS}
    return {name: each for name, (each, _) in found.items()}, sum(ranks().gather(found["by rows"][1]))


@pytest.mark.parametrize(("size", "users"), [(2, 41), (3, 41), (3, 2)])
def test_partners_do_not_depend_on_the_number_of_ranks(size, users, monkeypatch):
    found, entries = on_ranks(size, partners_over_ranks, users)
    for room, name in (
        (pairs_room, "DENSE"),
        (pairs_room, "WAITING"),
        *((ridge, n) for n in ("WHOLE", "POPULAR", "BLOCK")),
    ):
        monkeypatch.setattr(room, name, getattr(room, name))  # put back at the end
    for name in LIMITS:
        alone, held = all_partners(name, users)
        for kind, weights in alone.items():
            theirs, ours = torch.tensor(found[name][kind]), torch.tensor(weights)
            torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-4, msg=f"{name}, {kind}")
        assert held == entries, "every entry is with one rank"


def rules_of_a_baseline(size):
    if size > 1:
        join()
    return partner_matrix(next_partners(a_log(), 53)).toarray().tolist()


def test_a_baseline_has_the_partners_of_all_items_on_every_rank():
    found, alone = (torch.tensor(each) for each in (on_ranks(2, rules_of_a_baseline, 2), rules_of_a_baseline(1)))
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)


# Trees


def entries(kind, seed):
    """Values of groups with ties, signs, zeros of both kinds, and a group of one and of none."""
    generator = torch.Generator().manual_seed(seed)
    values = (torch.randn(200, generator=generator) * 3).round().mul(0.5).to(kind)
    values[:20] *= torch.tensor(-0.0 if seed % 2 else 1e-30, dtype=kind)
    group = torch.randint(3, (200,), generator=generator) * 2
    group[7] = 1
    return values, group


def parts_of(kind, seed, parts, over):
    values, group = entries(kind, seed)
    size = torch.bincount(group, minlength=6)
    share = over.share(200)
    own = slice(share.start, share.stop)
    return routes.joined(parts_over_ranks(values[own], group[own], size, parts, over)).tolist()


def all_parts():
    join()
    return {
        (kind, seed, parts): parts_of(kind, seed, parts, ranks())
        for kind in (torch.float32, torch.float64)
        for seed in range(3)
        for parts in (2, 5)
    }


def check_parts(found):
    for (kind, seed, parts), ours in found.items():
        values, group = entries(kind, seed)
        size = torch.bincount(group, minlength=6)
        expected = rank_in(group, -values) * parts // size[group]
        assert ours == expected.tolist(), (kind, seed, parts)


def test_parts_are_those_of_a_sorted_list():
    kinds = [(kind, seed, parts) for kind in (torch.float32, torch.float64) for seed in range(6) for parts in (2, 3)]
    check_parts({case: parts_of(*case, Ranks()) for case in kinds})


def bundles(count, dim=6):
    """Vectors in double precision, so that no rounding error is as large as two of them are apart."""
    generator = torch.Generator().manual_seed(5)
    centres = torch.randn(7, dim, generator=generator, dtype=torch.float64)
    return centres[torch.arange(count) % 7] + 0.3 * torch.randn(count, dim, generator=generator, dtype=torch.float64)


TREES = [(53, 2, False), (200, 2, True), (200, 3, True), (9, 4, False), (2, 2, False), (1, 2, False)]


def tree_of(count, arity, shared):
    chosen = split.Chosen(*pairs(a_log(41, count), count)) if shared else None
    return split.split_tree(bundles(count), chosen, arity=arity, seed=3).items().tolist()


def all_trees():
    join()
    return all_parts(), {case: tree_of(*case) for case in TREES}, {case: learned(*case) for case in LEARNED}, unclean()


def unclean():
    """What every rank says of a vector that one of them has."""
    vectors = torch.zeros(30, 2)
    vectors[29] = torch.nan
    try:
        split.split_tree(vectors)
    except ValueError as error:
        return str(error).removeprefix(f"rank {ranks().size - 1}: ")


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
        deep.scorer.spread_over(Shard.of(tree, ranks(), top=3))
    other = learn_tree(deep, Instances(torch.randint(40, (31, 5), generator=generator), y), **how)
    assert one.fingerprint() != tree.fingerprint() != other.fingerprint()
    return one.items().tolist(), other.items().tolist()


@pytest.mark.parametrize("size", SIZES)
def test_trees_do_not_depend_on_the_number_of_ranks(size):
    parts, trees, moved, said = on_ranks(size, all_trees)
    check_parts(parts)
    for case, slots in trees.items():
        assert slots == tree_of(*case), case
    for case, slots in moved.items():
        assert slots == learned(*case), case
    assert said.startswith("the vector of item 29 holds NaN")


# The start


def start_of(folder):
    """What was chosen, and what is said of the best items of the test users."""
    data = bt.load_data(folder)
    tree = bt.random_tree(data.num_items, seed=1)  # the walk is so even that a cluster tree is all rounding errors
    assert bt.cluster_tree(data).num_items == data.num_items
    first = first_level(tree, 60)
    parts = Start(tree, data, 0, "cpu", first).all_parts()
    x = data.test.batch(torch.arange(len(data.test)))[0]
    return parts.made, bt.retrieve(bt.TreeModel(tree, parts, first_level=first), x, beam_size=60, m=10)[1].tolist()


def start_over_ranks(folder):
    join()
    import beamtree.closed_form.als as room

    pairs_room.DENSE, ridge.WHOLE, ridge.POPULAR, ridge.BLOCK, room.PULLED = 0, 20, 10, 16, 40
    return start_of(folder)


def test_a_start_does_not_depend_on_the_number_of_ranks(tmp_path, monkeypatch):
    from test_start import a_walk

    bt.prepare(a_walk(), tmp_path / "data", val_users=5, test_users=20)
    made, scores = on_ranks(3, start_over_ranks, tmp_path / "data")
    for name, value in (("WHOLE", 20), ("POPULAR", 10), ("BLOCK", 16)):
        monkeypatch.setattr(ridge, name, value)
    chosen, expected = start_of(tmp_path / "data")
    for name in ("weights", "calibration"):
        assert made.pop(name) == pytest.approx(chosen.pop(name), rel=1e-2), name
    assert made == chosen
    torch.testing.assert_close(torch.tensor(scores), torch.tensor(expected), rtol=1e-2, atol=1e-2)
