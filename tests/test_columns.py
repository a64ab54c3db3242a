"""Columns that change while others read them, and the values that they take."""

import datetime
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data import Ids, columns
from beamtree.data.attributes import Attribute
from beamtree.data.catalogue import Catalogue, TextColumn
from beamtree.data.values import inferred, json_values, typed_column, typed_values
from beamtree.ingest.item_tables import read_catalogue

VALUES = {
    "numbers": (pl.Float64, st.one_of(st.none(), st.integers(-5, 5).map(float))),
    "whole": (pl.Int8, st.one_of(st.none(), st.integers(-5, 5))),
    "text": (pl.String, st.one_of(st.none(), st.sampled_from("abc"))),
    "lists": (pl.List(pl.String), st.one_of(st.none(), st.lists(st.sampled_from("ab"), max_size=2))),
    "true": (pl.Boolean, st.one_of(st.none(), st.booleans())),
}


def changes(values):
    return st.lists(st.lists(st.tuples(st.integers(0, 12), values), max_size=7), max_size=8)


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data(), most=st.sampled_from([0, 3, 100]))
def test_a_column_has_the_last_values_and_earlier_ones_stay_as_they_were(kind, data, most):
    dtype, values = VALUES[kind]
    plain = data.draw(st.lists(values, max_size=10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MAX_RECENT", most)
        patch.setattr("beamtree.data.attributes.MAX_RECENT", most)
        column, known = Attribute(pl.Series(plain, dtype=dtype)), [*plain, *[None] * (13 - len(plain))]
        states = [(column, list(known))]
        for change in data.draw(changes(values)):
            rows, new = [row for row, _ in change], [value for _, value in change]
            column = column.changed(np.array(rows, np.int64), pl.Series(new, dtype=dtype))
            for row, value in change:
                known[row] = value
            states.append((column, list(known)))
            if data.draw(st.booleans()):
                assert column.first(13).to_list() == known
        for state, expected in states:
            assert [state.get(row) for row in range(13)] == expected
            assert state.first(13).to_list() == expected
            assert state.first(13).dtype == dtype


@given(changes(st.one_of(st.none(), st.sampled_from("abc"))), st.sampled_from([0, 3, 100]))
def test_texts_to_show_change_likewise(steps, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MAX_RECENT", most)
        column, known = TextColumn([]), [None] * 13
        for change in steps:
            column = column.changed([row for row, _ in change], [text for _, text in change])
            for row, text in change:
                known[row] = text
        assert column.first(13) == [column.get(row) for row in range(13)] == known
        assert column.has_any == any(text is not None for text in known)


def test_a_change_that_is_no_change_differs_nowhere():
    column = Attribute(pl.Series([1.0, None, math.nan, 4.0]))
    rows = np.arange(6)
    same = pl.Series([1.0, None, math.nan, 5.0, None, 0.0])
    expected = [False, False, False, True, False, True]
    assert column.differs(rows, same).tolist()[:2] == expected[:2]
    many = np.tile(rows, 20)  # compared at once
    assert column.differs(many, pl.concat([same] * 20)).tolist() == expected * 20


# Values

DAY, TIME = datetime.date(2026, 12, 31), datetime.datetime(2026, 12, 31, 12, 30)
UTC = datetime.UTC


@pytest.mark.parametrize(
    ("dtype", "value", "expected", "result"),
    [
        (pl.Int64, 9, 9, pl.Int64),
        (pl.Int64, 9.0, 9, pl.Int64),
        (pl.Int64, 9.5, 9.5, pl.Float64),
        (pl.Int8, 300, 300, pl.Int64),
        (pl.UInt8, -1, -1, pl.Int64),
        (pl.UInt64, 2**64 - 1, 2**64 - 1, pl.UInt64),
        (pl.Float64, 3, 3.0, pl.Float64),
        (pl.Float32, 0.1, pytest.approx(0.1), pl.Float32),
        (pl.Float64, np.float32(0.5), 0.5, pl.Float64),
        (pl.Int64, np.int16(7), 7, pl.Int64),
        (pl.Float64, math.nan, None, pl.Float64),
        (pl.String, pd.NA, None, pl.String),
        (pl.String, "", "", pl.String),
        (pl.Categorical, "new", "new", pl.Categorical),
        (pl.Enum(["a"]), "a", "a", pl.Enum(["a"])),
        (pl.Enum(["a"]), "b", "b", pl.String),
        (pl.Boolean, True, True, pl.Boolean),
        (pl.Date, "2026-12-31", DAY, pl.Date),
        (pl.Date, DAY, DAY, pl.Date),
        (pl.Date, "2026-12-31T12:30", TIME, pl.Datetime("us")),
        (pl.Datetime("us"), "2026-12-31T13:30:00+01:00", TIME, pl.Datetime("us")),
        (pl.Datetime("us"), pd.Timestamp(TIME), TIME, pl.Datetime("us")),
        (pl.Datetime("us", "UTC"), "2026-12-31 12:30Z", TIME.replace(tzinfo=UTC), pl.Datetime("us", "UTC")),
        (pl.Datetime("us", "UTC"), "2026-12-31 12:30", TIME.replace(tzinfo=UTC), pl.Datetime("us", "UTC")),
        (pl.List(pl.String), ["x", None], ["x", None], pl.List(pl.String)),
        (pl.List(pl.Int64), [1, 2.5], [1.0, 2.5], pl.List(pl.Float64)),
        (pl.Array(pl.Float32, 2), [0.5, 1], [0.5, 1.0], pl.Array(pl.Float32, 2)),
        (pl.List(pl.Float32), np.array([0.5, 1]), [0.5, 1.0], pl.List(pl.Float32)),
        (pl.Null, 3, 3, pl.Int64),
        (None, ["a"], ["a"], pl.List(pl.String)),
        (None, TIME, TIME, pl.Datetime("us")),
    ],
)
def test_a_value_gets_the_type_of_its_column_or_a_wider_one(dtype, value, expected, result):
    column = None if dtype is None else pl.Series(dtype=dtype).dtype
    typed = typed_values("x", column, [value, None], ["a", "b"])
    assert typed.dtype == result
    assert typed.to_list() == [expected, None]
    if dtype is not None:
        merged = Attribute(pl.Series([None], dtype=dtype)).changed(np.array([0, 1]), typed)
        assert merged.first(2).to_list()[0] == expected


@pytest.mark.parametrize(
    ("dtype", "value", "kind"),
    [
        (pl.Float64, "9.5", "numbers"),
        (pl.Float64, True, "numbers"),
        (pl.Float64, math.inf, "numbers"),
        (pl.Int64, 10**30, "numbers"),
        (pl.Float64, [1.0], "numbers"),
        (pl.Float64, Decimal("NaN"), "numbers"),
        (pl.String, 5, "text"),
        (pl.String, "\ud800", "text"),
        (pl.String, {"a": 1}, "text"),
        (pl.Boolean, 1, "true or false"),
        (pl.Date, "soon", "dates such as 2026-12-31"),
        (pl.Date, 20261231, "dates such as 2026-12-31"),
        (pl.List(pl.String), "x", "lists of text"),
        (pl.List(pl.String), [1], "lists of text"),
        (pl.List(pl.Float64), [[1.0]], "lists of numbers"),
    ],
)
def test_a_value_of_another_kind_is_refused_in_one_line(dtype, value, kind):
    with pytest.raises(ValueError, match=rf"^item 'b': 'x' takes {kind}, not [^\n]+$"):
        typed_values("x", pl.Series(dtype=dtype).dtype, [None, value], ["a", "b"])


def test_what_only_a_frame_can_change_says_so():
    with pytest.raises(ValueError, match=r"'x' holds Duration.*: change it with a frame"):
        typed_values("x", pl.Duration("us"), [datetime.timedelta(1)], ["a"])
    with pytest.raises(ValueError, match="'x' holds dict"):
        typed_values("x", None, [{"a": 1}], ["a"])


def test_values_are_json():
    frame = pl.DataFrame(
        {
            "number": [1.5, math.nan],
            "infinite": [math.inf, 1.0],
            "day": [DAY, None],
            "time": pl.Series([TIME, None]).dt.replace_time_zone("UTC"),
            "list": [[1.0, math.inf], None],
            "decimal": [Decimal("1.5"), None],
            "bytes": [b"x", None],
            "struct": [{"a": 1}, {"a": None}],
        }
    )
    assert [json_values(column)[0] for column in frame] == [
        *(1.5, None, "2026-12-31", "2026-12-31T12:30:00+00:00", [1.0, None], 1.5, None, {"a": 1})
    ]
    assert json_values(frame["number"])[1] is None


# Columns of tables


@pytest.mark.parametrize(
    ("dtype", "given", "result"),
    [
        (pl.Int64, pl.Series([1.0, 2.0]), pl.Int64),  # pandas makes floats of integers with a missing one
        (pl.Int64, pl.Series([1.5, 2.0]), pl.Float64),
        (pl.Float64, pl.Series([None, None]), pl.Float64),
        (pl.String, pl.Series(["a", "b"], dtype=pl.Categorical), pl.String),
        (pl.Date, pl.Series(["2026-12-31", None]), pl.Date),
        (pl.Datetime("us", "UTC"), pl.Series([TIME, TIME]), pl.Datetime("us", "UTC")),
        (pl.List(pl.Int64), pl.Series([[1], [2]], dtype=pl.List(pl.Int8)), pl.List(pl.Int64)),
        (pl.Duration("us"), pl.Series([datetime.timedelta(1), None]), pl.Duration("us")),
        (None, pl.Series([1, 2], dtype=pl.UInt8), pl.UInt8),
    ],
)
def test_a_column_of_a_table_gets_the_type_of_the_items(dtype, given, result):
    dtype = None if dtype is None else pl.Series(dtype=dtype).dtype
    assert typed_column("x", dtype, given, ["a", "b"]).dtype == result


@pytest.mark.parametrize(
    ("dtype", "given", "words"),
    [
        (pl.Float64, pl.Series(["9.5", "x"]), "column 'x' holds text, and that of the items numbers"),
        (pl.String, pl.Series([1, 2]), "column 'x' holds numbers, and that of the items text"),
        (pl.Date, pl.Series(["2026-12-31", "soon"]), "item 'b': 'x' takes dates such as 2026-12-31, not 'soon'"),
        (pl.Duration("us"), pl.Series([1, 2]), "column 'x' holds numbers, and that of the items Duration"),
        (pl.String, pl.Series([object(), object()]), "objects of Python"),
    ],
)
def test_a_column_of_another_kind_is_refused(dtype, given, words):
    with pytest.raises(ValueError, match=words):
        typed_column("x", pl.Series(dtype=dtype).dtype, given, ["a", "b"])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", " 2", None, ""], [1, 2, None, None]),
        (["1", "2.5"], [1.0, 2.5]),
        (["1e3", "-.5"], [1000.0, -0.5]),
        (["true", "False"], [True, False]),
        (["2026-12-31", None], [DAY, None]),
        (["007", "8"], ["007", "8"]),  # a code
        (["1_000", "2"], ["1_000", "2"]),
        (["nan", "1"], ["nan", "1"]),
        (["a", "1"], ["a", "1"]),
        ([None, ""], [None, ""]),
        (["12345678901234567890", "1"], [12345678901234567890.0, 1.0]),
    ],
)
def test_columns_of_text_files_are_numbers_where_all_of_them_are(texts, expected):
    assert inferred(pl.Series(texts, dtype=pl.String)).to_list() == expected


def test_a_text_file_is_read_in_the_types_of_the_items():
    given = pl.Series(["1", "x"])
    for dtype in (pl.Float64(), pl.Boolean(), pl.Date()):
        with pytest.raises(ValueError, match=r"item 'b': 'c' takes .*, not 'x'"):
            typed_column("c", dtype, pl.Series([None, "x"]), ["a", "b"], is_text=True)
    assert typed_column("c", pl.String(), given, ["a", "b"], is_text=True).to_list() == ["1", "x"]
    assert typed_column("c", pl.Int64(), pl.Series(["1", " 2 "]), ["a", "b"], is_text=True).to_list() == [1, 2]
    lists = pl.Series([["1", "2.5"], None])  # of JSON lines
    assert typed_column("c", pl.List(pl.Float64), lists, ["a", "b"], is_text=True).to_list() == [[1.0, 2.5], None]
    with pytest.raises(ValueError, match="takes lists of numbers"):
        typed_column("c", pl.List(pl.Float64), pl.Series([["x"], None]), ["a", "b"], is_text=True)


def test_prices_of_a_text_file_can_be_compared(tmp_path):
    (tmp_path / "items.csv").write_text("item,title,price,new,code\na,300,9.5,true,007\nb,1917,20,false,8\n")
    found = read_catalogue(tmp_path / "items.csv", Ids(["a", "b", "c"]))
    assert found.where("price < 10 and new") == [0]
    assert found.where("title = '1917' and code = '8'") == [1]
    assert found.titles == ["300", "1917", None]


# Catalogues


def test_a_catalogue_without_a_table_knows_titles_and_categories_alone():
    empty = Catalogue(Ids(["a", "b"]))
    assert empty.typed("title", ["A", None], ["a", "b"]) == ("title", ["A", None])
    with pytest.raises(ValueError, match="item 'b': 'title' takes text, not 5"):
        empty.typed("title", ["A", 5], ["a", "b"])
    changed, differs = empty.changed(np.array([0, 1]), {"title": ["A", None]})
    assert differs.tolist() == [True, False]
    assert (changed.titles, empty.titles) == (["A", None], [None, None])
    assert changed.where("title = 'A'") == [0]
