"""Files with one user a line, as LightGCN has them: `user item item …`."""

import re

import polars as pl
import pytest
import torch
from command import beamtree
from sample_logs import shelf_log

import beamtree as bt
from beamtree.data import Ids
from beamtree.ingest.readers import open_logs, read_rows
from beamtree.ingest.user_events import read_users

LOG = shelf_log().with_columns(pl.all().str.slice(1).cast(int))
HELD_OUT = pl.int_range(pl.len()).over("user") % 5 == 0  # a fifth of each user's items


def write_lines(path, log):
    rows = log.group_by("user", maintain_order=True).agg("item").rows()
    path.write_text("".join(f"{user} {' '.join(map(str, items))}\n" for user, items in rows))


def rows_of(path):
    return [tuple(map(int, row)) for row in read_rows(open_logs([path])).select("user", "item").rows()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arena")
    write_lines(folder / "train.txt", LOG.filter(~HELD_OUT))
    write_lines(folder / "test.txt", LOG.filter(HELD_OUT))
    return folder


@pytest.fixture(scope="module")
def shop(folder):
    shop = bt.Recommender(steps=0, beam_size=60).fit(folder / "train.txt", verbose=False)
    shop.save(folder / "run")
    return shop


# Reading


def test_every_item_of_a_line_is_a_row(folder):
    assert rows_of(folder / "train.txt") == LOG.filter(~HELD_OUT).rows()


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n", "\n\n"])
def test_a_user_without_items_has_no_rows(tmp_path, end):
    path = tmp_path / "test.txt"
    path.write_bytes(end.join(["7  1 02", "8", "9 1", ""]).encode())
    rows = read_rows(open_logs([path])).select("user", "item").rows()
    assert rows == [("7", "1"), ("7", "02"), ("9", "1")]
    path.write_bytes(end.join(["60", "61 ", "0 0 3 6", "1 7 10", ""]).encode())
    assert rows_of(path) == [(0, 0), (0, 3), (0, 6), (1, 7), (1, 10)]


@pytest.mark.parametrize(
    "text", ["60\t\n0\t0 3 6\n1\t7 10\n", "0\t0\t3\t6\n60\n1\t7\t10\n", "60\n0 0\t3\t6\t\n1 7\t10\n"]
)
def test_tabs_are_read_like_spaces(tmp_path, text):
    path = tmp_path / "train.txt"
    path.write_text(text)
    assert rows_of(path) == [(0, 0), (0, 3), (0, 6), (1, 7), (1, 10)]


@pytest.mark.parametrize("lines", [["1\t20", "1\t30"], ["1\t20\t5", "1\t30\t"], ["1\t20\t5\t97", "1\t\t3\t98"]])
def test_lines_of_as_many_tabs_are_events(tmp_path, lines):
    path = tmp_path / "log.tsv"
    path.write_text("\n".join(lines) + "\n")
    assert read_rows(open_logs([path]))["user"].to_list() == ["1", "1"]


def test_users_without_items_alone_are_one_clear_line(tmp_path):
    path = tmp_path / "test.txt"
    path.write_text("60\n61 \n")
    with pytest.raises(ValueError, match=r"^no column for the item was found"):
        open_logs([path])


@pytest.mark.parametrize("line", ["2 a 3", "2 3.5", "2,3", "a", "-2 3"])
def test_a_line_of_something_else_is_one_clear_line(tmp_path, line):
    path = tmp_path / "train.txt"
    path.write_text(f"1 2 3\n{line}\n")
    message = f"{path}: line 2 is {line!r}: a file with one user a line has whole numbers, the user and the items"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        bt.prepare(path, tmp_path / "data")


def test_events_with_spaces_between_their_columns_are_one_clear_line(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("1 20 5 978300760\n1 30 3 978300761\n2 20 4 978300762\n")
    message = f"{path}: user 1 has 2 lines; if a line is an event, put commas between its columns"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        bt.prepare(path, tmp_path / "data")


def test_the_pairs_of_such_a_file_are_split(shop):
    settings = shop.data.description["settings"]
    assert (settings["split"], settings["user"], settings["item"], settings["time"]) == (
        "pairs:0.1", "user", "item", None,
    )  # fmt: skip
    assert int(shop.model.popularity.sum()) == len(LOG.filter(~HELD_OUT))


# Measuring


def recall_by_hand(shop, m):
    """The mean share of a user's held-out items among the m best, of those that the user does not have."""
    held_out = dict(LOG.filter(HELD_OUT).group_by("user").agg("item").rows())
    found = shop.recommend(users=list(held_out), m=m, exclude_seen=True)
    lists = dict(found.with_columns(pl.col("user", "item").cast(int)).group_by("user").agg("item").rows())
    return sum(len({*lists[user]} & {*items}) / len(items) for user, items in held_out.items()) / len(held_out)


def test_the_items_of_known_users_are_to_be_found_from_all_that_the_model_knows(folder, shop):
    result = shop.evaluate(m=10, metrics="recall", data=folder / "test.txt", exclude_seen=True)
    assert (result.users, result.warnings) == (300, [])
    assert result["recall", 10] == pytest.approx(recall_by_hand(shop, 10), abs=1e-6)
    words = ("evaluate", "run", "--log", "test.txt", "--m", "10", "--metrics", "recall", "--exclude-seen")
    shown = beamtree(*words, folder=folder).stdout
    assert f"{100 * result['recall', 10]:.2f}" in shown
    assert "300 users" in shown


def test_unknown_users_and_known_pairs_are_left_out_and_told(tmp_path):
    path = tmp_path / "test.txt"
    path.write_text("1 10 12 99 12\n2 11\n3 11\n4 13\n")
    known = {"1": [0, 3], "2": [2], "4": [3]}
    with pytest.warns(UserWarning, match=r"left out$") as told:
        users = read_users(
            path, Ids(["10", "11", "12", "13"]), items_of=lambda names: [known.get(n, []) for n in names]
        )
    assert [str(each.message) for each in told] == [
        "1 of 4 users are unknown: they are left out",
        "3 pairs are in the training log, or twice in this one: they are left out",
    ]
    x, y = users.batch(torch.arange(2))
    assert (x[:, :2].tolist(), y.tolist()) == ([[3, 0], [2, -1]], [[2, 4], [1, -1]])
    assert users.user_names() == ["1", "2"]


def test_the_training_file_is_nothing_to_evaluate_on(folder, shop):
    with (
        pytest.warns(UserWarning, match="pairs are in the training log"),
        pytest.raises(ValueError, match=r"^the model knows all items of these users: there is nothing to evaluate$"),
    ):
        shop.evaluate(m=10, data=folder / "train.txt")


def test_a_file_of_users_whom_the_model_does_not_know_is_read_as_another_log(folder, shop, tmp_path):
    strangers = LOG.filter(HELD_OUT).with_columns(pl.col("user") + 1000)
    write_lines(tmp_path / "strangers.txt", strangers)
    strangers.write_csv(tmp_path / "strangers.csv")
    found = [shop.evaluate(m=10, metrics="recall", data=tmp_path / f"strangers.{end}") for end in ("txt", "csv")]
    assert found[0].records() == found[1].records()
