"""The compiled search on a CPU against the plain one, and its fold-in against the definition."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numba.extending import intrinsic
from random_parts import check_equal, random_deep, random_scorers, random_tree

import beamtree as bt
from beamtree import PAD, Tree, TreeModel, beam
from beamtree.kernels import compiled_search, compiled_shared, search_cpu
from beamtree.kernels.search_cpu import search_parts
from beamtree.scorers import (
    DeepScorer,
    FactorScorer,
    MemoryScorer,
    NodeTable,
    RepeatScorer,
    SumScorer,
)
from beamtree.scorers.dot_product import DotProductScorer
from beamtree.scorers.factors import Factors, fold_in, newest_of_each
from beamtree.scorers.memory import SubtreeMaxScorer


@pytest.mark.parametrize("converts", [True, False])
def test_every_finite_half_is_read(monkeypatch, converts):
    """By an instruction of the processor, where it has one, and by moving bits."""
    monkeypatch.setattr(compiled_shared, "CONVERTS_HALVES", converts and compiled_shared.CONVERTS_HALVES)
    read = intrinsic(compiled_shared._read_half)
    function = njit(lambda bits: read(bits))
    bits = np.arange(1 << 16, dtype=np.uint16)
    finite = bits[np.isfinite(bits.view(np.float16))]
    values = np.array([function(each) for each in finite], np.float32)
    assert (values == finite.view(np.float16).astype(np.float32)).all()


def plain(model, x, monkeypatch, **options):
    with monkeypatch.context() as patch:
        patch.setattr(beam, "search_parts", lambda *arguments: None)
        return bt.retrieve(model, x, **options)


@given(st.data())
def test_it_finds_what_the_plain_search_does(data):
    monkeypatch = pytest.MonkeyPatch()
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**20)))
    arity, items = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 60))
    hidden = data.draw(st.integers(0, items // 3))
    tree = random_tree(arity, items, data.draw(st.integers(0, items)), generator, hidden)
    parts = random_scorers(tree, generator)
    chosen = data.draw(st.lists(st.sampled_from(sorted(parts)), min_size=1, unique=True))
    if data.draw(st.booleans()) and len(chosen) == 1:
        scorer = parts[chosen[0]]
    else:
        scorer = SumScorer({name: parts[name] for name in chosen}, tree.height)
        scorer.set_weights(**{name: data.draw(st.sampled_from([1.0, 0.3, -2.0])) for name in chosen})
        if "deep" in chosen and data.draw(st.booleans()):
            scorer.weights[:, scorer.names.index("deep")] = torch.rand(tree.height + 1, generator=generator) - 0.3
            scorer.weights[1, scorer.names.index("deep")] = 0
        scorer.calibration = torch.tensor([0.7, -1.0])
    model = TreeModel(tree, scorer, first_level=data.draw(st.integers(1, tree.height))).eval()
    x = torch.randint(-1, items, (3, data.draw(st.integers(1, 69))), generator=generator)
    if scorer.context_values and data.draw(st.booleans()):
        x = torch.nn.functional.pad(x, (0, 69 - x.shape[1]), value=PAD)
        x = torch.cat([x, torch.randint(-1, 4, (3, 2), generator=generator)], dim=1)
    assert search_parts(scorer, tree, x) is not None
    sparse = [name for name in chosen if name in ("memory", "repeats")]
    below_zero = isinstance(scorer, SumScorer) and any(scorer.weight_of(name) < 0 for name in sparse)
    k = 70 if below_zero else data.draw(st.integers(1, 70))  # a subtree counts 0 there, and narrow beams guess
    options = {"beam_size": k, "m": data.draw(st.integers(1, k))}
    if data.draw(st.booleans()):
        options["exclude"] = torch.randint(-1, items, (3, data.draw(st.integers(1, 20))), generator=generator)
    if data.draw(st.booleans()):
        options["allowed"] = torch.randperm(items, generator=generator)[: data.draw(st.integers(1, items))]
    found = bt.retrieve(model, x, **options)
    check_equal(found, plain(model, x, monkeypatch, **options), model, x)
    assert all(not zeros.any() for zeros in search_cpu._ZEROS)  # what a search leaves behind


def test_several_threads_find_the_same(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    tree = random_tree(2, 500, 12, generator)
    model = TreeModel(tree, SumScorer(random_scorers(tree, generator), tree.height), first_level=3).eval()
    x = torch.randint(-1, 500, (41, 9), generator=generator)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    many = bt.retrieve(model, x, beam_size=20, m=10)
    monkeypatch.undo()
    one = [bt.retrieve(model, row.unsqueeze(0), beam_size=20, m=10) for row in x]
    assert torch.equal(many[0], torch.cat([items for items, _ in one]))
    torch.testing.assert_close(many[1], torch.cat([scores for _, scores in one]))


def test_histories_may_have_any_strides():
    """Another layout of an array would be compiled again."""
    generator = torch.Generator().manual_seed(0)
    tree = random_tree(2, 50, 6, generator)
    model = TreeModel(tree, SumScorer(random_scorers(tree, generator), tree.height)).eval()
    x = torch.randint(50, (9, 4), generator=generator)
    found = bt.retrieve(model, x.T, beam_size=20, m=5)
    assert torch.equal(found[0], bt.retrieve(model, x.T.contiguous(), beam_size=20, m=5)[0])
    assert len(compiled_search.search.signatures) == len(compiled_search.fold_in.signatures) == 1


@pytest.mark.parametrize("dim", [3, 100])
def test_fold_in_is_as_defined(dim):
    torch.manual_seed(0)
    tree = Tree([3, 0, PAD, 2, 1], 2)
    factors = Factors(torch.randn(4, dim), torch.rand(dim), 0.02, 5.0)
    scorer = FactorScorer.from_factors(tree, factors, 0.4)
    x = torch.tensor([[0, 1, 0, PAD, 2], [PAD] * 5, [3, 3, 3, 1, PAD]])
    vectors = scorer.table.read(tree, share=False)
    history = scorer.history_vectors(tree, vectors, tree.leaf_of_item(x)).double()
    weights = (newest_of_each(x) * scorer.recency[:5]).double()
    settings = scorer.fold_in_settings(history)._replace(gram_diagonal=scorer.spread.double())
    torch.testing.assert_close(
        scorer.encode(tree, vectors, x).double(), fold_in(settings, history, weights), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["factors", "memory", "repeats", "sequence", "deep"])
def test_a_scorer_is_freed_after_a_search(name):
    tree = Tree(range(8), 2)
    scorer = random_scorers(tree, torch.Generator().manual_seed(0))[name]
    bt.retrieve(bt.TreeModel(tree, scorer), torch.tensor([[1, 2]]), beam_size=4, m=2)
    freed = weakref.ref(scorer)
    del scorer
    gc.collect()
    assert freed() is None


def test_other_scorers_take_the_plain_search():
    tree = Tree(range(8), 2)
    x = torch.tensor([[1, 2]])
    deep = DeepScorer(tree.num_nodes)
    assert search_parts(deep, tree, x) is not None
    two = SumScorer({"first": deep, "second": DeepScorer(tree.num_nodes)}, tree.height)
    for scorer in (two, SumScorer({"deep": DeepScorer(tree.num_nodes).double()}, tree.height)):
        assert search_parts(scorer, tree, x) is None

    class Own(RepeatScorer):
        """One that scores in another way than its class, and does not say what is compiled."""

        def forward(self, prepared, level, nodes):
            return 2 * super().forward(prepared, level, nodes)

    assert search_parts(Own(), tree, x) is None
    assert search_parts(SumScorer({"own": Own(), "repeats": RepeatScorer()}, tree.height), tree, x) is None


class LastItems(SubtreeMaxScorer):
    """A sparse scorer from outside: the newest item and the one after it."""

    def entries(self, x):
        newest = x[:, :1]
        return torch.cat([newest, (newest + 1) % 50], dim=1), torch.tensor([[1.0, 0.5]]).expand(len(x), 2)

    def settings(self):
        return {}


class RecentMeans(DotProductScorer):
    """A dense scorer from outside: the mean vector of the history."""

    def __init__(self, tree, generator):
        super().__init__()
        self.table = NodeTable.from_rows(torch.randn(tree.num_nodes, 3, generator=generator).half())
        self.table.requires_grad_(False)

    def encode(self, tree, vectors, x):
        return self.history_vectors(tree, vectors, tree.leaf_of_item(x)).mean(1)

    def settings(self):
        return {}


def test_scorers_from_outside_take_part(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    tree = random_tree(2, 50, 6, generator)
    parts = random_scorers(tree, generator) | {"last": LastItems(), "means": RecentMeans(tree, generator)}
    model, x = TreeModel(tree, SumScorer(parts, tree.height)).eval(), torch.randint(50, (4, 9), generator=generator)
    for scorer in (model.scorer, parts["last"], parts["means"]):
        alone = model.with_scorer(scorer)
        assert search_parts(scorer, tree, x) is not None
        found = bt.retrieve(alone, x, beam_size=50, m=20)
        check_equal(found, plain(alone, x, monkeypatch, beam_size=50, m=20), alone, x)


def test_a_scorer_of_other_partners_is_compiled_by_its_entries(monkeypatch):
    class HalfMemory(MemoryScorer):
        def entries(self, x):
            items, scores = super().entries(x)
            return items, 0.5 * scores

    generator = torch.Generator().manual_seed(0)
    tree = random_tree(2, 50, 6, generator)
    memory = random_scorers(tree, generator)["memory"]
    memory.__class__ = HalfMemory
    model, x = TreeModel(tree, memory), torch.randint(50, (4, 9), generator=generator)
    found = bt.retrieve(model, x, beam_size=50, m=20)
    check_equal(found, plain(model, x, monkeypatch, beam_size=50, m=20), model, x)


def test_two_memories_are_searched_as_one(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    tree = random_tree(2, 50, 6, generator)
    first, second = (random_scorers(tree, generator) for _ in range(2))
    scorer = SumScorer({"factors": first["factors"], "memory": first["memory"], "added": second["memory"]}, tree.height)
    scorer.set_weights(memory=0.5, added=2.0)
    model, x = TreeModel(tree, scorer).eval(), torch.randint(50, (4, 9), generator=generator)
    assert search_parts(scorer, tree, x) is not None
    found = bt.retrieve(model, x, beam_size=50, m=20)
    check_equal(found, plain(model, x, monkeypatch, beam_size=50, m=20), model, x)
    monkeypatch.setattr(search_cpu, "MAX_JOINED", 0)  # large ones are not copied
    second["memory"].recency.mul_(2.0)
    assert search_parts(scorer, tree, x) is None
    assert search_parts(first["memory"], tree, x) is not None


def train_a_step(model, x):
    model.log_prob(x, model.tree.height, model.tree.leaf_of_item(x)).sum().backward()
    torch.optim.SGD(model.scorer.part("deep").parameters(), lr=0.1).step()


@pytest.mark.parametrize("share", [True, False])
def test_it_follows_changes_of_weights_and_lists(monkeypatch, share):
    generator = torch.Generator().manual_seed(0)
    tree = random_tree(2, 50, 6, generator)
    deep = DeepScorer(tree.num_nodes, scale=1.0, share=share)
    parts = {**random_scorers(tree, generator), "deep": deep}
    scorer = SumScorer(parts, tree.height)
    model, x = TreeModel(tree, scorer).eval(), torch.randint(50, (4, 9), generator=generator)

    def check():
        found = bt.retrieve(model, x, beam_size=50, m=20)
        check_equal(found, plain(model, x, monkeypatch, beam_size=50, m=20), model, x)
        return found

    before = [check()]
    for change in (
        lambda: scorer.set_weights(factors=3.0),
        lambda: parts["memory"].recency.mul_(2.0),
        lambda: parts["factors"].table.weight.mul_(0.5),
        lambda: setattr(parts["memory"], "rows", parts["memory"].rows.head(1)),
        lambda: deep.table.weight.add_(0.5),
        lambda: deep.slopes[2].mul_(2.0),
        lambda: deep.layers[0].weight.mul_(2.0),
        lambda: setattr(deep.of_node, "weight", torch.nn.Parameter(deep.of_node.weight * 2)),
        torch.enable_grad()(lambda: train_a_step(model, x)),
        lambda: scorer.put("deep", random_deep(tree, generator)),
    ):
        with torch.no_grad():
            change()
        before.append(check())
        assert not torch.equal(before[-1][1], before[-2][1])


@pytest.mark.extended
def test_it_works_where_nothing_can_be_written():
    """A container with a read-only file system and no home."""
    code = """
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []
import torch, beamtree as bt
from beamtree.scorers import RepeatScorer
model = bt.TreeModel(bt.Tree(range(8)), RepeatScorer())
print(bt.retrieve(model, torch.tensor([[3, 5]]), beam_size=4, m=2)[0].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[3, 5]]"
    assert "Compiling for this machine" in done.stderr


def test_a_beam_of_any_width_holds_all_that_there_is():
    tree = bt.random_tree(40, seed=3)
    model = bt.TreeModel(tree, RepeatScorer())
    x = torch.tensor([[3, 7, 9]])
    wide, all_items = (bt.retrieve(model, x, beam_size=width, m=5) for width in (10**20, 40))
    assert all(torch.equal(one, other) for one, other in zip(wide, all_items, strict=True))
