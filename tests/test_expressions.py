"""`where`: items are filtered by an expression over their attributes, which may change while the model is in use."""

import json
import math
import pickle
import random
import re
from datetime import date, datetime
from functools import partial

import numpy as np
import polars as pl
import pytest
from command import beamtree
from hypothesis import given
from hypothesis import strategies as st
from sample_logs import cyclic_log
from serving import make_service, open_shop, serving

import beamtree as bt
from beamtree.data import Ids
from beamtree.data.attributes import group_numbers
from beamtree.data.catalogue import Catalogue
from beamtree.data.expressions import rows_where
from beamtree.ingest.item_tables import read_catalogue
from beamtree.live import Journal
from beamtree.query import Filter, MaskCache
from stress.expressions import comparison_fault, nonsense, open_table, random_frame, refusal_fault

ROWS = [
    {"item": "a", "category": "lamps", "price": 10.0, "stock": True, "colours": ["red", "blue"]},
    {"item": "b", "category": "lamps", "price": 60.0, "stock": False, "colours": ["red"]},
    {"item": "c", "category": "it's", "price": None, "stock": True, "colours": None},
    {"item": "d", "category": None, "price": 20.0, "stock": None, "colours": ["blue"]},
]
FRAME = pl.DataFrame(ROWS)
IDS = Ids(["a", "b", "c", "d", "not in the table"])
ITEMS = read_catalogue(FRAME, IDS)


def found(expression, catalogue=ITEMS):
    return "".join(catalogue.ids[number][0] for number in catalogue.where(expression))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("category == 'lamps' and price < 50", "a"),
        ("category = 'lamps'", "ab"),
        ("category = 'it''s'", "c"),
        ("CATEGORY is null".lower(), "dn"),
        ("price between 10 and 20 or not stock", "abd"),
        ("lower(category) in ('lamps', 'x')", "ab"),
        ("category like 'l%'", "ab"),
        ("stock", "ac"),
        ("array_contains(colours, 'blue')", "ad"),
        ("price * 2 <= 20.0", "a"),
        ("item != 'a' and price > 0", "bd"),
        ("true", "abcdn"),
        ("item == 'not in the table'", "n"),
        ('"price" < 15', "a"),
    ],
)
def test_expressions_choose_items(expression, expected):
    assert found(expression) == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("colour == 'red'", "no column 'colour'; there are item, category, price"),
        ('category == "lamps"', "colours (text has single quotes)"),
        ("price <", "cannot be used"),
        ("", "cannot be used"),
        ("price", "is a number, not true or false"),
        ("category = '\ud800'", "cannot be used"),
        ("price < 'a'", "a number and text cannot be compared"),
        ("price < 5; true", "has an error at '; true'"),
        ("price < 5 -- '", 'has an error at "-- \'"'),
        ("price < 5 /* '", "has an error"),
        ("category in (select a from read_csv('/etc/passwd'))", "no column 'select'"),
        ("category in (from read_csv('/etc/passwd'))", "no column 'from'"),
        ("price < max(price)", "'max' is no function"),
        ("price < 1 as x", "no column 'as'"),
        ("price::int = 1", "has an error at '::int"),
        ("item'a'", "has an error"),
        ("x'41' = 'A'", "has an error"),
        ("price < 5 and " * 200 + "stock", "2,805 characters"),
        ("(" * 200 + "stock" + ")" * 200, "nested more than 32 deep"),
        ("abs(" * 40 + "price" + ")" * 40 + " > 0", "nested more than 32 deep"),
        ("1 < price < 30", "comparisons cannot be chained: join them with and, or use parentheses"),
        ("price = 1 = stock", "comparisons cannot be chained"),
        ("price between 1 and 2 between 3 and 4", "comparisons cannot be chained"),
        ("price in (1) is null", "comparisons cannot be chained"),
        ("1<" * 490 + "1", "comparisons cannot be chained"),
        ("1<" * 990 + "1", "has 1,981 words and signs: at most 1,000 are possible"),
        ("price in (" + "1," * 600 + "1)", "words and signs: at most 1,000 are possible"),
        ("price in ()", "has an error at ')'"),
        ("price in (1", "it ends too early"),
        ("price in 1", "has an error at '1'"),
        ("price not 5", "has an error at '5'"),
        ("price is 5", "has an error at '5'"),
        ("stock stock", "has an error at 'stock'"),
        ("and stock", "has an error at 'and stock'"),
        ("price < ٣", "no column '٣'"),
        ("price < 1_000", "no column '1_000'"),
        ("price < 1.2.3", "has an error at '.3'"),
        ("price < 1e999", "'1e999' is beyond the range of floats"),
        ("9223372036854775807 + 1 > price", "beyond 64 bits: multiply by 1.0"),
        ("-9223372036854775808 * -1 > price", "beyond 64 bits"),
        ("abs(-9223372036854775808) > price", "beyond 64 bits"),
        ("not price", "not takes true or false, not a number"),
        ("stock and 1", "and takes true or false, not a number"),
        ("category + 'x' = 'lampsx'", "+ takes a number, not text"),
        ("colours = 'red'", "a list and text cannot be compared: use array_contains"),
        ("array_contains(colours, 1)", "text and a number cannot be compared"),
        ("array_contains(category, 'l')", "array_contains takes a list, not text"),
        ("lower(price) = 'a'", "lower takes text, not a number"),
        ("category like price", "has an error at 'price'"),
        ("length() = 1", "has an error at ')"),
        ("length(category, category) = 1", "length cannot take 2 arguments"),
        ("round(price, 99) = 1", "round takes a number of digits from 0 to 15"),
        ("round(price, price) = 1", "round takes a number of digits from 0 to 15"),
        ("date('2026-13-31') = date('x')", "'2026-13-31' is no date: write it as 2026-12-31"),
        ("date('2026-12-31') = '2026-12-31'", "a date and text cannot be compared: write date('2026-12-31')"),
        ("null < date('2026-01-01') + stock between 1 and true", "+ takes a number, not a date"),  # Polars panics
    ],
)
def test_anything_but_an_expression_over_columns_is_refused_in_one_line(expression, message, capfd):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        ITEMS.where(expression)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400
    assert not capfd.readouterr().err  # a panic of Polars is told there


def passing(series, expression):
    """The places of the values of a series `x` for which an expression is true."""
    return rows_where(series.alias("x").to_frame(), expression).nonzero()[0].tolist()


@pytest.mark.parametrize("dtype", [pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Int8, pl.Int16, pl.Int32, pl.Int64])
def test_integers_of_all_widths_are_calculated_with_in_64_bits(dtype):
    series = pl.Series([3, 100, None], dtype=dtype)
    assert passing(series, "x - 10 < 0") == passing(series, "-x > -4") == passing(series, "x + 27 = 30") == [0]
    assert passing(series, "x * x = 10000") == passing(series, "x * 1000000000 > 50000000000") == [1]
    assert passing(series, "abs(x - 103) = 100 and (x - 103) % 3 = -1") == [0]


def test_integers_beyond_64_bits_are_compared_wherever_they_are():
    lists = pl.Series([[2**64 - 1, 3], [3], [], None], dtype=pl.List(pl.UInt64))
    assert passing(lists, "array_contains(x, 18446744073709551615)") == [0]
    assert passing(lists, "array_contains(x, 3)") == passing(lists, "array_contains(x, 3.0)") == [0, 1]
    wide = pl.Series([2**100, 1, -(2**100), None], dtype=pl.Int128)
    assert passing(wide, "x > 18446744073709551615") == [0]
    assert passing(wide, "x < 2") == [1, 2]


@pytest.mark.parametrize("dtype", [pl.Datetime("ms"), pl.Date])
def test_dates_beyond_all_calendars_are_refused_in_one_line(dtype, capfd):
    series = pl.Series([2**31 - 1, 0], dtype=pl.Int32 if dtype == pl.Date else pl.Int64)
    series = (series if dtype == pl.Date else series * 2**31).cast(dtype)
    with pytest.raises(ValueError, match="column 'x' has dates beyond the range of microseconds") as error:
        passing(series, "x > date('2026-01-01')")
    assert "\n" not in str(error.value)
    assert not capfd.readouterr().err  # a panic of Polars is told there
    assert passing(series.slice(1), "x < date('2026-01-01')") == [0]


def test_integers_beyond_64_bits_are_compared_and_never_wrap():
    series = pl.Series([2**64 - 1, 2**64 - 2, 5, None], dtype=pl.UInt64)
    assert passing(series, "x = 18446744073709551615") == passing(series, "x in (18446744073709551615, 7)") == [0]
    assert passing(series, "x > 9223372036854775807") == [0, 1]
    assert passing(series, "x * 1.0 + 1 > 1e19") == [0, 1]
    with pytest.raises(ValueError, match="beyond 64 bits"):
        passing(series, "x + 1 > 0")
    for value in (2**62, -(2**62) - 1):
        with pytest.raises(ValueError, match="beyond 64 bits"):
            passing(pl.Series([1, value]), "x * 2 != 0")
    assert passing(pl.Series([1, -(2**62)]), "x * 2 = -9223372036854775808") == [1]
    assert passing(pl.Series([1, 2]), "coalesce(x, 9223372036854775807) + 1 = 3") == [1]  # only what there is counts
    assert passing(pl.Series([], dtype=pl.Int8), "coalesce(x, 9223372036854775807) + 1 in (1, x) or true") == []


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("round(x / 2) = 3", [0]),  # 2.5, half away from zero
        ("round(-x / 2) = -3", [0]),
        ("round(2.5) = 3 and round(-0.5) = -1 and round(0.49999999999999994) = 0", [0, 1, 2, 3, 4]),
        ("round(x / 8, 2) = 0.63", [0]),  # 0.625
        ("7 / 2 = 3.5 and -7 % 3 = -1 and 7 % -3 = 1 and 7.5 % 2 = 1.5", [0, 1, 2, 3, 4]),
        ("x / 0 > 0 or x / 0 <= 0 or x % 0 = 0 or 1 / 0 is not null", []),
        ("x < 1 or x >= 1", [0, 1, 4]),  # NaN is a missing value
        ("x is null", [2, 3]),
        ("x > 1e308", [4]),  # infinity
        ("x - x = 0", [0, 1]),  # infinity less itself is no number
        ("x not in (5, null)", []),
        ("x in (5, null)", [0]),
        ("not (x = 5 and null)", [1, 4]),
        ("x = 5 or null is null", [0, 1, 2, 3, 4]),
        ("(x = 5) is not true", [1, 2, 3, 4]),
        ("(x = 5) is false", [1, 4]),
        ("x = 5 and true = 1 and (x = 5) + 1 = 2", [0]),
        ("1 + 2 * 3 - 4 - 5 = -2 and 2 * - 3 % 4 = -2 and 24 / 4 / 2 = 3", [0, 1, 2, 3, 4]),
        ("not x = 5 and x < 9 or x = 5", [0, 1]),
        (" - " * 201 + "x = -5", [0]),
        ("not " * 201 + "(x = 5)", [1, 4]),
        ("(" * 31 + "x" + ")" * 31 + " = 5", [0]),
        ("x in (" + "1," * 490 + "5)", [0]),
        ("x = 5 or " * 150 + "x = 5", [0]),
        ("'a' < 'b' and 'B' < 'a' and 'é' > 'z' and length('日本') = 2 and lower('É') = 'é'", [0, 1, 2, 3, 4]),
        (r"'a.c' like 'a.c' and 'abc' not like 'a.c' and '50%' like '50%' and 'a\b' like 'a\_'", [0, 1, 2, 3, 4]),
        ("'' = '' and 'x\ny' like 'x%y' and 'it''s' like '%''_' and 'ABC' ilike 'a_c'", [0, 1, 2, 3, 4]),
        ("null", []),
    ],
)
def test_expressions_mean_what_the_page_says(expression, expected):
    assert passing(pl.Series([5.0, -2.0, math.nan, None, math.inf]), expression) == expected


@pytest.mark.parametrize(
    ("series", "expression", "expected"),
    [
        (pl.Series(["b", "a", None], dtype=pl.Enum(["b", "a"])), "x < 'b'", [1]),
        (pl.Series(["1.10", "2.25", None]).cast(pl.Decimal(9, 2)), "x = 1.1 or x * 2 = 4.5", [0, 1]),
        (pl.Series([date(2026, 1, 1), None]), "x = date('2026-01-01')", [0]),
        (pl.Series([datetime(2026, 1, 1), datetime(2026, 1, 1, 5)]), "x > date('2026-01-01')", [1]),
        (pl.Series([datetime(2026, 1, 1)]).dt.replace_time_zone("Asia/Tokyo"), "x = date('2026-01-01')", [0]),
        (pl.Series(["2026-01-01", "soon", None]), "date(x) < date('2026-02-01')", [0]),
        (pl.Series([[200, 1], [], None], dtype=pl.List(pl.UInt8)), "array_contains(x, 200.0)", [0]),
        (pl.Series([[200, 1], [], None], dtype=pl.List(pl.UInt8)), "not array_contains(x, 456)", [0, 1]),
        (pl.Series([[None, "a"], ["b"]]), "not array_contains(x, 'a')", [1]),
        (pl.Series([[1, 2]], dtype=pl.Array(pl.Int8, 2)), "array_contains(x, 2)", [0]),
        (pl.Series([b"a", None]), "x is null", [1]),
        (pl.Series([None, None]), "x = 5 or x is null", [0, 1]),
    ],
)
def test_columns_of_other_types_are_compared_as_the_page_says(series, expression, expected):
    assert passing(series, expression) == expected


def test_a_column_of_bytes_can_only_be_missing():
    with pytest.raises(ValueError, match="Binary and text cannot be compared"):
        passing(pl.Series([b"a"]), "x = 'a'")


# Random expressions, and the same in SQLite


@pytest.mark.parametrize("tries", [200, pytest.param(10_000, marks=pytest.mark.extended)])
def test_random_expressions_find_the_rows_that_sqlite_finds(tries):
    rng = random.Random(tries)
    for _ in range(tries // 100):
        frame = random_frame(rng)
        table = open_table(frame)
        for _ in range(100):
            assert comparison_fault(frame, table, rng) is None


def test_a_difference_from_sqlite_is_told(monkeypatch):
    rng = random.Random(0)
    frame = random_frame(rng)
    monkeypatch.setattr("stress.expressions.rows_where", lambda frame, text: np.ones(len(frame), bool))
    faults = [comparison_fault(frame, open_table(frame), rng) or "" for _ in range(20)]
    assert any("in SQLite" in fault for fault in faults)
    monkeypatch.setattr("stress.expressions.rows_where", lambda frame, text: np.ones(2, bool))
    assert refusal_fault(frame, "flag") == "flag: (2,) for 60 items"


@pytest.mark.parametrize("tries", [200, pytest.param(10_000, marks=pytest.mark.extended)])
def test_nonsense_is_refused_in_one_line_and_never_panics(tries, capfd):
    rng = random.Random(tries)
    frame = random_frame(rng)
    for _ in range(tries):
        assert refusal_fault(frame, nonsense(rng, rng.randint(1, 4))) is None
    assert not capfd.readouterr().err


@st.composite
def expressions(draw, depth=3):
    """The text of an expression, and the function from a row to True, False or None that it stands for."""
    if depth and draw(st.booleans()):
        operator = draw(st.sampled_from(["and", "or", "not"]))
        text, value = draw(expressions(depth=depth - 1))
        if operator == "not":
            return f"not ({text})", lambda row: None if value(row) is None else not value(row)
        other, second = draw(expressions(depth=depth - 1))
        decides = operator == "or"

        def both(row):
            values = {value(row), second(row)}
            return decides if decides in values else None if None in values else not decides

        return f"({text}) {operator} ({other})", both
    column, values = draw(st.sampled_from([("price", [10, 20, 60.0]), ("category", ["lamps", "it's"])]))
    limit, sign = draw(st.sampled_from(values)), draw(st.sampled_from(["==", "=", "!=", "<", "<=", ">", ">="]))
    compare = {
        "==": lambda x: x == limit,
        "=": lambda x: x == limit,
        "!=": lambda x: x != limit,
        "<": lambda x: x < limit,
        "<=": lambda x: x <= limit,
        ">": lambda x: x > limit,
        ">=": lambda x: x >= limit,
    }[sign]
    literal = "'" + limit.replace("'", "''") + "'" if isinstance(limit, str) else limit
    return f"{column} {sign} {literal}", lambda row: None if row[column] is None else compare(row[column])


@given(expressions())
def test_an_item_passes_if_the_expression_is_true_for_it_and_not_if_it_is_unknown(case):
    text, value = case
    nothing = {"category": None, "price": None}
    expected = [number for number, row in enumerate([*ROWS, nothing]) if value(row) is True]
    assert ITEMS.where(text) == expected


def test_columns_of_other_names_and_types_take_live_titles_and_categories(tmp_path):
    for genre, changed in ((["x", "y"], "z"), ([["x"], ["x", "y"]], "z/x"), ([1, 2], "3")):
        frame = pl.DataFrame({"asin": ["i01", "i02"], "genre": genre, "name": ["One", "Two"]})
        path = tmp_path / "items.parquet"
        frame.write_parquet(path)
        shop = bt.Recommender(steps=0, tree=bt.random_tree(60), items=path).fit(cyclic_log(), test_users=10)
        shop.update_items({"new": {"title": "One", "category": changed}, "i02": {"category": changed}})
        catalogue = shop._catalogue()
        of_category = [catalogue.ids[number] for number in catalogue.where(f"category == '{changed}'")]
        assert sorted(of_category) == ["i02", "new"]
        assert sorted(catalogue.ids[number] for number in catalogue.where("name == 'One'")) == ["i01", "new"]
        same = {
            "x": "genre = 'z'",
            "['x']": "array_contains(genre, 'z')",
            "1": "genre = 3",
        }[str(genre[0])]
        assert sorted(catalogue.ids[number] for number in catalogue.where(same)) == ["i02", "new"]


def test_a_catalogue_without_a_table_has_live_titles_and_categories():
    live = Catalogue(IDS, ["A", None, None, None, None], [None] * 5)
    assert found("title == 'A'", live) == "a"
    with pytest.raises(ValueError, match="no column 'category'"):
        live.where("category == 'x'")
    with pytest.raises(ValueError, match="nothing is known about the items"):
        Catalogue.of_ids(IDS).where("title == 'A'")


# In a recommender, in the command and in the service


@pytest.fixture(scope="module")
def attributes():
    """Groups of ten items are categories; the price of item n is n, and of some it is not known."""
    rows = [(f"i{n:02}", f"group {n // 10}", None if n % 7 == 0 else float(n)) for n in range(60)]
    return pl.DataFrame(rows, schema=["item", "category", "price"], orient="row")


@pytest.fixture
def priced(attributes):
    return bt.Recommender(steps=0, items=attributes).fit(cyclic_log(), test_users=10, verbose=False)


WHERE = "category != 'group 3' and price < 33"
EXPECTED = {f"i{n:02}" for n in range(30) if n % 7}


def names(frame):
    return set(frame["item"])


def test_a_recommender_filters_before_and_after_it_is_saved_pickled_and_changed(priced, tmp_path):
    priced.save(tmp_path / "run")
    copy, loaded = pickle.loads(pickle.dumps(priced)), bt.Recommender.load(tmp_path / "run")
    for shop in (priced, copy, loaded):
        for _ in range(2):  # once from the cache
            assert names(shop.recommend(["i31", "i32"], m=60, where=WHERE)) == EXPECTED
        answer = shop.recommend(["i01", "i02"], m=10, beam_size=10, where="price >= 50", exclude=["i55"])
        assert len(answer) == 8  # 50 … 59 without 55, and without 56, whose price is not known
        shop.update_items({"new": {"category": "group 9"}, "i05": {"category": "group 3"}})
        assert names(shop.recommend(["i01"], m=60, where=WHERE)) == EXPECTED - {"i05"}
        assert names(shop.recommend(["i01"], m=60, where="category == 'group 9'")) == {"new"}
        shop.remove_items(["new"])
        assert names(shop.recommend(["i01"], m=60, where="category == 'group 9'")) == set()


@pytest.fixture
def stocked():
    """The brand of item n has n % 20 characters and its stock is n: unsigned integers."""
    numbers = pl.Series(range(60), dtype=pl.UInt8)
    table = pl.DataFrame(
        {"item": [f"i{n:02}" for n in range(60)], "stock": numbers, "brand": ["x" * (n % 20) for n in range(60)]}
    )
    return bt.Recommender(steps=0).fit(cyclic_log(), items=table, test_users=10, verbose=False)


SHORT = {f"i{n:02}" for n in range(60) if n % 20 < 10}
ALL = {f"i{n:02}" for n in range(60)}
EXACT = [
    ("length(brand) - 10 < 0", SHORT),
    ("40.5 != coalesce(1 + 1, stock)", ALL),
    ("coalesce(null, 1) = 1", ALL),
    ("stock - 59 = 0", {"i59"}),
    ("round(stock / 2) = 3", {"i05", "i06"}),
]


@pytest.mark.parametrize(("where", "expected"), EXACT)
def test_m_items_come_back_wherever_an_expression_allows_m(stocked, where, expected):
    for m in (3, 60):
        answer = stocked.recommend(["i31", "i32"], m=m, beam_size=60, where=where)
        assert names(answer) <= expected
        assert len(answer) == min(m, len(expected))
    boosted = stocked.recommend(["i31"], m=60, rules={"boosts": [{"where": where, "factor": 0.5}]})
    assert {row["item"] for row in boosted.to_dicts() if row["rules"]} == expected


def test_values_that_are_missing_or_equal_are_so_for_limits_too():
    frame = pl.DataFrame({"x": [0.0, -0.0, math.nan, None], "hash": pl.Series([b"\xff"] * 4)})
    assert group_numbers("x", frame["x"]).tolist() == [0, 0, -1, -1]
    with pytest.raises(ValueError, match="at_most: column 'hash' holds Binary: give it as text"):
        group_numbers("hash", frame["hash"])


def test_a_recommender_without_a_table_and_one_with_a_bad_expression_say_so(shop, priced):
    with pytest.raises(ValueError, match="nothing is known about the items of this model: fit it with a table"):
        shop.recommend(["i01"], where="price < 5")
    with pytest.raises(ValueError, match="where is a int"):
        priced.recommend(["i01"], where=5)
    with pytest.raises(ValueError, match="no column 'colour'"):
        priced.recommend(["i01"], where="colour == 'red'")


def test_the_table_that_fit_gets_is_filtered_by_also_after_save_and_for_items_without_events(tmp_path):
    rows = [(f"i{n:02}", float(n)) for n in range(65)]  # the last five have no events in training
    table = pl.DataFrame(rows, schema=["item", "price"], orient="row")
    shop = bt.Recommender(steps=0).fit(cyclic_log(), items=table, test_users=10, verbose=False)
    shop.save(tmp_path / "run")
    for each in (shop, bt.Recommender.load(tmp_path / "run")):
        answer = each.recommend(["i31"], m=20, where="price >= 58", rules={"at_most": {"price": 1}, "pins": ["i63"]})
        assert names(answer) == {f"i{n}" for n in range(58, 65)}
        assert answer["item"][0] == "i63"
    words = ["retrieve", "run", "--history", "i31", "--m", "9", "--where", "price >= 58", "--json", "out.json"]
    beamtree(*words, folder=tmp_path)
    assert {row["item"] for row in json.loads((tmp_path / "out.json").read_text())} == names(answer)


def test_the_mask_of_an_expression_is_made_once_and_again_when_a_category_changes(priced):
    live, masks, filter = priced._live_model(), MaskCache(), Filter(where="category == 'group 1'")

    def get():
        return masks.get(filter, live.model, live.ids, live.catalogue)

    first, count = get()
    assert count == 10
    assert get()[0] is first
    before = live.model
    live.update_items({"i11": {"category": "group 2"}})
    assert live.model is before  # nothing but the category changed
    assert get()[1] == 9


def test_the_command_filters_also_by_live_attributes(priced, tmp_path):
    priced.update_items({"new": {"category": "group 9"}})
    priced.save(tmp_path / "run")

    def retrieve(where, check=True):
        words = ["retrieve", "run", "--history", "i31,i32", "--m", "60", "--where", where, "--json", "out.json"]
        done = beamtree(*words, folder=tmp_path, check=check)
        return done.stderr if not check else {row["item"] for row in json.loads((tmp_path / "out.json").read_text())}

    assert retrieve(WHERE) == EXPECTED
    assert retrieve("category == 'group 9'") == {"new"}
    assert retrieve("length(category) - 10 < 0 and item != 'new'") == ALL
    assert "no column 'colour'" in retrieve("colour == 'red'", check=False)
    assert retrieve("1 < price < 3", check=False).endswith("join them with and, or use parentheses\n")
    assert retrieve("price <", check=False).startswith("beamtree: --where 'price <' cannot be used")
    pl.DataFrame({"user": ["u"], "history": [["i31"]]}).write_parquet(tmp_path / "in.parquet")
    words = ["retrieve", "run", "--input", "in.parquet", "--m", "60", "--where", WHERE]
    for output, written in (("out.parquet", "out.parquet"), ("out", "out/in.parquet")):
        beamtree(*words, "--output", output, folder=tmp_path)
        assert names(pl.read_parquet(tmp_path / written)) == EXPECTED
    words[-1] = "price < 5"
    assert "where" in beamtree(*words, "--output", "out", folder=tmp_path, check=False).stderr


def test_the_service_filters_also_by_live_attributes(priced, tmp_path):
    priced.save(tmp_path / "run")
    journal = Journal(tmp_path / "changes")
    service = make_service(tmp_path / "run", partial(open_shop, journal=journal))
    with serving(service) as client:

        def items(where, path="/v1/recommend"):
            reply = client.post(path, json={"history": ["i31"], "m": 60, "beam_size": 60, "where": where}).json()
            if "explanation" in reply:
                return {row["item"]["item"] for row in reply["explanation"]["found"]}
            return set(reply["results"][0]["items"]) if "results" in reply else reply["error"]

        assert items(WHERE) == items(WHERE, "/v1/explain") == EXPECTED
        client.put("/v1/items/i05", json={"category": "group 3"}).raise_for_status()
        client.put("/v1/items/new", json={"category": "group 9", "like": ["i31"]}).raise_for_status()
        assert items(WHERE) == EXPECTED - {"i05"}
        assert items("category == 'group 9'") == {"new"}
        assert items("length(category) - 10 < 0 and item != 'new'") == ALL
        assert "no column 'colour'" in items("colour == 'red'")
        assert "comparisons cannot be chained" in items("1 < price < 3")
        assert "no column 'select'" in items("(select true)")
        assert items(WHERE) == EXPECTED - {"i05"}
    service.close()
    journal.close()
