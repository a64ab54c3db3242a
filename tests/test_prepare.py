"""From a log to a prepared folder: every way in, every row accounted for, and never half a folder."""

import csv
import datetime
import gzip
import io
import json
import os
import random
from collections import Counter

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree, largest_file
from hypothesis import given, settings
from hypothesis import strategies as st

import beamtree as bt
from beamtree.data import load_data
from beamtree.data.prepared import SPLITS
from beamtree.files import staging
from beamtree.ingest import arrays, numbering, readers
from beamtree.ingest.columns import FORMATS, LogColumns, find_columns, is_header
from beamtree.ingest.prepare import prepare


def rows_of(users=5, events=4, items=6, seed=0):
    """A small clean log: (user, item, time), all times different and not in order."""
    draw = random.Random(seed)
    rows = [(f"u{user}", f"i{draw.randrange(items)}", 0) for user in range(users) for _ in range(events)]
    times = draw.sample(range(10**9, 17 * 10**8), len(rows))
    return [(user, item, time) for (user, item, _), time in zip(rows, times, strict=True)]


def text_of(rows, header=("user", "item", "timestamp"), separator=","):
    file = io.StringIO()
    csv.writer(file, delimiter=separator, lineterminator="\n").writerows([header, *rows] if header else rows)
    return file.getvalue()


def contents(folder):
    """What a prepared folder says: split → user → [(item, time)]; time None where there is none."""
    data = load_data(folder)
    offsets = np.load(folder / "offsets.npy")
    events = [data.items.name(number) for number in np.load(folder / "events.npy")]
    has_times = (folder / "times.npy").exists()
    times = np.load(folder / "times.npy").tolist() if has_times else [None] * len(events)
    sizes = [data.description["users"][split] for split in SPLITS]
    splits = [split for split, size in zip(SPLITS, sizes, strict=True) for _ in range(size)]
    found = {split: {} for split in SPLITS}
    for row, split in enumerate(splits):
        span = slice(offsets[row], offsets[row + 1])
        found[split][data.users.name(row)] = list(zip(events[span], times[span], strict=True))
    return found


def histories(folder):
    return {user: events for split in contents(folder).values() for user, events in split.items()}


def oracle(rows, min_events):
    """The rules, row by row: user → [(item, time)], and the counts of the report."""
    report = Counter(rows=len(rows))
    raw, seen, kept = {"users": set(), "items": set()}, set(), {}
    for user, item, time in rows:
        for kind, name in (("users", user), ("items", item)):
            if name and name.strip():
                raw[kind].add(name)
        if not user or not user.strip():
            report["missing_user"] += 1
        elif not item or not item.strip():
            report["missing_item"] += 1
        elif not time.lstrip("-").isdigit():
            report["unreadable_time"] += 1
        elif (event := (user.strip(), item.strip(), int(time))) in seen:
            report["duplicates"] += 1
        else:
            seen.add(event)
            kept.setdefault(event[0], []).append(event[1:])
    for kind, names in raw.items():
        report[f"merged_{kind}"] = len(names) - len({name.strip() for name in names})
    few = {user for user, events in kept.items() if len(events) < min_events}
    report["users_with_few_events"] = len(few)
    report["events_of_users_with_few_events"] = sum(len(kept[user]) for user in few)
    return {user: sorted(kept[user], key=lambda e: e[1]) for user in kept if user not in few}, report


users = st.sampled_from(["a", "b", " a", "b\t", "007", "7", "", None])
items = st.sampled_from(["a", "b", "c", " a", "a,b", 'q"r', "1.0", "é", " ", None])
times = st.sampled_from(["0", "1", "1", "-5", "17", "later"])


@pytest.mark.extended
@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(users, items, times), min_size=1, max_size=60),
    min_events=st.integers(2, 4),
    at_once=st.sampled_from([3, 1 << 24]),
    parquet=st.booleans(),
)
def test_prepare_agrees_with_the_rules_row_by_row(tmp_path_factory, rows, min_events, at_once, parquet):
    folder = tmp_path_factory.mktemp("log")
    rows = [*rows, ("z", "z", "3")]  # one time at least can be read
    if parquet:
        log = folder / "log.parquet"
        pl.DataFrame(rows, schema=dict.fromkeys(("user", "item", "time"), pl.String), orient="row").write_parquet(log)
    else:
        log = folder / "log.csv"
        log.write_text(text_of(rows, ("user", "item", "time")), encoding="utf-8")
    expected, report = oracle(rows, min_events)
    items = Counter(item for events in expected.values() for item, _ in events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "EVENTS_AT_ONCE", at_once)
        if len(expected) < 2 or len(items) < 2:
            with pytest.raises(ValueError, match="two items are needed"):
                prepare(log, folder / "out", min_events=min_events)
            assert not (folder / "out").exists()
            return
        description = prepare(log, folder / "out", min_events=min_events)
    assert histories(folder / "out") == expected
    found = {name: count for name, count in description["report"].items() if name != "ignored_columns"}
    assert found == {name: report[name] for name in found}
    data = load_data(folder / "out")
    assert data.items.names == sorted(items, key=lambda item: (-items[item], item))
    for users in contents(folder / "out").values():
        assert list(users) == sorted(users)
    assert data.train.events.popularity(data.num_items).sum() == sum(
        len(e) for e in contents(folder / "out")["train"].values()
    )


def test_a_repeat_is_found_among_events_at_the_same_time():
    events = pl.DataFrame({"user": [1, 1, 0, 1, 1], "item": [7, 5, 7, 7, 7], "time": [2, 2, 2, 2, 3]})
    result = numbering.sort_events(events).to_dict(as_series=False)
    assert result == {"user": [0, 1, 1, 1], "item": [7, 7, 5, 7], "time": [2, 2, 2, 3]}


# Ways in


def write_csv(folder, rows):
    (folder / "log.csv").write_text(text_of(rows))


def write_without_header(folder, rows):
    (folder / "log.csv").write_text(text_of(rows, header=None))


def write_tsv(folder, rows):
    (folder / "log.tsv").write_text(text_of(rows, separator="\t"))


def write_semicolons(folder, rows):
    (folder / "log.csv").write_text("\ufeff" + text_of(rows, separator=";"), encoding="utf-8")


def write_gz(folder, rows):
    with gzip.open(folder / "log.csv.gz", "wt") as file:
        file.write(text_of(rows))


def write_parquet(folder, rows):
    pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row").write_parquet(folder / "log.parquet")


def write_lines(folder, rows):
    lines = [json.dumps({"user": u, "item": i, "timestamp": t}) for u, i, t in rows]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")


def write_many(folder, rows):
    pl.DataFrame(rows[:7], schema=["user", "item", "timestamp"], orient="row").write_parquet(folder / "a.parquet")
    (folder / "b.csv").write_text(text_of(rows[7:]))
    (folder / "_SUCCESS").write_text("")  # what is no log is left alone


@pytest.mark.parametrize(
    "write",
    [
        write_csv,
        write_without_header,
        write_tsv,
        write_semicolons,
        write_gz,
        write_parquet,
        write_lines,
        write_many,
    ],
)
def test_every_kind_of_file_gives_the_same_data(tmp_path, write):
    (tmp_path / "logs").mkdir()
    write(tmp_path / "logs", rows := rows_of())
    description = prepare(tmp_path / "logs", tmp_path / "out", min_events=2)
    expected, _ = oracle([(u, i, str(t)) for u, i, t in rows], 2)
    assert histories(tmp_path / "out") == expected
    assert description["sources"] == sorted(path.name for path in (tmp_path / "logs").iterdir() if path.suffix)


@pytest.mark.parametrize(
    ("preset", "line"),
    [("amazon-ratings", "{0},{1},5.0,{2}\n"), ("user-behavior", "{0},{1},2520377,pv,{2}\n")],
)
def test_presets_read_the_papers_own_files(tmp_path, preset, line):
    rows = [(user[1:], item[1:].zfill(10), time) for user, item, time in rows_of(users=9)]
    (tmp_path / "log.csv").write_text("".join(line.format(*row) for row in rows))
    for out, names in (("preset", FORMATS[preset]), ("guessed", None)):
        description = prepare(tmp_path / "log.csv", tmp_path / out, names=names, min_events=2)
        expected, _ = oracle([(u, i, str(t)) for u, i, t in rows], 2)
        assert histories(tmp_path / out) == expected
        assert len(description["report"]["ignored_columns"]) == len(FORMATS[preset]) - 3


def test_a_preset_wants_its_number_of_columns(tmp_path):
    (tmp_path / "log.csv").write_text("u,i,5\n")
    with pytest.raises(ValueError, match=r"has 3 columns, not the 4 of the format: user, item, rating, timestamp"):
        prepare(tmp_path / "log.csv", tmp_path / "out", names=FORMATS["amazon-ratings"])
    write_parquet(tmp_path, rows_of())
    with pytest.raises(ValueError, match="names its own columns"):
        prepare(tmp_path / "log.parquet", tmp_path / "out", names=FORMATS["amazon-ratings"])


def test_ids_stay_the_text_they_are(tmp_path):
    names = ["007", "7", "1.0", "1", "1e3", "true", "NaN", "null", "é", "a b"]
    rows = [(user, item, place) for user in names for place, item in enumerate(names)]
    (tmp_path / "log.csv").write_text(text_of(rows))
    prepare(tmp_path / "log.csv", tmp_path / "out")
    data = load_data(tmp_path / "out")
    assert set(data.items.names) == set(data.users.names) == set(names)
    assert data.items.find(["007", " 7 ", "8"]) == [data.items.names.index("007"), data.items.names.index("7"), None]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1, 2, 10**18], ["1", "2", str(10**18)]),
        ([1.0, 2.5, 3.0], ["1", "2.5", "3"]),
        ([True, False, True], ["true", "false", "true"]),
        (pl.Series(["x", "y", "x"], dtype=pl.Categorical), ["x", "y", "x"]),
    ],
)
def test_ids_of_any_type_become_text(tmp_path, column, expected):
    frame = pl.DataFrame({"user": column, "time": [1, 2, 3]})
    frame = pl.concat([frame.with_columns(item=pl.lit(item)) for item in ("i", "j")])
    frame.write_parquet(tmp_path / "log.parquet")
    prepare(tmp_path / "log.parquet", tmp_path / "out", min_events=2)
    assert set(load_data(tmp_path / "out").users.names) == set(expected)


def test_a_float_that_is_not_a_number_is_a_missing_id(tmp_path):
    pl.DataFrame({"user": [1.0, 1.0, 2.0, 2.0, float("nan")], "item": [1, 2, 1, 2, 1]}).write_parquet(
        tmp_path / "l.parquet"
    )
    assert prepare(tmp_path / "l.parquet", tmp_path / "out", min_events=2)["report"]["missing_user"] == 1


NOON = datetime.datetime(2020, 12, 31, 12, tzinfo=datetime.UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["5", " 7 ", "-1"], [5, 7, -1]),
        ([5.0, 7.0, -1.0], [5, 7, -1]),
        ([0.25, 1e3, 2.0], [250_000, 10**9, 2_000_000]),
        (["0.25", "1e3", "2"], [250_000, 10**9, 2_000_000]),
        (
            ["2020-12-31", "2020/12/31 12:00", "2020-12-31 12:00:00.5"],
            [NOON_US - 43_200_000_000, NOON_US, NOON_US + 500_000],
        ),
        (
            ["2020-12-31T12:00:00Z", "2020-12-31 13:00:00+01:00", "2020-12-31T12:00:01"],
            [NOON_US, NOON_US, NOON_US + 10**6],
        ),
        ([NOON, NOON + datetime.timedelta(seconds=1), NOON], [NOON_US, NOON_US + 10**6, NOON_US]),
        ([NOON.date()] * 3, [NOON_US - 43_200_000_000] * 3),
    ],
)
def test_times_of_any_type_become_whole_numbers(tmp_path, column, expected):
    frame = pl.DataFrame({"user": ["a", "b", "c"], "time": column})
    frame = pl.concat([frame.with_columns(item=pl.lit(item)) for item in ("i", "j")])
    frame.write_parquet(tmp_path / "log.parquet")
    prepare(tmp_path / "log.parquet", tmp_path / "out", min_events=2)
    found = {user: {time for _, time in events} for user, events in histories(tmp_path / "out").items()}
    assert found == {user: {time} for user, time in zip("abc", expected, strict=True)}


def test_dates_of_several_units_and_zones_are_one_time(tmp_path):
    for place, dtype in enumerate((pl.Datetime("ns"), pl.Datetime("ms", "UTC"), pl.Date)):
        time = pl.Series([NOON.replace(hour=0, tzinfo=None)] * 2).cast(dtype)
        frame = pl.DataFrame({"user": f"u{place}", "item": ["i", "j"], "time": time})
        frame.write_parquet(tmp_path / f"{place}.parquet")
    prepare(tmp_path, tmp_path / "out", min_events=2)
    times = {time for events in histories(tmp_path / "out").values() for _, time in events}
    assert times == {NOON_US - 43_200_000_000}


def test_dates_and_numbers_are_not_one_time(tmp_path):
    for name, time in (("a", NOON), ("b", 1.5)):
        pl.DataFrame({"user": ["u"], "item": ["i"], "time": [time]}).write_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match=r"the times of a.parquet are dates, those of b.parquet numbers"):
        prepare(tmp_path, tmp_path / "out", min_events=2)


def test_a_log_without_times_is_in_order(tmp_path):
    rows = [(user, item) for item in ("j", "i", "j", "k") for user in ("b", "a", "c")]
    (tmp_path / "log.csv").write_text(text_of(rows, ("user", "item")))
    description = prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2)
    assert description["settings"]["time"] is None
    assert description["report"]["duplicates"] == 0
    assert not (tmp_path / "out" / "times.npy").exists()
    assert set(map(tuple, histories(tmp_path / "out").values())) == {
        (("j", None), ("i", None), ("j", None), ("k", None))
    }


@pytest.mark.parametrize("column", ["user", "item", "timestamp"])
@pytest.mark.parametrize(
    ("first", "then"),
    [(int, str), (str, int), (int, float), (float, int), (float, str), (lambda _: None, int)],
    ids=["int-str", "str-int", "int-float", "float-int", "float-str", "null-int"],
)
def test_json_lines_may_change_their_types_at_any_line(tmp_path, monkeypatch, column, first, then):
    """A number and its digits are one id and one time, and every row is kept or counted."""
    monkeypatch.setattr(readers, "SCHEMA_LINES", 30)
    rows = [{"user": row % 8, "item": row * 7 % 20, "timestamp": row} for row in range(100)]
    lines = [{**row, column: (then if place >= 50 else first)(row[column])} for place, row in enumerate(rows)]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    report = prepare(tmp_path / "log.jsonl", tmp_path / "out", min_events=2)["report"]
    names = {"user": "missing_user", "item": "missing_item", "timestamp": "unreadable_time"}
    lost = 50 if first(1) is None else 0
    assert {name: report[name] for name in names.values()} == {**dict.fromkeys(names.values(), 0), names[column]: lost}
    assert report["merged_users"] == report["merged_items"] == report["duplicates"] == 0
    expected, _ = oracle([(str(row["user"]), str(row["item"]), str(row["timestamp"])) for row in rows[lost:]], 2)
    assert histories(tmp_path / "out") == expected


def test_json_lines_may_change_after_more_lines_than_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "SCHEMA_LINES", 500)
    lines = [{"user": row % 40, "item": row % 60, "time": row} for row in range(2_500)]
    lines += [{"user": str(row % 40), "item": str(row % 60), "time": str(row)} for row in range(2_500, 3_000)]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    beamtree("prepare", "log.jsonl", "--out", "out", folder=tmp_path)
    data = load_data(tmp_path / "out")
    found = data.description
    assert (found["num_users"], found["num_items"], found["num_events"]) == (40, 60, len(lines))


def test_json_lines_keep_the_text_of_text(tmp_path):
    """1.0 as a number is 1, as a text it is itself; numbers of any length keep their digits."""
    names = [1, 1.0, "1.0", "01", 2**70, 2.5, True, "x"]
    lines = [{"user": user, "item": item, "time": 5} for user in "ab" for item in names]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert prepare(tmp_path / "log.jsonl", tmp_path / "out", min_events=2)["report"]["duplicates"] == 2
    assert set(load_data(tmp_path / "out").items.names) == {"1", "1.0", "01", str(2**70), "2.5", "true", "x"}


@pytest.mark.parametrize("late", [1600000000.5, "1600000000.5", "soon"])
def test_a_time_in_another_way_at_the_end_is_read_or_counted(tmp_path, monkeypatch, late):
    monkeypatch.setattr(readers, "SCHEMA_LINES", 30)
    lines = [{"user": row % 4, "item": row % 5, "time": row} for row in range(100)] + [
        {"user": 9, "item": item, "time": late} for item in (1, 2)
    ]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    report = prepare(tmp_path / "log.jsonl", tmp_path / "out", min_events=2)["report"]
    assert report["unreadable_time"] == (2 if late == "soon" else 0)
    found = histories(tmp_path / "out")
    assert ("9" in found) == (late != "soon")
    if late != "soon":  # then all become millionths
        assert found["9"] == [("1", 1_600_000_000_500_000), ("2", 1_600_000_000_500_000)]
        assert found["1"][0] == ("1", 1_000_000)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (("user_id", "item_id", "timestamp"), ("user_id", "item_id", "timestamp")),
        (("reviewerID", "asin", "overall", "unixReviewTime"), ("reviewerID", "asin", "unixReviewTime")),
        (("movieId", "userId", "rating"), ("userId", "movieId", None)),
        (("session_id", "User Id", "product-id", "date", "ts"), ("User Id", "product-id", "ts")),
        (("visitorid", " itemid", "time "), ("visitorid", " itemid", "time ")),
        (("1", "2", "3", "4"), ("1", "2", "4")),
        (("1", "2"), ("1", "2", None)),
    ],
)
def test_columns_are_found_by_their_usual_names(columns, found):
    assert find_columns(columns) == found


def test_columns_that_are_asked_for_win():
    assert find_columns(("user", "item", "time", "who"), LogColumns(user="who")) == ("who", "item", "time")
    assert find_columns(("1", "2", "3"), LogColumns(user="3", item="1")) == ("3", "1", None)
    assert find_columns((" who", "what"), LogColumns(user="who", item="what")) == (" who", "what", None)
    assert is_header(["kunde", "artikel"], ["kunde"])
    assert not is_header(["kunde", "artikel"], ["1"])
    assert not is_header(["alice", "item", "5"], [])
    assert not is_header(["A1", "B2"], [])


def test_the_half_split_is_read_back(tmp_path):
    rows = [(user, f"i{place}", place) for user in "abc" for place in range(7)]
    (tmp_path / "log.csv").write_text(text_of(rows))
    prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2)
    data = load_data(tmp_path / "out")
    x, y = data.test.batch(torch.arange(1))
    assert [data.items[number] for number in x[0, :3]] == ["i2", "i1", "i0"]  # newest first
    assert (x[0, 3:] == -1).all()
    assert [data.items[number] for number in y[0]] == ["i3", "i4", "i5", "i6"]


@pytest.mark.parametrize(
    ("users", "asked", "sizes"),
    [(3, {}, (1, 1, 1)), (2, {}, (2, 0, 0)), (60, {}, (54, 3, 3)), (9, {"val_users": 0, "test_users": 5}, (4, 0, 5))],
)
def test_users_are_split_apart_by_the_seed(tmp_path, users, asked, sizes):
    write_csv(tmp_path, rows_of(users))
    splits = []
    for seed in (0, 0, 1):
        out = tmp_path / f"out{len(splits)}"
        prepare(tmp_path / "log.csv", out, min_events=2, seed=seed, **asked)
        splits.append(contents(out))
        assert tuple(len(splits[-1][split]) for split in SPLITS) == sizes
        assert len({user for split in splits[-1].values() for user in split}) == users
    assert splits[0] == splits[1]
    if users == 60:
        assert splits[0] != splits[2]


def test_same_log_same_bytes(tmp_path):
    draw = random.Random(1)
    rows = [(draw.randrange(3000), draw.randrange(500), draw.randrange(50)) for _ in range(60_000)]
    write_parquet(tmp_path, rows)
    for out in ("a", "b"):
        prepare(tmp_path / "log.parquet", tmp_path / out)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(["description.json", "events.npy", "items.txt", "offsets.npy", "times.npy", "users.txt"])
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert str(tmp_path) not in (tmp_path / "a" / "description.json").read_text()


def test_the_order_of_rows_survives_reading_in_pieces(tmp_path):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"user": rng.integers(0, 2000, 400_000), "item": rng.integers(0, 500, 400_000)})
    frame.write_csv(tmp_path / "log.csv")
    prepare(tmp_path / "log.csv", tmp_path / "out", split="halves")
    expected = frame.cast(pl.String).group_by("user", maintain_order=True).agg("item")
    found = {user: [item for item, _ in events] for user, events in histories(tmp_path / "out").items()}
    assert found == dict(expected.iter_rows())


def test_the_summary_can_be_done_in_the_head():
    found = arrays.summarize(np.array([0, 2, 2, 3, 13]), np.array([10, 0, *[1] * 9, 1]))
    events = found["events_per_user"]
    assert (events["min"], events["median"], events["mean"], events["max"]) == (2, 2.5, 5, 13)
    assert events["histogram"] == [{"from": 2, "to": 4, "users": 3}, {"from": 10, "to": 19, "users": 1}]
    shares = {point["top"]: point["share"] for point in found["popularity"]}
    assert shares[0.001] == shares[0.01] == 10 / 20  # of eleven items, one
    assert shares[0.1] == 11 / 20
    assert shares[0.5] == 15 / 20
    assert shares[1.0] == 1


# Bad input


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        ("", {}, "is empty"),
        ("user,item,time\n", {}, "0 and 0 are left of a log without rows"),
        ("user,item,time\n,i,1\nu,,2\n", {}, "0 and 0 are left of 2 rows, 1 missing user, 1 missing item"),
        ("user,item,time\nu,i,1\nu,j,2\n", {}, "two users with at least 2 events"),
        ("user,item,time\nu,i,1\nu,i,2\nv,i,1\nv,i,2\n", {}, "but 2 and 1 are left of 4 rows"),
        ("user,item,time\nu,i,soon\n", {}, r"no time in column 'time' can be read \(the first is 'soon'\)"),
        ("item,time\ni,1\n", {}, r"no column for the user was found: name it with `user`; the columns are item, time"),
        ("alice,bread\nbob,milk\n", {}, r"the columns are alice, bread \(or 1, 2, … if that is not a header\)"),
        ("a,1\n", {"user": "3"}, "no column '3' for `user`: the log has no header; its columns are 1 … 2"),
        ("user,item\nu,i\n", {"time": "when"}, "no column 'when' for `time`: the columns are user, item"),
        ("user,item\nu,i\n", {"user": "item", "item": "item"}, "must be different columns"),
        ('user,item\n"a\nb",i\na,i\n', {}, r"the id 'a\\nb' of a user contains a line break"),
        ('user,item\na,"i\nj"\na,i\n', {}, r"the id 'i\\nj' of an item contains a line break"),
        ("user,item\nu,i\nu,i,9\n", {}, "cannot be read: found more fields"),
        ("user,item\nu,\xff\n", {}, "cannot be read: invalid utf-8"),
        ("user,item\nu,i\n", {"min_events": 0}, "min_events=0 must be at least 1"),
        ("user,item\nu,i\n", {"min_eval_events": 1}, "min_eval_events=1: a validation or test user needs at least 2"),
        ("user,item\nu,i\n", {"test_users": -1}, "test_users=-1 is negative"),
        (text_of(rows_of()), {"test_users": 4}, "1 validation and 4 test users leave none of 5 users for training"),
    ],
)
def test_bad_logs_are_refused_in_one_line(tmp_path, text, asked, message):
    (tmp_path / "log.csv").write_text(text, encoding="latin-1" if "\xff" in text else "utf-8")
    with pytest.raises(ValueError, match=message) as error:
        prepare(tmp_path / "log.csv", tmp_path / "out", **{"min_events": 2, **asked})
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_files_must_be_there_be_logs_and_agree(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\nu,i\n")
    (tmp_path / "b.csv").write_text("user,thing\nu,i\n")
    (tmp_path / "c.parquet").write_text("no Parquet")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.md").write_text("")
    for sources, message in (
        (["a.csv", "b.csv"], "a.csv has user, item; b.csv has user, thing"),
        (["c.parquet"], "c.parquet cannot be read"),
        (["empty"], "a log is .csv"),
        (["notes.md"], "a log is .csv"),
        (["gone.csv"], "gone.csv does not exist"),
        ([], "no log was given"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare([tmp_path / source for source in sources], tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("log.jsonl", b"", "log.jsonl cannot be read: "),
        ("log.jsonl", b'[{"user": 1, "item": 2}]\n', "log.jsonl cannot be read: "),
        ("log.jsonl", b'{"user": 1, "item": 2}\n{"user": 1, "it', "log.jsonl cannot be read: "),
        ("log.jsonl", b'\xef\xbb\xbf{"user": 1, "item": 2}\n', "log.jsonl begins with a byte order mark"),
        ("log.jsonl", b'{"user": [1], "item": 2}\n', r"column 'user' holds List"),
        ("log.csv", text_of(rows_of()).encode("utf-16"), "log.csv is not UTF-8 (perhaps it is UTF-16)"),
        ("log.csv", text_of(rows_of()).encode("utf-16-le"), "log.csv is not UTF-8 (perhaps it is UTF-16)"),
        ("log.csv.gz", b"user,item\n", "log.csv.gz cannot be read: Not a gzipped file"),
        (
            "log.csv.gz",
            gzip.compress(text_of(rows_of(1000)).encode())[:3000],
            "log.csv.gz cannot be read: unexpected end",
        ),
        ("log.csv.gz", gzip.compress(b"user,item\n", mtime=0)[:14], "log.csv.gz cannot be read: "),
    ],
)
def test_broken_files_are_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    done = beamtree("prepare", name, "--out", "out", folder=tmp_path, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.endswith("…")]  # less progress
    assert line.startswith(f"beamtree: {message}")
    assert os.listdir(tmp_path) == [name]


def test_columns_that_hold_lists_are_refused(tmp_path):
    pl.DataFrame({"user": [["a"]], "item": ["i"]}).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(ValueError, match=r"column 'user' holds List\(String\)"):
        prepare(tmp_path / "log.parquet", tmp_path / "out")
    pl.DataFrame({"user": ["a"], "item": ["i"], "time": [["a"]]}).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(ValueError, match="times are numbers, dates or text"):
        prepare(tmp_path / "log.parquet", tmp_path / "out")


# All or nothing


@pytest.fixture
def prepared_before(tmp_path):
    """A log, and a folder prepared from another one; gives what the folder holds."""
    write_csv(tmp_path, rows_of(seed=1))
    prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    write_csv(tmp_path, rows_of(users=200, events=100))
    yield
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "out"]
    load_data(tmp_path / "out")


@pytest.mark.parametrize("step", ["prepare.join_blocks", "prepare.write_data", "arrays.write_ids", "arrays.summarize"])
def test_a_full_disk_is_one_line_and_changes_nothing(tmp_path, monkeypatch, prepared_before, step):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"beamtree.ingest.{step}", fail)
    done = beamtree("prepare", "log.csv", "--out", "out", folder=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"beamtree: {tmp_path} cannot be written: No space left on device"


@pytest.mark.parametrize("size", [1_000, 150_000])  # the first stops Polars, the second the sorted times
def test_a_disk_that_is_really_full_changes_nothing(tmp_path, prepared_before, size):
    with largest_file(size), pytest.raises(OSError, match="File too large"):
        prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2)


def test_an_interrupt_changes_nothing_and_no_draft_loads(tmp_path, prepared_before):
    def stop_at_the_end(stage):
        for draft in tmp_path.glob("*.new-*"):
            with pytest.raises(ValueError, match="holds no prepared data"):
                load_data(draft)
        if stage.startswith("writing"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2, on_stage=stop_at_the_end)


def test_a_second_interrupt_while_clearing_up_leaves_no_draft(tmp_path, monkeypatch, prepared_before):
    """Polars makes two interrupts of one; the second comes as soon as Python runs again."""
    waiting = []

    def stop(stage):
        if stage.startswith("sorting"):
            waiting.append(KeyboardInterrupt)
            raise KeyboardInterrupt

    def remove(path, really=staging.remove):
        if waiting:
            raise waiting.pop()
        really(path)

    monkeypatch.setattr(staging, "remove", remove)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2, on_stage=stop)


def test_a_move_that_fails_puts_the_old_folder_back(tmp_path, monkeypatch, prepared_before):
    rename = os.rename
    monkeypatch.setattr(staging, "exchange", lambda one, other: False)

    def fail_once(source, target):
        if ".new-" in str(source):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(OSError, match="No space left"):
        prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    write_csv(tmp_path, rows_of())
    with pytest.raises(ValueError, match="holds something else"):
        prepare(tmp_path / "log.csv", tmp_path)
    with pytest.raises(ValueError, match=r"log.csv is a file: choose another name"):
        prepare(tmp_path / "log.csv", tmp_path / "log.csv")


@pytest.mark.extended
@pytest.mark.parametrize("name", ["notes.md", "run/run.json", "log.csv"])
def test_what_others_put_into_a_prepared_folder_is_not_lost(tmp_path, name):
    write_csv(tmp_path, rows_of())
    beamtree("prepare", "log.csv", "--out", "out", "--min-events", "2", folder=tmp_path)
    beamtree("prepare", "log.csv", "--out", "out", "--min-events", "2", folder=tmp_path)  # what is its own is replaced
    theirs = tmp_path / "out" / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("theirs")
    done = beamtree("prepare", "log.csv", "--out", "out", "--min-events", "2", folder=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"beamtree: out holds prepared data and also {name.split('/')[0]}: move that away")
    assert theirs.read_text() == "theirs"


@pytest.mark.parametrize("before", ["empty", "prepared"])
def test_the_folder_one_is_in_is_not_replaced(tmp_path, before):
    write_csv(tmp_path, rows_of())
    inside = tmp_path / "out"
    inside.mkdir()
    if before == "prepared":
        prepare(tmp_path / "log.csv", inside, min_events=2)
    names = os.listdir(inside)
    done = beamtree("prepare", "../log.csv", "--out", ".", "--min-events", "2", folder=inside, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "beamtree: . is the current folder, which cannot be replaced: choose another one"
    ]
    assert os.listdir(inside) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "out"]
    beamtree("prepare", "../log.csv", "--out", "../other", "--min-events", "2", folder=inside)


def test_a_place_for_a_disk_is_known_before_the_work(tmp_path, monkeypatch):
    write_csv(tmp_path, rows_of())
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "out")
    with pytest.raises(ValueError, match="choose a folder inside"):
        prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2)
    prepare(tmp_path / "log.csv", tmp_path / "out" / "inside", min_events=2)


def test_a_link_stays_a_link(tmp_path):
    write_csv(tmp_path, rows_of())
    (tmp_path / "link").symlink_to("out")
    for _ in range(2):
        prepare(tmp_path / "log.csv", tmp_path / "link", min_events=2)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "log.csv", "out"]
        assert (tmp_path / "link").is_symlink()
        assert load_data(tmp_path / "out").num_items == load_data(tmp_path / "link").num_items


def test_what_a_killed_process_left_is_no_hindrance_and_goes(tmp_path):
    write_csv(tmp_path, rows_of())
    prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2)
    for state in (staging.NEW, staging.OLD):
        (tmp_path / f"out{state}" / "work").mkdir(parents=True)
    prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "out"]


# The command


def test_the_command_tells_saves_and_draws(tmp_path):
    rows = [(f"[u{user}]", f"i{place}", place) for user in range(30) for place in range(user + 1)]
    text = text_of([*rows, rows[-1], ("", "i", "1"), ("[u3] ", "i", "9"), ("u", "i", "soon")])
    (tmp_path / "log.csv").write_text(text)
    words = [
        "prepare",
        "log.csv",
        "--out",
        "data/mine",
        "--json",
        "told/it.json",
        "--test-users",
        "2",
        "--min-events",
        "10",
    ]
    done = beamtree(*words, folder=tmp_path)
    assert "sorting, part 1 of 1" in done.stderr
    for line in (
        "Columns: user user, item item, time timestamp",
        "rows of users with fewer than 10 events",
        "rows whose time cannot be read",
        "1 ids of users differ from others only in white space",
        "10 – 19  ████",
        "the top 0.1 % have",
        "Next: beamtree train data/mine --out runs/mine",
    ):
        assert line in done.stdout
    description = json.loads((tmp_path / "told" / "it.json").read_text())
    assert description == load_data(tmp_path / "data" / "mine").description
    assert description["users"] == {"train": 18, "val": 1, "test": 2}
    assert (tmp_path / "data" / "mine" / "summary.png").stat().st_size > 10_000
    beamtree(*words, folder=tmp_path)  # its own folder may be replaced


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["log.csv"], "--out"),
        (["log.csv", "--out", "x", "--format", "movielens"], "choose from amazon-ratings, user-behavior"),
        (["log.csv", "--out", "x", "--min-events", "0"], "--min-events"),
        (["log.csv", "--out", "x", "--json", "."], "cannot be written"),
        (["gone.csv", "--out", "x"], "gone.csv does not exist"),
        (["log.csv", "--out", "x", "--min-events", "2"], "--min-events"),
    ],
)
def test_a_users_error_is_one_line_and_exit_code_2(tmp_path, words, message):
    (tmp_path / "log.csv").write_text("user,item\nu,i\n")
    done = beamtree("prepare", *words, folder=tmp_path, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.endswith("…")]  # less progress
    assert line.startswith("beamtree: ")
    assert message in line
    assert not (tmp_path / "x").exists()


# The front door


def test_the_front_door_prepares(tmp_path):
    write_csv(tmp_path, rows_of())
    description = bt.prepare(tmp_path / "log.csv", tmp_path / "out", min_events=2)
    assert bt.load_data(tmp_path / "out").description == description
    assert not hasattr(bt, "prepair")


def test_a_column_without_a_name_has_one_in_the_report(tmp_path):
    """As in a CSV that pandas wrote with its index."""
    rows = [(number, *row) for number, row in enumerate(rows_of())]
    (tmp_path / "log.csv").write_text(text_of(rows, ("", "user", "item", "timestamp")))
    done = beamtree("prepare", "log.csv", "--out", "out", folder=tmp_path)
    assert "not used: column 1 (unnamed)" in " ".join(done.stdout.split())
    assert load_data(tmp_path / "out").description["report"]["ignored_columns"] == ["column 1 (unnamed)"]
    (tmp_path / "log.csv").write_text(text_of(rows, (" ", "who", "what", "timestamp")))
    with pytest.raises(ValueError, match=r"the columns are column 1 \(unnamed\), who, what, timestamp"):
        prepare(tmp_path / "log.csv", tmp_path / "other")
