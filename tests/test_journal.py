"""A log of changes is made shorter, and leads to the same."""

import contextlib
import copy
import random

import pytest

import beamtree as bt
from beamtree.live import Journal, LiveModel, journal
from beamtree.live.journal import CHANGES, compact, count_changes


@pytest.fixture(scope="module")
def model(shop_folder):
    return bt.load_model(shop_folder / "run")


def change(live, draw):
    kind = draw.random()
    if kind < 0.1:
        live.record_run(f"run {draw.randrange(3)}")
    elif kind < 0.3:
        item = draw.choice([f"i{draw.randrange(30):02}", f"new {draw.randrange(5)}"])
        live.record_events([(f"user {draw.randrange(3)}", [item], draw.choice([None, draw.randrange(100)]))])
        if draw.random() < 0.1:
            live.retire_events(draw.randrange(20))
    else:
        item = draw.choice([f"new {draw.randrange(5)}", f"i{draw.randrange(5):02}"])
        like = (draw.choice([f"new {draw.randrange(5)}", f"i{draw.randrange(8):02}"]),)
        if (kind := draw.random()) < 0.3:
            live.remove_items([item])
        elif kind < 0.4:
            live.forget_items([item])
        else:
            facts = {"like": like, "title": f"title {draw.randrange(100)}", "category": None}
            told = {name: facts[name] for name in draw.sample(sorted(facts), draw.randrange(4))}
            with contextlib.suppress(ValueError):  # like one that is not known
                live.add_items({item: told})


def last_run(entries):
    return [entry["run"] for entry in entries if entry["kind"] == "run"][-1:]


def state(live):
    """All that is known of items and users."""
    names = [f"new {number}" for number in range(5)] + [f"i{number:02}" for number in range(30)]
    there = {name: live.catalogue.titles[live.ids.find([name])[0]] for name in names if live.is_visible(name)}
    events = {user: row for user, row in live.events.items() if row}
    chosen = {user: [live.ids[number] for number in live.history(user).items] for user in events}
    return there, events, chosen, live.version, live._items


@pytest.mark.parametrize("seed", range(12))
def test_fewer_entries_lead_to_the_same(model, tmp_path, seed):
    draw, log = random.Random(seed), Journal(tmp_path)
    live = LiveModel(copy.deepcopy(model), journal=log)
    for _ in range(60):
        change(live, draw)
    long, short = list(log.entries), compact(log.entries)
    assert len(short) < len(long)
    assert count_changes(short) == count_changes(long)
    assert compact(short) == short
    assert last_run(short) == last_run(long)
    answers = []
    for entries in (long, short):
        log.entries = entries
        answers.append(LiveModel(copy.deepcopy(model), journal=log))
    log.close()
    assert state(answers[0]) == state(answers[1])
    assert state(answers[0])[:3] == state(live)[:3]


def test_who_is_like_an_item_that_was_removed_since_is_still_like_it(model):
    entries = [
        {"kind": "add", "item": "a", "like": ["i01"]},
        {"kind": "add", "item": "b", "like": ["a"]},
        {"kind": "remove", "item": "a"},
        {"kind": "remove", "item": "c"},
        {"kind": "add", "item": "c", "like": ["i01"]},
        {"kind": "add", "item": "c", "like": ["i02"]},
    ]
    assert compact(entries) == [{"kind": "before", "changes": 2}, *entries[:3], entries[5]]


def test_of_each_fact_of_an_item_the_last_word_counts(model):
    entries = [
        {"kind": "add", "item": "a", "like": ["i01"], "title": "A"},
        {"kind": "add", "item": "a", "title": None},
        {"kind": "remove", "item": "a"},
        {"kind": "forget", "item": "b"},
        {"kind": "add", "item": "b", "like": ["i01"]},
        {"kind": "forget", "item": "b"},
    ]
    kept = [{"kind": "add", "item": "a", "like": ["i01"]}, *entries[1:3], entries[5]]
    assert compact(entries) == [{"kind": "before", "changes": 2}, *kept]


def test_an_item_that_was_removed_is_known_to_those_who_chose_it(model):
    entries = [
        {"kind": "add", "item": "a", "like": ["i01"]},
        {"kind": "add", "item": "a", "like": ["i02"]},
        {"kind": "events", "user": "u", "items": ["a"]},
        {"kind": "remove", "item": "a"},
    ]
    assert compact(entries) == [{"kind": "before", "changes": 1}, entries[1], entries[3], entries[2]]


def test_a_long_log_is_written_anew_and_a_full_disk_leaves_it_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_FROM", 50)
    log = Journal(tmp_path)
    for number in range(120):
        log.append({"kind": "events", "user": f"user {number % 3}", "items": [str(number)]})
    assert len(log.entries) < 60
    assert count_changes(log.entries) == 120
    log.close()
    monkeypatch.setattr(journal, "COMPACT_FROM", 5)
    whole = (tmp_path / CHANGES).read_bytes()
    monkeypatch.setattr(journal.os, "replace", full)
    again = Journal(tmp_path)
    again.append({"kind": "events", "user": "user 0", "items": ["last"]})
    again.close()
    assert (tmp_path / CHANGES).read_bytes().startswith(whole)
    monkeypatch.undo()
    read = Journal(tmp_path)
    read.close()
    items = {entry["user"]: entry["items"] for entry in compact(read.entries)[1:]}
    told = {f"user {user}": [str(number) for number in range(user, 120, 3)] for user in range(3)}
    told["user 0"].append("last")
    assert items == told
    assert not list(tmp_path.glob("*.new"))


def full(*_):
    raise OSError(28, "No space left on device")
