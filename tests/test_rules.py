"""Rules on answers: the fast selection is the definition's, with few candidates at a time, and wherever it is asked."""

import json
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import oracle
import polars as pl
import pytest
import torch
from command import beamtree
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_logs import cyclic_log
from serving import make_model, make_service, open_shop, serving

import beamtree as bt
from beamtree.batch.files import open_histories, write_results
from beamtree.batch.job import make_searcher
from beamtree.data import Ids
from beamtree.ingest.item_tables import read_catalogue
from beamtree.query import History, RecommendRequest, Rules, Searcher, make_filter, parse_rules, read_rules, selection
from beamtree.query.max_flow import Flow
from beamtree.query.selection import AppliedRules, SearchHits, Selection

COLUMNS = ("brand", "category")


@dataclass
class Market:
    """Some items with attributes, the probability of each, and rules."""

    probabilities: list[float]
    frame: pl.DataFrame
    allowed: set[int]
    rules: Rules
    m: int
    count: int
    vectors: np.ndarray

    @property
    def limits(self):
        return [limit for _, limit in self.rules.at_most]

    @property
    def kinds(self):
        columns = [self.frame[column].to_list() for column, _ in self.rules.at_most]
        return [tuple(column[item] for column in columns) for item in range(len(self.frame))]

    @property
    def scores(self):
        boosted = dict.fromkeys(range(len(self.frame)), 1.0)
        for boost in self.rules.boosts:
            for item, name in enumerate(self.frame["item"]):
                matches = name in boost.items if boost.where is None else self.frame["brand"][item] == "x"
                boosted[item] *= boost.factor if matches else 1.0
        return {item: self.probabilities[item] * boosted[item] for item in self.allowed}

    @property
    def answer(self):
        """By definition."""
        pins = [(place, int(name)) for place, name in self.rules.pins]
        d, pool = self.rules.diversity, selection.POOL
        return oracle.answer_by_rules(
            self.scores, self.kinds, self.limits, pins, self.m, d, self.vectors.tolist(), pool, *self.fresh
        )

    @property
    def fresh(self):
        """The new items, and how many of them there must be."""
        if self.rules.fresh is None:
            return (), 0
        ages = self.frame["age_days"].to_list()
        return [item for item, age in enumerate(ages) if age is not None and age < 30], self.rules.fresh.least


@st.composite
def markets(draw, size=None):
    size = size or draw(st.integers(1, 8))
    draws = np.random.default_rng(draw(st.integers(0, 2**20)))
    value = st.sampled_from([None, "x", "y", "z"])
    names = [str(item) for item in range(size)]
    frame = pl.DataFrame(
        {"item": names, **{name: draw(st.lists(value, min_size=size, max_size=size)) for name in COLUMNS}},
        schema={"item": pl.String, **dict.fromkeys(COLUMNS, pl.String)},
    )
    ages = draw(st.lists(st.sampled_from([None, 3.0, 29.9, 30.0, 400.0]), min_size=size, max_size=size))
    frame = frame.with_columns(age_days=pl.Series(ages, dtype=pl.Float64))  # a column of that name is the age
    some = st.lists(st.sampled_from(names), unique=True, min_size=1)
    factor = st.sampled_from([0.1, 0.5, 2, 30])
    boosts = draw(
        st.lists(
            st.builds(dict, factor=factor, items=some) | st.builds(dict, factor=factor, where=st.just("brand = 'x'")),
            max_size=3,
        )
    )
    pins = draw(st.dictionaries(st.integers(1, 9), st.sampled_from([*names, "99"]), max_size=3))
    pins = {place: name for place, name in pins.items() if list(pins.values()).count(name) == 1}
    at_most = draw(st.dictionaries(st.sampled_from(COLUMNS), st.integers(1, 2), max_size=2))
    fresh = draw(st.none() | st.builds(dict, days=st.just(30), least=st.integers(1, 4)))
    rules = Rules(boosts, at_most, pins, draw(st.sampled_from([0, 0.3, 1])), fresh)
    m = draw(st.integers(1, 8))
    return Market(
        probabilities=draws.random(size).tolist(),
        frame=frame,
        allowed=set(draw(st.lists(st.integers(0, size - 1)))) or set(range(size)),
        rules=rules,
        m=m,
        count=m + draw(st.integers(0, 3)),
        vectors=draws.normal(size=(size, 3)),
    )


def select(market):
    """The answer of the fast code, with a search that finds the best `count` of the items it is asked for."""
    ids = Ids(market.frame["item"].to_list())
    tree = bt.random_tree(len(ids))
    mask = tree.allow(torch.tensor(sorted(market.allowed)))
    applied = AppliedRules.of(market.rules, tree, ids, read_catalogue(market.frame, ids), mask)

    def find(items, known=()):
        best = sorted(set(items.nonzero()[0].tolist()) - set(known), key=lambda item: -market.probabilities[item])
        return SearchHits(best[: market.count], [market.probabilities[item] for item in best[: market.count]])

    return Selection(
        applied,
        market.m,
        find=find,
        first=[find(applied.group_of == group) for group in range(len(applied.groups))],
        count=market.count,
        pinned={item: market.probabilities[item] for item in market.allowed},
        vectors=lambda items: market.vectors[items],
    ).fill()


@settings(max_examples=300)
@given(markets())
def test_the_answer_is_that_of_the_definition(market):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "POOL", 3)
        answer = select(market)
        assert [placed.item for placed in answer] == market.answer
    for placed in answer:
        assert placed.score == pytest.approx(market.scores[placed.item])


def test_an_item_that_takes_the_room_of_two_others_is_left_out():
    frame = pl.DataFrame({"item": ["0", "1", "2"], "brand": ["a", "a", "b"], "category": ["x", "y", "x"]})
    rules = Rules(at_most={"brand": 1, "category": 1})
    market = Market([0.9, 0.2, 0.1], frame, {0, 1, 2}, rules, 2, 2, np.eye(3))
    answer = select(market)
    assert [placed.item for placed in answer] == [1, 2]
    assert answer[0].rules == ["at most 1 per brand", "at most 1 per category"]
    market.rules = Rules(at_most={"brand": 1, "category": 1}, pins=["0"])  # which is more than m
    assert [placed.item for placed in select(market)] == [0]


def test_reasons_name_the_rules_that_decided():
    frame = pl.DataFrame({"item": list("0123"), "brand": ["a", "a", "b", "c"]})
    boosts = [{"where": "brand = 'c'", "factor": 2}, {"items": ["3"], "factor": 3}]
    rules = Rules(boosts, {"brand": 1}, {2: "1"})
    market = Market([0.9, 0.8, 0.3, 0.1], frame, {0, 1, 2, 3}, rules, 3, 3, np.eye(4))
    answer = [(placed.item, placed.rules) for placed in select(market)]
    assert answer == [
        (3, ["boost 2 where brand = 'c'", "boost 3", "at most 1 per brand"]),  # the pinned item has the brand of 0
        (1, ["pin at 2"]),
        (2, ["at most 1 per brand"]),
    ]
    market.rules, market.vectors = Rules(diversity=0.5), np.array([[1, 0], [1, 0.1], [0, 1], [1, 1]])
    assert [(placed.item, placed.rules) for placed in select(market)][:2] == [(0, []), (2, ["diversity 0.5"])]


@given(
    st.dictionaries(st.tuples(st.integers(-1, 2), st.integers(-1, 2)), st.integers(0, 3), max_size=6),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_a_flow_finds_the_largest_number_of_items(available, left, right):
    items = [kind for kind, count in available.items() for _ in range(count)][:8]
    flow = Flow(Counter(items), ({}, {}), (left, right), 99)
    kinds = {item: tuple(None if value < 0 else value for value in kind) for item, kind in enumerate(items)}

    def most(*pins):
        scores = dict.fromkeys(kinds, 1.0)
        return len(oracle.answer_by_rules(scores, kinds, (left, right), list(enumerate(pins, 1)), 99))

    assert flow.number == most()
    closed = flow.cut()
    outside = [kind for kind in items if kind[0] not in closed[0] and kind[1] not in closed[1]]
    assert flow.number == left * len(closed[0]) + right * len(closed[1]) + len(outside)  # the cut proves it
    assert flow.exchangeable() == {kind for item, kind in enumerate(items) if most(item) == most()}
    assert Flow(Counter(items), ({}, {}), (left, right), 2).number == min(2, most())


# Rules from what users write


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"boost": []}, "give a dict with some of boosts, at_most, pins, diversity, fresh"),
        ({"fresh": 30}, 'fresh: give a dict of days and how many items at least, {"days": 30, "least": 2}'),
        ({"fresh": {"least": 2}}, "fresh: give a dict of days"),
        ({"fresh": {"days": 0}}, "fresh: days=0: give a number above 0"),
        ({"fresh": {"days": "30"}}, "fresh: days=30: give a number above 0"),
        ({"fresh": {"days": 30, "least": 0}}, "fresh: least=0: give a whole number from 1"),
        ({"fresh": {"days": 30, "least": 1.5}}, "fresh: least=1.5: give a whole number from 1"),
        ([], "give a dict"),
        ({"boosts": {"a": 2}}, "a list of at most 6"),
        ({"boosts": [{"factor": 2}]}, "a factor, and items or where"),
        ({"boosts": [{"items": ["a"]}]}, "a factor, and items or where"),
        ({"boosts": [{"factor": 2, "items": ["a"], "where": "b"}]}, "a factor, and items or where"),
        ({"boosts": [{"factor": 0, "items": ["a"]}]}, "not a number above 0"),
        ({"boosts": [{"factor": math.inf, "items": ["a"]}]}, "not a number above 0"),
        ({"boosts": [{"factor": "2", "items": ["a"]}]}, "a number above 0, not '2'"),
        ({"at_most": {"a": 1, "b": 1, "c": 1}}, "at_most has 3 columns: give one or two"),
        ({"at_most": {"a": 0}}, "a number from 1"),
        ({"at_most": ["a"]}, "a dict from column to number"),
        ({"pins": "a"}, "give a list of ids, or a dict"),
        ({"pins": ["a", "a"]}, "occurs twice"),
        ({"pins": {0: "a"}}, "'0' is not a place"),
        ({"pins": {"first": "a"}}, "'first' is not a place"),
        ({"diversity": 2}, "a number from 0 to 1"),
        ({"diversity": "much"}, "a number from 0 to 1"),
        ({"diversity": math.nan}, "a number from 0 to 1"),
    ],
)
def test_rules_that_make_no_sense_are_refused_in_one_line(rules, message):
    with pytest.raises(ValueError, match=message) as error:
        parse_rules(rules)
    assert "\n" not in str(error.value)


def test_rules_in_every_form_are_the_same(tmp_path):
    rules = {
        "boosts": [{"factor": 2, "where": "price < 5"}, {"factor": 0.5, "items": ["a", 7]}],
        "at_most": {"brand": 2},
        "pins": {"3": "a", "1": "b"},
        "diversity": 0.2,
        "fresh": {"days": 30, "least": 2},
    }
    made = parse_rules(rules)
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    assert made == read_rules(json.dumps(rules)) == read_rules(str(tmp_path / "rules.json"))
    assert made == Rules(**rules) == parse_rules(made) == Rules(**made.as_dict())
    assert len({made, Rules(**rules)}) == 1
    assert made.pins == ((1, "b"), (3, "a")) == Rules(pins={1: "b", 3: "a"}).pins
    assert Rules(pins=["b", "a"]).pins == ((1, "b"), (2, "a"))
    assert parse_rules({}) is parse_rules(None) is read_rules(None) is None
    with pytest.raises(ValueError, match="is not JSON"):
        read_rules("{")
    with pytest.raises(OSError, match="nothing"):
        read_rules(str(tmp_path / "nothing"))


# With a model


@st.composite
def requests(draw):
    """A request to a model of nine items, and what it is about, for the oracle."""
    market = draw(markets(size=9))
    history = draw(st.lists(st.integers(0, 8), max_size=3))
    return market, history, draw(st.booleans())


MODEL = make_model(items=9)
MODEL.ids = Ids([str(item) for item in range(9)])


@settings(max_examples=100)
@given(requests())
def test_a_searcher_answers_by_the_definition_also_with_popular_items(request):
    market, history, exclude_seen = request
    ids = [str(item) for item in market.allowed]
    searcher = Searcher(MODEL, MODEL.ids, catalogue=read_catalogue(market.frame, MODEL.ids))
    asked = RecommendRequest(
        [[str(item) for item in history]], None, market.m, 16, exclude_seen, make_filter(ids), market.rules
    )
    (result,) = searcher.recommend(asked).results
    if exclude_seen:
        market.allowed -= set(history)
    if history:
        items, log_p = bt.brute_force(MODEL, torch.tensor([history[::-1]]), m=9)
        market.probabilities = [p for _, p in sorted(zip(items[0].tolist(), log_p.exp()[0].tolist(), strict=True))]
    else:
        market.probabilities = (MODEL.popularity / MODEL.popularity.sum()).tolist()
    market.vectors = MODEL.vectors_of(torch.arange(9)).double().numpy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "POOL", 100)
        assert result.items == [str(item) for item in market.answer]
    assert result.scores == pytest.approx([market.scores[int(item)] for item in result.items], rel=1e-4)
    assert len(result.rules) == len(result.items)
    assert result.is_popular == (not history)


def test_rules_reach_beyond_a_beam_that_is_full_of_one_kind():
    """The best 30 of 60 items are of one brand, and the beam holds ten."""
    model = make_model()
    (best,) = bt.retrieve(model, torch.tensor([[3, 4]]), beam_size=64, m=60)[0].tolist()
    brands = {item: "common" if place < 30 else f"brand {place % 10}" for place, item in enumerate(best)}
    frame = pl.DataFrame({"item": model.ids.names, "brand": [brands[item] for item in range(60)]})
    searcher = Searcher(model, model.ids, catalogue=read_catalogue(frame, model.ids))
    request = RecommendRequest([["i4", "i3"]], m=10, beam_size=10, rules=Rules(at_most={"brand": 1}))
    (result,) = searcher.recommend(request).results
    found = frame.join(pl.DataFrame({"item": result.items}), on="item", how="right", maintain_order="right")
    assert len(found) == 10
    assert found["brand"].n_unique() == 10
    assert result.items[0] == model.ids[best[0]]
    request = request._replace(m=20)
    with pytest.raises(ValueError, match="m=20 with beam_size=10"):
        searcher.recommend(request)
    (result,) = searcher.recommend(request._replace(beam_size=20)).results
    assert len(result.items) == 11  # all that can be had


def test_requests_in_one_batch_get_what_each_would_get_alone():
    model, rules = make_model(), Rules([{"items": ["i7"], "factor": 9}], pins=["i5"], diversity=0.2)
    searcher = Searcher(model, model.ids)
    requests = [RecommendRequest([[f"i{item}"], []], m=item + 1, rules=rules) for item in range(4)]
    together = searcher.answer(requests)
    for request, response in zip(requests, together, strict=True):
        for one, other in zip(searcher.recommend(request).results, response.results, strict=True):
            assert one.items == other.items
            assert one.scores == pytest.approx(other.scores, rel=1e-4)
            assert one.items[0] == "i5"
            assert len(one.items) == request.m


def test_a_user_without_known_items_gets_no_disliked_popular_items():
    model = make_model()
    searcher = Searcher(model, model.ids, user_histories=lambda users: [History([], dislikes=[0, 2])] * len(users))
    for rules in (None, Rules(pins=["i2", "i5"])):
        (result,) = searcher.recommend(RecommendRequest(users=["ann"], m=3, rules=rules)).results
        assert sorted(result.items) == (["i1", "i3", "i4"] if rules is None else ["i1", "i3", "i5"])


@pytest.mark.extended
def test_random_requests_to_a_market_are_answered_by_the_definition():
    """As `benchmarks/quality/random_rules.py` does with 10,000; only a beam that holds all items is exact."""
    pytest.importorskip("scipy")
    import random_rules

    shop, draws = random_rules.Shop(users=500, items=600, events=8000, seed=1), np.random.default_rng(2)
    requests = [shop.draw(draws) for _ in range(100)]
    p = shop.probabilities([request.history for request in requests])
    exact = 0
    for request, row in zip(requests, p, strict=True):
        options = {**request.options, "beam_size": 1024}
        answer = shop.model.recommend(request.history, **options, rules=request.rules)
        result = shop.check(request, answer, row)
        assert result[:2] == (False, ""), request
        assert result[2] in (True, None), request
        exact += result[2] is True
    assert exact > 50


# In a recommender, in the command and in the service

RULES = {
    "boosts": [{"where": "price >= 20 and price < 30", "factor": 1e6}, {"items": ["i01"], "factor": 1e-6}],
    "at_most": {"category": 2},
    "pins": {"3": "i55"},
}


@pytest.fixture(scope="module")
def priced():
    """Groups of ten items are categories, and the price of item n is n."""
    rows = [(f"i{n:02}", f"group {n // 10}", float(n)) for n in range(60)]
    frame = pl.DataFrame(rows, schema=["item", "category", "price"], orient="row")
    return bt.Recommender(steps=0, items=frame).fit(cyclic_log(), test_users=10, verbose=False)


def check(items, names):
    """The answer that RULES give to a history of group 3."""
    groups = [item[1] for item in items]
    assert len(items) == 8
    assert max(map(groups.count, groups)) <= 2
    assert items[2] == "i55"
    assert groups[:2] == ["2", "2"]
    assert groups[3:5] == ["3", "3"]
    assert "i01" not in items
    assert names[0][0] == "boost 1e+06 where price >= 20 and price < 30"
    assert names[2] == ["pin at 3"]
    assert names[3] == ["at most 2 per category"]


def test_a_recommender_answers_by_rules(priced):
    history = ["i31", "i32"]
    answer = priced.recommend(history, m=8, rules=RULES)
    assert answer.columns == ["rank", "item", "score", "rules"]
    check(answer["item"].to_list(), [names.split("; ") for names in answer["rules"]])
    assert answer.equals(priced.recommend(history, m=8, rules=bt.Rules(**RULES)))
    assert priced.recommend(history, m=8, rules={}).columns == ["rank", "item", "score"]
    popular = priced.recommend([], m=8, rules=RULES)
    assert popular["item"][2] == "i55"
    assert len(popular) == 8
    few = priced.recommend(history, m=8, rules=RULES, where="price < 10", exclude=["i05"])
    assert len(few) == 2
    with pytest.raises(ValueError, match="at_most: there is no column 'brand'; there are item, category, price"):
        priced.recommend(history, rules={"at_most": {"brand": 1}})


def test_without_a_table_of_items_rules_by_attributes_are_refused_and_others_work(shop):
    with pytest.raises(ValueError, match="nothing is known about the items"):
        shop.recommend(["i01"], rules={"at_most": {"category": 1}})
    answer = shop.recommend(["i01"], m=5, rules={"pins": ["i44"], "diversity": 0.5})
    assert answer["item"][0] == "i44"
    assert len(answer) == 5


def test_the_command_answers_by_rules(priced, tmp_path):
    priced.save(tmp_path / "run")
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    words = ["retrieve", "run", "--history", "i31,i32", "--m", "8", "--json", "out.json", "--rules"]
    for rules in ("rules.json", json.dumps(RULES)):
        shown = beamtree(*words, rules, folder=tmp_path).stdout
        assert "pin at 3" in shown
        answer = json.loads((tmp_path / "out.json").read_text())
        check([row["item"] for row in answer], [row["rules"] for row in answer])
    assert "--rules" in beamtree(*words, "{", folder=tmp_path, check=False).stderr
    assert "no column 'brand'" in beamtree(*words, '{"at_most": {"brand": 1}}', folder=tmp_path, check=False).stderr
    pl.DataFrame({"user": ["u"], "history": [["i31", "i32"]]}).write_parquet(tmp_path / "in.parquet")
    words = ["retrieve", "run", "--m", "8", "--input", "in.parquet", "--output", "out", "--rules"]
    beamtree(*words, "rules.json", folder=tmp_path)
    in_file = pl.read_parquet(tmp_path / "out" / "in.parquet")
    assert in_file.columns == ["user", "rank", "item", "score", "rules"]
    assert in_file["item"].to_list() == [row["item"] for row in answer]
    assert in_file["rules"].to_list() == ["; ".join(row["rules"]) for row in answer]
    assert "rules" in beamtree(*words, '{"pins": ["i01"]}', folder=tmp_path, check=False).stderr  # another job
    request = RecommendRequest(m=8, beam_size=60, rules=parse_rules(RULES))
    searcher = make_searcher(tmp_path / "run", priced.model, request)
    for name in ("out.csv", "out.jsonl"):
        write_results(searcher, request, open_histories(tmp_path / "in.parquet"), tmp_path / name)
    as_text = pl.read_csv(tmp_path / "out.csv").fill_null("")  # an empty field is read as null
    assert as_text.columns == in_file.columns
    assert as_text.drop("score").equals(in_file.drop("score"))
    lines = pl.read_ndjson(tmp_path / "out.jsonl")
    assert lines["rules"].to_list() == [in_file["rules"].to_list()]


def test_the_service_answers_by_rules_and_explains_them(priced, tmp_path):
    priced.save(tmp_path / "run")
    service = make_service(tmp_path / "run", open_shop, beam_size=60)
    with serving(service) as client:
        body = {"history": ["i31", "i32"], "m": 8, "rules": RULES}
        (result,) = client.post("/v1/recommend", json=body).raise_for_status().json()["results"]
        check(result["items"], result["rules"])
        (plain,) = client.post("/v1/recommend", json={**body, "rules": {}}).json()["results"]
        assert "rules" not in plain
        explained = client.post("/v1/explain", json=body).raise_for_status().json()["explanation"]
        assert [row["item"]["item"] for row in explained["answer"]] == result["items"]
        assert [row["rules"] for row in explained["answer"]] == result["rules"]
        seen = {**body, "exclude_seen": True, "items": ["i31", "i01", "i55", *(f"i{n}" for n in range(20, 30))]}
        left_out = client.post("/v1/explain", json=seen).json()["explanation"]["left_out"]
        reasons = {row["item"]["item"]: row["rules"] for row in left_out}
        assert reasons["i31"] == ["not allowed"]
        assert "boost 1e-06" in reasons["i01"]
        assert "i55" not in reasons
        assert sum("at most 2 per category" in reasons.get(f"i{n}", ()) for n in range(20, 30)) == 8
        for rules, message in (
            ({"at_most": {"brand": 1}}, "no column 'brand'"),
            ({"diversity": 2}, "a number from 0 to 1"),
            ({"boosts": [{"factor": 1}]}, "items or where"),
            ({"pin": []}, "rules.pin"),
        ):
            reply = client.post("/v1/recommend", json={**body, "rules": rules})
            assert reply.status_code == 422
            assert message in reply.json()["error"]
    service.close()
