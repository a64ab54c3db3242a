"""The parts in closed form: as good as the best of them, weighed on validation users, and what training makes of it."""

import polars as pl
import pytest
import torch
from command import beamtree
from sample_logs import cyclic_log, walks

import beamtree as bt
from beamtree.closed_form.calibration import calibrate, logistic
from beamtree.closed_form.part_weights import Candidates, choose_weights, weigh_parts
from beamtree.closed_form.ridge import PENALTIES
from beamtree.evaluate.metrics import hits
from beamtree.kernels import plain_operations
from beamtree.parts import PARTS, closed_form
from beamtree.parts.closed_form import ClosedForm
from beamtree.parts.memory import FIRST_CUTS, USER_POWER, cooccurring_items, later_items, num_partners
from beamtree.scorers import FixedScorer, PopularityScorer, SumScorer, TrendScorer
from beamtree.scorers.popularity import POPULARITY
from beamtree.scorers.sum import calibrated
from beamtree.train.options import TrainingOptions
from beamtree.train.recipes import build_model, first_level, resolve_settings


@pytest.fixture(scope="module")
def data(shop_folder):
    return bt.load_data(shop_folder / "data")


def recall(model, users, m=10):
    return bt.evaluate(model, users, beam_size=60, m=m, metrics="recall")["recall", m]


def started(data, **how):
    settings = resolve_settings(data, TrainingOptions(steps=4, beam_size=60, batch_size=20, **how))
    return build_model(settings, data, bt.cluster_tree(data))


@pytest.mark.parametrize("method", ["plt", "otm"])
def test_a_model_is_chained_from_the_start_if_its_method_is(data, method):
    assert started(data, method=method, recipe="deep").chained == (method == "plt")


def test_the_start_is_as_good_as_each_of_its_parts(data, caplog):
    with caplog.at_level("DEBUG", logger="beamtree"):
        model = started(data)
    assert isinstance(model.scorer, SumScorer)
    assert "\nweights: " in "\n".join(caplog.messages)
    whole = recall(model, data.val)
    for name in model.scorer.names:
        alone = bt.TreeModel(model.tree, model.scorer.part(name), first_level=model.first_level)
        assert whole >= recall(alone, data.val) - 0.02, name
    assert model.scorer.weight_of("deep") == 0


def test_progress_only_rises(tmp_path):
    bt.prepare(walks(200, 61, 16), tmp_path / "data")
    data, done = bt.load_data(tmp_path / "data"), []
    settings = resolve_settings(data, TrainingOptions(steps=0))
    model = build_model(settings, data, bt.cluster_tree(data), lambda what, percent, total: done.append(percent))
    assert "memory" in model.scorer.names  # its last stage comes after the weights
    assert done == sorted(done)
    assert done[-1] == 100


def test_the_same_seed_makes_the_same_start(data):
    one, other = (started(data, seed=3).scorer.state_dict() for _ in range(2))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_training_never_ends_below_the_start(data):
    shop = bt.Recommender(steps=4, beam_size=60, batch_size=20).fit(data)
    assert shop.progress.best >= shop.progress.start


def test_no_steps_leave_the_start(data, tmp_path):
    shop = bt.Recommender(steps=0, beam_size=60).fit(data)
    assert (shop.progress.step, shop.progress.kept_the_start) == (0, True)
    assert shop.model.scorer.weight_of("deep") == 0
    words = ("--steps", "0", "--beam-size", "60")
    said = beamtree("train", str(data.folder), "--out", "run", *words, folder=tmp_path).stdout
    assert "Fitted the closed form in" in said
    assert len(bt.Recommender.load(tmp_path / "run").recommend(["i01", "i02"], m=5)) == 5


def test_what_nobody_comes_back_to_counts_against_an_item(tmp_path):
    """Each user has every item once: repeats count below 0, and the history is not recommended."""
    rows = [(f"u{user}", f"i{(user + 7 * time) % 40}", time) for user in range(80) for time in range(20)]
    bt.prepare(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"), tmp_path / "once", val_users=20)
    once = started(bt.load_data(tmp_path / "once"))
    assert once.scorer.weight_of("repeats") < 0


def test_without_validation_users_defaults_are_taken_and_said(tmp_path, caplog):
    bt.prepare(cyclic_log(), tmp_path / "data", val_users=0, test_users=10)
    data = bt.load_data(tmp_path / "data")
    with caplog.at_level("DEBUG", logger="beamtree"):
        model = started(data)
    assert "no validation users" in caplog.text
    assert model.scorer.hyperparameters["together, λ"] == 100.0
    assert recall(model, data.test) > 0.3
    assert model.scorer.weight_of("factors") > 0


def test_parts_are_recorded_by_value_and_earlier_records_are_read(data):
    """A model of 0.2 has places in a grid instead of values, and weights for parts without a scale."""
    model = started(data)
    chosen = model.scorer.hyperparameters
    assert isinstance(chosen["together, λ"], float)
    earlier = {"factors, λ and α₀": 1, "together, λ": 3, "together, recency": 0, "next, recency": 0, "follows, λ": 1}
    earlier |= {"factors, recency": 2, "partners": 50, "calibration": [1.0, 0.0]}
    earlier["weights"] = {"factors": 3.0, "together": 2.0, "next": 0.0, "follows": 0.0, "repeats": 1.0}
    parts = ClosedForm(model.tree, data, 0, "cpu", model.first_level, hyperparameters=earlier, parts=PARTS).fit()
    assert parts.weight_of("factors") == 3.0
    assert parts.part("factors").scale == 1.0
    assert POPULARITY not in parts.names
    assert earlier["together, users"] == 0.0, "users counted the same before 0.3"
    assert parts.part("memory").lists == 1, "the list of the graph has no weight"


def test_weights_of_users_change_nothing_where_all_have_as_many_items(tmp_path):
    """λ is scaled with the matrix, so that one that was chosen without weights means the same with them."""
    rows = [(f"u{user}", f"i{(user * user + 7 * time) % 40}", time) for user in range(80) for time in range(20)]
    bt.prepare(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"), tmp_path / "once", val_users=20)
    data = bt.load_data(tmp_path / "once")
    tree, known = bt.cluster_tree(data), {"together, λ": 3.0, "together, recency": 0.0}

    def partners(power):
        hyperparameters = {**known, USER_POWER: power}
        return cooccurring_items(ClosedForm(tree, data, hyperparameters=hyperparameters, parts=PARTS)).partners

    same, weighed = partners(0.0), partners(0.5)
    torch.testing.assert_close(weighed.values, same.values, rtol=1e-3, atol=1e-5)


def test_partners_on_the_graph_are_used_where_they_have_a_weight(data):
    chosen = dict(started(data).scorer.hyperparameters)
    assert "graph" in chosen["weights"]
    chosen["weights"] = dict.fromkeys(chosen["weights"], 0.0) | {"graph": 2.0}
    tree = bt.cluster_tree(data)
    parts = ClosedForm(tree, data, hyperparameters=chosen, parts=PARTS).fit()
    assert parts.part("memory").lists == 1
    assert recall(bt.TreeModel(tree, parts), data.test) > 0.3


def test_a_log_of_one_item_is_refused_in_one_line(tmp_path):
    rows = [(f"u{user}", "a", time) for user in range(30) for time in range(12)]
    with pytest.raises(ValueError, match="two items are needed, but 30 and 1 are left"):
        bt.prepare(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"), tmp_path / "one")


def test_items_that_no_training_user_has_are_found_only_by_those_who_have_them(tmp_path):
    """The validation and test users have items of their own."""
    log = cyclic_log(users=60)
    bt.prepare(log, tmp_path / "all", val_users=10, test_users=10, seed=0)
    data = bt.load_data(tmp_path / "all")
    apart = set(data.users.names[len(data.train) :])
    own = log.with_columns(
        item=pl.when(pl.col("user").is_in(list(apart)) & (pl.col("time") % 4 == 0))
        .then(pl.format("own{}", "user"))
        .otherwise("item")
    )
    bt.prepare(own, tmp_path / "own", val_users=10, test_users=10, seed=0)
    shop = bt.Recommender(steps=0, beam_size=60).fit(bt.load_data(tmp_path / "own"))
    found = shop.recommend(["i01", "i02", "i03"], m=10)["item"].to_list()
    assert len(found) == 10
    assert not any(item.startswith("own") for item in found)


def test_a_log_of_two_items_has_a_start(tmp_path):
    rows = [(f"u{user}", "ab"[(user + time) % 2], time) for user in range(30) for time in range(12)]
    bt.prepare(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"), tmp_path / "two")
    shop = bt.Recommender(steps=0).fit(bt.load_data(tmp_path / "two"))
    assert sorted(shop.recommend(["a"], m=2)["item"].to_list()) == ["a", "b"]


def test_chained_methods_and_own_scorers_have_no_parts(data):
    for how in ({"method": "plt"}, {"scorer": bt.DeepScorer}, {"recipe": "deep"}):
        model = started(data, **how)
        assert isinstance(model.scorer, bt.DeepScorer)


def test_weights_find_the_part_that_knows(data):
    """One part scores what is relevant, the other noise: the second is not worth a weight."""
    tree = bt.cluster_tree(data)
    x, y = data.val.batch(torch.arange(len(data.val)))

    class Rows:
        """The same users, known by their row."""

        def __len__(self):
            return len(x)

        def batch(self, rows):
            return rows.unsqueeze(1), y[rows]

    knows = torch.zeros(len(x), tree.num_nodes)
    leaves = tree.leaf_of_item(y)
    for level in range(tree.height + 1):
        knows.scatter_(1, tree.ancestor(leaves, level).clamp(min=0), 5.0)
    noise = torch.randn(len(x), tree.num_nodes, generator=torch.Generator().manual_seed(0))
    parts = {"noise": FixedScorer(noise), "knows": FixedScorer(knows)}
    candidates = Candidates(tree, parts, Rows(), first_level(tree, 60), "cpu")
    found = choose_weights(candidates)
    assert found["noise"] == 0
    assert found["knows"] > 0
    knowing, noisy = candidates.recalls([(0.0, 1.0), (1.0, 0.0)])[:, 0].tolist()
    assert knowing > noisy


def test_parts_that_score_the_same_for_all_are_searched_for_one_user(data, monkeypatch):
    tree = bt.cluster_tree(data)
    counts = data.train.events.popularity(data.num_items)
    trend = TrendScorer.from_counts(tree, counts.unsqueeze(1), [1.0], [1.0], 0)
    parts = {"popularity": PopularityScorer.from_counts(tree, counts), "trend": trend}
    once = Candidates(tree, parts, data.val, first_level(tree, 60), "cpu")
    for scorer in (PopularityScorer, TrendScorer):
        monkeypatch.setattr(scorer, "same_for_all", False)
    each = Candidates(tree, parts, data.val, first_level(tree, 60), "cpu")
    for weights in ({"popularity": 1.0, "trend": 0.0}, {"popularity": 0.5, "trend": 2.0}):
        assert torch.equal(once.user_recalls(weights), each.user_recalls(weights))


class TradeOff:
    """Candidates where a second part finds 3 % more at one cut and 2 % less at another."""

    names, units = ("known", "new"), torch.ones(2)

    def recalls(self, trials):
        known, new = (torch.tensor(trials) > 0).float().T[:, :, None]
        return torch.tensor([0.2, 0.5]) * known * (1 + torch.tensor([0.03, -0.02]) * new)


@pytest.mark.parametrize(("loss", "is_used"), [(1.0, True), (2.0, False)])
def test_a_loss_at_one_cut_can_count_more_than_a_gain_at_another(loss, is_used):
    weights = choose_weights(TradeOff(), {"known": 1.0, "new": 0.0}, loss=loss)
    assert weights["known"] > 0
    assert (weights["new"] > 0) == is_used


def test_only_sums_with_a_learned_part_are_weighed(data):
    model = started(data)
    before = model.scorer.weights.clone()
    plain = bt.TreeModel(model.tree, model.scorer.without("deep"), first_level=model.first_level)
    weigh_parts(plain, data.val)
    assert torch.equal(plain.scorer.weights, before[:, :-1])


def test_a_logistic_regression_finds_what_the_data_came_from():
    generator = torch.Generator().manual_seed(0)
    g = 3 * torch.randn(200_000, generator=generator) + 40
    chosen = torch.rand(len(g), generator=generator) < torch.sigmoid(0.5 * g - 22)
    assert logistic(g, chosen).tolist() == [pytest.approx(0.5, rel=0.05), pytest.approx(-22, rel=0.05)]


@pytest.mark.parametrize("chosen", [[True] * 4, [False] * 4, [True, True, False, False]])
def test_a_logistic_regression_keeps_the_order_whatever_was_chosen(chosen):
    scale, bias = logistic(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(chosen)).tolist()
    assert 0 < scale < 100
    assert abs(bias) < 1000


def test_what_a_start_retrieves_comes_with_probabilities(data):
    """The validation users, whom it was fitted to, choose about as much as the probabilities say."""
    model = started(data)
    x, y = data.val.batch(torch.arange(len(data.val)))
    items, scores = bt.retrieve(model, x, beam_size=60, m=10)
    chosen = float(hits(items, y).float().mean())
    assert float(scores.exp().mean()) == pytest.approx(chosen, rel=0.35)
    torch.testing.assert_close(bt.brute_force(model, x, m=1)[1], scores[:, :1])


def test_a_saved_sum_holds_the_parts_that_count(data, tmp_path):
    model = started(data)
    bt.save_model(model, tmp_path / "model")
    loaded = bt.load_model(tmp_path / "model")
    assert loaded.scorer.names == [name for name in model.scorer.names if model.scorer.weight_of(name)]
    x = data.test.batch(torch.arange(5))[0]
    assert torch.equal(bt.retrieve(model, x, beam_size=60)[0], bt.retrieve(loaded, x, beam_size=60)[0])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (({10: 0.2, 50: 0.5}, {10: 0.2, 50: 0.5}), 4),
        (({10: 0.3, 50: 0.6}, {10: 0.2, 50: 0.5}), 4),
        (({10: 0.4, 50: 0.4}, {10: 0.2, 50: 0.5}), 8),
    ],
    ids=["as much", "more", "less at one cut"],
)
def test_half_the_partners_are_kept_where_nothing_is_lost(data, found, expected):
    tree = bt.cluster_tree(data)
    form = ClosedForm(tree, data, 0, "cpu", first_level(tree, 60), parts=PARTS)
    assert num_partners(form, 8, dict(zip((4, 8), found, strict=True)).__getitem__) == expected


def test_what_users_have_is_left_out_of_trials_where_they_do_not_come_back(data, tmp_path):
    rows = [(f"u{user}", f"i{(user + 7 * time) % 40}", time) for user in range(80) for time in range(20)]
    bt.prepare(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"), tmp_path / "once", val_users=20)
    once = bt.load_data(tmp_path / "once")
    for each, expected in ((once, False), (data, True)):
        tree = bt.cluster_tree(each)
        assert ClosedForm(tree, each, 0, "cpu", first_level(tree, 60)).users_repeat is expected


@pytest.mark.parametrize("best", [3.0, 30.0, 100.0, 3000.0])
def test_the_penalty_is_climbed_to_from_the_middle(data, monkeypatch, best):
    tree, tried = bt.cluster_tree(data), []
    begun = ClosedForm(tree, data, 0, "cpu", first_level(tree, 60), parts=PARTS)

    def quality(penalty, cuts):
        tried.append(penalty)
        return -abs(PENALTIES.index(penalty) - PENALTIES.index(best))

    monkeypatch.setattr(begun, "quality", quality)
    assert begun.hill_climb("λ", PENALTIES, lambda penalty: penalty, FIRST_CUTS) == best
    assert tried[0] == 100.0
    assert begun.hill_climb("λ", PENALTIES, None, FIRST_CUTS) == best, "chosen once"


def test_a_trial_solves_for_the_most_popular_items(data, monkeypatch):
    monkeypatch.setattr(closed_form, "TRIAL_ITEMS", 10)
    tree = bt.cluster_tree(data)
    begun = ClosedForm(tree, data, 0, "cpu", first_level(tree, 60), parts=PARTS)
    counts = data.train.events.popularity(data.num_items)
    assert len(begun.trial_items) == 10
    assert int(counts[begun.trial_items].min()) >= int(counts.sort(descending=True).values[9])
    place = {item: at for at, item in enumerate(begun.order.tolist())}
    assert [place[item] for item in begun.trial_items.tolist()] == sorted(
        place[item] for item in begun.trial_items.tolist()
    )
    partners, _ = later_items(begun)
    assert len(set(partners.columns.tolist())) > 10, "but in the end for all"


def test_progress_through_the_closed_form_rises_to_the_end(data):
    heard = []
    settings = resolve_settings(data, TrainingOptions(steps=0, beam_size=60))
    build_model(settings, data, bt.cluster_tree(data), lambda what, done, total: heard.append((what, done, total)))
    shares = [done for _, done, _ in heard]
    assert {(what, total) for what, _, total in heard} == {("Fitting the closed form", 100)}
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 100)
    assert len(set(shares)) > 10


def drawn(probability, count=40_000, seed=0):
    """Scores, and choices with the probabilities of a function of them."""
    generator = torch.Generator().manual_seed(seed)
    g = 4 * torch.rand(count, generator=generator)
    return g, torch.rand(count, generator=generator) < probability(g)


def test_a_calibration_finds_rates_that_no_logistic_curve_has():
    """Flat at 2 %, then a step to 60 %."""
    g, chosen = drawn(lambda g: torch.where(g < 3, 0.02, 0.6))
    found = calibrated(calibrate(g, chosen), torch.tensor([0.5, 1.5, 2.5, 3.5])).sigmoid()
    assert found.tolist() == [pytest.approx(0.02, abs=0.006)] * 3 + [pytest.approx(0.6, abs=0.03)]


@pytest.mark.parametrize("kind", ["all", "none", "falling", "equal scores", "one", "no pairs"])
def test_a_calibration_keeps_the_order_and_no_probability_is_0_or_1(kind):
    g, chosen = drawn(lambda g: 0.5 - 0.1 * g if kind == "falling" else g - g + 0.3, 500)
    chosen = {"all": chosen | True, "none": chosen & False}.get(kind, chosen)
    g = torch.full_like(g, 7.0) if kind == "equal scores" else g
    count = {"one": 1, "no pairs": 0}.get(kind, 500)
    points = calibrate(g[:count], chosen[:count])
    assert bool((points.diff(dim=1) > 0).all())
    at = torch.tensor([-torch.inf, -3e38, -1e9, -1.0, 0.0, 1.0, 2.0, 3.0, 7.0, 1e9, 3e38])
    found = calibrated(points, at)
    assert found.dtype == torch.float32
    with plain_operations():
        torch.testing.assert_close(found, calibrated(points, at))
    assert bool((found.diff() >= 0).all())
    assert found[0] == -torch.inf
    p = torch.nn.functional.logsigmoid(found[1:]).exp()
    assert bool(((p > 0) & (p < 1)).all())


def test_a_calibration_of_an_earlier_model_is_a_line():
    line = torch.tensor([0.5, -2.0])
    assert calibrated(line, torch.tensor([0.0, 4.0, 1e9])).tolist() == [-2.0, 0.0, 15.0]


def test_weights_of_pairs_decide_which_rate_is_met():
    g, chosen = torch.ones(1000), torch.arange(1000) % 2 == 0
    weights = torch.where(chosen, 1.0, 3.0)
    assert float(calibrated(calibrate(g, chosen, weights), torch.ones(1)).sigmoid()) == pytest.approx(0.25, abs=0.01)
