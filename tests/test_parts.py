"""The parts of a sum: memory, repeats and factors, each against its definition, and the sum of them."""

import pytest
import torch
from conftest import cases
from hypothesis import given
from hypothesis import strategies as st
from sample_scorers import NUM_ITEMS, histories, make_memory_sum, make_partners

import beamtree as bt
from beamtree import PAD
from beamtree.closed_form.als import implicit_als
from beamtree.data import Events
from beamtree.data.csr import strongest
from beamtree.scorers import FactorScorer, MemoryScorer, RepeatScorer, SumScorer
from beamtree.scorers.factors import fold_in
from beamtree.scorers.memory import recency_weights
from beamtree.scorers.subtree_max import SubtreeMax


@pytest.fixture
def tree():
    return bt.random_tree(NUM_ITEMS, arity=3, seed=1)


# Lifted by the maximum


@given(cases(), st.integers(0, 2**20))
def test_a_node_scores_what_the_best_item_below_it_scores(case, seed):
    generator = torch.Generator().manual_seed(seed)
    items = torch.randint(-1, case.tree.num_items, (2, 9), generator=generator)
    scores = torch.randn(2, 9, generator=generator)
    lifted = SubtreeMax(case.tree, case.tree.leaf_of_item(items), scores)
    for user in range(2):
        said = [0.0] * case.tree.num_items
        for item, score in zip(items[user].tolist(), scores[user].tolist(), strict=True):
            if item != PAD:
                said[item] += score
        for level in range(case.height, -1, -1):
            nodes = torch.arange(case.tree.level(level).start, case.tree.level(level).stop).unsqueeze(0)
            found = lifted.at(level, nodes)[user].tolist()
            for node, value in zip(nodes[0].tolist(), found, strict=True):
                below = [case.slots[leaf - case.tree.level(case.height).start] for leaf in case.tree.leaves(node)]
                best = max([said[item] for item in below if item is not None], default=0.0)
                expected = best if level == case.height else max(best, 0.0)
                assert value == pytest.approx(expected, abs=1e-5)


@given(cases(), st.integers(0, 2**20), st.integers(1, 6))
def test_a_beam_over_memory_alone_finds_its_best_exactly(case, seed, m):
    """The claim of `scorers/lifted.py`, for every beam that is as wide as what is asked for."""
    generator = torch.Generator().manual_seed(seed)
    num_items = case.tree.num_items
    weight = torch.rand(3 * num_items, generator=generator) + torch.arange(3 * num_items) * 1e-3
    source = torch.randint(num_items, (3 * num_items,), generator=generator)
    target = torch.randint(num_items, (3 * num_items,), generator=generator)
    pairs = dict(zip(zip(source.tolist(), target.tolist(), strict=True), weight.tolist(), strict=True))
    keys = torch.tensor(list(pairs))
    partners = strongest(keys[:, 0], keys[:, 1], torch.tensor(list(pairs.values())), num_items)
    memory = MemoryScorer.from_partners([partners], [recency_weights(0.3)])
    model = bt.TreeModel(case.tree, memory)
    x = torch.randint(num_items, (2, 4), generator=generator)
    _, scores = bt.retrieve(model, x, beam_size=m, m=m)
    _, expected = bt.brute_force(model, x, m=m)
    real = expected > float(torch.nn.functional.logsigmoid(torch.tensor(0.0)))  # items of which anything is said
    torch.testing.assert_close(scores[real], expected[real])  # which items, where they are equally good, is open


# Memory and repeats


def test_memory_adds_what_the_partners_say_by_recency(tree):
    first, second = make_partners(0), make_partners(1)
    memory = MemoryScorer.from_partners([first, second], [recency_weights(0.5), 2 * recency_weights(1.0, newest=3)])
    x = histories(NUM_ITEMS)
    found = memory.whole_level(memory.prepare(tree, x), tree, tree.height)
    for user, history in enumerate(x.tolist()):
        said = [0.0] * NUM_ITEMS
        for t, item in enumerate(history):
            if item == PAD:
                continue
            for partners, by in ((first, (1 + t) ** -0.5), (second, 2 * (1 + t) ** -1.0 * (t < 3))):
                a, b = partners.offsets[item : item + 2].tolist()
                for partner, weight in zip(
                    partners.columns[a:b].tolist(), partners.values[a:b].half().tolist(), strict=True
                ):
                    said[partner] += by * weight
        items = tree.item_of_leaf(torch.arange(tree.level(tree.height).start, tree.level(tree.height).stop)).tolist()
        expected = [0.0 if item == PAD else said[item] for item in items]
        assert found[user].tolist() == pytest.approx(expected, abs=2e-3)


def test_repeats_speak_for_what_the_user_has(tree):
    scorer = RepeatScorer(power=1.0)
    x = torch.tensor([[7, 3, 7]])
    leaves = tree.leaf_of_item(torch.tensor([[7, 3, 9]]))
    found = scorer(scorer.prepare(tree, x), tree.height, leaves)
    assert found.tolist() == [pytest.approx([1 + 1 / 3, 1 / 2, 0.0])]


def test_a_user_without_history_and_an_item_without_partners_score_0(tree):
    memory = MemoryScorer.from_partners(
        [strongest(*map(torch.tensor, ([0], [1], [1.0])), NUM_ITEMS)], [recency_weights(0.5)]
    )
    x = torch.tensor([[PAD, PAD], [5, PAD]])
    assert not memory.whole_level(memory.prepare(tree, x), tree, tree.height).any()


def test_repeats_of_users_without_any_history_score_0_on_every_level(tree):
    """There was an index out of range where a level is small enough to be kept whole."""
    repeats = RepeatScorer()
    prepared = repeats.prepare(tree, torch.full((3, 5), PAD))
    for level in range(tree.height, -1, -1):
        nodes = torch.arange(tree.level(level).start, tree.level(level).stop).unsqueeze(0)
        assert torch.equal(repeats(prepared, level, nodes), torch.zeros(3, nodes.shape[1]))


def test_memory_from_another_catalogue_is_refused_in_one_line(tree):
    memory = MemoryScorer.from_partners([make_partners()], [recency_weights(0.5)])
    other = bt.random_tree(NUM_ITEMS + 1, arity=3)
    for scorer in (memory, SumScorer({"memory": memory, "repeats": RepeatScorer()}, other.height)):
        with pytest.raises(ValueError, match="scorer is for 50 items and the tree has 51"):
            bt.TreeModel(other, scorer)


def test_a_memory_without_any_partners_says_nothing(tree):
    nothing = strongest(torch.empty(0).long(), torch.empty(0).long(), torch.empty(0), NUM_ITEMS)
    memory = MemoryScorer.from_partners([nothing, nothing], [recency_weights(0.5), recency_weights(0.5)])
    x = torch.tensor([[PAD, PAD], [5, PAD]])
    assert not memory.whole_level(memory.prepare(tree, x), tree, 2).any()


# Factors


def test_folded_factors_are_the_product_with_the_mean_below(tree):
    generator = torch.Generator().manual_seed(0)
    counts = torch.full((40,), 8)
    items = torch.randint(NUM_ITEMS, (320,), generator=generator).int()
    events = Events(torch.nn.functional.pad(counts.cumsum(0), (1, 0)), items, "made up")
    factors = implicit_als(events, NUM_ITEMS, dim=6, rounds=2)
    scorer = FactorScorer.from_factors(tree, factors, power=0.5)
    x = torch.tensor([[3, 8, 3, PAD]])
    weights = torch.tensor([[1.0, 2**-0.5, 0.0, 0.0]])
    user = fold_in(factors, factors.items[x.clamp(min=0)], weights)
    prepared = scorer.prepare(tree, x)
    for level in range(1, tree.height + 1):
        node = int(tree.ancestor(tree.leaf_of_item(torch.tensor(3)), level))
        below = [int(tree.item_of_leaf(torch.tensor(leaf))) for leaf in tree.leaves(node)]
        mean = factors.items[[item for item in below if item != PAD]].mean(0)
        found = scorer(prepared, level, torch.tensor([[node]]))
        torch.testing.assert_close(found, (user @ mean).unsqueeze(0), atol=2e-3, rtol=2e-3)


# The sum


def test_a_sum_adds_its_parts_by_their_weights(tree):
    """At the leaves; above them, parts that are sparse over items are added before they are lifted."""
    scorer, x = make_memory_sum(tree), histories(NUM_ITEMS)
    weights = {"memory": 2.0, "repeats": 0.5, "deep": 0.1}

    def whole(one, level):
        return one.whole_level(one.prepare(tree, x), tree, level)

    leaves = sum(weight * whole(scorer.part(name), tree.height) for name, weight in weights.items())
    torch.testing.assert_close(whole(scorer, tree.height), leaves)
    sparse = scorer.without("deep")
    apart = 2.0 * whole(scorer.part("memory"), 2) + 0.5 * whole(scorer.part("repeats"), 2)
    assert (whole(sparse, 2) <= apart + 1e-5).all()
    torch.testing.assert_close(whole(scorer, 2), whole(sparse, 2) + 0.1 * whole(scorer.part("deep"), 2))


def test_parts_may_count_more_on_one_level_than_on_another(tree):
    scorer, x = make_memory_sum(tree), histories(NUM_ITEMS)
    scorer.weights[2, 0] = 7.0
    memory, repeats, deep = (scorer.part(name).whole_level(scorer.part(name).prepare(tree, x), tree, 2)
                             for name in scorer.names)  # fmt: skip
    found = scorer.whole_level(scorer.prepare(tree, x), tree, 2)
    torch.testing.assert_close(found, 7.0 * memory + 0.5 * repeats + 0.1 * deep)


def test_a_sum_can_do_without_a_part_and_take_one_more(tree):
    scorer, x = make_memory_sum(tree), histories(NUM_ITEMS)
    fewer = scorer.without("repeats")
    assert (fewer.names, fewer.learned, fewer.weight_of("memory")) == (["memory", "deep"], "deep", 2.0)
    assert scorer.without("deep").learned is None
    again = fewer.with_part("repeats", scorer.part("repeats"), 0.5)
    found, expected = (each.whole_level(each.prepare(tree, x), tree, 2) for each in (again, scorer))
    torch.testing.assert_close(found, expected)


def test_a_part_of_weight_0_is_not_asked(tree, monkeypatch):
    scorer = make_memory_sum(tree).set_weights(deep=0.0)
    monkeypatch.setattr(scorer.part("deep"), "prepare", lambda *_: pytest.fail("it was asked"))
    scorer.whole_level(scorer.prepare(tree, histories(NUM_ITEMS)), tree, 2)


def test_a_sum_trains_its_learned_part_alone(tree):
    scorer = make_memory_sum(tree)
    assert scorer.trainable_part() is scorer.part("deep")
    assert set(scorer.trainable_state()) == {
        "weights",
        "calibration",
        *(f"parts.deep.{name}" for name in scorer.part("deep").state_dict()),
    }
    with pytest.raises(ValueError, match="cannot have 'other' for its learned part"):
        SumScorer({"repeats": RepeatScorer()}, tree.height, "other")


def test_a_sum_is_saved_and_loaded(tree, tmp_path):
    model, x = bt.TreeModel(tree, make_memory_sum(tree)), histories(NUM_ITEMS)
    bt.save_model(model, tmp_path)
    again = bt.load_model(tmp_path)
    for one, other in zip(bt.retrieve(model, x), bt.retrieve(again, x), strict=True):
        torch.testing.assert_close(one, other)
    assert again.scorer.part("memory").weights.dtype == torch.float16


def test_a_sum_follows_its_items_to_another_tree(tree):
    model, x = bt.TreeModel(tree, make_memory_sum(tree)), histories(NUM_ITEMS)
    moved = model.on_tree(bt.random_tree(NUM_ITEMS, arity=2, seed=5))
    items = torch.arange(NUM_ITEMS).expand(len(x), -1)
    found = [each.query(x).logits(each.tree.height, each.tree.leaf_of_item(items)) for each in (model, moved)]
    deep = model.scorer.part("deep")
    assert moved.scorer.learned == "deep"
    # The deep part reads the history at other nodes above the leaves, so the parts that do not are compared.
    for name in ("memory", "repeats"):
        parts = [
            bt.TreeModel(each.tree, each.scorer.part(name))
            .query(x)
            .logits(each.tree.height, each.tree.leaf_of_item(items))
            for each in (model, moved)
        ]
        torch.testing.assert_close(parts[0], parts[1])
    assert found[0].shape == found[1].shape
    assert moved.item_vectors().shape == (NUM_ITEMS, deep.table.weight.shape[1])
