"""Times of requests and of their events, from every front door to what a scorer reads."""

import datetime
import json
import time
from typing import ClassVar

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from command import beamtree
from hypothesis import given
from hypothesis import strategies as st
from serving import serving

import beamtree as bt
from beamtree.batch.files import open_histories, write_results
from beamtree.batch.job import make_searcher
from beamtree.data.inputs import NO_TIME
from beamtree.live import LiveModel
from beamtree.live.update import _all_events
from beamtree.query import History, RecommendRequest, Searcher, encode_history, hidden_items
from beamtree.query.times import in_order, read_time
from beamtree.scorers import PopularityScorer
from beamtree.serve.engine.engine import EngineOptions
from beamtree.serve.engine.served_run import LoadedRun
from beamtree.serve.http.service import Service
from beamtree.storage.runs import write_run
from beamtree.tree import PAD

DAY, START = 86_400, 1_700_000_000
USERS, ITEMS, EVENTS = 30, 40, 12


class ClockScorer(PopularityScorer):
    """Popularity that keeps what it was asked: items, times and the time of the request of each user."""

    reads_clock = True
    reads_items = True
    asked: ClassVar[list] = []

    def prepare(self, tree, x):
        read = self.columns.split(x)
        if read.times.shape[1]:
            for items, times, request in zip(*(part.tolist() for part in read[:3]), strict=True):
                known = [place for place, item in enumerate(items) if item != PAD][::-1]
                assert all(at == NO_TIME for place, at in enumerate(times) if place not in known)
                self.asked.append(([items[place] for place in known], [times[place] for place in known], request[0]))
        return super().prepare(tree, x)

    def compiled_part(self, tree):
        return None


def events(clock=True):
    """User u chooses item (u + 3 t) % ITEMS at hour 24 t + u."""
    rows = [(f"u{u:02}", f"i{(u + 3 * t) % ITEMS:02}", t * DAY + u * 3600) for t in range(EVENTS) for u in range(USERS)]
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    return frame.with_columns(time=pl.col("time") + (START if clock else 0))


END = START + (EVENTS - 1) * DAY + (USERS - 1) * 3600


def make_run(folder, log):
    bt.prepare(log, out=folder / "data", val_users=3, test_users=3)
    data = bt.load_data(folder / "data")
    tree = bt.random_tree(data.num_items, seed=0)
    model = bt.TreeModel(tree, ClockScorer.from_counts(tree, torch.arange(data.num_items)))
    model.ids, model.popularity = data.items, torch.arange(data.num_items)
    run = folder / "run"
    run.mkdir()
    write_run(run, {"data": str(folder / "data"), "method": "otm"})
    bt.save_model(model, run)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("clock"), events())


@pytest.fixture
def shop(run):
    ClockScorer.asked.clear()
    return bt.Recommender.load(run, scorers=(ClockScorer,))


def asked(shop, *of, **how):
    """What the scorer read of a request: (ids, times, time of the request) of each history."""
    ClockScorer.asked.clear()
    shop.recommend(*of, m=3, beam_size=8, **how)
    return [([shop.ids.name(item) for item in items], *rest) for items, *rest in ClockScorer.asked]


def of_log(user):
    rows = events().filter(pl.col("user") == user).sort("time")
    return rows["item"].to_list(), rows["time"].to_list()


def test_users_of_the_log_come_with_their_times_and_the_end_of_the_log(shop):
    assert asked(shop, users=["u04", "u29"]) == [(*of_log("u04"), END), (*of_log("u29"), END)]


def test_score_and_explain_read_times_too(shop):
    for ask in (shop.score, shop.explain):
        ClockScorer.asked.clear()
        ask(users=["u04"], items=["i00"], time="2024-01-05")
        expected = int(datetime.datetime(2024, 1, 5, tzinfo=datetime.UTC).timestamp())
        found = {(tuple(times), request) for _, times, request in ClockScorer.asked if len(times) == EVENTS}
        assert found == {(tuple(of_log("u04")[1]), expected)}


MOMENT = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    "given_time",
    [
        MOMENT,
        MOMENT.isoformat(),
        "2024-03-01 12:00:00",
        MOMENT.timestamp(),
        int(MOMENT.timestamp()),
        int(MOMENT.timestamp()) * 1000,
        np.int64(MOMENT.timestamp()),
        np.datetime64("2024-03-01T12:00:00"),
        np.datetime64("2024-03-01T12:00:00", "ns"),
        pd.Timestamp(MOMENT),
    ],
)
def test_a_time_is_given_in_any_form(shop, given_time):
    expected = int(MOMENT.timestamp())
    assert asked(shop, ["i01", "i02"], time=given_time) == [(["i01", "i02"], [NO_TIME] * 2, expected)]
    assert [found[2] for found in asked(shop, users=["u01", "u02"], time=[given_time, START])] == [expected, START]
    pairs = [("i01", START), ("i02", given_time)]
    assert asked(shop, pairs) == [(["i01", "i02"], [START, expected], max(expected, END))]


def test_a_date_is_its_midnight(shop):
    midnight = int(datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC).timestamp())
    assert {read_time(each) for each in (datetime.date(2024, 3, 1), "2024-03-01", 20240301)} == {midnight}
    assert read_time(pl.Series([datetime.date(2024, 3, 1)])) == [midnight]


def test_without_times_everything_is_by_order(shop):
    assert asked(shop, ["i01", "i02"]) == [(["i01", "i02"], [NO_TIME] * 2, NO_TIME)]
    pairs = {"ann": [("i02", 7), ("i01", 3)], "bob": ["i05"]}  # times that are no clock are an order
    assert asked(shop, pairs) == [(["i01", "i02"], [NO_TIME] * 2, NO_TIME), (["i05"], [NO_TIME], NO_TIME)]


def test_the_time_of_a_request_is_the_end_of_the_log_or_the_newest_event_if_later(shop):
    early, late = [("i01", START), ("nobody", START + 1), ("i02", START + DAY)], [("i01", END + DAY)]
    expected = [(["i01", "i02"], [START, START + DAY], END), (["i01"], [END + DAY], END + DAY)]
    assert asked(shop, [early, late]) == expected
    assert asked(shop, {"a": early, "b": late}) == expected
    assert asked(shop, early) == expected[:1]


def test_a_list_of_tuples_of_ids_is_several_histories(shop):
    assert [found[0] for found in asked(shop, [("i01", "i02"), ("i03", "i04")])] == [["i01", "i02"], ["i03", "i04"]]


def test_pairs_of_items_and_an_order_are_one_history(shop):
    for pairs in ([("i01", 2), ("i02", 1)], [("nobody", 3), ("i01", 2.5), ("i02", np.int64(1))]):
        assert asked(shop, pairs) == [(["i02", "i01"], [NO_TIME] * 2, NO_TIME)]


def test_ids_that_look_like_times_are_ids_where_the_model_knows_them(tmp_path_factory):
    log = events().with_columns(item=START + pl.col("item").str.slice(1).cast(pl.Int64))
    shop = bt.Recommender.load(make_run(tmp_path_factory.mktemp("numbers"), log), scorers=(ClockScorer,))
    a, b, c, d = range(START + 1, START + 5)
    assert [found[0] for found in asked(shop, [(a, b), (c, d)])] == [[str(a), str(b)], [str(c), str(d)]]
    assert [found[0] for found in asked(shop, [(a, 7), (c, d)])] == [[str(a)], [str(c), str(d)]]
    assert asked(shop, [(b, END), (a, START + 500)]) == [([str(a), str(b)], [START + 500, END], END)]
    for pairs in ([(a, b), (c, END)], [(a, 7), (c, 8)]):
        with pytest.raises(ValueError, match=r"^[^\n]*: give each event its time, or several histories as lists$"):
            shop.recommend(pairs)


def test_histories_are_sorted_by_time_and_stay_in_order_at_the_same_time(shop):
    pairs = [("i03", START + 2), ("i01", START), ("i04", START + 2), ("i02", START)]
    assert asked(shop, pairs)[0][:2] == (["i01", "i02", "i03", "i04"], [START, START, START + 2, START + 2])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=12), st.booleans())
def test_in_order_is_a_stable_sort(pairs, clock):
    first = START if clock else 0
    items, times = in_order([item for item, _ in pairs], [first + at for _, at in pairs])
    expected = sorted(pairs, key=lambda pair: pair[1])
    assert items == [item for item, _ in expected]
    assert times == ([first + at for _, at in expected] if clock else [])


def test_rows_without_a_readable_time_are_left_out_with_a_warning(shop):
    rows = [("a", "i01", START), ("a", "i02", None), ("b", "i03", START)]
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    message = "^1 of 3 rows have no readable time: they are left out$"
    with pytest.warns(UserWarning, match=message):
        assert [items for items, *_ in asked(shop, frame)] == [["i01"], ["i03"]]
    with pytest.warns(UserWarning, match=message):
        shop.update(frame)
    assert [event.item for event in shop._live.events["a"]] == ["i01"]


def test_frames_keep_the_times_of_their_events(shop):
    log = events().filter(pl.col("user").is_in(["u03", "u08"])).sample(fraction=1, shuffle=True, seed=1)
    expected = {tuple(of_log(user)[0]): (*of_log(user), END) for user in ("u03", "u08")}
    for frame in (
        log,
        log.to_pandas(),
        log.with_columns(time=pl.from_epoch("time")),
        log.with_columns(time=pl.col("time") * 1000),
    ):
        assert {tuple(found[0]): found for found in asked(shop, frame)} == expected
    order = log.with_columns(time=pl.col("time") - START)
    assert all(set(times) == {NO_TIME} and at == NO_TIME for _, times, at in asked(shop, order))


@pytest.mark.parametrize(
    ("given_histories", "how", "message"),
    [
        (["i01"], {"time": "soon"}, "time: 'soon' is not a time: give a number, or a date such as"),
        (["i01"], {"time": 3}, "time: '3' is no date, and no Unix time between 1990 and 2100"),
        (["i01"], {"time": [START, START]}, "2 times for 1 histories: give one for each history, or one for all"),
        ([["i01", ("i02", START)]], {}, "pairs has something else in it: give each event its time"),
        ([("i01", START), "i02"], {}, "pairs has something else in it: give each event its time"),
        ([("i01", 1), "i02"], {}, "pairs has something else in it: give each event its time"),
        ([("i01", "i02"), ("i03", START)], {}, "may be pairs of ids or of items and times: give each event its time"),
        ([("i01", START), ("i02", "soon")], {}, "times: 'soon' is not a time"),
        ([("i01", START), ("i02", 1)], {}, "times: '1' is no time between 1990 and 2100, as others are"),
        ({"ann": [("i01", START), ("i02", 1)]}, {}, "times: '1' is no time between 1990 and 2100, as others are"),
        ([[("i01", "soon")]], {}, "times: 'soon' is not a time"),
        ([("i01", START), ("i02", None)], {}, "times: 'None' is not a time"),
        ([("i01", START), ("i02", float("nan"))], {}, "times: 'nan' is not a time"),
        ([("i01", "2024-01-05"), ("i02", pd.NaT)], {}, "times: 'NaT' is not a time"),
        ([("i01", np.datetime64("NaT")), ("i02", START)], {}, "times: 'NaT' is not a time"),
        (["i01"], {"time": [None]}, "time: 'None' is not a time"),
    ],
)
def test_times_that_make_no_sense_are_one_clear_line(shop, given_histories, how, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        shop.recommend(given_histories, **how)
    assert message in str(error.value)


FUTURE = r"times: an event of 2095-01-01 is in the future: give when it happened$"


def test_events_of_the_future_are_refused(shop):
    for histories in ([("i01", START), ("i02", "2095-01-01")], {"ann": ["i01"], "bob": [("i02", "2095-01-01")]}):
        for ask in (shop.recommend, shop.user_vectors, lambda given: shop.score(given, "i03")):
            with pytest.raises(ValueError, match=f"^{FUTURE}"):
                ask(histories)
    tomorrow = int(time.time()) + DAY - 3600  # in another time zone
    assert asked(shop, [("i01", tomorrow)]) == [(["i01"], [tomorrow], tomorrow)]


def test_a_log_may_be_ahead_of_this_clock(tmp_path):
    ahead = 50 * 365 * DAY
    run = make_run(tmp_path, events().with_columns(pl.col("time") + ahead))
    shop = bt.Recommender.load(run, scorers=(ClockScorer,))
    assert asked(shop, [("i01", END + ahead)]) == [(["i01"], [END + ahead], END + ahead)]
    with pytest.raises(ValueError, match=r"^times: an event of 2073-\d\d-\d\d is in the future"):
        shop.recommend([("i01", END + ahead + 2 * DAY)])


@pytest.mark.parametrize("wrong", [1, END * 1000, END // 1000])
def test_a_frame_of_which_one_time_is_in_another_unit_is_refused(shop, wrong):
    rows = pl.DataFrame({"user": ["a", "a", "b"], "item": ["i01", "i02", "i03"], "time": [wrong, START, END]})
    with pytest.raises(ValueError, match=f"^times: {wrong} is no time between 1990 and 2100, as others are$"):
        shop.recommend(rows)
    dates = rows.with_columns(time=pl.Series([datetime.date(1970, 1, 1), *[datetime.date(2024, 1, 5)] * 2]))
    with pytest.raises(ValueError, match=r"^times: 1970-01-01 is no time between 1990 and 2100, as others are$"):
        shop.recommend(dates)


def test_a_log_without_a_clock_has_no_times(tmp_path):
    shop = bt.Recommender.load(make_run(tmp_path, events(clock=False)), scorers=(ClockScorer,))
    assert asked(shop, users=["u04"]) == [(of_log("u04")[0], [NO_TIME] * EVENTS, NO_TIME)]


def test_events_of_updates_are_in_the_order_of_time_and_move_the_end(shop, tmp_path):
    new = [("u04", "i39", START + DAY // 2), ("u04", "i38", END + DAY), ("u99", "i37", END)]
    shop.update(pl.DataFrame(new, schema=["user", "item", "time"], orient="row"))
    live = shop._live.history("u04")
    log = [*zip(*of_log("u04"), strict=True), *((item, at) for user, item, at in new if user == "u04")]
    expected = sorted(log, key=lambda pair: pair[1])
    assert [shop.ids.name(item) for item in live.items] == [item for item, _ in expected]
    assert list(live.times) == [at for _, at in expected]
    assert shop._end() == END + DAY
    shop.save(tmp_path / "saved")
    again = bt.Recommender.load(tmp_path / "saved", scorers=(ClockScorer,))
    assert again._end() == END + DAY
    assert again._known_users().histories(["u99"], again.ids)[0].times == [END]


def test_a_refit_knows_when_recorded_events_happened(shop):
    new = [("u04", "i39", START + DAY // 2), ("u04", "i38", END + DAY), ("u99", "i37", END)]
    shop.update(pl.DataFrame(new, schema=["user", "item", "time"], orient="row"))
    data = shop.data
    events = _all_events(data, data.sections, shop._live)
    assert events.clock == data.train.events.clock
    names = [*data.joined_users(data.sections), "u99"]
    logged = [(user, item, at) for user in names[:-1] for item, at in zip(*of_log(user), strict=True)]
    expected = sorted([*logged, *new], key=lambda row: (names.index(row[0]), row[2]))
    owner = torch.repeat_interleave(events.counts()).tolist()
    seconds = events.seconds(torch.arange(len(owner))).tolist()
    items = [shop.ids.name(item) for item in events.items.tolist()]
    assert [*zip([names[row] for row in owner], items, seconds, strict=True)] == expected


def joined(shop, user):
    """The items and times of a user in a refit, which reads the log and the recorded events."""
    data = shop.data
    events = _all_events(data, data.sections, shop._live)
    row = [*dict.fromkeys([*data.joined_users(data.sections), *shop._live.events])].index(user)
    start, stop = events.offsets[row : row + 2].tolist()
    return [shop.ids.name(item) for item in events.items[start:stop].tolist()], events.times[start:stop].tolist()


@pytest.mark.parametrize("unit", [1, 1000, 10**6, 10**9])
def test_a_refit_reads_events_without_times_after_those_of_the_log_in_the_order_of_recording(
    tmp_path, monkeypatch, unit
):
    half = unit // 2  # a fraction of a second
    log = events().with_columns(time=pl.col("time") * unit + half)
    shop = bt.Recommender.load(make_run(tmp_path, log), scorers=(ClockScorer,))
    items, times = of_log("u04")
    received = times[-1] * 10**6 - DAY * 10**6  # the log is ahead of this clock, by a day for this user
    monkeypatch.setattr("beamtree.live.live_model.now", lambda: received)
    live = shop._live_model()
    live.record_events([("u04", ["i39", "i38"], None)])
    live.record_events([("u04", ["i37"], None), ("u99", ["i36", "i35"], None)])
    live.record_events([("u04", ["i34"], times[0] * 10**6 + 250_000)])  # a quarter of a second after a full second
    ordered = [items[0], "i34", *items[1:]] if unit == 1 else ["i34", *items]
    assert joined(shop, "u04")[0] == [*ordered, "i39", "i38", "i37"]
    assert joined(shop, "u04")[1][-4:] == [times[-1] * unit + half] * 4
    assert joined(shop, "u99") == (["i36", "i35"], [received // 10**6 * unit] * 2)


@pytest.mark.parametrize("recorded", [None, 3, START])
def test_a_refit_to_a_log_whose_times_are_an_order_reads_recorded_events_last(tmp_path, recorded):
    shop = bt.Recommender.load(make_run(tmp_path, events(clock=False)), scorers=(ClockScorer,))
    shop._live_model().record_events([("u04", ["i39", "i38"], recorded), ("u04", ["i37"], None)])
    assert joined(shop, "u04")[0] == [*of_log("u04")[0], "i39", "i38", "i37"]


def test_events_without_times_were_when_they_were_received(shop):
    before = int(time.time())
    live = shop._live_model()
    live.record_events([("u04", ["i39"], None), ("u98", ["i01", "i39"], None)])
    *logged, last = live.history("u04").times
    assert logged == of_log("u04")[1]
    assert before <= last <= time.time()
    assert len(live.history("u98").times) == 2


def test_all_that_a_user_ever_had_is_seen(tmp_path):
    """Also beyond the newest 1,000 events, which are read of a history."""
    rows = [("much", f"i{number:04}", START + number) for number in range(1300)]
    rows += [(f"u{u}", f"i{1300 + (u + t) % 20:04}", START + 2000 + t) for u in range(20) for t in range(10)]
    shop = bt.Recommender(steps=0, tree="random", refit=False)
    shop.fit(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"), verbose=False)
    (history,) = shop._known_users().histories(["much"], shop.ids)
    assert len(set(hidden_items(history, True))) == 1300
    expected = {f"i{number:04}" for number in range(1300, 1320)}
    assert set(shop.recommend(users="much", m=40, beam_size=2000, exclude_seen=True)["item"]) == expected
    mine = [f"i{number:04}" for number in range(1300)]
    assert set(shop.recommend(mine, m=40, beam_size=2000, exclude_seen=True)["item"]) == expected
    pinned = {"pins": ["i0000"]}
    assert set(shop.recommend(users="much", m=40, beam_size=2000, exclude_seen=True, rules=pinned)["item"]) == expected


def test_batches_keep_times_with_their_histories():
    histories = [[f"i{row}"] for row in range(10)]
    request = RecommendRequest(histories, times=[[row] for row in range(10)], time=[*range(100, 110)])
    parts = list(request.batches(3))
    assert [part.rows for part in parts] == [3, 3, 3, 1]
    rows = [row for part in parts for row in zip(part.histories, part.times, part.time, strict=True)]
    assert rows == [([f"i{row}"], [row], 100 + row) for row in range(10)]
    assert {part.time for part in request._replace(time=5).batches(3)} == {5}


def test_more_histories_than_one_batch_keep_their_times(shop):
    pairs = [[(f"i{row % ITEMS:02}", START + row)] for row in range(300)]
    found = asked(shop, pairs, time=[END + row for row in range(300)])
    assert [times for _, times, _ in found] == [[START + row] for row in range(300)]
    assert [at for _, _, at in found] == [END + row for row in range(300)]


def test_unknown_items_are_left_out_with_their_times(shop):
    encoded = encode_history(shop.ids, ["i01", "nobody", "i02"], [1, 2, 3])
    assert encoded == History(encoded.items, ["nobody"], times=[1, 3])
    assert [shop.ids.name(item) for item in encoded.items] == ["i01", "i02"]


# Files and commands


def answered(run, folder, frame, **request):
    """What the scorer read of a file."""
    frame.write_parquet(folder / "in.parquet") if "history" in frame.columns else frame.write_csv(folder / "in.csv")
    file = folder / ("in.parquet" if "history" in frame.columns else "in.csv")
    wanted = RecommendRequest(m=3, beam_size=8, **request)
    model = bt.load_model(run, scorers=(ClockScorer,))
    ClockScorer.asked.clear()
    searcher = make_searcher(run, model, wanted)
    searcher.end = lambda: END
    write_results(searcher, wanted, open_histories(file), folder / "out.parquet")
    return [([model.ids.name(item) for item in items], times, at) for items, times, at in ClockScorer.asked]


def test_files_of_events_and_of_users_have_times(run, tmp_path):
    expected = [(*of_log(user), END) for user in ("u03", "u08")]
    log = events().filter(pl.col("user").is_in(["u03", "u08"]))
    assert answered(run, tmp_path, log.sort("user", maintain_order=True)) == expected
    lists = log.sample(fraction=1, shuffle=True, seed=0).group_by("user").agg(history="item", times="time").sort("user")
    assert answered(run, tmp_path, lists) == expected
    texts = lists.with_columns(times=pl.col("times").cast(pl.List(pl.String)).list.join(", "))
    assert answered(run, tmp_path, texts) == expected
    assert answered(run, tmp_path, texts.with_columns(times=pl.format("[{}]", "times"))) == expected
    dates = lists.with_columns(times=pl.col("times").list.eval(pl.from_epoch(pl.element())))
    assert answered(run, tmp_path, dates) == expected
    assert answered(run, tmp_path, lists, time=START) == [(*found[:2], START) for found in expected]
    without = answered(run, tmp_path, lists.drop("times"))
    assert {(tuple(times), at) for _, times, at in without} == {((NO_TIME,) * EVENTS, NO_TIME)}


def test_a_file_with_too_few_times_names_the_user(run, tmp_path):
    rows = pl.DataFrame({"user": ["ann"], "history": [["i01", "i02"]], "times": [[START]]})
    with pytest.raises(ValueError, match="user 'ann': 1 times for a history of 2 items: give one for each"):
        answered(run, tmp_path, rows)


def test_the_commands_take_pairs_of_items_and_times(shop_folder, monkeypatch):
    seen = []
    encode = Searcher.encode
    monkeypatch.setattr(Searcher, "encode", lambda self, request: seen.append(request) or encode(self, request))
    given_history = json.dumps([["i02", "2024-01-06"], ["i01", 20240105]])
    for words in (["retrieve", "run"], ["explain", "run", "--item", "i03"]):
        done = beamtree(*words, "--history", given_history, folder=shop_folder)
        assert "ignored" not in done.stderr
        assert seen[-1].histories == [["i01", "i02"]]
        assert seen[-1].times == [[1_704_412_800, 1_704_499_200]]
        for wrong, message in (
            ('[["i01", "2024-01-06"], "i02"]', "give each event its time"),
            ('[["i01", "i02"], ["i03", "i04"]]', "times: 'i02' is not a time: give a number"),
            ('[["i01", "2095-01-01"]]', "times: an event of 2095-01-01 is in the future"),
            ('["i01", {}]', "is not an id: give ids as text or numbers"),
        ):
            bad = beamtree(*words, "--history", wrong, folder=shop_folder, check=False)
            assert bad.returncode == 2
            assert message in bad.stderr


def test_files_with_events_of_the_future(run, tmp_path):
    rows = pl.DataFrame({"user": ["ann"], "history": [["i01"]], "times": [["2095-01-01"]]})
    with pytest.raises(ValueError, match=f"^user 'ann': {FUTURE}"):
        answered(run, tmp_path, rows)
    log = events().filter(pl.col("user") == "u03")
    wrong = log.head(2).with_columns(time=pl.Series([END + 71 * 365 * DAY, END * 1000]))
    assert answered(run, tmp_path, pl.concat([wrong, log])) == [(*of_log("u03"), END)]  # dropped, as in `prepare`


def test_the_commands_take_the_time_of_a_request(shop_folder):
    for command in ("retrieve", "explain"):
        item = [] if command == "retrieve" else ["--item", "i03"]
        given_history = ["--history", "i01,i02", *item]
        done = beamtree(command, "run", *given_history, "--request-time", "2024-01-05", folder=shop_folder)
        assert done.returncode == 0
        bad = beamtree(command, "run", *given_history, "--request-time", "soon", folder=shop_folder, check=False)
        assert "time: 'soon' is not a time" in bad.stderr


# A service


@pytest.fixture
def client(run):
    model, data = bt.load_model(run, scorers=(ClockScorer,)), bt.load_data(run.parent / "data")
    loaded = LoadedRun(LiveModel(model, data=data), "shop", "abc", data=data, read_only=False)
    service = Service(run, lambda _: loaded, options=EngineOptions(beam_size=20, degrade_after=60.0), timeout=60.0)
    with serving(service) as client:
        client.ids = model.ids
        yield client
    service.close()


def posted(client, **body):
    """What the scorer read of a request to a service."""
    ClockScorer.asked.clear()
    response = client.post("/v1/recommend", json={"m": 3, **body})
    assert response.status_code == 200, response.text
    return read_by(client)


def read_by(client):
    """The same, with ids."""
    return [([client.ids.name(item) for item in items], *rest) for items, *rest in ClockScorer.asked]


def test_a_service_asks_about_now(client):
    before = int(time.time())
    for body, expected in (
        ({"user": "u04"}, of_log("u04")),
        ({"history": ["i01"]}, (["i01"], [NO_TIME])),
        ({"history": ["i01"], "times": [START]}, (["i01"], [START])),
    ):
        ((*found, at),) = posted(client, **body)
        assert tuple(found) == expected
        assert before <= at <= time.time()
    response = client.post("/v1/explain", json={"user": "u04", "items": ["i00"]})
    assert response.status_code == 200, response.text
    assert all(before <= at <= time.time() for _, _, at in ClockScorer.asked)


def test_a_request_to_a_service_has_times(client):
    when = "2024-03-01T12:00:00Z"
    body = {"history": ["i02", "i01"], "times": [START + 9, START], "time": when}
    expected = (["i01", "i02"], [START, START + 9], int(MOMENT.timestamp()))
    assert posted(client, **body) == [expected]
    several = {"histories": [["i02", "i01"], ["i03"]], "times": [[START + 9, START], []], "time": when}
    assert posted(client, **several) == [expected, (["i03"], [NO_TIME], int(MOMENT.timestamp()))]
    assert [at for *_, at in posted(client, users=["u01", "u02"], time=START)] == [START, START]
    ClockScorer.asked.clear()
    assert client.post("/v1/explain", json={**body, "items": ["i00"]}).status_code == 200
    assert expected in read_by(client)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"history": ["i01"], "time": "soon"}, "time: 'soon' is not a time"),
        ({"history": ["i01"], "times": [START, START]}, "2 times for a history of 1 items: give one for each"),
        ({"history": ["i01"], "times": ["soon"]}, "times: 'soon' is not a time"),
        ({"history": ["i01"], "times": ["2095-01-01"]}, "times: an event of 2095-01-01 is in the future"),
        ({"history": ["i01", "i02"], "times": [1, START]}, "times: '1' is no time between 1990 and 2100"),
        ({"history": ["i01"], "times": [[START]]}, "times: give one list for history"),
        ({"histories": [["i01"], ["i02"]], "times": [START, START]}, "times: give a list for each of the 2 histories"),
        ({"histories": [["i01"]], "times": [[START], [START]]}, "times: give a list for each of the 1 histories"),
        ({"user": "u01", "times": [START]}, "times: give them with history; those of users are known"),
    ],
)
def test_times_that_make_no_sense_are_a_422(client, body, error):
    response = client.post("/v1/recommend", json=body)
    assert response.status_code == 422
    assert error in json.dumps(response.json())
