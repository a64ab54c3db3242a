"""Batches of users in files, a model without training that answers them, and the answers by definition."""

import csv
import json
import math
import random

import polars as pl
import pytest
import torch

import beamtree as bt
from beamtree import PAD
from beamtree.data import Ids

ITEMS = [f"{number:03}" for number in range(57)] + ["[bold]", "Ä b", "c"]  # 007 is an id, and so is one with a space

HISTORIES = {
    "u1": ["007", "012", "055"],
    "02": ["c"],
    "u 3": [ITEMS[number * 7 % 57] for number in range(90)],
    "u4": ["007", "what", "012", "nobody", "055"],
    "u5": ["what"],
    "u6": [],
}

EVENTS = [number * 17 % 60 // 2 for number in range(60)]  # of each item in training; some have as many


def make_popular_run(folder, ids):
    """A run folder with a model that was never trained, but knows what is popular."""
    tree = bt.random_tree(len(ids), arity=3, seed=1)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0), ids=Ids(ids))
    model.popularity = torch.tensor(EVENTS)
    bt.save_model(model, folder)
    (folder / "run.json").write_text(json.dumps({"data": "nowhere"}))
    return folder


def expected(run, histories, *, m=10, beam_size=400, exclude_seen=False):
    """The definition, one user at a time: user → [(item, score)], best first."""
    model = bt.load_model(run)
    answers = {}
    for user, history in histories.items():
        known = [ITEMS.index(name) for name in history if name in ITEMS]
        if not known:  # what is popular, and the share of all events that it has
            order = sorted(range(len(ITEMS)), key=lambda item: (-EVENTS[item], item))[:m]
            # an item without events counts as half of one
            answers[user] = [(ITEMS[item], max(EVENTS[item], 0.5) / sum(EVENTS)) for item in order]
            continue
        x = torch.full((1, 69), PAD)
        for place, number in enumerate(known[::-1][:69]):
            x[0, place] = number
        exclude = torch.tensor([known]) if exclude_seen and known else None
        items, log_p = bt.retrieve(model, x, m=m, beam_size=beam_size, exclude=exclude)
        pairs = zip(items[0].tolist(), log_p[0].tolist(), strict=True)
        answers[user] = [(ITEMS[item], math.exp(value)) for item, value in pairs if item != PAD]
    return answers


def same(ours, theirs):
    """Equal answers in equal order of users; scores but for rounding, so items of equal scores may change places."""
    assert list(ours) == list(theirs)
    for user, answers in ours.items():
        assert [score for _, score in answers] == pytest.approx([score for _, score in theirs[user]], rel=1e-4)
        assert {item for item, _ in answers} == {item for item, _ in theirs[user]}


def read_answers(path):
    """What an output says: user → [(item, score)], best first."""
    if path.suffix in (".jsonl", ".ndjson"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert all(list(line) == ["user", "items", "scores"] for line in lines)
        return {line["user"]: list(zip(line["items"], line["scores"], strict=True)) for line in lines}
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    else:
        frame = pl.read_parquet(path)
        assert frame.schema["user"] == frame.schema["item"] == pl.String
        rows = frame.rows(named=True)
    assert list(rows[0]) == ["user", "rank", "item", "score"]
    answers = {}
    for row in rows:
        answers.setdefault(row["user"], []).append((row["item"], float(row["score"])))
        assert int(row["rank"]) == len(answers[row["user"]])
    return answers


def write_rows(path, histories, separator=None):
    """One row per user; as lists where no separator is given."""
    users = list(histories)
    texts = [row if separator is None else separator.join(row) for row in histories.values()]
    frame = pl.DataFrame({"age": 7, "user": users, "history": texts}, strict=False)
    {
        ".parquet": frame.write_parquet,
        ".jsonl": frame.write_ndjson,
        ".csv": frame.write_csv,
        ".tsv": lambda path: frame.write_csv(path, separator="\t"),
    }[path.suffix](path)


def write_log(path, histories, *, times=True):
    """One row per event; users take turns, and with times the rows run backwards."""
    rows = [
        {"user": user, "item": item, "timestamp": place}
        for place in range(100)
        for user, history in histories.items()
        for item in history[place : place + 1]
    ]
    frame = pl.DataFrame(rows[::-1] if times else [{key: row[key] for key in ("user", "item")} for row in rows])
    {".parquet": frame.write_parquet, ".jsonl": frame.write_ndjson, ".csv": frame.write_csv}[path.suffix](path)


def write_parts(folder, *, times=True, parts=5, seed=7):
    """A log of some faults, in parts: ids to be trimmed, missing ones, repeats, ties, users in several parts."""
    draw = random.Random(seed)
    folder.mkdir()
    for part in range(parts):
        rows = []
        for _ in range(0 if part == 3 else draw.randrange(100, 300)):
            user, item = f"u{draw.randrange(40)}", str(int(60 * draw.random() ** 2))
            user = (
                draw.choice([user, user, f" {user}", f"{user}\t"]) if draw.random() < 0.97 else draw.choice([None, " "])
            )
            item = item if draw.random() < 0.97 else draw.choice([None, "", "é\u2003"])
            rows += [{"who": user, "what": item, "timestamp": draw.randrange(90), "stars": 5}] * draw.choice(
                [1, 1, 1, 2]
            )
        schema = {"who": pl.String, "what": pl.String, "timestamp": pl.Int64, "stars": pl.Int64}
        frame = pl.DataFrame(rows, schema=schema)
        frame.drop([] if times else ["timestamp"]).write_parquet(folder / f"part.{part:03}.parquet")
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


MANY = {f"u{user}": [ITEMS[(user * 5 + place) % 57] for place in range(1 + user % 9)] for user in range(60)} | HISTORIES


def write_users(folder, write=write_rows, parts=4):
    folder.mkdir()
    names = list(MANY)
    for part in range(parts):
        write(folder / f"part-{part}.parquet", {name: MANY[name] for name in names[part::parts]})
    write_rows(folder / "part-none.parquet", {}) if write is write_rows else None
    return folder


def all_answers(folder):
    """The answers of all parts; no user twice."""
    found = {}
    for path in sorted(folder.glob("*.parquet")):
        if len(pl.read_parquet(path)):
            some = read_answers(path)
            assert not some.keys() & found.keys()
            found |= some
    return dict(sorted(found.items()))
