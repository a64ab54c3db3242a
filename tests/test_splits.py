"""Who trains, validates and tests, and on what: each protocol against its definition, written out plainly."""

import sys
from collections import Counter
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_logs import write_log

from beamtree.data import load_data
from beamtree.data.prepared import SECTIONS, SPLITS
from beamtree.ingest import arrays
from beamtree.ingest.prepare import prepare
from beamtree.ingest.splits import eval_events
from beamtree.query import history_of_user

# The definitions


def clean(rows, min_events, min_item_events):
    """What stays when items and then users with few events have left, again and again; and the report."""
    events = list(dict.fromkeys(rows))
    report = Counter(duplicates=len(rows) - len(events))
    while True:
        sold = Counter(item for _, item, _ in events)
        few_items = {item for item in sold if sold[item] < min_item_events}
        left = [event for event in events if event[1] not in few_items]
        active = Counter(user for user, _, _ in left)
        few_users = {user for user, _, _ in events if active[user] < min_events}
        stay = [event for event in left if event[0] not in few_users]
        report["items_with_few_events"] += len(few_items)
        report["events_of_items_with_few_events"] += len(events) - len(left)
        report["users_with_few_events"] += len(few_users)
        report["events_of_users_with_few_events"] += len(left) - len(stay)
        if not few_items and not few_users:
            return events, report
        events = stay


def by_user(events):
    return {
        user: [(item, time) for who, item, time in sorted(events, key=lambda event: event[2]) if who == user]
        for user in sorted({user for user, _, _ in events})
    }


def leave_one_out(log):
    """Of each section: user -> (events, how many of them are history)."""
    return {
        "train": {user: (events[:-2], (len(events) - 2) // 2) for user, events in log.items()},
        "val": {user: (events[:-1], len(events) - 2) for user, events in log.items()},
        "test": {user: (events, len(events) - 1) for user, events in log.items()},
    }


def time_split(log, date):
    """The same; for validation and testing, of all users who could be drawn. `all` has everybody."""
    before = {user: [event for event in events if event[1] < date] for user, events in log.items()}
    both = {user: (log[user], len(before[user])) for user in log if 0 < len(before[user]) < len(log[user])}
    train = {user: (events, len(events) // 2) for user, events in before.items() if events}
    whole = {user: (events, len(events) // 2) for user, events in log.items()}
    return {"train": train, "val": both, "test": both, "all": whole}


def by_training(log, date):
    """The items in the order of their numbers: how often they were chosen in training, then afterwards, then by id."""
    before, sold = Counter(), Counter()
    for events in log.values():
        before.update(item for item, time in events if time < date)
        sold.update(item for item, _ in events)
    return sorted(sold, key=lambda item: (-before[item], -sold[item], item))


def told(folder):
    """What a prepared folder says of each section: user -> (events, how many of them are history)."""
    data = load_data(folder)
    times = torch.from_numpy(np.load(folder / "times.npy")) if (folder / "times.npy").exists() else None
    names = iter(data.users.names)
    found = {}
    for split, view in zip(SECTIONS, data.stored, strict=False):
        found[split] = {}
        for row in range(len(view)):
            start, stop = view.events.offsets[row : row + 2].tolist()
            items = [data.items[number] for number in view.events.items[start:stop]]
            x, y = view.batch(torch.tensor([row]))
            history = [data.items[number] for number in x[0].flip(0) if number >= 0]
            assert history + [data.items[number] for number in y[0]] == items
            moments = [None] * len(items) if times is None else times[start:stop].tolist()
            found[split][next(names)] = (list(zip(items, moments, strict=True)), len(history))
    assert next(names, None) is None
    return found


rows = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from("ijklm"), st.integers(0, 9)), min_size=12, max_size=70
)


@settings(max_examples=30)
@given(rows=rows, few=st.integers(1, 4), min_events=st.integers(2, 4), at_once=st.sampled_from([3, 1 << 24]))
def test_leave_one_out_and_few_events_are_as_defined(tmp_path_factory, rows, few, min_events, at_once):
    folder = tmp_path_factory.mktemp("log")
    path = write_log(folder, rows)
    events, report = clean(rows, max(3, min_events), few)
    options = {"min_events": min_events, "min_item_events": few, "split": "leave-one-out"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "EVENTS_AT_ONCE", at_once)
        if len({user for user, _, _ in events}) < 2 or len({item for _, item, _ in events}) < 2:
            with pytest.raises(ValueError, match="two items are needed"):
                prepare(path, folder / "out", **options)
            return
        description = prepare(path, folder / "out", **options)
    assert told(folder / "out") == leave_one_out(by_user(events))
    num_users = len(by_user(events))
    assert description["users"] == dict.fromkeys(SPLITS, num_users)
    assert (description["num_users"], description["num_events"]) == (num_users, len(events))
    sold = Counter(item for _, item, _ in events)
    assert load_data(folder / "out").items.names == sorted(sold, key=lambda item: (-sold[item], item))
    names = report.keys() if few > 1 else {name for name in report if "items" not in name}
    assert {name: description["report"][name] for name in names} == {name: report[name] for name in names}
    assert ("items_with_few_events" in description["report"]) == (few > 1)


@settings(max_examples=30)
@given(rows=rows, date=st.integers(-1, 11), few=st.integers(1, 3), at_once=st.sampled_from([3, 1 << 24]))
def test_the_split_by_time_is_as_defined(tmp_path_factory, rows, date, few, at_once):
    folder = tmp_path_factory.mktemp("log")
    path = write_log(folder, rows)
    log = by_user(clean(rows, 2, few)[0])
    expected = time_split(log, date)
    train = expected["train"]
    options = {"min_events": 2, "min_item_events": few, "split": f"time:{date}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "EVENTS_AT_ONCE", at_once)
        items = {item for events in log.values() for item, _ in events}
        if len(train) < 2 or len(items) < 2 or not expected["test"]:
            with pytest.raises(ValueError, match=CANNOT_CUT):
                prepare(path, folder / "out", **options)
            return
        description = prepare(path, folder / "out", **options)
    check_time_split(folder / "out", log, date)
    assert description["times"] == {"unit": None, "first": first(log), "last": last(log), "cut": date}


CANNOT_CUT = "two items are needed|all events, which are|no user has events both|two users with events before"


def first(log):
    return min(time for events in log.values() for _, time in events)


def last(log):
    return max(time for events in log.values() for _, time in events)


def check_time_split(folder, log, date):
    """Compare a prepared folder with the definition."""
    found, expected, data = told(folder), time_split(log, date), load_data(folder)
    assert found["train"] == expected["train"]
    assert found["all"] == expected["all"]
    both = len(expected["val"])
    test = min(1000, max(1, both // 4))
    assert (len(found["test"]), len(found["val"])) == (test, min(6000, both - test))
    assert not found["val"].keys() & found["test"].keys()
    for split in ("val", "test"):
        assert found[split] == {user: expected[split][user] for user in found[split]}
    assert data.items.names == by_training(log, date)
    counts = data.description["num_users"], data.description["num_events"]
    assert counts == (len(log), sum(map(len, log.values())))
    assert data.joined_users(data.whole) == sorted(log) == data.distinct_users.names
    for user in log:
        assert [data.items[number] for number in history_of_user(data, user).items] == [item for item, _ in log[user]]


DAY, START = 86_400, 1_600_000_000  # seconds
UNITS = {"seconds": 1, "milliseconds": 1000, "nanoseconds": 10**9, "dates": 10**6}  # per second, as stored
POINTS = {"time:1d": 1, "time:48h": 2, "time:1w": 7}  # and their days


@settings(max_examples=40)
@given(
    rows=rows,
    unit=st.sampled_from(list(UNITS)),
    point=st.sampled_from(["time", *POINTS]),
    at_once=st.sampled_from([3, 1 << 24]),
)
def test_the_cut_is_before_the_newest_tenth_or_a_period_before_the_end(tmp_path_factory, rows, unit, point, at_once):
    folder = tmp_path_factory.mktemp("log")
    clock = {day: (START + DAY * day) * UNITS[unit] for day in range(10)}
    log = by_user([(user, item, clock[day]) for user, item, day in dict.fromkeys(rows)])
    days = sorted(day for _, _, day in dict.fromkeys(rows))
    cut = days[-max(1, len(days) // 10)] if point == "time" else days[-1] - POINTS[point] + 1
    date = clock.get(cut, -1)
    given = [(user, item, datetime(1970, 1, 1) + timedelta(seconds=START + DAY * day)) for user, item, day in rows]
    if unit != "dates":
        given = [(user, item, clock[day]) for user, item, day in rows]
    path, expected = write_log(folder, given), time_split(log, date)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "EVENTS_AT_ONCE", at_once)
        if cut <= days[0] or len(expected["train"]) < 2 or not expected["test"]:
            with pytest.raises(ValueError, match=CANNOT_CUT):
                prepare(path, folder / "out", split=point)
            return
        description = prepare(path, folder / "out", split=point)
    if point == "time":
        check_time_split(folder / "out", log, date)
    else:  # the cut is just after the period begins: on whole days, the same
        assert told(folder / "out")["all"] == expected["all"]
        assert told(folder / "out")["train"] == expected["train"]
    assert description["times"]["unit"] == UNITS[unit]
    assert description["settings"]["split"] == point


# In the head


LOG = [(user, item, time) for user in "abcd" for time, item in enumerate("ijklmn")]


def test_the_last_event_is_for_testing_and_the_one_before_for_validation(tmp_path):
    prepare(write_log(tmp_path, LOG), tmp_path / "out", min_events=2, split="leave-one-out")
    data = load_data(tmp_path / "out")
    ids = data.items.names
    for view, history, target in ((data.val, "lkji", "m"), (data.test, "mlkji", "n")):
        x, y = view.batch(torch.arange(4))
        assert [[ids[number] for number in row if number >= 0] for row in x] == [list(history)] * 4
        assert [[ids[number] for number in row] for row in y] == [[target]] * 4
        assert view.seen(torch.arange(1)).shape == (1, len(history))
    assert data.train.events.counts().tolist() == [4, 4, 4, 4]
    assert data.description["settings"]["split"] == "leave-one-out"


def test_a_log_without_times_can_leave_one_out(tmp_path):
    (tmp_path / "log.csv").write_text("user,item\n" + "".join(f"{user},{item}\n" for user, item, _ in LOG))
    prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2, split="leave-one-out")
    assert told(tmp_path / "out")["test"]["b"] == ([(item, None) for item in "ijklmn"], 5)


def test_fewer_users_may_validate_and_test(tmp_path):
    path, found = write_log(tmp_path, LOG), []
    for seed in (0, 0, 1):
        options = {"val_users": 3, "test_users": 1, "seed": seed}
        description = prepare(path, tmp_path / "out", min_events=2, split="leave-one-out", **options)
        assert description["users"] == {"train": 4, "val": 3, "test": 1}
        found.append({split: list(users) for split, users in told(tmp_path / "out").items()})
    assert found[0] == found[1]
    assert found[0] != found[2]
    for split, options in (("leave-one-out", {"val_users": 4}), ("time:3", {"val_users": 1, "test_users": 3})):
        prepare(path, tmp_path / "out", min_events=2, split=split, **options)
    assert load_data(tmp_path / "out").description["users"] == {"train": 4, "val": 1, "test": 3, "all": 4}


def test_users_are_known_by_the_events_that_the_split_keeps(tmp_path):
    path = write_log(tmp_path, LOG)
    expected = {
        "halves": {"train": 6, "val": 6, "test": 6},
        "time:3": {"train": 3, "val": 6, "test": 6, "all": 6},
        "leave-one-out": {"train": 4, "val": 5, "test": 6},
    }
    for split, lengths in expected.items():
        prepare(
            path, tmp_path / "out", min_events=2, split=split, val_users=1 + (split == "leave-one-out"), test_users=1
        )
        data, sections = load_data(tmp_path / "out"), told(tmp_path / "out")
        for user in "abcd":
            last = [name for name in sections if user in sections[name]][-1]
            assert len(history_of_user(data, user).items) == lengths[last], (split, user)
        assert all(sections.values())


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "thirds"}, "split=thirds: choose halves, leave-one-out, time, time:30d, time:DATE or pairs:0.1"),
        ({"split": "time:"}, "split=time:: choose halves"),
        ({"split": "time:30d"}, "the times of the log are only an order: choose time, time:NUMBER or halves"),
        ({"split": "time:soon"}, "'soon' cannot be read; the times of the log are numbers"),
        ({"split": "time:2020-12-31"}, "'2020-12-31' cannot be read; the times of the log are numbers"),
        ({"split": "time:0"}, "split=time:0 is before all events, which are from 0 to 5"),
        ({"split": "time:6"}, "split=time:6 is after all events, which are from 0 to 5"),
        (
            {"split": "time:3", "test_users": 5},
            "0 validation and 5 test users are more than the 4 who have events both",
        ),
        (
            {"split": "leave-one-out", "test_users": 5},
            "5 test users are more than the 4 of the log: lower `test_users`",
        ),
        (
            {"split": "leave-one-out", "val_users": 9},
            "9 validation users are more than the 4 of the log: lower `val_users`",
        ),
        ({"min_item_events": 0}, "min_item_events=0 must be at least 1"),
        ({"min_item_events": 5}, "but 0 and 0 are left of 24 rows, 4 users with few events, 6 items with few events"),
        ({"split": "leave-one-out", "min_events": 7}, "two users with at least 7 events"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, options, message):
    path = write_log(tmp_path, LOG)
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the message is looked for below)
        prepare(
            path, tmp_path / "out", **{"min_events": 2, "val_users": 0 if "test_users" in options else None, **options}
        )
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]


def test_a_split_by_time_needs_times_and_users_on_both_sides(tmp_path):
    (tmp_path / "log.csv").write_text("user,item\na,i\na,j\nb,i\nb,j\n")
    with pytest.raises(ValueError, match="the log has no times; name their column with `time`"):
        prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2, split="time:5")
    days = [("a", "i", "2020-01-01"), ("a", "j", "2020-01-02"), ("b", "i", "2020-01-05"), ("b", "j", "2020-01-06")]
    days += [("c", "i", "2020-01-01"), ("c", "j", "2020-01-01")]
    path = write_log(tmp_path, days)
    with pytest.raises(ValueError, match="no user has events both before and after it"):
        prepare(path, tmp_path / "out", min_events=2, split="time:2020-01-04")
    with pytest.raises(ValueError, match="'12' cannot be read; the times of the log are dates"):
        prepare(path, tmp_path / "out", min_events=2, split="time:12")
    with pytest.raises(ValueError, match="after all events, which are from 2020-01-01 00:00:00 to 2020-01-06 00:00:00"):
        prepare(path, tmp_path / "out", min_events=2, split="time:2021-01-01")


# The command


def test_the_command_says_which_protocol(tmp_path):
    write_log(tmp_path, [*LOG, ("late", "i", 5), ("late", "j", 5), ("a", "rare", 1)])
    words = ["prepare", "log.parquet", "--out", "out", "--min-events", "2", "--min-item-events", "2"]
    done = beamtree(*words, "--split", "leave-one-out", folder=tmp_path)
    assert "Split: leave-one-out: the last event of every user is to be predicted" in done.stdout
    assert "rows of items with fewer than 2 events" in done.stdout
    done = beamtree(*words, "--split", "time:3", folder=tmp_path)
    assert "Split: time: events from 3 on are to be predicted" in done.stdout
    assert "The times of this log are only an order" in done.stdout
    assert beamtree(*words, "--split", "thirds", folder=tmp_path, check=False).returncode == 2


def test_without_matplotlib_there_is_a_note_and_no_picture(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "beamtree.research.plots", None)
    write_log(tmp_path, LOG)
    done = beamtree("prepare", "log.parquet", "--out", "out", "--min-events", "2", folder=tmp_path)
    assert "pip install 'beamtree[plots]'" in done.stderr
    assert not (tmp_path / "out" / "summary.png").exists()
    assert "summary.png" not in done.stdout
    assert "Split: halves: separate users" in done.stdout


def log_of(lengths):
    """A log in which user u00, u01, … has so many events."""
    rows = [(f"u{user:03}", f"i{place % 7}", place) for user, count in enumerate(lengths) for place in range(count)]
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")


def test_by_default_nobody_is_dropped_and_users_of_few_events_only_train(tmp_path):
    lengths = [1] * 30 + [3] * 60 + [12] * 60
    description = prepare(log_of(lengths), tmp_path / "out")
    data = load_data(tmp_path / "out")
    assert description["num_users"] == len(lengths)
    assert description["report"]["users_with_few_events"] == 0
    assert description["settings"]["min_eval_events"] == 10
    assert sorted(data.users.names) == sorted({f"u{user:03}" for user in range(len(lengths))})
    assert (len(data.val), len(data.test)) == (7, 7)
    assert {*data.val.events.counts().tolist(), *data.test.events.counts().tolist()} == {12}
    assert history_of_user(data, "u000").items == [0]


def test_users_who_are_dropped_were_never_those_that_validate_and_test(tmp_path):
    """The draw is over the users who can be drawn, so test users stay the same when others are kept as well."""
    lengths = [2] * 50 + [12] * 100
    drawn = []
    for min_events in (None, 10):
        prepare(log_of(lengths), tmp_path / f"{min_events}", min_events=min_events, val_users=5, test_users=7)
        data = load_data(tmp_path / f"{min_events}")
        drawn.append(data.users.names[len(data.train) :])
    assert drawn[0] == drawn[1]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(0, 12))
def test_eval_events_are_the_most_up_to_10_that_four_times_as_many_users_have(lengths, wanted):
    enough = [n for n in range(3, 11) if sum(length >= n for length in lengths) >= 4 * wanted]
    assert eval_events(np.array(lengths), wanted) == max(enough, default=2)


def test_an_explicit_minimum_is_that_of_evaluation_too(tmp_path):
    assert prepare(log_of([4] * 40), tmp_path / "a", min_events=3)["settings"]["min_eval_events"] == 3
    assert prepare(log_of([4] * 40), tmp_path / "b", min_eval_events=4)["settings"]["min_eval_events"] == 4
    with pytest.raises(ValueError, match=r"2 validation and 2 test users are more than the 0 who have at least 5 ev"):
        prepare(log_of([4] * 40), tmp_path / "c", min_eval_events=5)
