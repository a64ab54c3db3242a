"""Attributes of items change while a model serves: what filters, rules and limits read is what was said last."""

import contextlib
import copy
import multiprocessing
import pickle
import random
import threading
import time

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sample_logs import ITEM_NAMES, cyclic_log, shop_table
from serving import make_model

import beamtree as bt
from beamtree.ingest.item_tables import read_catalogue
from beamtree.live import Journal, LiveModel, journal, renew
from beamtree.live.journal import compact, count_changes
from beamtree.parts.content import features_weight
from beamtree.query import Filter, MaskCache, Rules


@pytest.fixture(scope="module")
def fitted():
    return bt.Recommender(steps=0, seed=0).fit(cyclic_log(), items=shop_table(), test_users=10, verbose=False)


@pytest.fixture
def priced(fitted):
    return copy.copy(fitted)


def found(shop, where=None, rules=None):
    return {*shop.recommend(["i31", "i32"], m=99, beam_size=99, where=where, rules=rules)["item"]}


def attribute(shop, item, column):
    catalogue = shop._catalogue()
    return catalogue.table.columns[column].get(catalogue.ids.find([item])[0])


def saved_and_loaded(shop, folder):
    shop.save(folder / "saved")
    return bt.Recommender.load(folder / "saved")


COPIES = {
    "itself": lambda shop, folder: shop,
    "saved and loaded": saved_and_loaded,
    "pickled": lambda shop, folder: pickle.loads(pickle.dumps(shop)),
    "copied": lambda shop, folder: copy.copy(shop),
    "copied deeply": lambda shop, folder: copy.deepcopy(shop),
}


# What is given changes, and what is left out stays


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
def test_filters_rules_and_limits_read_what_was_said_last(priced, tmp_path, again):
    assert found(priced, "price > 55") == {"i56", "i57", "i58", "i59"}
    changes = {
        "i05": {"price": 500, "brand": "new brand"},
        "i06": {"price": 500.5, "brand": "new brand"},
        "i57": {"price": None},
        "i58": {"genres": ["only"], "released": "2027-05-05", "new": False},
    }
    assert priced.update_items(changes) == 4
    shop = again(priced, tmp_path)
    assert found(shop, "price > 55") == {"i05", "i06", "i56", "i58", "i59"}
    assert found(shop, "price is null") == {"i57"}
    assert found(shop, "array_contains(genres, 'only') and released > date('2027-01-01') and not new") == {"i58"}
    assert found(shop, "brand = 'new brand' and stock = 1") == {"i05"}
    limited = shop.recommend(["i31"], m=99, beam_size=99, where="price > 400", rules={"at_most": {"brand": 1}})
    assert len(limited) == 1
    boosted = shop.recommend(["i31"], m=99, beam_size=99, rules={"boosts": [{"where": "price > 400", "factor": 2}]})
    assert {row["item"] for row in boosted.to_dicts() if row["rules"]} == {"i05", "i06"}
    assert shop.update_items(changes) == 0
    assert priced.update_items(changes) == 0


TABLE = pl.DataFrame({"item": ["i05", "i57"], "price": [500.5, None], "stock": [9, 9]})


@pytest.mark.parametrize(
    "given",
    [
        TABLE,
        TABLE.lazy(),
        TABLE.to_pandas(),
        TABLE.to_arrow(),
        TABLE.rename({"item": "sku"}),
        {"i05": {"price": 500.5, "stock": 9}, "i57": {"price": None, "stock": 9}},
        {"i05": {"price": 500.5, "stock": 9.0}, "i57": {"stock": 9, "price": float("nan")}},
    ],
    ids=["polars", "lazy", "pandas", "arrow", "another name", "mapping", "pandas values"],
)
def test_a_change_comes_in_any_form(priced, given):
    assert priced.update_items(given) == 2
    assert found(priced, "stock = 9") == {"i05", "i57"}
    assert found(priced, "price is null") == {"i57"}
    assert found(priced, "price = 500.5") == {"i05"}
    assert attribute(priced, "i05", "brand") == "brand 0"


@pytest.mark.parametrize("file", ["prices.parquet", "prices.csv", "prices.jsonl"])
def test_a_change_comes_from_a_file(priced, tmp_path, file):
    write = {"parquet": TABLE.write_parquet, "csv": TABLE.write_csv, "jsonl": TABLE.write_ndjson}
    write[file.split(".")[1]](tmp_path / file)
    for path in (tmp_path / file, str(tmp_path / file)):
        assert priced.update_items(path) in (2, 0)
    assert found(priced, "price is null") == {"i57"}
    assert found(priced, "price = 500.5 and stock = 9") == {"i05"}
    with pytest.raises(ValueError, match="does not exist"):
        priced.update_items(tmp_path / "none.csv")


def test_an_empty_cell_of_a_table_clears_and_a_missing_key_does_not(priced):
    priced.update_items(pl.DataFrame({"item": ["i01"], "price": [None], "stock": [7]}))
    priced.update_items({"i01": {"stock": 8}})
    assert (attribute(priced, "i01", "price"), attribute(priced, "i01", "stock")) == (None, 8)
    assert attribute(priced, "i01", "name") == "Title 1"


def test_a_table_may_bring_new_columns_and_a_mapping_not(priced, tmp_path):
    with pytest.raises(
        ValueError, match=r"item 'i01': there is no field 'colour', but like, histories, .* price, stock"
    ):
        priced.update_items({"i01": {"colour": "red"}})
    priced.update_items(pl.DataFrame({"item": ["i01", "i02"], "colour": ["red", "blue"]}))
    assert priced.update_items({"i03": {"colour": "red"}}) == 1
    for shop in (priced, saved_and_loaded(priced, tmp_path)):
        assert found(shop, "colour = 'red'") == {"i01", "i03"}
        assert found(shop, "colour is null") == {*ITEM_NAMES} - {"i01", "i02", "i03"}


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({"i01": {"price": "cheap"}}, "item 'i01': 'price' takes numbers, not 'cheap'"),
        ({"i01": {"price": 1}, "i02": {"price": [1]}}, "item 'i02': 'price' takes numbers"),
        ({"i01": {"item": "x"}}, "no field 'item'"),
        ({"i01": {"title": "A", "name": "B"}}, "'name' is the column 'name': give one of them"),
        ({"i01": {"title": 5}}, "'name' takes text, not 5"),
        ({"i01": 5}, "give a dict of fields"),
        ({"": {"price": 1}}, "not an id"),
        ({"i01": {"price": 1}, "new": {"like": ["nobody"]}}, "'nobody', which is not known"),
        (pl.DataFrame({"item": ["i01", "i01"], "price": [1, 2]}), "has item 'i01' more than once"),
        (pl.DataFrame({"item": ["i01", None, ""], "price": [1, 2, 3]}), "2 rows of the table have no item"),
        (pl.DataFrame({"item": ["i01", "a\nb"], "price": [1, 2]}), "not an id"),
        (pl.DataFrame({"item": ["i01"], "price": ["cheap"]}), "column 'price' holds text"),
        (pl.DataFrame({"item": ["i01"], "title": ["A"], "name": ["B"]}), "two columns for 'name'"),
        (pl.DataFrame({"price": [1]}), "has no column 'item'"),
    ],
)
def test_what_is_not_valid_is_refused_and_nothing_changes(priced, items, words):
    before = priced._catalogue().attributes
    with pytest.raises(ValueError, match=words):
        priced.update_items(items)
    assert priced._catalogue().attributes.equals(before)
    assert found(priced) == {*ITEM_NAMES}


# Hidden and new items


def test_changes_leave_hidden_items_hidden_and_ids_alone_show_them(priced):
    priced.remove_items(["i01", "i02", "i03", "i04"])
    assert priced.update_items({"i01": {"price": 100}}) == 1
    assert priced.update_items(pl.DataFrame({"item": ["i02", "i03"], "price": [100, 100]})) == 2
    assert found(priced, "price >= 100") == set()
    assert priced.update_items(["i01"]) == 1
    assert priced.update_items({"i02": {}, "i04": None}) == 2
    assert priced.update_items(pl.DataFrame({"item": ["i03"]})) == 1
    assert priced.update_items(ITEM_NAMES) == 0
    assert found(priced, "price >= 100") == {"i01", "i02", "i03"}


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
def test_new_items_come_with_every_column(priced, tmp_path, again):
    assert priced.update_items({"one": {"price": 9.5, "brand": "brand 1", "title": "Title 11"}}) == 1
    table = pl.DataFrame({"item": ["two", "i01"], "price": [9.5, 1.0], "genres": [["x"], ["y"]], "size": ["L", "M"]})
    assert priced.update_items(table) == 2
    assert priced.update_items(["three"]) == 1
    shop = again(priced, tmp_path)
    assert found(shop, "price = 9.5") == {"one", "two"}
    assert found(shop, "size = 'L' and array_contains(genres, 'x')") == {"two"}
    assert found(shop, "price is null") == {"three"}
    assert shop.update_items({"three": {"price": 7}, "one": {"stock": 3}}) == 2
    assert found(shop, "price = 7") == {"three", "i07"}
    assert found(shop, "stock = 3 and price = 9.5") == {"one"}


def test_a_new_item_is_placed_by_all_of_its_columns(priced):
    """Nothing but its genres and brand say that it is like those of a group."""
    rows = shop_table().with_columns(shelf=pl.Series([f"shelf {number // 10}" for number in range(60)]))
    priced.update_items(rows.select("item", "shelf"))
    priced.update_items(pl.DataFrame({"item": ["new"], "shelf": ["shelf 2"]}))
    near = priced.recommend(["i22", "i23", "i24"], m=61, beam_size=70)["item"].to_list().index("new")
    far = priced.recommend(["i42", "i43", "i44"], m=61, beam_size=70)["item"].to_list().index("new")
    assert near < far


def test_a_new_price_moves_no_item_and_a_new_title_only_those_that_were_placed_by_it(priced):
    priced.update_items({"new": {"title": "Title 22", "category": "group 2", "price": 1}})
    slots = priced.model.tree.items().tolist()
    priced.update_items({"new": {"price": 2, "brand": "brand 9"}, "i01": {"title": "Title 55", "category": "group 5"}})
    assert priced.model.tree.items().tolist() == slots
    model = priced.model
    priced.update_items({"new": {"category": "group 5"}})
    assert priced.model is not model


def test_a_forgotten_item_has_nothing_when_it_comes_back(priced, tmp_path):
    priced.forget_items(["i05"])
    priced.update_items(["i05"])
    for shop in (priced, saved_and_loaded(priced, tmp_path)):
        assert {attribute(shop, "i05", column) for column in ("price", "brand", "name", "genres")} == {None}
        assert shop._catalogue().titles[shop.ids.find(["i05"])[0]] is None


def test_an_item_that_a_table_listed_before_it_was_added_has_what_the_table_said(tmp_path):
    """Also a table for the tree, whose other items are not added."""
    table = pl.concat(
        [shop_table(), shop_table().tail(1).with_columns(item=pl.lit("later"), price=pl.col("price") + 18)]
    )
    shop = bt.Recommender(steps=0, items=table).fit(cyclic_log(), test_users=10, verbose=False)
    assert found(shop) == {*ITEM_NAMES}
    shop.update_items({"i01": {"price": 70}})
    shop = saved_and_loaded(shop, tmp_path)
    shop.update_items({"later": {"stock": 9}})
    shop = saved_and_loaded(shop, tmp_path)
    assert found(shop, "price >= 70") == {"i01", "later"}
    assert attribute(shop, "later", "stock") == 9


def test_vectors_of_new_items_come_with_a_table_too(tmp_path):
    vectors = (torch.eye(6)[torch.arange(60) // 10] + 0.01 * torch.rand(60, 6)).tolist()
    shop = bt.Recommender(steps=0, vectors=dict(zip(ITEM_NAMES, vectors, strict=True))).fit(cyclic_log(), test_users=10)
    table = {"item": ["i01", "near", "far"], "price": [1, 2, 3], "vector": [vectors[1], vectors[35], vectors[55]]}
    assert shop.update_items(pl.DataFrame(table)) == 3
    best = shop.recommend(["i32", "i33", "i34"], m=62, beam_size=70)["item"].to_list()
    assert best.index("near") < best.index("far")
    assert shop.update_items(pl.DataFrame(table)) == 0
    with pytest.raises(ValueError, match="the vector has 2 numbers"):
        shop.update_items(pl.DataFrame({"item": ["bad"], "vector": [[1.0, 2.0]]}))


# The first table


def test_the_first_table_may_come_later(tmp_path):
    shop = bt.Recommender(steps=0).fit(cyclic_log(), test_users=10, verbose=False)
    shop.update_items({"i01": {"title": "Mine"}, "i02": {"title": "Another"}})
    shop.update_items(pl.DataFrame({"item": ["i02", "i03", "new"], "name": ["Its name", "B", "C"], "price": [2, 3, 4]}))
    for each in (shop, saved_and_loaded(shop, tmp_path)):
        assert found(each, "price > 2") == {"i03", "new"}
        titles = dict(zip(each.ids, each._catalogue().titles, strict=True))
        assert (titles["i01"], titles["i02"], titles["i03"], titles["new"]) == ("Mine", "Its name", "B", "C")
        assert found(each, "name = 'Mine'") == {"i01"}


def test_items_of_similar_features_become_partners_by_the_first_table_that_says_so():
    draw = random.Random(0)
    rows = [(f"u{user}", str(20 * group + item)) for user in range(150) for group in [draw.randrange(30)]
            for item in draw.sample(range(20), 10)]  # fmt: skip
    log = pl.DataFrame(rows, schema=["user", "item"], orient="row")
    shop = bt.Recommender(steps=0).fit(log, val_users=40, test_users=0, verbose=False)
    prices = pl.DataFrame({"item": shop.ids.names, "price": [draw.randrange(9) for _ in shop.ids.names]})
    shop.update_items(prices)
    assert features_weight(shop.model.scorer) == 0
    shop.update_items(
        pl.DataFrame({"item": shop.ids.names, "group": [f"g{int(name) // 20}" for name in shop.ids.names]})
    )
    assert features_weight(shop.model.scorer) > 0
    model = shop.model
    shop.update_items(prices.with_columns(price=5))
    assert shop.model is model


# States


def test_the_masks_of_expressions_stay_while_their_columns_do(priced):
    live, masks = priced._live_model(), MaskCache()
    rules = Rules(boosts=[{"where": "new", "factor": 2}], at_most={"brand": 1})
    filters = {name: Filter(where=where) for name, where in (("price", "price > 5"), ("stock", "stock > 1"))}
    filters["category"] = Filter(category="group 1")

    def made():
        made = {name: masks.get(each, live.model, live.ids, live.catalogue)[0] for name, each in filters.items()}
        return made | {"rules": masks.apply(rules, filters["stock"], live.model, live.ids, live.catalogue)}

    before = made()
    for changes, again in (
        ({"i01": {"price": 1}}, set()),  # as it was
        ({"i01": {"price": 2}}, {"price"}),
        ({"i01": {"released": "2026-02-02", "title": "T"}}, set()),
        ({"i01": {"category": "group 9"}}, {"category"}),
        ({"i01": {"brand": "b"}}, {"rules"}),
        ({"i01": {"stock": 0}}, {"stock", "rules"}),
        (pl.DataFrame({"item": ["i01"], "other": [5]}), set()),
    ):
        live.update_items(changes)
        after = made()
        assert {name for name in before if after[name] is not before[name]} == again
        before = after
    live.update_items(["new"])
    assert all(each is not before[name] for name, each in made().items())


def test_readers_see_one_state_whatever_changes_beside_them(priced):
    """Price and stock change together, so they are always the same."""
    priced.update_items(pl.DataFrame({"item": ITEM_NAMES, "price": [0] * 60, "stock": [0] * 60}))
    faults, end, answers = [], threading.Event(), [0]

    def read():
        while not end.is_set():
            try:
                if found(priced, "price != stock"):
                    faults.append("price and stock differ")
                answers[0] += 1
                time.sleep(0.01)  # without it the changes wait for the readers
            except Exception as error:
                faults.append(repr(error))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    draw = random.Random(0)
    for step in range(60):
        some = draw.sample(ITEM_NAMES, draw.randrange(1, 60))
        if step % 3:
            priced.update_items({name: {"price": step, "stock": step} for name in some})
        else:
            priced.update_items(pl.DataFrame({"item": [*some, f"new {step}"], "price": step, "stock": step}))
    while answers[0] < 20 and not faults:
        time.sleep(0.01)
    end.set()
    for thread in threads:
        thread.join()
    assert faults == []


def test_a_million_changes_between_two_readings_are_merged_once(monkeypatch):
    """A change takes the time of what it changes, not of the catalogue."""
    live = LiveModel(make_model(), catalogue=read_catalogue(small_table(), make_model().ids))
    merged = []
    original = pl.Series.scatter
    monkeypatch.setattr(pl.Series, "scatter", lambda *args: merged.append(1) or original(*args))
    for step in range(500):
        live.update_items({f"i{step % 60}": {"price": float(step)}})
    assert merged == []
    live.catalogue.where("price > 5")
    live.catalogue.where("price > 6")
    assert merged == [1]


# Against a plain dict


def small_table():
    names = [f"i{number}" for number in range(50)]
    return pl.DataFrame(
        {
            "item": names,
            "name": [f"name {number}" for number in range(50)],
            "genre": [["a", f"g{number % 3}"] for number in range(50)],
            "price": range(50),
            "brand": pl.Series([f"b{number % 4}" for number in range(50)], dtype=pl.Categorical),
        }
    )


class Plain:
    """What a shop has said, as dicts: the items, their attributes, and which are visible."""

    def __init__(self, names, table):
        rows = {row.pop("item"): row for row in table.to_dicts()}
        self.columns = [name for name in table.columns if name != "item"]
        nothing = dict.fromkeys(self.columns)
        self.items = {name: dict(rows.get(name, nothing)) for name in names}
        self.visible = {*names}

    def update(self, items):
        for name, fields in items.items():
            if name not in self.items or not fields:
                self.visible.add(name)
            self.items.setdefault(name, dict.fromkeys(self.columns))
            for field, value in fields.items():
                column = {"title": "name", "category": "genre"}.get(field, field)
                self.items[name][column] = value.split("/") if field == "category" and value else value

    def forget(self, names):
        for name in names:
            self.items.pop(name, None)
            self.visible.discard(name)


def random_change(draw, shop, plain):
    """Change a recommender or a live model, and the dicts."""
    names = draw.sample([*(f"i{number}" for number in range(0, 60, 7)), *(f"n{number}" for number in range(5))], 4)
    kind = draw.random()
    values = {
        "price": lambda: draw.choice([None, draw.randrange(99), draw.randrange(99) / 4]),
        "name": lambda: draw.choice([None, f"name {draw.randrange(9)}"]),
        "title": lambda: draw.choice([None, f"title {draw.randrange(9)}"]),
        "genre": lambda: draw.choice([None, ["a", "b"], []]),
        "category": lambda: draw.choice([None, "c/d"]),
        "brand": lambda: draw.choice([None, "b1", "b9"]),
    }
    if kind < 0.45:
        fields = [draw.choice(["name", "title"]), draw.choice(["genre", "category"]), "price", "brand"]
        told = {name: {field: values[field]() for field in fields if draw.random() < 0.4} for name in names}
        shop.update_items(told)
        plain.update(told)
    elif kind < 0.6:
        columns = draw.sample(plain.columns, draw.randrange(1, 4))
        told = {name: {column: values[column]() for column in columns} for name in names}
        rows = [{"item": name, **told[name]} for name in names]
        schema = {
            "item": pl.String,
            "price": pl.Float64,
            "name": pl.String,
            "genre": pl.List(pl.String),
            "brand": pl.String,
        }
        shop.update_items(pl.DataFrame(rows, schema={name: schema[name] for name in ["item", *columns]}))
        plain.update(told)
    elif kind < 0.7:
        shop.update_items(names[:2])
        plain.update({name: {} for name in names[:2]})
    elif kind < 0.85:
        shop.remove_items(names[:2])
        plain.visible -= {*names[:2]}
    else:
        shop.forget_items(names[:2])
        plain.forget(names[:2])


def state(model, catalogue):
    """The attributes of the items that a model has, and which are visible."""
    numbers = torch.arange(len(catalogue.ids))
    leaves = model.tree.leaf_of_item(numbers)
    allowed, names = model.tree.mask.allows(leaves).tolist(), catalogue.ids.names
    placed = [number for number, leaf in enumerate(leaves.tolist()) if leaf >= 0]
    items = {names[number]: catalogue.table.described(number) for number in placed}
    return items, {names[number] for number in placed if allowed[number]}


def check_frames(catalogue):
    """Titles and categories are those of the table, and some rows are those of the whole frame."""
    some = [len(catalogue.ids) - 1, 0, 7]
    assert catalogue.rows(some).equals(catalogue.attributes[some])
    name = catalogue.attributes["name"].to_list()
    assert catalogue.titles == [None if text is None else text.strip() or None for text in name]
    genre = catalogue.attributes["genre"].to_list()
    assert catalogue.categories == [None if path is None else "/".join(path) or None for path in genre]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(2, 10))])
def test_any_changes_lead_to_what_was_said_last_also_by_the_journal(tmp_path, seed):
    draw, model, table = random.Random(seed), make_model(), small_table()

    def opened(journal):
        return LiveModel(make_model(), catalogue=read_catalogue(table, model.ids), journal=journal, digest="one")

    log = Journal(tmp_path)
    live, plain = opened(log), Plain(model.ids.names, table)
    for step in range(40):
        random_change(draw, live, plain)
        if step % 10 == 9:
            assert state(live.model, live.catalogue) == (plain.items, plain.visible)
            check_frames(live.catalogue)
    long, short = list(log.entries), compact(log.entries)
    assert compact(short) == short
    assert count_changes(short) == count_changes(long) == live.version
    for entries in (long, short):
        log.entries = entries
        again = opened(log)
        assert state(again.model, again.catalogue) == (plain.items, plain.visible)
        check_frames(again.catalogue)
        assert again.version == live.version
    log.entries = long
    log.close()
    reread = Journal(tmp_path)
    assert state(*opened(reread).snapshot[1:]) == (plain.items, plain.visible)
    reread.close()


@pytest.mark.parametrize("seed", range(2))
def test_any_changes_lead_to_what_was_said_last_also_by_copies(tmp_path, seed):
    log = cyclic_log().with_columns(item=pl.lit("i") + pl.col("item").str.slice(1).cast(pl.Int64).cast(pl.String))
    shop = bt.Recommender(steps=0).fit(log, items=small_table(), test_users=10, verbose=False)
    draw, plain = random.Random(seed), Plain(shop.ids.names, small_table())
    for step in range(30):
        random_change(draw, shop, plain)
        if step % 5 == 4:
            shop = draw.choice([*COPIES.values()])(shop, tmp_path)
            catalogue = shop._catalogue()
            assert state(shop.model, catalogue) == (plain.items, plain.visible)
            check_frames(catalogue)


# Journals, swaps and renewal


def change_prices(folder, sender):
    """Give all items one price after another, and say so when it is on disk; compacted every few changes."""
    journal.COMPACT_FROM = 300
    log, model = Journal(folder), make_model()
    live = LiveModel(model, catalogue=read_catalogue(small_table(), model.ids), journal=log)
    price = live.catalogue.table.columns["price"].get(0)
    while True:
        price += 1
        live.update_items({name: {"price": price} for name in model.ids.names})
        sender.send(price)


@pytest.mark.extended
def test_a_process_that_is_killed_loses_no_price_and_makes_no_half_change(tmp_path):
    context, wait = multiprocessing.get_context("spawn"), random.Random(0)
    for _ in range(4):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=change_prices, args=(tmp_path, sender))
        process.start()
        sender.close()
        last = receiver.recv()
        time.sleep(wait.random() / 5)
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):
            while True:
                last = receiver.recv()
        log, model = Journal(tmp_path), make_model()
        live = LiveModel(model, catalogue=read_catalogue(small_table(), model.ids), journal=log)
        log.close()
        (price,) = {*live.catalogue.attributes["price"].to_list()}
        assert price in (last, last + 1)


def test_a_journal_has_one_line_for_each_update_and_the_last_value_of_each_field(tmp_path):
    log = Journal(tmp_path)
    live = LiveModel(make_model(), catalogue=read_catalogue(small_table(), make_model().ids), journal=log)
    for price in range(5):
        live.update_items({f"i{number}": {"price": price, "name": "x"} for number in range(40)})
        live.update_items(pl.DataFrame({"item": ["i41", "i42"], "price": [price, price]}))
    assert log.path.read_bytes().count(b"\n") == 10
    before, *entries = compact(log.entries)
    assert (before["kind"], [entry["kind"] for entry in entries]) == ("before", ["set", "set"])
    assert sum(len(entry["items"]) for entry in entries) == 42
    assert {value for entry in entries for value in entry["values"]["price"]} == {4}
    log.close()


def test_a_journal_is_compacted_by_the_values_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr("beamtree.live.journal.COMPACT_FROM", 1000)
    log = Journal(tmp_path)
    live = LiveModel(make_model(), catalogue=read_catalogue(small_table(), make_model().ids), journal=log)
    for price in range(100):
        live.update_items({f"i{number}": {"price": price} for number in range(50)})
    assert len(log.entries) < 25
    assert count_changes(log.entries) == live.version
    log.close()


def other_table():
    """Of another run: without a brand, and with prices in text."""
    return small_table().select("item", "name", pl.col("price").cast(pl.String))


def test_a_swap_keeps_what_fits_the_other_run_and_gets_all_back(tmp_path, caplog):
    log = Journal(tmp_path)

    def opened(table, items=60):
        model = make_model(items)
        return LiveModel(model, catalogue=read_catalogue(table, model.ids), journal=log, digest=str(items))

    live = opened(small_table())
    live.update_items({"i1": {"price": 500, "brand": "x", "title": "Mine"}, "i55": {"price": 77}, "new": {"price": 88}})
    other = opened(other_table(), 50)  # it does not have i55
    assert other.catalogue.where("name = 'Mine' and brand = 'x'") == [1]
    assert other.catalogue.table.columns["price"].get(1) == "1"
    assert "changes of 'price' are not used" in caplog.text
    assert not other.is_visible("i55")
    other.update_items(["i55"])
    third = opened(small_table().head(20), 50)
    assert third.catalogue.where("price = 77") == third.ids.find(["i55"])  # what was said of it before
    back = opened(small_table())
    assert back.catalogue.where("price >= 500 or price = 88") == back.ids.find(["i1", "new"])
    without = LiveModel(make_model(), journal=log)
    assert without.catalogue.where("price = 500") == [1]
    log.close()


def test_an_item_that_is_only_hidden_in_another_run_has_what_that_run_says(tmp_path):
    log = Journal(tmp_path)
    entries = []
    for digest in ("one", "two"):
        live = LiveModel(
            make_model(), catalogue=read_catalogue(small_table(), make_model().ids), journal=log, digest=digest
        )
        if digest == "one":
            live.update_items({"i1": {"price": 500, "title": "Mine"}})
            live.forget_items(["i1"])
            assert live.catalogue.where("price = 500 or price = 1") == []
        entries.append((live.is_visible("i1"), live.catalogue.table.columns["price"].get(1), live.catalogue.titles[1]))
    assert entries == [(False, None, None), (False, 1, "name 1")]
    log.close()


def test_a_renewal_keeps_attributes_and_new_items(fitted, tmp_path):
    shop = copy.copy(fitted)
    shop.update_items({"i01": {"price": 500}, "live": {"price": 501, "like": ["i33"]}})
    shop.save(tmp_path / "run")
    log = cyclic_log().with_columns(pl.col("user") + "b", item=pl.col("item").replace("i25", "logged"))
    renew(tmp_path / "run", log, force=True, verbose=False)
    renewed = bt.Recommender.load(tmp_path / "run")
    assert found(renewed, "price >= 500") == {"i01", "live"}
    assert found(renewed, "price is null") == {"logged"}
    renewed.update_items({"logged": {"price": 502}})
    assert found(renewed, "price >= 500") == {"i01", "live", "logged"}


# Old names


def test_old_names_work_and_name_the_new_one(priced):
    with pytest.warns(DeprecationWarning, match=r"add_items is deprecated and will be removed: use update_items"):
        assert priced.add_items({"one": {"price": 9.5}}) == 1
    priced.remove_items(["i01"])
    with pytest.warns(DeprecationWarning, match="add_items"):
        assert priced.add_items({"i01": {"price": 100}}) == 1
    assert found(priced, "price > 59") == {"i01"}  # which is visible again, as it used to be
    table = pl.DataFrame({"item": ["i02", "two"], "price": [7.5, 7.5], "brand": ["x", "brand 1"]})
    with pytest.warns(DeprecationWarning, match="use_features"):
        assert priced.use_features(table) == ["Added 1 items that have no events in training, by their features."]
    with pytest.warns(DeprecationWarning, match="add_listed_items"):
        assert priced.add_listed_items(table.with_columns(item=pl.Series(["i02", "three"]))) == 1
    assert found(priced, "price = 7.5") == {"two", "three"}  # of known items, the earlier table was used


def test_ids_alone_may_be_any_series(priced):
    priced.remove_items(["i01", "i02", "i03"])
    assert priced.update_items(pl.Series(["i01"])) == 1
    assert priced.update_items(pd.Series(["i02"])) == 1
    assert priced.update_items(pa.array(["i03"]).to_pylist()) == 1
