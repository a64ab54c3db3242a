"""The age of items: in filters and rules, for items of the log and for those added live, and as a metric."""

import json
import time

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree
from serving import serving

import beamtree as bt
from beamtree.data import Events
from beamtree.evaluate import ALL_METRICS
from beamtree.evaluate.beyond_accuracy import ItemFacts, age
from beamtree.live import Journal, LiveModel
from beamtree.query import RecommendRequest, make_filter
from beamtree.serve.engine.engine import EngineOptions
from beamtree.serve.engine.served_run import open_run
from beamtree.serve.http.service import AGE_STEP, Service
from beamtree.tree import PAD

DAY, START = 86_400, 1_700_000_000
ITEMS = 40


def log(clock=True):
    """Item n is first chosen on day n, by some of thirty users, and once more the next day."""
    rows = [
        (f"u{user}", f"i{item:02}", (START if clock else 0) + (item + again) * DAY + user * 60)
        for item in range(ITEMS)
        for user in range(30)
        for again in (0, 1)
        if user == item % 30 or (user * 7 + item * 3) % (2 + item % 5) == 0
    ]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


END = int(log()["time"].max())


def young(days, at=END):
    """The items under so many days at a time, by definition."""
    first = log().group_by("item").agg(pl.col("time").min())
    return {item for item, began in first.iter_rows() if max(0, at - began) / DAY < days}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ages") / "run"
    bt.Recommender(steps=0, tree="random", seed=0).fit(log(), val_users=2, test_users=2, verbose=False).save(folder)
    return folder


@pytest.fixture
def shop(run):
    return bt.Recommender.load(run)


@pytest.fixture(scope="module")
def order_shop():
    """Of a log without a clock."""
    return bt.Recommender(steps=0, tree="random").fit(log(clock=False), val_users=2, test_users=2, verbose=False)


def found(shop, *of, **how):
    return set(shop.recommend(*of, m=ITEMS, **how)["item"])


@pytest.mark.parametrize("days", [0.5, 1, 7, 39.999, 41])
def test_items_under_an_age_are_found(shop, days):
    assert found(shop, ["i03"], where=f"age_days < {days}") == young(days)
    assert found(shop, users=["u1"], where=f"age_days < {days}") == young(days)


def test_a_misspelt_age_is_told_what_there_is(shop):
    with pytest.raises(ValueError, match=r"there is no column 'age_day'; there are item, age_days$"):
        shop.recommend(["i03"], where="age_day < 30")


def test_age_is_that_at_the_time_of_the_request(shop):
    at = START + 20 * DAY
    assert found(shop, ["i03"], where="age_days < 5", time=at) == young(5, at)
    assert found(shop, ["i03"], where="age_days = 0", time=at) == {f"i{n:02}" for n in range(20, ITEMS)}
    assert found(shop, [["i03"], ["i04"]], where="age_days < 5", time=[at, at]) == young(5, at)
    with pytest.raises(ValueError, match="age_days is measured at one time: give one `time` for all histories"):
        shop.recommend([["i03"], ["i04"]], where="age_days < 5", time=[at, at + DAY])
    assert len(found(shop, [["i03"], ["i04"]], time=[at, at + DAY])) == ITEMS  # nothing reads the age


def test_age_meets_other_conditions_and_boosts(shop):
    some = found(shop, ["i03"], where="age_days between 5 and 9 and item != 'i33'")
    assert some == {item for item in young(9.0001) - young(5) if item != "i33"}
    boosted = shop.recommend(["i03"], m=3, rules={"boosts": [{"where": "age_days < 4", "factor": 1e6}]})
    assert set(boosted["item"]) <= young(4)
    assert boosted["rules"].to_list() == ["boost 1e+06 where age_days < 4"] * 3


def test_a_column_of_that_name_wins():
    items = pl.DataFrame({"item": [f"i{n:02}" for n in range(ITEMS)], "age_days": range(ITEMS)})
    shop = bt.Recommender(steps=0, tree="random").fit(log(), items=items, val_users=2, test_users=2, verbose=False)
    assert found(shop, ["i20"], where="age_days < 3") == {"i00", "i01", "i02"}
    three = shop.recommend(["i20"], m=3, rules={"fresh": {"days": 3, "least": 3}})
    assert set(three["item"]) == {"i00", "i01", "i02"}


def test_a_log_without_a_clock_says_so_in_one_line(order_shop):
    for how in ({"where": "age_days < 3"}, {"rules": {"fresh": {"days": 3}}}):
        with pytest.raises(ValueError, match=r"^age_days: items have no age, because this model has no log [^\n]*$"):
            order_shop.recommend(["i03"], **how)
    with pytest.raises(ValueError, match=r"^age: the times of these events are no dates [^\n]*$"):
        order_shop.evaluate(m=3, metrics="age")


def test_items_added_live_are_as_old_as_that(shop, tmp_path):
    before = time.time()
    shop.update_items({"new": {"like": ["i05"]}})
    began = shop._live.catalogue.starts.seconds(ITEMS + 1)[-1]
    assert int(before) <= began <= time.time()
    at = int(began) + 3 * DAY
    assert found(shop, ["i03"], where="age_days < 3.5", time=at) == {"new"}
    assert found(shop, ["i03"], where="age_days < 2.5", time=at) == set()
    shop.save(tmp_path / "run")
    again = bt.Recommender.load(tmp_path / "run")
    assert again._live.catalogue.starts.seconds(ITEMS + 1)[-1] == began
    assert found(again, ["i03"], where="age_days < 3.5", time=at) == {"new"}
    # A change of an item makes it no younger; forgotten and added again it is new
    again._live.update_items({"new": {"like": ["i06"]}}, since={"new": began + DAY})
    assert again._live.catalogue.starts.seconds(ITEMS + 1)[-1] == began
    again.forget_items(["new"])
    again._live.update_items({"new": {"like": ["i06"]}}, since={"new": began + DAY})
    assert again._live.catalogue.starts.seconds(ITEMS + 1)[-1] == began + DAY


def test_items_of_an_update_begin_with_their_first_event(shop):
    at = END + 5 * DAY
    rows = [("u1", "later", at + 60), ("u2", "later", at), ("u2", "i01", at + 60)]
    shop.update(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"))
    assert shop._live.catalogue.starts.seconds(ITEMS + 1)[-1] == at
    assert found(shop, ["i03"], where="age_days < 1") == {"later"}  # the end is that of the update


def test_a_journal_keeps_when_items_were_added(run, tmp_path):
    model, data = bt.load_model(run), bt.load_data(run / "data")
    journal = Journal(tmp_path)
    live = LiveModel(model, data=data, journal=journal)
    live.update_items({"new": {"like": ["i05"]}}, since={"new": START})
    live.update_items({"new": {"like": ["i06"]}})
    live.remove_items(["new"])
    live.update_items(["new"], show=True)
    journal.close()
    for _ in range(2):
        again = Journal(tmp_path)
        replayed = LiveModel(model, data=data, journal=again)
        assert replayed.catalogue.starts.seconds(ITEMS + 1)[-1] == START
        again._compact()
        again.close()


def test_starts_are_those_of_the_events():
    generator = torch.Generator().manual_seed(0)
    items, times = torch.randint(9, (60,), generator=generator), torch.randint(10**6, (60,), generator=generator)
    events = Events(torch.tensor([0, 30, 60]), items.int(), "log", times=times * 1000 + 7, clock=1000)
    expected = [
        min((int(at) for at, item in zip(times, items, strict=True) if item == n), default=PAD) for n in range(8)
    ]
    assert events.starts(8).tolist() == expected  # the ninth is no item of the model
    assert events.starts(12)[9:].tolist() == [PAD] * 3


# Places for new items


def test_places_are_reserved_for_new_items(shop):
    old = ["i00", "i01", "i02", "i03"]
    same = {"boosts": [{"items": ["nothing"], "factor": 2}]}  # with rules, equal scores come in the order of items
    plain = shop.recommend(old, m=6, rules=same)["item"].to_list()
    for days, least in ((2, 2), (10, 3), (3, 6), (2, 5)):
        new = young(days)
        answer = shop.recommend(old, m=6, rules={"fresh": {"days": days, "least": least}})
        items = answer["item"].to_list()
        assert len(set(items) & new) >= min(least, len(new))
        kept = [item for item in plain if item not in new][: 6 - len(set(items) & new)]
        assert [item for item in items if item not in new] == kept
        brought = [row["rules"] for row in answer.iter_rows(named=True) if row["item"] in new - set(plain)]
        assert all(reason == f"at least {least} under {days} days" for reason in brought)


def test_new_items_keep_to_the_filter_and_to_pins(shop):
    rules = {"fresh": {"days": 5, "least": 2}, "pins": {1: "i00", 2: "i38"}}
    items = shop.recommend(["i01"], m=3, rules=rules, exclude=["i39", "i37"])["item"].to_list()
    assert items[:2] == ["i00", "i38"]
    assert items[2] in young(5) - {"i39", "i37", "i38"}
    none = shop.recommend(["i01"], m=3, rules={"fresh": {"days": 5, "least": 2}}, allowed=["i00", "i02", "i03"])
    assert set(none["item"]) == {"i00", "i02", "i03"}  # there is none to have


def test_many_histories_with_rules_are_answered_at_one_time(shop):
    at = START + 20 * DAY
    answers = shop.recommend([["i01"], ["i02"], []], m=4, rules={"fresh": {"days": 3, "least": 2}}, time=at)
    for (_,), rows in answers.group_by("history"):
        assert len(set(rows["item"]) & young(3, at)) >= 2


# The command and a service


def test_the_commands_filter_by_age(run, tmp_path):
    beamtree("retrieve", str(run), "--history", "i03", "--where", "age_days < 3", "--json", "a.json", folder=tmp_path)
    assert {row["item"] for row in json.loads((tmp_path / "a.json").read_text())} == young(3)
    at = ["--request-time", str(START + 20 * DAY), "--m", "40"]
    words = ["--history", "i03", "--where", "age_days < 3", "--json", "b.json", *at]
    beamtree("retrieve", str(run), *words, folder=tmp_path)
    assert {row["item"] for row in json.loads((tmp_path / "b.json").read_text())} == young(3, START + 20 * DAY)
    log().filter(pl.col("user") == "u1").write_csv(tmp_path / "in.csv")
    files = ["--input", "in.csv", "--output", "out.parquet", "--rules", '{"fresh": {"days": 3, "least": 2}}']
    beamtree("retrieve", str(run), *files, folder=tmp_path)
    assert len(set(pl.read_parquet(tmp_path / "out.parquet")["item"]) & young(3)) >= 2
    done = beamtree("evaluate", str(run), "--metrics", "age,recall", "--m", "3", folder=tmp_path)
    assert "age" in done.stdout


def test_a_service_measures_ages_now_in_steps(run):
    service = Service(run, lambda path: open_run(path, name="shop"), options=EngineOptions(beam_size=40), timeout=60.0)
    now = time.time()
    with serving(service) as client:

        def items(**body):
            response = client.post("/v1/recommend", json={"history": ["i03"], "m": 40, **body})
            assert response.status_code == 200, response.text
            return set(response.json()["results"][0]["items"])

        edge = (now - START) / DAY - 19.5
        assert items(where=f"age_days < {edge}") == young(edge, now)
        assert items(where="age_days < 3", time=START + 20 * DAY) == young(3, START + 20 * DAY)
        fresh = {"fresh": {"days": 3, "least": 2}}
        assert len(items(m=4, rules=fresh, time=END) & young(3)) >= 2
        body = {"history": ["i03"], "m": 4, "rules": fresh, "time": END, "items": ["i00", "i39"]}
        response = client.post("/v1/explain", json=body)
        assert response.status_code == 200, response.text
        answer = {row["item"]["item"] for row in response.json()["explanation"].get("answer", [])} or {
            row["item"]["item"] for row in response.json()["answer"]
        }
        assert len(answer & young(3)) >= 2
        assert (
            client.post("/v1/recommend", json={"history": ["i03"], "rules": {"fresh": {"days": -1}}}).status_code == 422
        )
    service.close()
    assert AGE_STEP < DAY / 100


def test_a_mask_is_kept_while_the_time_is_the_same(shop):
    searcher = shop._searcher(with_attributes=True)
    request = RecommendRequest([["i03"]], m=4, filter=make_filter(where="age_days < 3"))
    masks = [searcher.mask_of(request.measured_at(lambda at=at: at).filter)[0] for at in (END, END, END - 9 * DAY)]
    assert masks[0] is masks[1]
    assert masks[1] is not masks[2]


# The metric


def test_age_is_the_mean_of_the_list_at_the_time_of_the_request():
    starts = torch.tensor([0, 10 * DAY, PAD, 40 * DAY])
    items = torch.tensor([[0, 1, PAD], [2, 9, PAD], [0, 3, 2]])
    time_of = torch.tensor([20 * DAY, 20 * DAY, 30 * DAY])
    assert age(items, time_of, ItemFacts(starts=lambda: starts)).tolist() == [15.0, 0.0, 15.0]


def test_evaluate_measures_age_at_the_first_coming_event(shop):
    users = shop.data.test
    result = shop.evaluate(m=[2, 5], metrics=["age", "recall"], beam_size=64)
    x, _ = users.batch(torch.arange(len(users)))
    expected = []
    for row in range(len(users)):
        index = int(users.target_index(torch.tensor([row]))[0, 0])
        at = int(users.events.times[index]) // users.events.clock
        history = [int(item) for item in x[row].tolist() if item != PAD]
        best, _ = bt.retrieve(shop.before_refit, x[row : row + 1], beam_size=64, m=5)
        starts = [START + int(shop.ids.name(item)[1:]) * DAY for item in best[0].tolist()]
        expected.append([max(0, at - start) / DAY for start in starts])
        assert history
    assert result["age", 5] == pytest.approx(np.mean(expected), rel=1e-5)
    assert result["age", 2] == pytest.approx(np.mean([row[:2] for row in expected]), rel=1e-5)
    assert "not in percent: age" in str(result)
    assert "age" in ALL_METRICS


def test_age_by_history_divides_users(shop):
    result = shop.evaluate(m=3, metrics=["age"], by="history", beam_size=64)
    parts = [(part.users, part["age", 3]) for part in result.segments.values()]
    assert sum(users * value for users, value in parts) / result.users == pytest.approx(result["age", 3], rel=1e-5)
