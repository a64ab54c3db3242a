"""A log in memory is prepared as the same log in a file."""

import datetime
import random

import polars as pl
import pytest

import beamtree as bt
from beamtree.data import load_data
from beamtree.ingest.prepare import prepare

KINDS = ["polars", "lazy", "pandas", "pyarrow"]


def made(kind, frame):
    """The same frame, as another library has it."""
    if kind in ("pandas", "pyarrow"):
        pytest.importorskip("pyarrow")
    if kind == "pandas":
        pytest.importorskip("pandas")
        return frame.to_pandas()
    return {"polars": frame, "lazy": frame.lazy(), "pyarrow": frame.to_arrow()}[kind]


def log():
    draw = random.Random(3)
    rows = range(400)
    frame = {"user": [draw.randrange(20) for _ in rows], "item": [draw.randrange(30) for _ in rows], "time": list(rows)}
    draw.shuffle(frame["time"])
    return pl.DataFrame(frame | {"rating": [5.0] * len(rows)})


START = datetime.datetime(2020, 1, 1)
COLUMNS = {
    "numbers": [],
    "texts": [pl.col("user", "item", "time").cast(pl.String)],
    "floats": [pl.col("user", "item", "time").cast(pl.Float64)],
    "holes": [pl.when(pl.col("time") > 9).then(pl.col("user")).alias("user")],
    "fractions": [pl.col("time") / 8],
    "dates": [(pl.date(2020, 1, 1) + pl.duration(days="time")).alias("time")],
    "moments": [(pl.lit(START).dt.cast_time_unit("ns") + pl.duration(seconds="time")).alias("time")],
    "zones": [(pl.lit(START) + pl.duration(minutes="time")).dt.replace_time_zone("UTC").alias("time")],
    "categories": [pl.col("user", "item", "time").cast(pl.String).cast(pl.Categorical)],
    "white space": [pl.concat_str(pl.lit(" u"), "user").alias("user")],
    "small": [pl.col("user").cast(pl.UInt8), pl.col("item").cast(pl.Int16)],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_a_frame_is_a_file(tmp_path, kind, columns):
    frame = log().with_columns(COLUMNS[columns])
    frame.write_parquet(tmp_path / "log.parquet")
    expected = prepare(tmp_path / "log.parquet", tmp_path / "file", min_events=2)
    found = prepare(made(kind, frame), tmp_path / "frame", min_events=2)
    assert found == {**expected, "sources": ["a frame"]}
    for name in ("users.txt", "items.txt", "times.npy"):
        assert (tmp_path / "frame" / name).read_bytes() == (tmp_path / "file" / name).read_bytes()


def test_several_frames_and_files_are_one_log_in_their_order(tmp_path):
    frame = log().drop("time")
    frame[100:200].write_parquet(tmp_path / "log.parquet")
    parts = [frame[:100], tmp_path / "log.parquet", frame[200:].lazy()]
    found = prepare(parts, tmp_path / "parts", min_events=2)
    assert found["sources"] == ["a frame", "log.parquet", "a frame"]
    assert found["fingerprint"] == prepare(frame, tmp_path / "whole", min_events=2)["fingerprint"]


def test_a_lazy_frame_is_computed_once_after_a_look_at_its_first_times(tmp_path):
    times = []

    def count(frame):
        times.append(len(frame))
        return frame

    lazy = log().lazy().map_batches(count, schema=log().schema)
    prepare(lazy, tmp_path / "out", min_events=2)
    assert len(times) == 2
    times.clear()
    prepare(lazy.drop("time"), tmp_path / "out", min_events=2)
    assert len(times) == 1


def test_a_column_of_several_types_is_read_as_in_json_lines(tmp_path):
    pandas = pytest.importorskip("pandas")
    users = [1, 1.0, "1", " x", "x", 2.5, None, float("nan")] * 3
    frame = pandas.DataFrame({"user": pandas.Series(users, dtype=object), "item": list("ijk") * 8, "time": range(24)})
    lines = frame.to_json(orient="records", lines=True)
    (tmp_path / "log.jsonl").write_text(lines)
    expected = prepare(tmp_path / "log.jsonl", tmp_path / "file", min_events=2)
    found = prepare(frame, tmp_path / "frame", min_events=2)
    assert found == {**expected, "sources": ["a frame"]}
    assert set(load_data(tmp_path / "frame").users.names) == {"1", "x", "2.5"}


@pytest.mark.parametrize("columns", COLUMNS)
def test_pandas_does_not_need_pyarrow(tmp_path, monkeypatch, columns):
    frame = made("pandas", log().with_columns(COLUMNS[columns]))
    expected = prepare(frame, tmp_path / "with", min_events=2)

    def fail(column):
        raise ModuleNotFoundError("pyarrow is required")

    monkeypatch.setattr(pl, "from_pandas", fail)
    assert prepare(frame, tmp_path / "without", min_events=2) == expected


def test_columns_that_are_not_used_may_hold_anything(tmp_path):
    frame = made("pandas", log())
    frame["rating"] = [object() for _ in range(len(frame))]
    frame.index = frame["user"].rename("item")
    assert prepare(frame, tmp_path / "out", min_events=2)["report"]["ignored_columns"] == ["rating"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_is_no_log_is_refused_in_one_line(tmp_path, kind):
    frame = log()
    for change, options, message in (
        (
            frame.drop("user"),
            {},
            r"no column for the user was found: name it with `user`; the columns are item, time, rating",
        ),
        (frame, {"item": "what"}, "there is no column 'what' for `item`"),
        (frame, {"names": ("user", "item")}, "a frame names its own columns: `names` is for text files"),
        (frame.with_columns(user=pl.concat_list("user")), {}, r"column 'user' holds List\(Int64\)"),
        (frame.with_columns(time=pl.lit("soon")), {}, "no time in column 'time' can be read"),
        (frame.head(0), {}, "0 and 0 are left of a log without rows"),
        (pl.DataFrame(), {}, "no column for the user"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            prepare(made(kind, change), tmp_path / "out", min_events=2, **options)
        assert "\n" not in str(error.value)
        assert not list(tmp_path.iterdir())


def test_other_things_are_no_logs(tmp_path):
    for source, name in (({"user": [1]}, "dict"), (5, "int"), ([None], "NoneType")):
        with pytest.raises(ValueError, match=f"a log is a file, a folder of files or a frame, not a {name}"):
            prepare(source, tmp_path / "out")
    pandas = pytest.importorskip("pandas")
    twice = pandas.DataFrame([[1, 2, 3]], columns=["user", "item", "item"])
    with pytest.raises(ValueError, match="the frame has 2 columns 'item'"):
        prepare(twice, tmp_path / "out")


def test_the_front_door_takes_frames(tmp_path):
    bt.prepare(log(), tmp_path / "out", min_events=2, split="leave-one-out")
    assert len(bt.load_data(tmp_path / "out").test) == 20
