"""Ids come back in the type they came in: integers of a log stay integers, text stays text."""

import json
import pickle
import random

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
from beamtree.data.ids import as_given
from beamtree.files.checksums import CHECKSUM, write_checked_json
from beamtree.ingest.prepare import prepare
from beamtree.live import Journal, renew

LOG = cyclic_log().with_columns(
    user=7 * pl.col("user").str.slice(1).cast(pl.Int64), item=1000 + pl.col("item").str.slice(1).cast(pl.Int64)
)
NOT_WHOLE = "the id 'lamp' is not a whole number, as all others are: give it a number"


@pytest.fixture(scope="module")
def fitted():
    return bt.Recommender(steps=0, seed=0, beam_size=60).fit(LOG, val_users=10, test_users=10, verbose=False)


@pytest.fixture
def shop(fitted):
    """A copy, which a test may change."""
    return pickle.loads(pickle.dumps(fitted))


@pytest.fixture(scope="module")
def run(fitted, tmp_path_factory):
    """Its folder, which no test changes."""
    folder = tmp_path_factory.mktemp("ids")
    fitted.save(folder / "run")
    return folder / "run"


# Logs


def in_kind(kind, frame, folder):
    """The same log as a frame of a library, or as a file."""
    if kind in ("parquet", "csv", "jsonl"):
        path = folder / f"log.{kind}"
        {"parquet": frame.write_parquet, "csv": frame.write_csv, "jsonl": frame.write_ndjson}[kind](path)
        return path
    if kind in ("pandas", "arrow"):
        pytest.importorskip("pyarrow")
    return {"polars": lambda: frame, "lazy": frame.lazy, "pandas": frame.to_pandas, "arrow": frame.to_arrow}[kind]()


FRAMES = ["polars", "lazy", "pandas", "arrow", "parquet", "jsonl"]


@pytest.mark.parametrize("kind", [*FRAMES, "csv"])
def test_prepared_data_know_whether_ids_were_integers(tmp_path, kind):
    described = prepare(in_kind(kind, LOG, tmp_path), tmp_path / "data")
    expected = "text" if kind == "csv" else "integer"
    assert described["id_types"] == {"user": expected, "item": expected}
    data = bt.load_data(tmp_path / "data")
    assert {type(each) for each in (data.items[3], data.users[0], *data.distinct_users)} == {
        str if kind == "csv" else int
    }
    assert data.items.name(3) == str(data.items[3])
    assert data.items.find([data.items[3], str(data.items[3])]) == [3, 3]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pl.col("item").cast(pl.UInt16), "integer"),
        (pl.col("item").cast(pl.Float64), "integer"),  # what pandas makes of integers with gaps
        (pl.when(pl.int_range(pl.len()) > 3).then("item").cast(pl.Float64), "integer"),
        (-pl.col("item"), "integer"),
        (pl.col("item") + 2**62, "integer"),
        (pl.col("item").cast(pl.UInt64) + 2**63, "text"),  # does not fit an int64
        (pl.col("item") / 2, "text"),
        (pl.col("item").cast(pl.String), "text"),
        (pl.col("item").cast(pl.String).str.zfill(8), "text"),  # 00001000 is not 1000
    ],
)
def test_a_column_of_whole_numbers_has_integer_ids(tmp_path, column, expected):
    frame = LOG.with_columns(item=column)
    assert prepare(frame, tmp_path / "data")["id_types"] == {"user": "integer", "item": expected}
    data = bt.load_data(tmp_path / "data")
    present = frame["item"].drop_nulls().unique()
    if expected == "integer":
        assert sorted(data.items) == present.cast(pl.Int64).sort().to_list()
    else:
        assert set(data.items) == set(data.items.names)


def test_texts_among_numbers_make_all_ids_text(tmp_path):
    rows = [{"user": 1, "item": n % 4} for n in range(8)] + [{"user": "ann", "item": n % 4} for n in range(8)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert prepare(tmp_path / "log.jsonl", tmp_path / "data")["id_types"] == {"user": "text", "item": "integer"}
    files = [LOG, LOG.with_columns(pl.col("item").cast(pl.String))]
    assert prepare(files, tmp_path / "both")["id_types"] == {"user": "integer", "item": "text"}


def test_ids_of_a_folder_without_types_are_text(tmp_path):
    prepare(LOG, tmp_path / "data")
    path = tmp_path / "data" / "description.json"
    description = json.loads(path.read_text())
    del description["id_types"], description[CHECKSUM]
    write_checked_json(path, description, description["format"])
    data = bt.load_data(tmp_path / "data")
    assert {type(data.items[0]), type(data.users[0])} == {str}


NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(NUMBERS, unique=True), st.lists(NUMBERS, unique=True), st.randoms(), st.booleans())
def test_a_column_has_the_ids_of_its_numbers(tmp_path_factory, first, more, draw, from_file):
    more = [number for number in more if number not in first]
    source = list(map(str, first))
    if from_file:
        source = tmp_path_factory.mktemp("column") / "ids.txt"
        source.write_text("".join(f"{number}\n" for number in first))
    numbers = [draw.randrange(len(first + more)) for _ in range(20)] if first + more else []
    for integer, kind in ((True, int), (False, str)):
        ids = Ids(source, integer=integer).extended(map(str, more))
        expected = [kind((first + more)[number]) for number in numbers]
        column = ids.column(np.array(numbers, np.int64))
        assert list(column) == expected == [ids[number] for number in numbers]
        assert isinstance(column, np.ndarray) is integer
        assert list(ids) == ids[:] == list(map(kind, first + more))
        copy = pickle.loads(pickle.dumps(ids))
        assert (copy[:], copy.integer) == (ids[:], integer)


def test_a_damaged_file_of_integers_is_an_error(tmp_path):
    (tmp_path / "ids.txt").write_text("12\nlamp\n14\n")
    with pytest.raises(ValueError, match=r"ids\.txt is damaged: an id is not a whole number"):
        Ids(tmp_path / "ids.txt", integer=True).column(np.array([0]))


@given(st.lists(st.one_of(st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=3), st.booleans())))
def test_ids_that_are_given_are_integers_if_all_are_whole(values):
    whole = [not isinstance(v, bool | str) and v == v and abs(v) < 2**63 and v == int(v) for v in values]
    column = as_given(values)
    if values and all(whole):
        assert column.dtype == np.int64
        assert column.tolist() == values
    else:
        assert all(isinstance(value, str) for value in column)


# Answers


def test_items_come_back_as_integers(fitted):
    history = [1000, 1001]
    found = fitted.recommend(history, m=5)
    assert found.schema["item"] == pl.Int64
    assert set(found["item"]) <= set(LOG["item"])
    assert found.equals(fitted.recommend(["1000", " 1001 "], m=5))
    assert found.equals(fitted.recommend(np.array([1000.0, 1001.0]), m=5))
    by_rules = fitted.recommend(history, m=5, rules={"pins": [1042]})
    assert (by_rules["item"][0], by_rules.schema["item"]) == (1042, pl.Int64)
    assert fitted.recommend(history, allowed=[1042, "1043"], m=5)["item"].sort().to_list() == [1042, 1043]
    assert fitted.recommend(history, allowed=[], m=5).schema["item"] == pl.Int64
    assert fitted.item_vectors().schema["item"] == pl.Int64
    assert sorted(fitted.item_vectors()["item"]) == sorted(fitted.ids) == list(range(1000, 1060))
    assert fitted.users[:3] == [0, 7, 14]
    assert fitted.users.names[:3] == ["0", "7", "14"]  # as text, in the same order


def test_what_is_given_comes_back_as_it_was_given(fitted):
    assert fitted.similar([1000, 1001], m=2)["similar_to"].to_list() == [1000, 1000, 1001, 1001]
    assert fitted.similar(["1000", "1001"], m=1)["similar_to"].to_list() == ["1000", "1001"]
    assert fitted.score([1000], [1001, 5])["item"].to_list() == [1001, 5]
    assert fitted.score([1000], ["1001", "lamp"])["item"].to_list() == ["1001", "lamp"]
    assert fitted.user_vectors(users=[7, 14])["user"].to_list() == [7, 14]
    assert fitted.recommend(users=["7"], m=1)["user"].to_list() == ["7"]
    assert fitted.recommend({14: [1000], 3: [1001]}, m=1)["user"].to_list() == [14, 3]
    events = LOG.filter(pl.col("user") < 15)
    assert sorted(fitted.recommend(events, m=1)["user"]) == [0, 7, 14]
    assert sorted(fitted.recommend(events.cast({"user": pl.String}), m=1)["user"]) == ["0", "14", "7"]
    for empty in (fitted.recommend(users=[], m=2), fitted.score([1000], []), fitted.similar([], m=2)):
        assert pl.Int64 in [empty.schema[name] for name in ("user", "item", "similar_to") if name in empty.columns]


@pytest.mark.parametrize("kind", ["polars", "pandas"])
def test_an_answer_joins_the_frames_of_the_caller(shop, kind):
    """Also where one of the users is unknown, or none is asked for."""
    prices = pl.DataFrame({"item": range(1000, 1060), "price": [float(n) for n in range(60)]})
    who = pl.DataFrame({"user": [7, 99, 14], "mail": ["a", "b", "c"]})
    shop._frame = kind
    for users in (who, who.head(0)):
        if kind == "pandas":
            pytest.importorskip("pandas")
            users, prices_here = users.to_pandas(), prices.to_pandas()
            with pytest.warns() if len(users) else pytest.MonkeyPatch.context():
                found = shop.recommend(users=users["user"], m=4)
            joined = found.merge(users, on="user").merge(prices_here, on="item")
            assert (found["item"].dtype, found["user"].dtype) == ("int64", "int64")
        else:
            with pytest.warns() if len(users) else pytest.MonkeyPatch.context():
                found = shop.recommend(users=users["user"], m=4)
            joined = found.join(users, on="user").join(prices, on="item")
        assert len(joined) == 4 * len(users)


def test_text_ids_stay_text_in_both_kinds_of_frames(shop_folder):
    for kind in ("polars", "pandas"):
        shop = bt.Recommender.load(shop_folder / "run", frame=kind)
        found = shop.recommend(users=["u003"], m=2)
        assert {type(each) for name in ("user", "item") for each in found[name]} == {str}
        assert {type(shop.ids[0]), type(shop.users[0])} == {str}
    assert str(found["item"].dtype) in ("str", "object")  # of pandas 3, and of 2


# Copies of a model


def test_types_go_through_save_load_and_pickle(shop, run, tmp_path):
    for copy in (bt.Recommender.load(run), shop, pickle.loads(pickle.dumps(bt.Recommender.load(run)))):
        assert copy.recommend([1000], m=2).schema["item"] == pl.Int64
        assert copy.users[:2] == [0, 7]
    model = bt.load_model(run)
    bt.save_model(model, tmp_path / "model")
    alone = bt.Recommender.load(tmp_path / "model")  # without the log
    assert alone.ids[:] == model.ids[:] == shop.ids[:]
    assert alone.recommend([1000], m=2).schema["item"] == pl.Int64


def test_new_items_are_integers_everywhere(shop, tmp_path):
    shop.update_items({77: {"like": [1000]}, "78": {"histories": [[1000, "1001"]]}})
    shop.save(tmp_path / "run")
    for copy in (shop, pickle.loads(pickle.dumps(shop)), bt.Recommender.load(tmp_path / "run")):
        found = copy.recommend([1000], m=62, allowed=[77, 78, 1001])["item"]
        assert sorted(found) == [77, 78, 1001]
        assert copy.ids[-2:] == [77, 78]
        assert copy.item_vectors()["item"].to_list()[-2:] == [77, 78]
    assert shop.remove_items([77]) == shop.forget_items(["78"]) == 1
    assert {77, 78} & set(shop.recommend([1000], m=62)["item"]) == set()


def test_a_new_item_without_a_whole_number_is_refused_as_a_whole(shop):
    before = shop.recommend([1000], m=60)
    more = pl.DataFrame({"user": [7, 8], "item": ["1001", "lamp"], "time": [50, 51]})
    for change in (
        lambda: shop.update_items({79: {}, "lamp": {}}),
        lambda: shop.update_items(["lamp"]),
        lambda: shop.update(more),
    ):
        with pytest.raises(ValueError, match=NOT_WHOLE):
            change()
    assert shop.recommend([1000], m=60).equals(before)
    assert shop.update_items({"80": {}}) == 1


def test_an_update_keeps_integers_and_text_users_make_users_text(shop):
    shop.update(pl.DataFrame({"user": [7, 1], "item": [1001, 1060], "time": [50, 51]}))
    assert 1060 in shop.ids
    assert shop.users[:3] == [0, 1, 7]
    shop.update(pl.DataFrame({"user": ["ann"], "item": [1001], "time": [52]}))
    assert {"ann", "0", "7"} <= set(shop.users)
    assert shop.recommend(users=["ann", "7"], m=1)["popular"].to_list() == [False, False]


def test_a_renewed_run_keeps_integers(run, tmp_path):
    bt.Recommender.load(run).save(tmp_path / "run")
    rows = [(user, 1060 + place % 2, 40 + place) for user in range(700, 800) for place in range(12)]
    new = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    with pytest.raises(ValueError, match=NOT_WHOLE):
        renew(tmp_path / "run", new.with_columns(item=pl.lit("lamp")), force=True, verbose=False)
    renew(tmp_path / "run", new, force=True, verbose=False)
    shop = bt.Recommender.load(tmp_path / "run")
    assert shop.ids[-2:] == [1060, 1061]
    assert 799 in shop.users
    assert shop.recommend([1060], m=3).schema["item"] == pl.Int64
    renew(tmp_path / "run", new.with_columns(user=pl.lit("ann"), time=pl.col("time") + 90), force=True, verbose=False)
    shop = bt.Recommender.load(tmp_path / "run")
    assert {"ann", "799"} <= set(shop.users)
    assert isinstance(shop.ids[0], int)


# Files and commands


def test_answers_to_files_have_the_types_of_the_log_and_of_the_input(run, tmp_path):
    rows = [(user, [1000 + user % 60, 1001]) for user in (7, 8, 900)]
    frames = {
        "integer": pl.DataFrame(rows, schema={"user": pl.Int32, "history": pl.List(pl.Int64)}, orient="row"),
        "gaps": pl.DataFrame([*rows, (None, [1000])], schema=["user", "history"], orient="row").cast(
            {"user": pl.Float64}
        ),
        "text": pl.DataFrame(
            [(f"u{user}", " ".join(map(str, row))) for user, row in rows], ["user", "history"], orient="row"
        ),
        "events": pl.DataFrame([(user, item) for user, row in rows for item in row], ["user", "item"], orient="row"),
    }
    for name, frame in frames.items():
        frame.write_parquet(tmp_path / "input.parquet")
        for end in ("parquet", "jsonl", "csv"):
            beamtree(
                "retrieve", str(run), "--input", "input.parquet", "--output", f"out.{end}", "--m", "2", folder=tmp_path
            )
        user = pl.String if name == "text" else pl.Int64
        found = pl.read_parquet(tmp_path / "out.parquet")
        assert found.schema == {"user": user, "rank": pl.Int64, "item": pl.Int64, "score": pl.Float32}
        lines = list(map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines()))
        assert [line["user"] for line in lines] == found["user"].unique(maintain_order=True).to_list()
        assert [item for line in lines for item in line["items"]] == found["item"].to_list()
        assert pl.read_csv(tmp_path / "out.csv")["item"].to_list() == found["item"].to_list()
    frames["integer"].write_ndjson(tmp_path / "input.jsonl")
    beamtree("retrieve", str(run), "--input", "input.jsonl", "--output", "out.jsonl", folder=tmp_path)
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["user"] == 7
    rows[2] = ("late text", rows[2][1])
    (tmp_path / "input.jsonl").write_text("".join(json.dumps({"user": u, "history": h}) + "\n" for u, h in rows))
    beamtree("retrieve", str(run), "--input", "input.jsonl", "--output", "out.jsonl", folder=tmp_path)
    users = [json.loads(line)["user"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert users == ["7", "8", "late text"]


def test_records_of_commands_have_integers(run, tmp_path):
    beamtree("retrieve", str(run), "--users", "7 14", "--m", "2", "--json", "found", folder=tmp_path)
    records = json.loads((tmp_path / "found").read_text())
    assert [row["user"] for row in records] == [7, 7, 14, 14]
    assert all(row["item"] in range(1000, 1060) for row in records)
    beamtree("similar", str(run), "1000", "--m", "2", "--json", "found", folder=tmp_path)
    records = json.loads((tmp_path / "found").read_text())
    assert [row["similar_to"] for row in records] == [1000, 1000]
    assert all(row["item"] in range(1000, 1060) for row in records)


def test_a_tree_of_integer_ids_is_a_table_of_integers(run, tmp_path):
    beamtree("tree", str(run), "--out", "tree.parquet", folder=tmp_path)
    tree = pl.read_parquet(tmp_path / "tree.parquet")
    assert sorted(tree["item"]) == list(range(1000, 1060))


# HTTP


def test_over_http_ids_are_text(run, tmp_path):
    def open_with_journal(folder):
        return open_shop(folder, journal=journal)

    journal = Journal(tmp_path / "changes")
    with serving(make_service(run, open_with_journal)) as client:
        for history in ([1000, 1001], ["1000", "1001"]):
            found = client.post("/v1/recommend", json={"history": history, "m": 3}).json()["results"][0]
            assert {type(item) for item in found["items"]} == {str}
        by_user = client.post("/v1/recommend", json={"users": [7, "7"], "m": 3}).json()["results"]
        assert by_user[0] == by_user[1]
        assert by_user[0]["user"] == "7"
        assert client.get("/v1/items/1000").json()["item"] == "1000"
        assert client.get("/v1/users?query=7").json()["users"][:2] == ["7", "70"]
        explained = client.post("/v1/explain", json={"history": [1000], "items": [1001]}).json()["explanation"]
        assert {type(row["item"]["item"]) for row in explained["found"]} == {str}
        assert client.put("/v1/items/77", json={"like": [1000]}).json()["changed"]
        answer = client.put("/v1/items/lamp", json={})
        assert (answer.status_code, answer.json()["error"]) == (422, NOT_WHOLE)
        client.post("/v1/events", json={"user": "ann", "items": [1000]}).raise_for_status()
        assert "ann" in client.get("/v1/users?query=a").json()["users"]
        assert client.post("/v1/recommend", json={"user": "ann", "allowed": [77]}).json()["results"][0]["items"] == [
            "77"
        ]
    assert {entry.get("item") for entry in journal.entries} == {"77", None}


def test_a_journal_with_text_ids_does_not_stop_a_run_of_integers(run, tmp_path, caplog):
    """It was written for a run of another log; what it says about this one is applied."""
    journal = Journal(tmp_path / "changes")
    journal.append({"kind": "add", "item": "lamp", "title": "Lamp"}, {"kind": "add", "item": "77", "like": ["1000"]})
    journal.append({"kind": "remove", "item": "lamp"}, {"kind": "events", "user": "ann", "items": ["lamp", "1000"]})
    opened = open_shop(run, journal=journal)
    assert opened.live.is_visible("77")
    assert opened.ids.find(["lamp", 77]) == [None, 60]
    assert "item 'lamp' is left out: the ids of this model are whole numbers" in caplog.text
    assert len(opened.live.history("ann").items) == 1
    journal.close()


# Labels


def test_labels_come_back_as_integers(tmp_path):
    draw = random.Random(0)
    labels = [[n % 5 * 10, 70] for n in range(80)]
    texts = [" ".join(draw.choices([f"word{label}x{k}" for k in range(4)], k=5)) for label, _ in labels]
    found = bt.Classifier(group=3, frame="polars").fit(texts, labels, names={10: "ten"}, verbose=False)
    found.add_labels({90: ""}, {90: ["word20x0 word30x1"]})
    with pytest.raises(ValueError, match=NOT_WHOLE):
        found.add_labels({"lamp": "lamp"}, {"lamp": ["word10x0"]})
    found.save(tmp_path / "topics")
    for each in (found, bt.Classifier.load(tmp_path / "topics"), pickle.loads(pickle.dumps(found))):
        assert each.labels == [0, 10, 20, 30, 40, 70, 90]
        answer = each.predict(["word10x1 word10x2"], m=2)
        assert answer.schema["label"] == pl.Int64
        assert set(answer["label"]) == {10, 70}
        assert dict(zip(answer["label"], answer["name"], strict=True))[10] == "ten"
        assert each.predict(["word20x0"], m=1, allowed=[90, "10"])["label"].to_list() == [90]
        assert each.explain("word10x1", answer["label"][0])["label"] == answer["label"][0]
        assert each.name_of(10) == each.name_of("10") == "ten"
    frame = pl.DataFrame({"text": texts, "labels": labels})
    frame.write_ndjson(tmp_path / "documents.jsonl")
    for source in (frame, frame.to_pandas(), tmp_path / "documents.jsonl"):
        assert bt.Classifier(group=3).fit(source, verbose=False).labels == [0, 10, 20, 30, 40, 70]
    text = frame.with_columns(pl.col("labels").list.eval(pl.element().cast(pl.String)))
    assert bt.Classifier(group=3).fit(text, verbose=False).labels == ["0", "10", "20", "30", "40", "70"]
