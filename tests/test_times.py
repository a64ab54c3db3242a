"""The date of a split is read as the times of the log are."""

import datetime

import numpy as np
import polars as pl
import pytest
from command import beamtree
from sample_logs import write_log

from beamtree.data import load_data
from beamtree.data.times import as_time, parse_date
from beamtree.ingest.prepare import prepare
from beamtree.ingest.times import EPOCH, TimeScale, iso_date, parse_times

LOG = [(user, item, time) for user in "abcd" for time, item in enumerate("ijklmn")]


@pytest.mark.parametrize(
    ("first", "date"),
    [
        (datetime.date(2020, 12, 28), "2020-12-31"),
        (datetime.datetime(2020, 12, 28, 10), "2020-12-31 09:59:59"),
        (datetime.datetime(2020, 12, 28, 10), "2020/12/31T10:00Z"),
        (datetime.datetime(2020, 12, 28, 10, tzinfo=datetime.UTC), "2020-12-31 11:00:00+01:00"),
    ],
)
@pytest.mark.parametrize("text", [False, True])
def test_dates_are_written_as_in_logs(tmp_path, first, date, text):
    rows = [(user, item, first + datetime.timedelta(days=time)) for user, item, time in LOG]
    rows = [(user, item, str(time)) for user, item, time in rows] if text else rows
    prepare(write_log(tmp_path, rows), tmp_path / "out", min_events=2, split=f"time:{date}")
    assert load_data(tmp_path / "out").train.events.counts().tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("factor", "date", "before"), [(1, "3", 3), (1, "2.5", 3), (10, "3e1", 3), (0.5, "1.5", 3), (0.5, "1.25", 3)]
)
def test_numbers_are_in_the_unit_of_the_log(tmp_path, factor, date, before):
    rows = [(user, item, time * factor) for user, item, time in LOG]
    prepare(write_log(tmp_path, rows), tmp_path / "out", min_events=2, split=f"time:{date}")
    assert load_data(tmp_path / "out").train.events.counts().tolist() == [before] * 4


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
@pytest.mark.parametrize("date", ["2020-12-31", "2020-12-31 01:00:00+01:00", "1609372800"])
@pytest.mark.parametrize("kind", [int, str, lambda number: number + 0.25])
def test_a_date_is_read_in_the_unit_of_unix_times(tmp_path, unit, date, kind):
    days = 1_609_372_800 + 86_400 * pl.int_range(
        -3, 3, eager=True
    )  # three before 2020-12-31, then that day and two more
    rows = [(user, item, kind(days[time] * unit)) for user, item, time in LOG]
    date = str(int(date) * unit) if date.isdigit() else date
    prepare(write_log(tmp_path, rows), tmp_path / "out", min_events=2, split=f"time:{date}")
    assert load_data(tmp_path / "out").train.events.counts().tolist() == [3, 3, 3, 3]


def test_a_few_wrong_times_do_not_hide_the_unit(tmp_path):
    rows = [(user, item, 1_600_000_000 + 86_400 * time) for user, item, time in LOG]
    rows += [("a", "m", 0), ("b", "m", -5), ("c", "m", 10**15)]
    prepare(write_log(tmp_path, rows), tmp_path / "out", min_events=2, split="time:2020-09-16")
    assert load_data(tmp_path / "out").train.events.counts().tolist() == [4, 4, 3, 3]


@pytest.mark.parametrize("first", [0, 500_000_000, 5_000_000_000, 10**14])
def test_other_numbers_are_not_read_as_dates(tmp_path, first):
    path = write_log(tmp_path, [(user, item, first + time) for user, item, time in LOG])
    with pytest.raises(ValueError, match="'2020-09-16' cannot be read; the times of the log are numbers"):
        prepare(path, tmp_path / "out", min_events=2, split="time:2020-09-16")


COMPACT = [20201228, 20201229, 20201230, 20201231, 20210101, 20210102]


@pytest.mark.parametrize("kind", [int, str, float, lambda number: f" {number} ", lambda number: f"{number} 00:00"])
@pytest.mark.parametrize("date", ["20201231", "2020-12-31"])
def test_digits_alone_are_dates(tmp_path, kind, date):
    rows = [(user, item, kind(COMPACT[time])) for user, item, time in LOG]
    rows += [("a", "m", kind(0)), ("b", "m", kind(20201301)), ("c", "m", None)]
    described = prepare(write_log(tmp_path, rows), tmp_path / "out", min_events=2, split=f"time:{date}")
    assert described["report"]["unreadable_time"] == 3
    assert load_data(tmp_path / "out").train.events.counts().tolist() == [3, 3, 3, 3]
    times = np.load(tmp_path / "out" / "times.npy")
    days = {(EPOCH + datetime.timedelta(microseconds=int(time))).strftime("%Y%m%d") for time in times}
    assert days == set(map(str, COMPACT))


def test_dates_with_and_without_punctuation_may_be_mixed(tmp_path):
    texts = ["20201228", "2020-12-29", "2020-12-29 10:00:00", "20201230 11:30", "20201231T120000", "5"]
    events = pl.LazyFrame({"time": texts})
    times, scale = parse_times(events, "time")
    read = events.select(times).collect().to_series().to_list()
    days = [None if time is None else (EPOCH + datetime.timedelta(microseconds=time)).day for time in read]
    assert days == [28, 29, 29, 30, None, None]
    assert scale.dates


@pytest.mark.parametrize("numbers", [range(20240101, 20249999), range(10**6), [20240105, 7, 8], [1990, 2020]])
def test_a_counter_that_passes_a_few_dates_is_no_date(numbers):
    for values in (list(numbers), list(map(str, numbers)), list(map(float, numbers))):
        events = pl.LazyFrame({"time": values})
        times, scale = parse_times(events, "time")
        assert not scale.dates
        assert events.select(times).collect().to_series().to_list() == list(numbers)


def test_the_beginning_of_a_long_log_of_integers_is_enough(monkeypatch):
    monkeypatch.setattr("beamtree.ingest.times.FIRST_ROWS", 4)
    for values, dates in (
        ([1, 2, 3, 4] + COMPACT * 9, False),
        (COMPACT[:4] + [1] * 9, False),
        (COMPACT + [1] * 4, True),
    ):
        assert parse_times(pl.LazyFrame({"time": values}), "time")[1].dates is dates


def test_live_events_are_on_the_same_days():
    day = int(datetime.datetime(2024, 1, 5, tzinfo=datetime.UTC).timestamp()) * 10**6
    assert {as_time(value) for value in ("20240105", 20240105, 20240105.0, "2024-01-05")} == {day}
    assert [as_time(value) for value in (20241301, "20240230", 18991231, 21000101)] == [
        20241301,
        20240230,
        18991231,
        21000101,
    ]


def test_a_made_up_market_is_split_at_a_date(market_folder, tmp_path):
    log = str(market_folder / "market.parquet")
    done = beamtree("prepare", log, "--out", "out", "--split", "time:2024-06-01", folder=tmp_path)
    assert "events of the last 190 days, from 2024-06-01 on, are to be predicted" in done.stdout
    moment = datetime.datetime(2024, 6, 1, tzinfo=datetime.UTC).timestamp()
    data = load_data(tmp_path / "out")
    times = np.load(tmp_path / "out" / "times.npy")
    train = int(data.train.events.counts().sum())
    assert times[:train].max() < moment <= times[train:].max()
    late = beamtree("prepare", log, "--out", "out", "--split", "time:2034-06-01", folder=tmp_path, check=False)
    assert late.returncode == 2
    assert "is after all events, which are from 2023-11-1" in " ".join(late.stderr.split())


def test_times_are_shown_as_they_were_written():
    assert TimeScale(dates=False).format(1_600_000_000) == "1600000000"
    assert TimeScale(dates=False, factor=1_000_000).format(2_500_000) == "2.5"
    assert TimeScale(dates=True).format(86_400_000_000) == "1970-01-02 00:00:00"
    assert TimeScale(dates=True).format(2**62).endswith("microseconds since 1970")
    assert TimeScale(dates=False, unit=1).format(1_600_000_000) == "2020-09-13 12:26:40"
    assert TimeScale(dates=False, unit=1).parse("9999-12-31") == 253_402_214_400
    assert TimeScale(dates=False, unit=10**9).parse("9999-12-31") == 2**63 - 1
    assert TimeScale(dates=False, unit=1).parse("2020-09-13 12:26:39.5") == 1_600_000_000
    assert TimeScale(dates=False).parse("1e30") == 2**63 - 1
    assert TimeScale(dates=False).parse("nan") is TimeScale(dates=False).parse("1e9999999999") is None


FORMS = [
    "%Y-%m-%d %H:%M:%S UTC",
    "%Y-%m-%dT%H:%M:%SZ",
    "%Y/%m/%d %H:%M",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M:%S",
    "%d/%m/%Y %H:%M",
    "%d-%m-%Y %H:%M:%S GMT",
    "%m/%d/%Y",
    "%m/%d/%Y %I:%M %p",
    "%m-%d-%Y %I:%M:%S %p",
]


@pytest.mark.parametrize("form", FORMS)
def test_dates_in_all_forms_are_those_of_datetime(form):
    draw = np.random.default_rng(3)
    moments = [EPOCH + datetime.timedelta(seconds=int(each)) for each in draw.integers(0, 4_000_000_000, 200)]
    texts = [moment.strftime(form) for moment in moments]
    events = pl.LazyFrame({"time": texts})
    expected = [round((datetime.datetime.strptime(each, form) - EPOCH).total_seconds() * 1e6) for each in texts]
    for time_format in (None, form):
        times, scale = parse_times(events, "time", time_format)
        assert events.select(times).collect().to_series().to_list() == expected
        assert scale.dates


@pytest.mark.parametrize(
    "text",
    ["2020-12-31", "2020-1-5", "20201231", "2020/12/31 23:59", "2020.12.31 1:05", "2020-12-31T23:59:59.5Z",
     "2020-12-31 11:59 PM UTC", "2020-12-31 12:00:01.25 am", "2020-12-31 01:00:00+01:00", "2020-12-31 01:00:00 -0130",
     "2020-02-30", "18991231", "10000101", "20240230", "1609372800", "2020", "2020-12-31 13:00 PM",
     "31.12.2020", "soon"],
)  # fmt: skip
def test_one_date_is_read_as_a_column_of_them(text):
    assert parse_date(f" {text} ") == pl.select(iso_date(pl.lit(text))).item()


def test_days_that_could_be_months_are_told_with_the_way_out():
    events = pl.LazyFrame({"time": ["05/06/2020 10:00 PM", "07/08/2020 09:00 AM"]})
    with pytest.raises(
        ValueError, match=r"day and month cannot be told apart: .* `time_format`, \"%d/%m/%Y %I:%M %p\" or \"%m/%d"
    ) as one:
        parse_times(events, "time")
    assert "\n" not in str(one.value)
    times, _ = parse_times(events, "time", "%m/%d/%Y %I:%M %p")
    assert events.select(times).collect().to_series()[0] == 1_588_802_400_000_000  # May 6
    same = pl.LazyFrame({"time": ["05/05/2020"]})
    assert same.select(parse_times(same, "time")[0]).collect().item() == 1_588_636_800_000_000
    with pytest.raises(ValueError, match="time_format=%Y reads no time"):
        parse_times(events, "time", "%Y")


def test_times_of_frames_with_a_zone_are_universal(tmp_path):
    zone = datetime.timezone(datetime.timedelta(hours=5))
    first = datetime.datetime(2020, 1, 1, 3, tzinfo=zone)  # 22:00 of the day before in universal time
    rows = [(user, item, first + datetime.timedelta(hours=time)) for user, item, time in LOG]
    frame = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    prepare(frame, tmp_path / "out", min_events=2)
    assert np.load(tmp_path / "out" / "times.npy").min() == int(first.timestamp()) * 10**6
