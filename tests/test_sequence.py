"""The sequence scorer against a literal transformer, its losses against their definitions, and when it is added."""

from dataclasses import replace

import pytest
import torch
from inner_nodes import train_inner_nodes
from literal_transformer import literal_state
from sample_logs import some_events, walks
from sample_scorers import without_item

import beamtree as bt
from beamtree import PAD
from beamtree.data import Events
from beamtree.live.edits import with_items
from beamtree.live.placement import Placement
from beamtree.methods import sized
from beamtree.parts import Fitting
from beamtree.parts import sequence as sequence_part
from beamtree.parts.sequence import (
    SEQUENCE,
    SequencePart,
    SequenceSettings,
    cross_entropy,
    draw_windows,
    fit_sequence,
    sampled_cross_entropy,
    sequence_settings,
)
from beamtree.scorers import SequenceScorer, dot_product
from beamtree.scorers.sequence import SequenceEncoder, oldest_first
from beamtree.train.recipes import parts_report


@torch.no_grad()
def test_scores_are_those_of_the_literal_transformer():
    torch.manual_seed(0)
    tree = bt.random_tree(20, seed=1)
    encoder, items = SequenceEncoder(64, 2, 0.3, seed=3), torch.randn(20, 64).half().float()
    scorer = SequenceScorer.from_items(tree, encoder, items)
    for history in ([4, 7, 4, 19, 0], [3], []):
        x = torch.full((1, 9), PAD)
        x[0, : len(history)] = torch.tensor(history[::-1], dtype=torch.int64)  # newest first
        user = literal_state(encoder, [items[item] for item in history])
        leaves = tree.leaf_of_item(torch.arange(20)).unsqueeze(0)
        expected = (items @ user).unsqueeze(0)
        torch.testing.assert_close(scorer(scorer.prepare(tree, x), tree.height, leaves), expected, rtol=1e-4, atol=1e-4)


def test_an_inner_node_has_the_mean_of_the_items_below():
    tree = bt.random_tree(13, arity=3, seed=1)
    items = torch.randn(13, 32)
    scorer = SequenceScorer.from_items(tree, SequenceEncoder(32, 1, 0.0), items)
    leaves = tree.leaf_of_item(torch.arange(13))
    for level in range(tree.height + 1):
        for node in tree.level(level):
            below = items[tree.ancestor(leaves, level) == node]
            expected = below.mean(0) if len(below) else torch.zeros(32)
            torch.testing.assert_close(scorer.table.weight[node].float(), expected, rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_items_without_a_leaf_are_left_out_of_the_history():
    tree = bt.random_tree(20, seed=1)
    removed = without_item(tree, 5)
    scorer = SequenceScorer(tree.num_nodes, seed=1)
    users = [scorer.prepare(removed, torch.tensor([x])).user for x in ([3, 5, 8, PAD], [3, 8, PAD, PAD])]
    torch.testing.assert_close(*users)


def test_oldest_first():
    sequence, count = oldest_first(torch.tensor([[3, PAD, 1, 2], [PAD, PAD, PAD, PAD]]))
    assert sequence.tolist() == [[2, 1, 3, PAD], [PAD] * 4]
    assert count.tolist() == [3, 0]


def test_cross_entropy_is_that_of_torch(monkeypatch):
    monkeypatch.setattr("beamtree.parts.sequence.CHUNK", {"cpu": 25})  # two rows at once
    torch.manual_seed(0)
    states, vectors = torch.randn(7, 4, requires_grad=True), torch.randn(12, 4, requires_grad=True)
    targets = torch.randint(12, (7, 3))
    targets[0, 1:] = targets[4, 2] = PAD
    loss = cross_entropy(states, vectors, targets)
    loss.backward()
    grads = states.grad, vectors.grad
    states, vectors = (part.detach().requires_grad_() for part in (states, vectors))
    row, column = (targets != PAD).nonzero(as_tuple=True)
    expected = torch.nn.functional.cross_entropy((states @ vectors.T)[row], targets[row, column])
    expected.backward()
    torch.testing.assert_close((loss, *grads), (expected, states.grad, vectors.grad))


def test_sampled_cross_entropy_and_its_gradients_are_as_defined():
    torch.manual_seed(0)
    states, vectors, targets = torch.randn(5, 4), torch.randn(30, 4), torch.randint(3, (5, 2))
    targets[3, 0], targets[1, 1] = PAD, 17
    shares = torch.rand(30).softmax(0)
    states.requires_grad_(), vectors.requires_grad_()
    generator = torch.Generator().manual_seed(1)
    loss = sampled_cross_entropy(states, vectors, targets, shares, 9, generator)
    grads = torch.autograd.grad(loss, (states, vectors))
    generator = torch.Generator().manual_seed(1)
    uniform = torch.randint(30, (5,), generator=generator).tolist()
    real = [item for item in targets.flatten().tolist() if item != PAD]
    negatives = uniform + [real[index] for index in torch.randint(9, (4,), generator=generator)]
    assert 0 in negatives  # where a target is missing, too
    total, count = torch.zeros(()), 0
    for state, row in zip(states, targets.tolist(), strict=True):
        weights = [(item, float(5 / 30 + 4 * shares[item])) for item in negatives]
        others = sum((state @ vectors[item]).exp() / weight for item, weight in weights if item not in row)
        for target in row:
            if target != PAD:
                own = (state @ vectors[target]).exp()
                total, count = total - (own / (own + others)).log(), count + 1
    expected = total / count
    torch.testing.assert_close((loss, *grads), (expected, *torch.autograd.grad(expected, (states, vectors))))


def test_a_sample_of_nothing_but_targets_has_no_loss():
    states, vectors, targets = (
        torch.randn(3, 4).requires_grad_(),
        torch.randn(1, 4),
        torch.zeros(3, 1, dtype=torch.int64),
    )
    loss = sampled_cross_entropy(states, vectors, targets, torch.ones(1), 4, torch.Generator())
    assert loss.item() == 0
    assert torch.autograd.grad(loss, states)[0].eq(0).all()


def test_a_sample_without_a_target_has_no_loss():
    states, vectors = torch.randn(3, 4), torch.randn(20, 4)
    targets = torch.full((3, 2), PAD)
    loss = sampled_cross_entropy(states, vectors, targets, torch.full((20,), 0.05), 8, torch.Generator())
    assert float(loss) == 0


@pytest.mark.parametrize("reach", [1, 4])
def test_targets_are_coming_events(reach):
    events = Events(torch.tensor([0, 3, 200]), torch.arange(200), "own numbers")
    users = torch.tensor([0, 1] * 20)
    x, y, *_ = draw_windows(events, users, reach, 5, torch.Generator().manual_seed(0))
    assert x.shape == (40, 69)
    assert y.shape == (40, 70, 5)
    ahead = set()
    for user, history, targets in zip(users.tolist(), x.tolist(), y.tolist(), strict=True):
        stop = (3, 200)[user]
        real = [item for item in history if item != PAD]
        assert real == list(range(real[0], real[0] + len(real)))
        for position, row in enumerate(targets):
            next_event = real[0] + position
            for target in row:
                if next_event >= stop:
                    assert target == PAD
                else:
                    assert next_event <= target < min(next_event + reach, stop)
                    ahead.add(target - next_event)
    assert ahead == set(range(reach))


@pytest.mark.parametrize("loss", [{}, {"sampled": 8}])
def test_the_same_seed_gives_the_same_encoder(loss):
    events = some_events([5, 80, 2, 1, 9] * 4, 30)
    settings = replace(SequenceSettings(32, 0.2, 0.1, 3, 12, 5, None, batch_size=4), **loss)
    one, other = (fit_sequence(events, 30, settings, seed=4) for _ in range(2))
    assert torch.equal(one[1], other[1])
    assert all(map(torch.equal, one[0].parameters(), other[0].parameters()))
    assert not torch.equal(one[1], fit_sequence(events, 30, settings, seed=5)[1])


def test_training_stops_where_it_is_told_to():
    steps = []
    settings = SequenceSettings(32, 0.2, 0.1, 1, 50, 5, 8, batch_size=4)
    fit_sequence(some_events([5, 80], 30), 30, settings, on_check=lambda step, *_: steps.append(step) or step == 10)
    assert steps == [5, 10]


SMALL = SequenceSettings(
    dim=32, dropout=0.1, weight_decay=0.0, reach=4, steps=300, check_every=150, sampled=None, batch_size=32
)


def with_sequence(shop):
    """The model of a shop with a sequence part, where that helps."""
    model = shop.model
    fitting = Fitting(model.tree, shop.data, first_level=model.first_level)
    return model.with_scorer(SequencePart(SMALL).add(model.scorer.drop_zero_parts(), fitting)).eval()


@pytest.fixture(scope="module")
def walkers():
    return bt.Recommender(beam_size=20, steps=0).fit(walks(200, 61, 16), verbose=False)


@pytest.fixture(scope="module")
def model(walkers):
    return with_sequence(walkers)


def test_the_part_is_added_where_it_helps(walkers, model):
    assert model.scorer.weight_of(SEQUENCE) > 0
    assert model.scorer.hyperparameters[SEQUENCE]["gain"] > 0
    plain, better = (
        bt.evaluate(each, walkers.data.test, beam_size=20, m=(10,), metrics=("recall",))["recall", 10]
        for each in (walkers.model, model)
    )
    assert better > plain


def test_a_model_with_the_part_is_saved_and_loaded(model, tmp_path):
    bt.save_model(model, tmp_path / "run")
    other = bt.load_model(tmp_path / "run")
    x = torch.tensor([[3, 4, 5], [7, PAD, PAD], [PAD, PAD, PAD]])
    assert other.scorer.part(SEQUENCE).table.weight.dtype == torch.float16
    for one, two in zip(*(bt.retrieve(each, x, beam_size=20, m=5) for each in (model, other)), strict=True):
        assert torch.equal(one, two)


def test_new_events_change_the_user_at_once(model):
    scorer = model.scorer.part(SEQUENCE)
    one, other = (scorer.prepare(model.tree, torch.tensor([x])).user for x in ([3, 4], [5, 3]))
    assert not torch.allclose(one, other)


def test_the_part_moves_to_another_tree(model):
    tree = bt.random_tree(61, seed=5)
    moved = model.on_tree(tree)
    x = torch.tensor([[3, 4, 5]])
    scores = [
        each.scorer.part(SEQUENCE)(
            each.scorer.part(SEQUENCE).prepare(each.tree, x),
            each.tree.height,
            each.tree.leaf_of_item(torch.arange(61)).unsqueeze(0),
        )
        for each in (model, moved)
    ]
    torch.testing.assert_close(*scores, rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_an_item_that_is_added_is_scored_like_similar_items(model):
    like = torch.tensor([10])
    grown = with_items(model, {"1000": Placement(like, torch.ones(1))})
    leaves = grown.tree.leaf_of_item(torch.tensor([10, grown.tree.num_items - 1])).unsqueeze(0)
    scorer = grown.scorer.part(SEQUENCE)
    old, new = scorer(scorer.prepare(grown.tree, torch.tensor([[9, 8]])), grown.tree.height, leaves)[0]
    assert float(new) == pytest.approx(float(old), abs=1e-2)


def test_the_part_is_left_out_where_it_does_not_help(walkers):
    """A part that scores at random is left out, unless the best weight gains a standard error by chance."""
    noise = replace(SMALL, lr=0.0, steps=2, check_every=1)
    added, tree, first_level = 0, walkers.model.tree, walkers.model.first_level
    for seed in range(6):
        fitting = Fitting(tree, walkers.data, seed=seed, first_level=first_level)
        result = SequencePart(noise).add(walkers.model.scorer.drop_zero_parts(), fitting)
        if SEQUENCE in result.names:
            added += 1
        else:
            assert result.hyperparameters[SEQUENCE]["gain"] == 0
            assert "left out" in parts_report(result)[0]
    assert added < 6


def test_a_part_that_cannot_help_is_left_out(walkers, monkeypatch):
    """One that scores all items alike."""
    monkeypatch.setattr(sequence_part, "_first_vectors", lambda num_items, dim, start, seed: torch.ones(num_items, dim))
    settings = replace(SMALL, lr=0.0, steps=2, check_every=1)
    fitting = Fitting(walkers.model.tree, walkers.data, seed=0, first_level=walkers.model.first_level)
    result = SequencePart(settings).add(walkers.model.scorer.drop_zero_parts(), fitting)
    assert SEQUENCE not in result.names
    assert result.hyperparameters[SEQUENCE]["gain"] == 0


@pytest.mark.extended
def test_fit_trains_it_where_it_is_asked_for(capsys):
    shop = bt.Recommender(beam_size=20, steps=0, sequence=True, minutes=2).fit(walks(200, 61, 16))
    assert shop.model.scorer.weight_of(SEQUENCE) > 0
    assert "The sequence part raises recall" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [({"recipe": "deep"}, "closed-form parts"), ({"method": "plt"}, "closed-form parts")],
)
def test_it_needs_closed_form_parts(options, message, tmp_path):
    log = walks(30, 20, 12)
    with pytest.raises(ValueError, match=f"`sequence` needs {message}"):
        bt.Recommender(sequence=True, **options).fit(log, verbose=False)


def test_settings_follow_the_log(walkers):
    settings = sequence_settings(walkers.data, "cpu")
    assert settings.reach == 8  # the second half of 16 events
    assert settings.dropout == 0.5  # fewer than 100 events per item
    assert settings.sampled is None


def test_the_first_steps_on_a_gpu_are_checked_more_often(walkers):
    checked = {device: sequence_settings(walkers.data, device).is_check for device in ("cpu", "cuda")}
    assert [step for step in range(1, 2001) if checked["cpu"](step)] == [500, 1000, 1500, 2000]
    assert [step for step in range(1, 2001) if checked["cuda"](step)] == [*range(125, 1001, 125), 1500, 2000]
    assert checked["cuda"](10_000)


# Inner nodes


def literal_ridge(users, targets, start, nearest, ridge):
    """The row around `start` that fits the targets of the users who have the highest ones."""
    best = sorted(range(len(users)), key=lambda user: -targets[user])[:nearest]
    u, t = users[best].double(), targets[best].double()
    penalty = ridge * nearest * users.double().square().mean() * torch.eye(users.shape[1], dtype=torch.float64)
    return start.double() + torch.linalg.solve(u.T @ u + penalty, u.T @ (t - u @ start.double()))


@pytest.mark.parametrize("leaves_at_once", [2, 8, 1 << 15])
@pytest.mark.parametrize("arity", [2, 3])
def test_inner_nodes_are_fitted_to_the_maxima_below(monkeypatch, arity, leaves_at_once):
    monkeypatch.setattr(dot_product, "LEAVES_AT_ONCE", leaves_at_once)
    monkeypatch.setattr(dot_product, "NODES_AT_ONCE", 3)
    torch.manual_seed(0)
    tree = bt.Tree([4, 0, PAD, 2, 1, 5, 3, PAD, PAD, PAD, 7, 6], arity)
    rows, users = torch.randn(tree.num_nodes, 5), torch.randn(30, 5)
    before = rows.clone()
    dot_product.fit_to_maxima(tree, rows, users, nearest=8, ridge=0.2)
    leaves = tree.level(tree.height)
    assert torch.equal(rows[leaves.start :], before[leaves.start :])
    for level in range(1, tree.height):
        for node in tree.level(level):
            below = [
                leaf for leaf, item in zip(leaves, tree.items().tolist(), strict=True)
                if item != PAD and int(tree.ancestor(torch.tensor(leaf), level)) == node
            ]  # fmt: skip
            expected = before[node].double()
            if below:
                maxima = (users @ before[below].T).amax(1)
                expected = literal_ridge(users, maxima, before[node], 8, 0.2)
            torch.testing.assert_close(rows[node].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["otm", "otm-margin", "otm-level-weights", "dtr"])
def test_training_inner_nodes_leaves_the_leaves_alone(walkers, model, name):
    tree = model.tree
    k = 2
    trained = train_inner_nodes(
        model, walkers.data.train.random_crops(), sized(name, k, 2 * k), beam_size=k, steps=6, warm_up=bt.tdm(4)
    ).scorer.sum
    before, after = (scorer.part(SEQUENCE).table.weight.detach().float() for scorer in (model.scorer, trained))
    leaves = tree.level(tree.height).start
    assert torch.equal(after[leaves:], before[leaves:])
    assert not torch.equal(after[:leaves], before[:leaves])
    for name, weight in trained.part(SEQUENCE).encoder.state_dict().items():
        assert torch.equal(weight, model.scorer.part(SEQUENCE).encoder.state_dict()[name])
