"""`where`: items are filtered by an expression over their attributes, which may change while the model is in use."""

import json
import pickle
import re
from functools import partial

import polars as pl
import pytest
from command import beamtree
from hypothesis import given
from hypothesis import strategies as st
from sample_logs import cyclic_log
from serving import make_service, open_shop, serving

import beamtree as bt
from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.ingest.item_tables import read_catalogue
from beamtree.live import Journal
from beamtree.query import Filter, MaskCache

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
        ("price", "is Float64, not true or false"),
        ("category = '\ud800'", "cannot be used"),
        ("price < 'a'", "cannot compare string with numeric"),
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
        ("(" * 200 + "stock" + ")" * 200, "cannot be used"),
    ],
)
def test_anything_but_an_expression_over_columns_is_refused_in_one_line(expression, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        ITEMS.where(expression)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


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
        shop.add_items({"new": {"title": "One", "category": changed}, "i02": {"category": changed}})
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
        shop.add_items({"new": {"category": "group 9"}, "i05": {"category": "group 3"}})
        assert names(shop.recommend(["i01"], m=60, where=WHERE)) == EXPECTED - {"i05"}
        assert names(shop.recommend(["i01"], m=60, where="category == 'group 9'")) == {"new"}
        shop.remove_items(["new"])
        assert names(shop.recommend(["i01"], m=60, where="category == 'group 9'")) == set()


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
    live.add_items({"i11": {"category": "group 2"}})
    assert live.model is before  # nothing but the category changed
    assert get()[1] == 9


def test_the_command_filters_also_by_live_attributes(priced, tmp_path):
    priced.add_items({"new": {"category": "group 9"}})
    priced.save(tmp_path / "run")

    def retrieve(where, check=True):
        words = ["retrieve", "run", "--history", "i31,i32", "--m", "60", "--where", where, "--json", "out.json"]
        done = beamtree(*words, folder=tmp_path, check=check)
        return done.stderr if not check else {row["item"] for row in json.loads((tmp_path / "out.json").read_text())}

    assert retrieve(WHERE) == EXPECTED
    assert retrieve("category == 'group 9'") == {"new"}
    assert "no column 'colour'" in retrieve("colour == 'red'", check=False)
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
        assert "no column 'colour'" in items("colour == 'red'")
        assert "no column 'select'" in items("(select true)")
        assert items(WHERE) == EXPECTED - {"i05"}
    service.close()
    journal.close()
