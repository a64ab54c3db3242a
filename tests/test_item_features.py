"""Features of items, items that are alike by them, and new items placed by what they are."""

import math
from copy import copy

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.closed_form.content import LEFT_OUT, FeatureMatrix
from beamtree.closed_form.part_weights import Candidates
from beamtree.data.csr import CSR, group_rows
from beamtree.ingest.item_features import ItemFeatures
from beamtree.live.edits import incoming, mean_partners, outgoing
from beamtree.parts.acceptance import SUM
from beamtree.parts.content import features_weight
from beamtree.parts.processes import Processes
from beamtree.scorers import MemoryScorer, SumScorer
from beamtree.scorers.memory import recency_weights


def dense(rows, width):
    found = np.zeros((len(rows), width))
    found[rows.row_of_entry().numpy(), rows.columns.numpy()] = rows.values.numpy()
    return found


def feature(features, rows, row, name):
    number = features.vocabulary.filter(pl.col("feature") == name)["number"]
    return dense(rows, features.width)[row, number[0]] if len(number) else None


# Reading columns


def test_a_text_is_its_words_itself_and_the_paths_above_it_by_rarity():
    frame = pl.DataFrame({"kind": ["Home/Lamps", "home / lamps", "Home/Tables", None, ""]})
    features = ItemFeatures.fit(frame)
    rows = features.transform(frame)
    names = {name.removeprefix("kind\n") for name in features.vocabulary["feature"]}
    assert names == {"home", "lamps", "/home"}  # what only one item has says nothing about others
    rare, common = math.log(6 / 3) + 1, math.log(6 / 4) + 1
    length = math.sqrt(rare**2 + 2 * common**2)
    assert feature(features, rows, 0, "kind\nlamps") == pytest.approx(rare / length)
    assert feature(features, rows, 0, "kind\n/home") == pytest.approx(common / length)
    assert feature(features, rows, 2, "kind\nhome") == pytest.approx(1 / math.sqrt(2))
    assert rows.counts().tolist() == [3, 3, 2, 0, 0]


def test_a_list_is_all_of_its_texts_and_a_boolean_is_a_text():
    frame = pl.DataFrame({"tags": [["red", "big"], ["red"], [], None], "sold": [True, None, True, False]})
    features = ItemFeatures.fit(frame)
    names = set(features.vocabulary["feature"])
    assert names == {"tags\nred", "tags\n=red", "sold\ntrue", "sold\n=true"}


def test_a_number_lies_between_two_quantiles():
    frame = pl.DataFrame({"price": [float(n) for n in range(23)] + [None, math.nan, math.inf]})
    features = ItemFeatures.fit(frame)
    knots = features.knots["price"]
    assert knots == pytest.approx(np.linspace(0, 22, 12))
    rows = dense(features.transform(pl.DataFrame({"price": [3.0, 4.0, -50.0, 99.0, None]})), features.width)
    by_name = dict(features.vocabulary.select("feature", "number").iter_rows())
    assert rows[0, by_name["price\n#1"]] == pytest.approx(math.sqrt(0.5))
    assert rows[0, by_name["price\n#2"]] == pytest.approx(math.sqrt(0.5))
    assert rows[1, by_name["price\n#2"]] == 1
    assert rows[2, by_name["price\n#0"]] == 1
    assert rows[3, by_name["price\n#11"]] == 1
    assert not rows[4].any()


def test_a_number_in_most_texts_is_one_more_column():
    titles = ["Alien (1979)", "Aliens, 1986", "Blade Runner 2049 (2017)", None, "Brazil"]
    features = ItemFeatures.fit(pl.DataFrame({"title": titles}))
    assert features.knots["title"][0] == 1979
    assert features.knots["title"][-1] == 2017
    rows = features.transform(pl.DataFrame({"title": ["1979", "x 2017", "x ٣", "", None]}))
    assert [feature(features, rows, row, "title\n#0") for row in range(5)] == [1, 0, 0, 0, 0]
    last = f"title\n#{len(features.knots['title']) - 1}"
    assert [feature(features, rows, row, last) for row in range(5)] == [0, 1, 0, 0, 0]
    assert not ItemFeatures.fit(pl.DataFrame({"title": titles[2:]})).knots  # half of the texts are not most of them


def test_whole_numbers_may_be_categories_and_times_are_numbers():
    frame = pl.DataFrame({"brand": [7, 7, 9, 9]}).with_columns(
        since=pl.date_range(pl.date(2026, 1, 1), pl.date(2026, 1, 4))
    )
    features = ItemFeatures.fit(frame)
    assert {"brand\n=7", "brand\n=9"} <= set(features.vocabulary["feature"])
    assert "since" in features.knots


def test_vectors_are_features_and_a_broken_one_is_missing():
    frame = pl.DataFrame({"v": [[3.0, 4.0], [1.0, math.nan], None, [0.0, 2.0]]})
    rows = dense(ItemFeatures.fit(frame).transform(frame), 2)
    assert rows == pytest.approx(np.array([[0.6, 0.8], [0, 0], [0, 0], [0, 1]]))


def test_every_block_has_length_one_and_other_columns_may_be_missing():
    frame = pl.DataFrame({"title": ["a b", "b c", "a"], "n": [1.5, 2.5, None], "item": ["x", "y", "z"]})
    features = ItemFeatures.fit(frame, leave_out=["item"])
    rows = dense(features.transform(frame), features.width)
    assert (rows**2).sum(1) == pytest.approx([2, 2, 1])
    assert (dense(features.transform(frame[["title"]]), features.width) ** 2).sum(1) == pytest.approx([1, 1, 1])
    nothing = ItemFeatures.fit(frame[["item"]], leave_out=["item"])
    assert nothing.width == 0
    assert len(nothing.transform(frame)) == 3


# Items that are alike


def random_matrix(seed, items=12, width=9, density=0.4, signed=False):
    draw = np.random.default_rng(seed)
    cells = draw.random((items, width)) * (draw.random((items, width)) < density)
    if signed:  # sums of products are 0 on the way
        cells = draw.choice([-1.0, 1.0], (items, width)) * (draw.random((items, width)) < 0.9)
    row, column = np.nonzero(cells)
    rows = group_rows(
        torch.from_numpy(row), torch.from_numpy(column).int(), items, torch.from_numpy(cells[row, column]).float()
    )
    length = np.sqrt((cells**2).sum(1, keepdims=True))
    return FeatureMatrix(rows, width), cells / np.where(length == 0, 1, length)


@given(st.integers(0, 1000), st.integers(1, 15), st.booleans(), st.sampled_from([math.inf, 9]))
@settings(max_examples=50)
def test_the_nearest_items_are_those_with_the_largest_cosine(seed, most, signed, budget):
    known, cells = random_matrix(seed, signed=signed)
    new, others = random_matrix(seed + 1, items=5, signed=signed)
    items, cosines = known.nearest(new, most, budget)
    count = np.count_nonzero(cells, axis=0)
    for row in others:  # without its most common features
        common, length = sorted(np.flatnonzero(row), key=lambda feature: (-count[feature], feature)), 0.0
        for index, each in enumerate(common):
            length += row[each] ** 2
            rarer = count[common[index + 1 :]].sum()
            if length <= LEFT_OUT or (rarer and rarer + count[each] > budget):
                row[each] = 0
    cosine = (others @ cells.T).clip(min=0)
    for row in range(5):
        best = np.sort(cosine[row])[::-1][: min(most, 12)]
        assert cosines[row].numpy() == pytest.approx(best, abs=1e-5)
        assert cosine[row, items[row].numpy()][best > 1e-5] == pytest.approx(best[best > 1e-5], abs=1e-5)


def test_the_regression_is_that_of_its_definition():
    matrix, cells = random_matrix(3, items=30, width=8)
    draw = np.random.default_rng(0)
    targets, confidence = draw.normal(size=(30, 4)), draw.random(30)
    expected = np.linalg.solve((cells.T * confidence) @ cells + 0.5 * np.eye(8), (cells.T * confidence) @ targets)
    found = matrix.regression(torch.from_numpy(targets).float(), torch.from_numpy(confidence).float(), 0.5)
    assert found.numpy() == pytest.approx(expected, abs=1e-3)
    assert matrix.predict(found).numpy() == pytest.approx(cells @ expected, abs=1e-3)


# New items


def shop_table(names):
    """Items of ten follow each other in the log; five have a word in common."""
    number = [int(name[1:]) for name in names]
    return {
        "item": names,
        "title": [f"word{n // 5} thing" for n in number],
        "price": [float(n) for n in number],
        "category": [f"group {n // 10}" for n in number],
    }


@pytest.fixture(scope="module")
def log():
    return cyclic_log()


@pytest.fixture(scope="module")
def table(log):
    names = sorted(set(log["item"]))
    known = pl.DataFrame(shop_table(names))
    new = {
        "item": ["new1", "new2"],
        "title": ["word3 lamp", None],
        "price": [17.0, None],
        "category": ["group 1", "group 4"],
    }
    return pl.concat([known, pl.DataFrame(new)])


@pytest.fixture(scope="module")
def shop(log, table):
    return bt.Recommender(steps=0, seed=0).fit(log, items=table, test_users=10, verbose=False)


def test_items_of_the_table_without_events_are_found_by_what_they_are(shop):
    first = shop.recommend(["i13", "i14", "i15"], m=11)["item"].to_list()
    assert "new1" in first
    assert "new2" not in first
    assert "new2" in shop.recommend(["i43", "i44", "i45"], m=11)["item"].to_list()


def test_they_can_be_filtered_and_are_saved(shop, tmp_path):
    where = "price > 16 and category = 'group 1'"
    found = shop.recommend(["i13", "i14"], m=20, where=where)
    assert set(found["item"]) == {"i17", "i18", "i19", "new1"}
    shop.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")
    assert loaded.recommend(["i13", "i14"], m=20, where=where).equals(found)


def test_an_item_added_later_is_placed_by_its_title_and_category(shop, tmp_path):
    shop.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")
    loaded.update_items({"later": {"title": "a word7"}, "other": {"title": "word1", "category": "group 0"}})
    assert "later" in loaded.recommend(["i36", "i37", "i38"], m=13)["item"].to_list()
    assert "other" in loaded.recommend(["i06", "i07", "i08"], m=13)["item"].to_list()


def test_an_item_that_has_nothing_in_common_with_others_is_added_all_the_same(shop, tmp_path):
    shop.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")
    loaded.update_items({"strange": {"title": "zzz"}})
    assert loaded.recommend(["i01"], m=1, allowed=["strange"])["item"].to_list() == ["strange"]


def test_known_items_are_found_as_before(log, shop):
    """New items take few places: those of others keep their order."""
    plain = bt.Recommender(steps=0, seed=0).fit(log, test_users=10, verbose=False)
    new = {"new1", "new2"}
    for history in (["i03", "i04"], ["i21", "i22", "i23"], ["i50"]):
        before = plain.recommend(history, m=10)["item"].to_list()
        after = [item for item in shop.recommend(history, m=12)["item"].to_list() if item not in new]
        assert set(after[:10]) == set(before)


# Items of the log


@pytest.fixture(scope="module")
def rare_log():
    """Users choose items of one of thirty groups; an item has one or two events, too few to know its group by them."""
    draw = np.random.default_rng(0)
    items = draw.integers(0, 30, 150)[:, None] * 20 + draw.permuted(np.tile(np.arange(20), (150, 1)), axis=1)[:, :10]
    times = np.tile(np.arange(10), 150)
    return pl.DataFrame({"user": np.repeat(np.arange(150), 10), "item": items.ravel(), "time": times})


def fitted_to(log, group=None, **options):
    names = log["item"].unique().sort()
    items = None if group is None else pl.DataFrame({"item": names, "group": [chr(65 + group[n]) for n in names]})
    shop = bt.Recommender(steps=0, seed=0, **options)
    return shop.fit(log, items=items, val_users=40, test_users=40, verbose=False)


@pytest.fixture(scope="module")
def grouped(rare_log):
    return fitted_to(rare_log, np.arange(600) // 20)


@pytest.fixture(scope="module")
def plain(rare_log):
    return fitted_to(rare_log)


def test_rare_items_are_found_by_items_that_are_like_them(grouped, plain):
    assert features_weight(grouped.model.scorer) > 0
    after, before = (shop.evaluate(50, metrics="recall").to_frame()["value"][0] for shop in (grouped, plain))
    assert after > 1.1 * before


def test_a_refit_keeps_what_the_training_users_chose(rare_log, grouped):
    groups, items = np.arange(600) // 20, pl.DataFrame({"item": [1000, 1001], "group": ["A", "B"]})
    unrefitted = fitted_to(rare_log, groups, refit=False)
    scorers = unrefitted.model.scorer, grouped.before_refit.scorer
    assert scorers[0].hyperparameters == scorers[1].hyperparameters
    assert scorers[0].state_dict().keys() == scorers[1].state_dict().keys()
    for name, value in scorers[0].state_dict().items():
        assert torch.equal(value, scorers[1].state_dict()[name]), name
    expected = unrefitted.evaluate().records()
    assert grouped._run["training"]["before_refit"]["scores"] == expected == grouped.evaluate().records()
    more = copy(grouped)
    more.update_items(items)
    assert len(more.ids) == len(grouped.ids) + 2
    assert more.evaluate().records() == expected  # without the items that came later


def test_features_are_weighed_on_the_model_before_its_refit(rare_log, plain, monkeypatch):
    measured, shop = [], copy(plain)

    def candidates(tree, parts, *rest):
        measured.append(parts[SUM])
        return Candidates(tree, parts, *rest)

    monkeypatch.setattr(Processes, "candidates", staticmethod(candidates))
    names = shop.ids.names
    shop.update_items(pl.DataFrame({"item": names, "group": [chr(65 + int(name) // 20) for name in names]}))
    (scorer,) = measured
    served, before = plain.model.scorer.part("memory"), plain.before_refit.scorer.part("memory")
    assert torch.equal(scorer.part("memory").partners, before.partners)
    assert not torch.equal(before.partners, served.partners)
    assert features_weight(shop.model.scorer) > 0
    own = shop.model.scorer.part("memory").rows.take(torch.arange(len(served.rows)))
    assert torch.equal(own.columns, served.partners)


def test_items_with_similar_features_are_partners(grouped):
    memory = grouped.model.scorer.part("memory")
    partners, recency = memory.last_list()
    names = grouped.ids.names
    of_first = partners.take(torch.tensor([0]))
    assert {int(names[item]) // 20 for item in of_first.columns.tolist()} == {int(names[0]) // 20}
    assert 0 not in of_first.columns
    assert of_first.values.float().tolist() == pytest.approx([1.0] * len(of_first.columns), abs=0.01)
    assert recency[0] > 0


def test_they_stay_when_the_model_learns_from_new_events(grouped, tmp_path):
    grouped.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")
    before = loaded.model.scorer.part("memory").last_list()[0]
    loaded.update(pl.DataFrame({"user": ["new"] * 3, "item": [1, 2, 3], "time": [20, 21, 22]}))
    assert features_weight(loaded.model.scorer) == features_weight(grouped.model.scorer)
    assert torch.equal(loaded.model.scorer.part("memory").last_list()[0].columns, before.columns)


def test_groups_that_say_nothing_change_nothing(rare_log, plain):
    useless = fitted_to(rare_log, np.random.default_rng(1).permutation(np.arange(600) // 20))
    assert features_weight(useless.model.scorer) == 0
    histories = [[1, 2, 3], [130, 131], [583]]
    assert useless.recommend(histories, m=20).equals(plain.recommend(histories, m=20))


def test_a_memory_without_weight_gets_no_list(rare_log, plain, tmp_path):
    """It would have to be multiplied by infinity; and a model without a memory learns from new events."""
    shop, names = copy(plain), plain.ids.names
    shop._model = plain.model.with_scorer(plain.model.scorer.with_parts({}).set_weights(memory=0.0))
    table = pl.DataFrame({"item": names, "group": [chr(65 + int(name) // 20) for name in names]})
    shop.update_items(table)
    assert features_weight(shop.model.scorer) == 0
    assert bool(shop.model.scorer.part("memory").recency.isfinite().all())
    shop.model.scorer.hyperparameters["content"] = 0.1  # as after a training that set the weight of the memory to 0
    shop.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")
    loaded.update(pl.DataFrame({"user": ["new"] * 3, "item": [1, 2, 3], "time": [20, 21, 22]}))
    assert "memory" not in loaded.model.scorer.names


def test_a_copy_uses_features_of_its_own(plain):
    names = plain.ids.names
    other, again = copy(plain), copy(plain)
    other.update_items(pl.DataFrame({"item": names, "group": ["x"] * len(names)}))
    assert features_weight(other.model.scorer) == 0
    again.update_items(pl.DataFrame({"item": names, "group": [chr(65 + int(name) // 20) for name in names]}))
    assert features_weight(again.model.scorer) > 0
    assert features_weight(plain.model.scorer) == 0


@given(st.integers(0, 1000), st.integers(1, 4))
@settings(max_examples=20)
def test_partners_of_new_items_are_means_of_those_of_the_items_they_are_like(seed, most):
    draw = np.random.default_rng(seed)
    lists = np.round(draw.random((2, 6, 6)) * (draw.random((2, 6, 6)) < 0.5), 1)
    shares = draw.random((3, 6)) * (draw.random((3, 6)) < 0.5)

    def rows(cells):
        row, column = map(torch.from_numpy, np.nonzero(cells))
        return group_rows(row, column.int(), len(cells), torch.from_numpy(cells[np.nonzero(cells)]).float())

    memory = MemoryScorer.from_partners(
        [rows(each) for each in lists], [recency_weights(0.5), 2 * recency_weights(0.5)]
    )
    scorer = SumScorer({"memory": memory}, 3)
    weights = lists[0] + 2 * lists[1]  # from, to
    highest = np.maximum(lists[0], 2 * lists[1]).max(0)
    expected = {incoming: shares @ (weights.T + np.diag(highest)), outgoing: shares @ weights}
    like = rows(shares)
    for partners_of, means in expected.items():
        found = dense(mean_partners(scorer, partners_of, CSR(like.offsets, like.columns.long(), like.values), most), 6)
        best = np.sort(means, axis=1)[:, ::-1][:, :most]
        assert np.sort(found, axis=1)[:, ::-1][:, :most] == pytest.approx(best, abs=0.02)
        assert found[found > 0] == pytest.approx(means[found > 0], abs=0.02)


def test_a_memory_with_one_more_list_adds_its_scores():
    recency = recency_weights(0.5)
    first = group_rows(torch.tensor([0, 1]), torch.tensor([1, 2]).int(), 3, torch.tensor([0.5, 1.0]))
    second = group_rows(torch.tensor([0, 2]), torch.tensor([2, 0]).int(), 3, torch.tensor([0.25, 2.0]))
    both = MemoryScorer.from_partners([first], [recency]).with_list(second, 2 * recency)
    assert torch.equal(both.rows.columns, MemoryScorer.from_partners([first, second], [recency, recency]).rows.columns)
    partners, weights = both.last_list()
    assert (partners.columns.tolist(), partners.values.tolist()) == ([2, 0], [0.25, 2.0])
    assert torch.equal(weights, 2 * recency)


def test_features_that_say_nothing_change_nothing(log):
    """Known items are scored by their events, whatever the table says."""
    names = sorted(set(log["item"]))
    draw = np.random.default_rng(0)
    useless = pl.DataFrame({"item": names, "colour": draw.integers(0, 5, len(names)), "size": draw.random(len(names))})
    plain, shop = (
        bt.Recommender(steps=0, seed=0).fit(log, test_users=10, verbose=False, **options)
        for options in ({}, {"items": useless})
    )
    histories = [["i03", "i04"], ["i21", "i22", "i23"], ["i50"]]
    assert shop.recommend(histories, m=20).equals(plain.recommend(histories, m=20))


def test_two_tables_are_one_too_many(log, table):
    with pytest.raises(ValueError, match="two tables of items"):
        bt.Recommender(items=table).fit(log, items=table)


def test_the_command_adds_items_of_a_table_and_filters_by_it(log, table, tmp_path):
    log.write_parquet(tmp_path / "log.parquet")
    table.write_parquet(tmp_path / "items.parquet")
    beamtree("prepare", "log.parquet", "--out", "prepared", folder=tmp_path)
    options = ("--steps", "0", "--features", "items.parquet")
    done = beamtree("train", "prepared", "--out", "run", *options, folder=tmp_path)
    assert "Added 2 items that have no events in training" in done.stdout
    where = ("--where", "price > 16 and category = 'group 1'", "--json", "found.json")
    beamtree("retrieve", "run", "--history", "i13,i14", *where, folder=tmp_path)
    assert "new1" in (tmp_path / "found.json").read_text()
    twice = beamtree(
        "train", "prepared", "--out", "other", *options, "--items", "items.parquet", folder=tmp_path, check=False
    )
    assert twice.returncode == 2
    assert "two tables of items" in twice.stderr


def test_more_items_can_be_added_from_a_table(shop, tmp_path):
    shop.save(tmp_path / "run")
    loaded = bt.Recommender.load(tmp_path / "run")
    more = pl.DataFrame(
        {"item": ["new1", "more1", "more2"], "title": ["x", "word3", "word8"], "price": [1.0, 17.0, 41.0]}
    )
    assert loaded.update_items(more) == 3  # one is known, and has another title and price
    assert "more1" in loaded.recommend(["i13", "i14", "i15"], m=13)["item"].to_list()
    assert loaded.update_items(more) == 0
