"""Titles and categories: read from a table, looked up, searched and filtered by."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.ingest.item_tables import read_catalogue

NAMES = ["b2", "a1", "c3", "ab4"]


def table(folder, file="items.csv", **columns):
    path = folder / file
    frame = pl.DataFrame(columns)
    frame.write_parquet(path) if file.endswith(".parquet") else frame.write_csv(path)
    return path


def test_titles_and_categories_follow_the_ids_and_what_is_missing_is_none(tmp_path):
    path = table(tmp_path, movieId=["a1", "zz", "b2"], title=["Alien ", "Zorro", ""], genres=["Sci-Fi", "West", "Art"])
    found = read_catalogue(path, Ids(NAMES))
    assert found.titles == [None, "Alien", None, None]
    assert found.categories == ["Art", "Sci-Fi", None, None]
    assert (found.titles[1], found.categories[0]) == ("Alien", "Art")


@pytest.mark.parametrize("column", ["title", "name", "item_name", "Product Name"])
def test_a_column_of_titles_alone_is_enough(tmp_path, column):
    found = read_catalogue(table(tmp_path, **{"item": ["a1"], column: ["Alien"]}), Ids(NAMES))
    assert found.titles[1] == "Alien"
    assert found.categories == [None] * 4


def test_a_product_column_is_the_item_where_nothing_else_is(tmp_path):
    path = table(tmp_path, product=["a1"], category=["Books"])
    assert read_catalogue(path, Ids(NAMES)).categories[1] == "Books"
    path = table(tmp_path, item=["a1"], product=["Alien"])
    assert read_catalogue(path, Ids(NAMES)).titles[1] == "Alien"


def test_lists_of_categories_are_paths(tmp_path):
    path = table(tmp_path, "items.parquet", item=["a1"], categories=[["Books", "Fiction"]])
    assert read_catalogue(path, Ids(NAMES)).categories[1] == "Books/Fiction"


def test_a_table_that_says_nothing_or_names_an_item_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no other column than 'item'"):
        read_catalogue(table(tmp_path, item=["a1"]), Ids(NAMES))
    with pytest.raises(ValueError, match="'a1' more than once"):
        read_catalogue(table(tmp_path, item=["a1", "a1"], title=["x", "y"]), Ids(NAMES))


def test_a_category_has_all_that_lies_below_it():
    paths = ["Books / Fiction", "books|Poetry", "Booksellers", None]
    found = Catalogue(Ids(NAMES), [None] * 4, paths)
    assert found.in_category("Books") == [0, 1]
    assert found.in_category(" books > fiction ") == [0]
    assert found.in_category("Fiction") == found.in_category("") == found.in_category("/") == []


def test_ids_that_begin_with_the_text_come_first():
    found = Catalogue(Ids(NAMES), ["About a boy", "Alien", None, "x"], [None] * 4)
    assert found.search("A", 10) == [1, 3, 0]
    assert found.search("alien", 10) == [1]
    assert found.search("A", 2) == [1, 3]
    assert found.search("nothing", 10) == []


def test_one_without_titles_knows_its_ids():
    found = Catalogue.of_ids(Ids(NAMES))
    assert found.titles[0] is found.categories[0] is None
    assert found.search("C", 5) == [2]
    assert "4 items, 0 titles" in repr(found)


@given(
    st.lists(st.tuples(st.text("aAbß ", max_size=4), st.none() | st.text("aAbß ", max_size=4)), max_size=8),
    st.text("aAbß", max_size=2),
    st.integers(1, 10),
)
def test_a_search_finds_what_the_definition_finds(rows, text, limit):
    names, titles = [name for name, _ in rows], [title for _, title in rows]
    asked = text.casefold()
    begins = [n for n, name in enumerate(names) if name.casefold().startswith(asked)]
    holds = [n for n in range(len(rows)) if asked in names[n].casefold() or asked in (titles[n] or "").casefold()]
    expected = [*begins, *(n for n in holds if n not in begins)][:limit]
    assert Catalogue(Ids(names), titles, [None] * len(rows)).search(text, limit) == expected
