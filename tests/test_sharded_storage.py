"""Parts in closed form over ranks: each has some of the rows and lists, and all get the same answers."""

import errno
from contextlib import nullcontext

import pytest
import torch
from command import largest_file
from ranks import run_ranks
from safetensors import safe_open
from sample_scorers import told_by

import beamtree as bt
from beamtree import recommender
from beamtree.data import Ids
from beamtree.data.csr import CSR, strongest
from beamtree.data.instances import Instances
from beamtree.distributed import partition as shards
from beamtree.distributed import sharded_table
from beamtree.distributed.checkpoint import load_weights, write_sharded
from beamtree.distributed.exchange import Route
from beamtree.distributed.group import ranks
from beamtree.distributed.sharded_table import ShardedTable
from beamtree.distributed.sharding import ShardedMemoryScorer, is_sharded, shard_model
from beamtree.distributed.training import join
from beamtree.methods import sized
from beamtree.scorers import DeepScorer, FactorScorer, MemoryScorer, RepeatScorer, SumScorer
from beamtree.scorers.factors import Factors
from beamtree.scorers.memory import recency_weights
from beamtree.storage import models
from beamtree.storage.settings import read_settings
from beamtree.storage.sharded_files import MEMORY_TENSORS, merge_parts
from beamtree.train import Checkpoints, Schedule, Validation, constant
from beamtree.train.backend import current_backend
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import build_model, resolve_settings
from beamtree.tree import PAD

ITEMS, TOP = 90, 6


def lists_of(seed, items=ITEMS):
    generator = torch.Generator().manual_seed(seed)
    key = torch.randperm(items**2, generator=generator)[: 8 * items]
    weights = torch.randn(len(key), generator=generator)
    return strongest(key // items, key % items, weights, items, 9)


def make_memory():
    return MemoryScorer.from_partners(
        [lists_of(0), lists_of(1)], [recency_weights(0.5), recency_weights(2.0, newest=3)]
    )


def make_model(dtype=torch.float32):
    """A sum of all kinds of parts, whole on whoever makes it before ranks are joined."""
    tree = bt.random_tree(ITEMS, 3, seed=1)
    vectors = torch.randn(ITEMS, 5, generator=torch.Generator().manual_seed(3))
    factors = FactorScorer.from_factors(tree, Factors(vectors, torch.ones(5), 0.1, 1.0), power=0.3)
    learned = DeepScorer(tree.num_nodes, 6, scale=0.3, seed=2).to(dtype)
    parts = {"memory": make_memory(), "repeats": RepeatScorer(), "factors": factors, "deep": learned}
    scorer = SumScorer(parts, tree.height, "deep").set_weights(memory=1.0, repeats=0.5, factors=0.7, deep=0.1)
    model = bt.TreeModel(tree, scorer, first_level=2, ids=Ids([f"i{number}" for number in range(ITEMS)]))
    return model.eval()


def histories(users=23, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(ITEMS, (users, 12), generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.2] = PAD
    x[0] = PAD
    return Instances(x, torch.randint(ITEMS, (users, 4), generator=generator))


def spread(model):
    """The same model, of which this rank keeps its part."""
    join()
    return shard_model(model)


@pytest.mark.extended
def test_a_list_comes_for_every_row_that_went_out():
    for ours in run_ranks(3, lists_that_came):
        assert ours == "well"


def lists_that_came():
    now = join()
    to = torch.tensor([2, 0, 1, 1, 0][: 2 + now.rank])
    route = Route(to)
    row = route.send(torch.arange(len(to)) + 10 * now.rank)
    lengths = row % 4
    found = route.reply_lists(CSR(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), row.repeat_interleave(lengths)))
    own = torch.arange(len(to)) + 10 * now.rank
    assert torch.equal(found.counts(), own % 4)
    assert torch.equal(found.columns, own.repeat_interleave(own % 4))
    return "well"


@pytest.mark.parametrize(("came_from", "size"), [(3, 2), (1, 3), (4, 1), (2, 5)])
def test_lists_of_some_ranks_are_divided_anew(came_from, size):
    """Also for ranks that get none: there are four items."""
    whole = MemoryScorer.from_partners([lists_of(0, 4), lists_of(1, 4)], [recency_weights(0.5)] * 2).rows

    def part(rank, count):
        items = torch.arange(rank, 4, count) if rank < 4 else torch.arange(0)
        return items, whole.take((torch.arange(2).unsqueeze(1) * 4 + items).flatten())

    parts = [part(rank, came_from)[1] for rank in range(came_from)]
    for rank in range(size):
        items, expected = part(rank, size)
        ours = merge_parts(parts, 2, came_from, items)
        assert all(
            torch.equal(one, other) for one, other in zip(vars(ours).values(), vars(expected).values(), strict=True)
        )


def answers(model, rank, size):
    """What a model finds for every `size`-th user, and what it says of nodes on every level."""
    x = histories().x[rank::size]
    items, scores = bt.retrieve(model, x, beam_size=12, m=10)
    query = model.query(x)
    levels = [query.whole_level(level).tolist() for level in query.levels]
    return items.tolist(), scores.tolist(), levels


def answers_of_ranks(top):
    shards.TOP = top
    model = make_model()
    parts = {name: len(value) for name, value in model.scorer.state_dict().items() if name in whole_names()}
    model = spread(model)
    own = {name: len(value) for name, value in model.scorer.state_dict().items() if name in parts}
    with torch.no_grad():
        return answers(model, ranks().rank, ranks().size), parts, own


def whole_names():
    rows = [f"parts.{name}.table.weight" for name in ("deep", "factors")]
    return [*rows, *(f"parts.memory.{name}" for name in MEMORY_TENSORS)]


@pytest.mark.extended
@pytest.mark.parametrize(("size", "top"), [(2, 5), (3, 10), (2, 1000)])
def test_users_of_each_rank_get_what_one_rank_gives_them(size, top):
    alone = make_model()
    for rank, (theirs, parts, own) in enumerate(run_ranks(size, answers_of_ranks, top)):
        with torch.no_grad():
            items, scores, levels = answers(alone, rank, size)
        assert theirs[0] == items
        torch.testing.assert_close(torch.tensor(theirs[1]), torch.tensor(scores), atol=1e-6, rtol=1e-6)
        for one, other in zip(theirs[2], levels, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), atol=1e-5, rtol=1e-5)
        assert all(own[f"parts.memory.{name}"] < 1.3 / size * parts[f"parts.memory.{name}"] for name in MEMORY_TENSORS)
        if top < 1000:
            assert all(own[name] < parts[name] for name in parts), "each has a part"


# Files


def saved(folder, top, dtype):
    shards.TOP = top
    sharded_table.SEND_AT_ONCE = 7
    model = spread(make_model(dtype))
    current_backend().save_model(model, folder)


@pytest.mark.extended
@pytest.mark.parametrize(("size", "dtype"), [(2, torch.float32), (3, torch.float32), (2, torch.bfloat16)])
def test_ranks_write_the_file_that_one_writes(tmp_path, size, dtype):
    bt.save_model(make_model(dtype), tmp_path / "one")
    run_ranks(size, saved, tmp_path / "several", TOP, dtype)
    for file in ("weights-0.safetensors", "search-0.safetensors", "tree-0.safetensors"):
        with safe_open(tmp_path / "one" / file, "pt") as one, safe_open(tmp_path / "several" / file, "pt") as several:
            assert set(one.keys()) == set(several.keys())
            for key in one.keys():  # noqa: SIM118
                ours, theirs = one.get_tensor(key), several.get_tensor(key)
                assert ours.dtype == theirs.dtype
                exact = "vectors" not in key  # sums of rows, which a rank adds up in the same order
                assert torch.equal(ours, theirs) if exact else torch.allclose(ours, theirs)
    if dtype != torch.float32:
        return  # what is written is all that is asked of it
    found = bt.load_model(tmp_path / "several")
    x = histories().x
    assert torch.equal(
        bt.retrieve(found, x, beam_size=12, m=10)[0], bt.retrieve(make_model(), x, beam_size=12, m=10)[0]
    )


def write_nothing(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


def told_by_saving(folder, moment):
    """What each rank says where the first finds its disk full."""
    shards.TOP = TOP
    sharded_table.SEND_AT_ONCE = 7
    shop = bt.Recommender()
    shop._model = spread(make_model())
    place = nullcontext()
    if ranks().is_first and moment == "within":
        place = largest_file(9000)  # the tree fits, and some of the weights
    elif ranks().is_first:
        where, name = {"model": (models, "save_tensors"), "run": (recommender, "write_run")}[moment]
        setattr(where, name, write_nothing)
    with place:
        try:
            shop.save(folder)
        except (OSError, ValueError) as error:
            return str(error)
    return ""


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["run", "model", "within"])
def test_a_full_disk_is_told_on_all_ranks_and_nobody_waits(tmp_path, moment):
    told = run_ranks(2, told_by_saving, tmp_path / "run", moment, seconds=30)
    why = "File too large" if moment == "within" else "No space left on device"
    assert all(why in line for line in told), told
    assert not (tmp_path / "run" / "settings.json").exists()
    assert not [path for path in (tmp_path / "run").rglob("*.safetensors*") if path.is_file()]


def one_item(folder):
    """All that is done with lists of one item, of which two of three ranks have none."""
    lists = strongest(torch.tensor([0]), torch.tensor([0]), torch.tensor([0.5]), 1)
    memory = MemoryScorer.from_partners([lists], [recency_weights(0.5)])
    tree = bt.random_tree(1, 2, seed=0)
    model = spread(bt.TreeModel(tree, memory))
    current_backend().save_model(model, folder)
    return model.scorer.entries(torch.tensor([[0]]))[1].tolist()


@pytest.mark.extended
def test_ranks_that_no_item_is_dealt_to_take_part(tmp_path):
    assert run_ranks(3, one_item, tmp_path / "model") == [[[0.5]]] * 3
    found = bt.load_model(tmp_path / "model").scorer
    assert found.offsets.tolist() == [0, 1]
    assert found.weights.tolist() == [0.5]


# Checkpoints


def trained(folder, steps, asks=False):
    """Train on to so many steps from whatever is in the folder; all weights in the end."""
    shards.TOP = TOP
    model = make_model(torch.float64)
    now = join()
    if (folder / "settings.json").exists():
        model = current_backend().load_model(folder, "cpu")
    bt.fit(
        model,
        histories(),
        sized("otm", 4, 6),
        steps=steps,
        batch_size=7,
        optimizer=OPTIMIZERS["lazy"],
        schedule=Schedule(0.01, constant),
        val=Validation(histories(9, seed=5), beam_size=8, m=6, every=2) if asks else None,
        checkpoints=Checkpoints(folder, every=1000, seconds=None, resume=True),
    )
    final = folder.parent / f"{folder.name}-{steps}-{now.size}"
    current_backend().save_model(model, final)
    return {name: value.tolist() for name, value in bt.load_model(final).scorer.state_dict().items()}


def check_near(expected, found):
    for name, weights in expected.items():
        ours, theirs = (torch.tensor(each, dtype=torch.float64) for each in (weights, found[name]))
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max()) < 1e-6, name


@pytest.mark.extended
def test_a_run_with_parts_goes_on_with_any_number_of_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "TOP", TOP)
    expected = trained(tmp_path / "unbroken", 5)
    for steps, size in ((2, 2), (3, 3), (5, 2)):
        found = run_ranks(size, trained, tmp_path / "run", steps)
        assert len(list((tmp_path / "run").glob("shard-*"))) == size
        if steps == 3:
            trained(tmp_path / "run", 4)  # alone
    for each in found:
        check_near(expected, each)


def with_fewer_partners():
    model = make_model()
    lists = [lists_of(0).head(3), lists_of(1).head(3)]
    model.scorer.put(
        "memory", MemoryScorer.from_partners(lists, [recency_weights(0.5), recency_weights(2.0, newest=3)])
    )
    return model


def taken_over(folder, by_all):
    """Weights of a folder in a model whose memory was made a little otherwise, saved again."""
    shards.TOP = TOP
    given, model = make_model(), with_fewer_partners()
    join()
    if by_all:
        write_sharded(folder / "given", spread(given), 0, {}, set(), {})
    elif ranks().is_first:
        bt.save_model(given, folder / "given")
    ranks().gather(None)  # until the first has written it
    load_weights(folder / "given", read_settings(folder / "given"), spread(model))
    current_backend().save_model(model, folder / "again")


@pytest.mark.extended
@pytest.mark.parametrize("by_all", [True, False])
def test_a_memory_takes_lists_of_other_lengths(tmp_path, by_all):
    """As of parts that were made again by another number of ranks, before a checkpoint is read."""
    run_ranks(2, taken_over, tmp_path, by_all)
    found, expected = bt.load_model(tmp_path / "again").scorer.part("memory"), make_memory()
    for name, ours in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], ours)


@pytest.mark.extended
def test_validation_users_weigh_parts_that_lie_on_several_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "TOP", TOP)
    expected = trained(tmp_path / "alone", 4, True)
    for each in run_ranks(2, trained, tmp_path / "two", 4, True):
        check_near(expected, each)


# The start


def started(folder, out):
    shards.TOP = TOP
    now = join()
    data = bt.load_data(folder)
    settings = resolve_settings(data, TrainingOptions(steps=2))
    model = build_model(settings, data, bt.random_tree(data.num_items, 2, seed=0))
    current_backend().save_model(model, out)
    tables = {name: isinstance(part.table, ShardedTable) for name, part in model.scorer.tables().items()}
    memories = {name: part for name, part in model.scorer.parts.items() if isinstance(part, MemoryScorer)}
    lists = {name: isinstance(part, ShardedMemoryScorer) for name, part in memories.items()}
    return is_sharded(model), tables, lists, now.size


@pytest.mark.extended
def test_what_is_made_over_ranks_stays_there(tmp_path, market_data, monkeypatch):
    monkeypatch.setattr(shards, "TOP", TOP)
    started(market_data.folder, tmp_path / "one")
    for is_spread, tables, lists, _ in run_ranks(2, started, market_data.folder, tmp_path / "two"):
        assert is_spread
        assert tables
        assert all(tables.values())
        assert lists
        assert all(lists.values())
    one, two = (bt.load_model(tmp_path / name).scorer for name in ("one", "two"))
    for what, chosen in one.hyperparameters.items():
        if what == "calibration":  # two rows of numbers
            torch.testing.assert_close(*map(torch.tensor, (two.hyperparameters[what], chosen)), rtol=1e-3, atol=1e-3)
        else:
            assert two.hyperparameters[what] == pytest.approx(chosen, rel=1e-4), what
    ours, theirs = (told_by(scorer) for scorer in (one, two))
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, atol=2e-3, rtol=2e-3, msg=name)


def moved(size):
    shards.TOP = TOP
    model = make_model()
    other = bt.random_tree(ITEMS, 2, seed=9)
    if size > 1:
        model = spread(model)
    found = model.scorer.part("factors").on_tree(model.tree, other)
    assert isinstance(found.table, ShardedTable) == (size > 1)
    x = histories().x
    with torch.no_grad():
        return [level.tolist() for level in levels_of(bt.TreeModel(other, found), x)]


def levels_of(model, x):
    query = model.query(x)
    return [query.whole_level(level) for level in query.levels]


@pytest.mark.extended
def test_factors_follow_their_items_to_another_tree_over_ranks():
    alone = moved(1)
    for theirs in run_ranks(2, moved, 2):
        for one, other in zip(alone, theirs, strict=True):
            torch.testing.assert_close(torch.tensor(other), torch.tensor(one), atol=1e-3, rtol=1e-3)
