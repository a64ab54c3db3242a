"""Events dated in the future are mistakes: one of them must not make all others old."""

import time

import polars as pl
import pytest
from command import beamtree
from sample_logs import write_log

import beamtree as bt
from beamtree.data.times import DAY, MICRO, as_time
from beamtree.ingest.report import describe_log, describe_times
from beamtree.live.renewal import renew

NOW = int(time.time())
QUICK = {"steps": 0, "beam_size": 60}
LOG = [(f"u{u}", f"i{(u * 7 + 3 * t) % 40:02}", NOW - DAY * (100 - t) + u) for u in range(60) for t in range(100)]
WRONG = [
    ("u1", "i01", NOW + 3 * DAY),
    ("u2", "i02", 4_070_908_800),
    ("u3", "i03", NOW * 1000),
]  # one of 2099, one in ms


def frame(rows, convert=lambda column: column):
    return pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").with_columns(time=convert(pl.col("time")))


UNITS = {
    "seconds": lambda time: time,
    "text": lambda time: time.cast(pl.String),
    "fractions": lambda time: time + 0.5,
    "nanoseconds": lambda time: time.clip(upper_bound=5 * 10**9) * 10**9,
    "dates": lambda time: pl.from_epoch(time),
    "text of dates": lambda time: pl.from_epoch(time.clip(upper_bound=5 * 10**9)).dt.strftime("%Y-%m-%d %H:%M:%S"),
}


@pytest.mark.parametrize("unit", UNITS)
def test_rows_dated_in_the_future_are_dropped_and_counted(tmp_path, unit):
    described = bt.prepare(frame([*LOG, *WRONG], UNITS[unit]), tmp_path / "out", test_users=5)
    assert described["report"]["future_time"] == 3
    assert described["num_events"] == len(LOG)
    assert any(
        "Dropped 3 rows dated in the future, more than a day from now." in line for line in describe_log(described)
    )
    clean = bt.prepare(frame(LOG, UNITS[unit]), tmp_path / "clean", test_users=5)
    assert clean["report"]["future_time"] == 0
    assert (described["fingerprint"], described["times"]) == (clean["fingerprint"], clean["times"])


def test_a_day_ahead_is_another_time_zone(tmp_path):
    rows = [*LOG, ("u1", "i01", NOW + DAY - 3600)]
    described = bt.prepare(frame(rows), tmp_path / "out")
    assert described["num_events"] == len(rows)
    assert "in the future" not in describe_times(described)


def test_the_command_counts_them_and_a_period_ends_with_the_last_event_until_now(tmp_path):
    log = str(write_log(tmp_path, [*LOG, *WRONG]))
    done = beamtree("prepare", log, "--out", "out", "--split", "time:10d", folder=tmp_path)
    assert "rows dated in the future" in done.stdout
    assert "events of the last 10 days" in done.stdout


def test_an_order_has_no_future(tmp_path):
    rows = [(user, item, at - NOW + 100 * DAY) for user, item, at in LOG]
    described = bt.prepare(frame([*rows, ("u1", "i01", 4_070_908_800)]), tmp_path / "out")
    assert described["num_events"] == len(LOG) + 1


def test_a_log_that_is_mostly_in_the_future_is_kept_and_the_report_says_so(tmp_path):
    rows = [(user, item, at + 10_000 * DAY) for user, item, at in LOG]
    described = bt.prepare(frame(rows), tmp_path / "out")
    assert described["num_events"] == len(rows)
    assert ", which is in the future)." in describe_times(described)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("future") / "run"
    bt.Recommender(**QUICK).fit(frame(LOG), verbose=False).save(folder)
    return folder


def test_update_leaves_them_out_with_a_warning(run):
    shop, plain = bt.Recommender.load(run), bt.Recommender.load(run)
    today = [("u1", "i05", NOW - 60), ("new", "i06", NOW - 60)]
    with pytest.warns(UserWarning, match=r"^2 of the events are dated in the future, up to 2099-01-01: they are left"):
        shop.update(frame([*today, *WRONG[:2]]))
    plain.update(frame(today))
    assert shop._end() == NOW - 60
    assert shop._live.events.keys() == {"u1", "new"}
    assert shop.recommend(users=["u1"]).equals(plain.recommend(users=["u1"]))


def test_a_renewal_leaves_them_out(run, tmp_path):
    bt.Recommender.load(run).save(tmp_path / "run")
    today = [(f"u{u}", "i05", NOW - 60 - u) for u in range(20)]
    result = renew(tmp_path / "run", frame([*today, *WRONG]), force=True, verbose=False)
    assert (result.events, result.dropped) == (len(today), 3)
    assert bt.load_data(tmp_path / "run" / "data").end == NOW - 60


def test_a_live_event_of_the_future_is_refused(run):
    live = bt.Recommender.load(run)._live_model()
    with pytest.raises(ValueError, match=r"^time: an event of 2099-01-01 is in the future: give when it happened$"):
        live.record_events([("u1", ["i01"], NOW * MICRO), ("u1", ["i02"], 4_070_908_800 * MICRO)])
    with pytest.raises(ValueError, match=r"^time: an event of 9999-12-31 is in the future"):
        live.record_events([("u1", ["i02"], as_time("9999-12-31"))])
    assert not live.events
    live.record_events([("u1", ["i01"], (NOW + DAY // 2) * MICRO)])
    assert len(live.events["u1"]) == 1


def test_a_log_ahead_of_this_clock_goes_on_where_it_is(tmp_path):
    rows = [(user, item, at + 10_000 * DAY) for user, item, at in LOG]
    shop = bt.Recommender(**QUICK).fit(frame(rows), verbose=False)
    shop.update(frame([("u1", "i05", NOW + 10_000 * DAY)]))
    assert shop._end() == NOW + 10_000 * DAY
