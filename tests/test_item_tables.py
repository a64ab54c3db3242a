"""Categories, vectors and trees that users bring, and what is wrong with them."""

import numpy as np
import polars as pl
import pytest
import torch

import beamtree as bt
from beamtree.builders import category_tree
from beamtree.data import Events, Ids
from beamtree.ingest.item_tables import read_categories, read_tree, read_vectors, write_tree
from beamtree.tree import PAD

NAMES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "items.txt"
    path.write_text("".join(f"{name}\n" for name in NAMES))
    return Ids(path)


def table(tmp_path, **columns):
    path = tmp_path / "table.parquet"
    pl.DataFrame(columns).write_parquet(path)
    return path


def refused(read, *words):
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the words are looked for below)
        read()
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_categories_are_ordered_as_paths(tmp_path, ids):
    paths = ["Books/Poetry", "Books", "Books-old", "Art", "Books / Fiction"]
    path = table(tmp_path, item=NAMES, category=paths)
    found = read_categories(path, ids)
    order = [paths[i] for i in found[:, -1].argsort().tolist()]
    assert found[:, 0].tolist() == [1, 1, 2, 0, 1]  # the first step of each
    assert order == ["Art", "Books", "Books / Fiction", "Books/Poetry", "Books-old"]


def test_a_category_tree_keeps_categories_together_and_the_popular_first():
    events = torch.tensor([3, 3, 3, 1, 1, 0, 2, 4, 5])
    tree = category_tree(torch.tensor([1, 0, 1, 0, 2, 2]), Events(torch.tensor([0, 9]), events, "log"))
    assert [item for item in tree.items().tolist() if item != PAD] == [3, 1, 0, 2, 4, 5]


def test_items_without_a_category_are_one_group(tmp_path, ids, caplog):
    path = table(tmp_path, item=NAMES[:4], category=["x", "", "y", "x"])
    assert read_categories(path, ids)[:, -1].tolist() == [1, 0, 2, 1, 0]
    assert "2 of 5 items have no category, 'b' first" in caplog.text
    path = table(tmp_path, item=["other"], category=["x"])
    refused(lambda: read_categories(path, ids), "no category for any item")


def test_items_without_a_vector_get_zeros_unless_they_are_most(tmp_path, ids, caplog):
    found = read_vectors(table(tmp_path, item=NAMES[:4], vector=[[1.0, 2.0]] * 4), ids)
    assert found.tolist() == [[1.0, 2.0]] * 4 + [[0.0, 0.0]]
    assert "1 of 5 items have no vector, 'e' first" in caplog.text
    few = table(tmp_path, item=NAMES[:2], vector=[[1.0]] * 2)
    refused(lambda: read_vectors(few, ids), "3 of 5 items have no vector, 'c' first", "at least half")


def test_one_category_that_holds_everything_is_refused():
    log = Events(torch.tensor([0, 2]), torch.tensor([0, 1]), "log")
    refused(lambda: category_tree(torch.zeros(6, dtype=torch.int64), log), "one category holds all 6 items")


def test_fewer_categories_than_items_are_told():
    log = Events(torch.tensor([0, 2]), torch.tensor([0, 9]), "log")
    refused(lambda: category_tree(torch.arange(6), log), "6 categories, and item 9 in the log")


def test_a_table_without_the_column_says_what_it_has(tmp_path, ids):
    refused(lambda: read_categories(table(tmp_path, item=NAMES, colour=NAMES), ids), "no column 'category'", "colour")
    refused(lambda: read_categories(tmp_path / "none.parquet", ids), "does not exist")


def test_an_item_that_is_named_twice_is_told(tmp_path, ids):
    path = table(tmp_path, item=[*NAMES, "c"], category=["x"] * 6)
    refused(lambda: read_categories(path, ids), "has item 'c' more than once")


def test_vectors_come_from_an_array_or_a_table_in_any_order(tmp_path, ids):
    vectors = np.arange(10, dtype=np.float64).reshape(5, 2)
    np.save(tmp_path / "v.npy", vectors)
    expected = torch.from_numpy(vectors).float()
    assert torch.equal(read_vectors(tmp_path / "v.npy", ids), expected)
    lists = table(tmp_path, item=NAMES[::-1], vector=vectors[::-1].tolist())
    assert torch.equal(read_vectors(lists, ids), expected)
    lines = [f"{name},{one},{two}" for name, (one, two) in zip(NAMES, vectors, strict=True)]
    (tmp_path / "v.csv").write_text("\n".join(["item,one,two", *lines]))
    assert torch.equal(read_vectors(tmp_path / "v.csv", ids), expected)
    columns = table(tmp_path, item=NAMES[::-1], one=vectors[::-1, 0], two=vectors[::-1, 1])
    assert torch.equal(read_vectors(columns, ids), expected)


def test_vectors_of_the_wrong_shape_or_with_nan_are_refused(tmp_path, ids):
    path = tmp_path / "v.npy"
    for shape in ((5,), (4, 2), (5, 0)):
        np.save(path, np.zeros(shape))
        refused(lambda: read_vectors(path, ids), "give [5, dim]")
    vectors = np.zeros((5, 2))
    vectors[2, 1] = np.nan
    np.save(path, vectors)
    refused(lambda: read_vectors(path, ids), "'c' holds NaN")
    np.save(path, np.array([["x"] * 2] * 5))
    refused(lambda: read_vectors(path, ids), "vectors are numbers")
    path.write_bytes(b"nonsense")
    refused(lambda: read_vectors(path, ids), "cannot be read")
    path.write_bytes(b"")
    refused(lambda: read_vectors(path, ids), "cannot be read")
    np.savez(tmp_path / "several", a=vectors, b=vectors)
    (tmp_path / "several.npz").rename(path)
    refused(lambda: read_vectors(path, ids), "several arrays")
    words = table(tmp_path, item=NAMES, vector=[["x"], ["1"], ["2"], ["3"], ["4"]])
    refused(lambda: read_vectors(words, ids), "'a' has a value that is no number")
    unequal = [[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]]
    refused(lambda: read_vectors(table(tmp_path, item=NAMES, vector=unequal), ids), "'b' has 2 numbers, others 1")


@pytest.mark.parametrize(("arity", "seed"), [(2, 0), (3, 1), (7, 2)])
def test_a_tree_comes_back_from_its_file(tmp_path, ids, arity, seed):
    tree = bt.random_tree(5, arity, seed=seed)
    write_tree(tmp_path / "tree.parquet", tree, ids)
    assert read_tree(tmp_path / "tree.parquet", ids, arity).fingerprint() == tree.fingerprint()


def test_a_tree_that_cannot_be_written_leaves_the_old_one(tmp_path, ids, monkeypatch):
    path = tmp_path / "tree.parquet"
    write_tree(path, bt.random_tree(5), ids)
    before = path.read_bytes()

    def fail(frame, path):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", fail)
    with pytest.raises(OSError, match="no space"):
        write_tree(path, bt.random_tree(5, seed=3), ids)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["items.txt", "tree.parquet"]


def test_trees_that_cannot_be_planted_name_the_first_offender(tmp_path, ids):
    good = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]]

    def tree(items=NAMES, paths=good, **more):
        return lambda: read_tree(table(tmp_path, item=items, path=paths), ids, **more)

    assert tree()().num_items == 5
    refused(tree(NAMES[:4], good[:4]), "1 items have no path", "'e'")
    refused(tree([*NAMES, "a"], [*good, [1, 0, 1]]), "has item 'a' more than once")
    refused(tree([*NAMES, "stranger"], [*good, [1, 0, 1]]), "'stranger' is not among the items")
    refused(tree(paths=[*good[:4], [1, 1]]), "'e' is 2 levels deep, 'a' 3", "same depth")
    refused(tree(paths=[*good[:4], [0, 1, 0]]), "'e' is on the leaf of item 'c'")
    refused(tree(paths=[*good[:4], [0, -1, 0]]), "'e' holds -1")
    refused(tree(paths=[*good[:4], [0, 2, 0]], arity=2), "'e' names child 2, and there are 2")
    refused(tree(paths=[*good[:4], []]), "'e'")
    refused(tree(paths=[*good[:4], [0, None, 0]]), "'e' has a value that is no integer")
    refused(
        tree(paths=[*[[float(step) for step in path] for path in good[:4]], [0.0, 0.5, 0.0]]),
        "'e' has a value that is no",
    )
    refused(tree(paths=[[*path, *[0] * 30] for path in good]), "too many")
    refused(lambda: read_tree(table(tmp_path, item=NAMES, path=["0.1"] * 5), ids), "a path is a list")
