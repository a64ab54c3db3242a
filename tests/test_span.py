"""Search over ranks: whatever their number, the same items, and each rank has its share of the rows."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from ranks import ThreadRanks, run_ranks

import beamtree as bt
from beamtree import beam
from beamtree.data import Ids
from beamtree.data.csr import strongest
from beamtree.diagnose.explain import explain
from beamtree.distributed import partition as shards
from beamtree.distributed import remote_search as following
from beamtree.distributed.checkpoint import write_sharded
from beamtree.distributed.group import Ranks
from beamtree.distributed.load_shard import ShardFiles, load_part
from beamtree.distributed.partition import Shard
from beamtree.distributed.remote_search import Coordinator, follow
from beamtree.distributed.sharded_search import LocalTable
from beamtree.distributed.sharding import shard_model
from beamtree.distributed.training import join
from beamtree.scorers import (
    DeepScorer,
    FactorScorer,
    LinearScorer,
    MemoryScorer,
    NodeTable,
    RepeatScorer,
    SequenceScorer,
    SumScorer,
)
from beamtree.scorers.factors import Factors
from beamtree.scorers.memory import recency_weights
from beamtree.storage.settings import fingerprint, read_settings
from beamtree.tree import PAD

ITEMS, TOP = 90, 9  # items on 128 or 243 slots, so that some subtrees are empty, and nodes of the last level of all


def deep(tree, share=True, lift=True):
    return DeepScorer(tree.num_nodes, 6, scale=1.0, share=share, lift=lift, seed=2)


def factors(tree):
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(ITEMS, 5, generator=generator)
    return FactorScorer.from_factors(tree, Factors(vectors, torch.ones(5), 0.1, 1.0), power=0.3)


def memory(tree, seed=0):
    generator = torch.Generator().manual_seed(seed)
    key = torch.randperm(ITEMS**2, generator=generator)[:700]
    lists = strongest(key // ITEMS, key % ITEMS, torch.randn(700, generator=generator), ITEMS, 8)
    return MemoryScorer.from_partners([lists, lists], [recency_weights(0.5), recency_weights(2.0, newest=3)])


def everything(tree):
    parts = {"memory": memory(tree), "repeats": RepeatScorer(), "factors": factors(tree), "deep": deep(tree)}
    found = SumScorer(parts, tree.height, "deep").set_weights(memory=1.0, repeats=0.5, factors=0.7, deep=0.1)
    found.calibration = torch.tensor([0.8, -1.0])
    return found


def apart(tree):
    """A sum whose sparse parts count more on some levels, so that each is lifted alone."""
    found = everything(tree)
    found.weights[2:, 0] = 3.0
    found.weights[3:, 1] = 0.2
    return found


CASES = {
    # name: scorer, arity, whether chained, the nodes of the last level that all ranks have
    "deep": (deep, 2, False, TOP),
    "deep, three children": (deep, 3, False, TOP),
    "deep, no shared rows": (lambda tree: deep(tree, share=False), 3, False, TOP),
    "deep, not lifted": (lambda tree: deep(tree, lift=False), 2, False, TOP),
    "deep, chained": (deep, 2, True, TOP),
    "factors": (factors, 2, False, TOP),
    "factors, three children": (factors, 3, False, TOP),
    "sequence": (lambda tree: SequenceScorer(tree.num_nodes, 32, seed=2), 3, False, TOP),
    "memory": (memory, 2, False, TOP),
    "repeats": (lambda tree: SumScorer({"repeats": RepeatScorer()}, tree.height), 3, False, TOP),
    "sum": (everything, 2, False, TOP),
    "sum, three children": (everything, 3, False, TOP),
    "sum of parts apart": (apart, 2, False, TOP),
    "sum, the root alone": (everything, 2, False, 1),
    "sum, two subtrees": (everything, 2, False, 2),
    "sum, whole": (everything, 2, False, 1000),
}
SEARCHES = {
    # name: whether what was seen is left out, the items that may be found, k and m
    "plain": (False, None, 12, 10),
    "narrow": (False, None, (2, 3, 4, 5, 6, 7), 3),
    "filter": (False, range(20, 60), 12, 10),
    "exclude": (True, None, 15, 12),
    "both": (True, range(0, 90, 7), 15, 12),
    "nothing": (False, range(0), 12, 10),
}


def users():
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(ITEMS, (7, 12), generator=generator)
    x[torch.rand(x.shape, generator=generator) < 0.2] = PAD
    x[3] = PAD
    return x


def make_model(name):
    make, arity, chained, _ = CASES[name]
    slots = torch.randperm(ITEMS, generator=torch.Generator().manual_seed(1))
    some = torch.full((128 if arity == 2 else 243,), PAD)
    some[torch.arange(ITEMS) + 5] = slots  # the first subtree has holes, and the last ones are empty
    tree = bt.Tree(some, arity)
    model = bt.TreeModel(tree, make(tree), chained=chained, first_level=2 if arity == 2 else 1).eval()
    model.ids = Ids([f"i{number}" for number in range(ITEMS)])
    return model


def searched(model, name):
    """Items, scores and what one search saw on its way, as plain lists."""
    exclude, allowed, k, m = SEARCHES[name]
    levels = model.tree.height + 1 - model.first_level
    k = k if isinstance(k, int) else (k * 2)[:levels]
    x = users().to(model.tree.device)
    may = None if allowed is None else torch.tensor(list(allowed), dtype=torch.int64, device=x.device)
    items, scores = bt.retrieve(model, x, beam_size=k, m=m, allowed=may, exclude=x if exclude else None)
    return items.tolist(), scores.tolist()


def looked_at(model):
    found = explain(model, users()[:1], beam_size=6, m=4, items=[3, 50])
    paths = [(path.rank, path.would_rank, [step.before for step in path.steps]) for path in found.items]
    return [sorted(level.nodes.tolist()) for level in found.levels], [item for item, _ in found.found], paths


def work(folder):
    """All ranks search at once, each with its part; then the first one searches, and the others follow."""
    now = join()
    following.INLINE = 100  # so that some nodes go along with what is to be done, and others after it

    def open_part(name):
        return load_part(folder / name, now, top=CASES[name][3]), fingerprint(folder / name)

    together = {}
    for case in CASES:
        part = open_part(case)[0]
        together[case] = {name: searched(part, name) for name in SEARCHES}, weights_of(part)
    together["as ranks wrote it"] = searched(as_ranks_write_it(folder / f"of {now.size} ranks", now), "plain")
    if now.rank:
        follow(now, open_part)
        return together, {}
    lead, led = Coordinator(now, open_part), {}
    for case in CASES:
        model = lead.open(case)
        led[case] = {name: searched(model, name) for name in SEARCHES}, looked_at(model)
    lead.close()
    return together, led


def as_ranks_write_it(place, now):
    """The part of a model that all ranks wrote in training."""
    shards.TOP = TOP
    model = make_model("sum")
    shard_model(model)
    write_sharded(place, model, 0, {}, set(), {})
    shard, settings = Shard.of(model.tree, now), read_settings(place)
    read = ShardFiles(place, settings, model.tree, shard).read("parts.memory.partners", range(2000))
    assert bool(shard.owned(shard.height, model.tree.leaf_of_item(read.long())).all()), "of others nothing is kept"
    assert now.sum_(torch.tensor(len(read))) == settings["scorer_settings"]["parts"]["memory"][1]["entries"]
    return load_part(place, now, top=TOP)


def weights_of(model):
    """The rows of tables and the partners that a rank has."""
    rows = sum(len(each.weight) for each in model.modules() if isinstance(each, LocalTable))
    return rows, sum(len(each.partners) for each in model.modules() if isinstance(each, MemoryScorer))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for case in CASES:
        bt.save_model(make_model(case), place / case)
    return place


@pytest.fixture(scope="module", params=[2, 3])
def found(request, folder):
    return run_ranks(request.param, work, folder)


@pytest.fixture(autouse=True)
def plain_search(monkeypatch):
    """A search over ranks is the plain one; the compiled one of a CPU may order items of equal scores otherwise."""
    monkeypatch.setattr(beam, "search_parts", lambda *arguments: None)


def check(found, expected):
    assert found[0] == expected[0]
    torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(expected[1]), rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES)
def test_ranks_find_what_one_finds(found, case):
    model = make_model(case)
    for name in SEARCHES:
        expected = searched(model, name)
        for together, _ in found:
            check(together[case][0][name], expected)
        check(found[0][1][case][0][name], expected)
    assert found[0][1][case][1] == looked_at(model)


@pytest.mark.extended
def test_a_model_that_ranks_wrote_is_searched_by_them(found):
    expected = searched(make_model("sum"), "plain")
    for together, _ in found:
        check(together["as ranks wrote it"], expected)


@pytest.mark.extended
@pytest.mark.parametrize("case", ["deep", "factors", "deep, three children", "memory", "sum"])
def test_a_rank_has_its_share_of_rows_and_partners(found, case):
    """Its own subtrees, and beside them the top and one row of zeros for each table."""
    model, size = make_model(case), len(found)
    tables = [each for each in model.modules() if isinstance(each, NodeTable)]
    kept = [together[case][1] for together, _ in found]
    shard = Shard.of(model.tree, Ranks(), TOP)
    below = shard.num_nodes - shard.num_top
    assert sum(rows for rows, _ in kept) == len(tables) * (below + size * (shard.num_top + 1))
    most = -(-(shard.arity**shard.cut) // size) / shard.arity**shard.cut  # of an uneven division
    assert max(rows for rows, _ in kept) <= len(tables) * (most * below + shard.num_top + 1)
    partners = [len(each.partners) for each in model.modules() if isinstance(each, MemoryScorer)]
    assert sum(named for _, named in kept) == sum(partners)
    assert all(named < sum(partners) for _, named in kept) or not partners


def test_a_kind_that_cannot_be_divided_is_refused_in_one_line(tmp_path):
    tree = bt.random_tree(20)
    bt.save_model(bt.TreeModel(tree, LinearScorer(tree.num_nodes, 3)), tmp_path)
    with pytest.raises(ValueError, match="a LinearScorer cannot be sharded over ranks: start one process"):
        load_part(tmp_path, Ranks())


def test_one_rank_has_everything(folder):
    part = load_part(folder / "sum", Ranks(), top=TOP)
    check(searched(part, "both"), searched(make_model("sum"), "both"))
    assert part.tree.fingerprint() == make_model("sum").tree.fingerprint()
    assert part.ids.names[:2] == ["i0", "i1"]


def test_a_damaged_file_is_refused(folder, tmp_path):
    bt.save_model(make_model("deep"), tmp_path)
    path = tmp_path / "search-0.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged: its checksum"):
        load_part(tmp_path, Ranks())


def check_nearly(found, expected):
    """On a GPU products are rounded, and of two items that score the same either may come first."""
    items, others = (torch.tensor(each[0]) for each in (found, expected))
    assert float((items.unsqueeze(2) == others.unsqueeze(1)).any(2).float().mean()) > 0.95
    torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(expected[1]), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", CASES)
def test_ranks_in_one_process_find_what_one_finds(folder, case, device):
    given, meet = [None] * 3, threading.Barrier(3)
    whole = bt.load_model(folder / case, device)
    expected = {name: searched(whole, name) for name in SEARCHES}  # first: a GPU compiles its kernels here

    def search(rank):
        part = load_part(folder / case, ThreadRanks(rank, 3, given, meet), device, top=CASES[case][3])
        return {name: searched(part, name) for name in SEARCHES}

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(search, range(3)))
    for name in SEARCHES:
        for answer in answers:
            if device == "cpu":
                check(answer[name], expected[name])
            else:
                check_nearly(answer[name], expected[name])
