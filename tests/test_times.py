"""The date of a split is read as the times of the log are."""

import datetime

import polars as pl
import pytest

from beamtree.data import load_data
from beamtree.ingest.prepare import prepare
from beamtree.ingest.times import TimeScale

LOG = [(user, item, time) for user in "abcd" for time, item in enumerate("ijklmn")]


def write(folder, rows):
    path = folder / "log.parquet"
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_parquet(path)
    return path


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
    prepare(write(tmp_path, rows), tmp_path / "out", min_events=2, split=f"time:{date}")
    assert load_data(tmp_path / "out").train.events.counts().tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    ("factor", "date", "before"), [(1, "3", 3), (1, "2.5", 3), (10, "3e1", 3), (0.5, "1.5", 3), (0.5, "1.25", 3)]
)
def test_numbers_are_in_the_unit_of_the_log(tmp_path, factor, date, before):
    rows = [(user, item, time * factor) for user, item, time in LOG]
    prepare(write(tmp_path, rows), tmp_path / "out", min_events=2, split=f"time:{date}")
    assert load_data(tmp_path / "out").train.events.counts().tolist() == [before] * 4


def test_times_are_shown_as_they_were_written():
    assert TimeScale(dates=False).show(1_600_000_000) == "1600000000"
    assert TimeScale(dates=False, factor=1_000_000).show(2_500_000) == "2.5"
    assert TimeScale(dates=True).show(86_400_000_000) == "1970-01-02 00:00:00"
    assert TimeScale(dates=True).show(2**62).endswith("microseconds since 1970")
    assert TimeScale(dates=False).read("1e30") == 2**63 - 1
    assert TimeScale(dates=False).read("nan") is TimeScale(dates=False).read("1e9999999999") is None
