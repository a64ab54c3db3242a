"""A log of changes is made shorter, survives a full disk, and tells damage from a crash."""

import copy
import errno
import os
import random

import pytest
from command import largest_file
from journal_changes import change, event, failing, state

import beamtree as bt
from beamtree.live import Journal, LiveModel, journal
from beamtree.live.journal import CHANGES, compact, count_changes, encode_line, read_entries


@pytest.fixture(scope="module")
def model(shop_folder):
    return bt.load_model(shop_folder / "run")


def last_run(entries):
    return [entry["run"] for entry in entries if entry["kind"] == "run"][-1:]


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


# A disk that is full for a moment


def read_again(folder):
    again = Journal(folder)
    again.close()
    return again.entries


@pytest.mark.parametrize("length", [1, 100, 5_000, 8_192, 20_000])
def test_what_was_refused_at_any_byte_never_appears_and_what_was_acknowledged_is_there(tmp_path, length):
    log, path, told = Journal(tmp_path), tmp_path / CHANGES, []
    line = len(encode_line(event("x" * length)))
    for written in sorted({*range(0, line, max(1, line // 25)), line - 2, line - 1}):
        before = path.read_bytes()
        with largest_file(len(before) + written):
            for _ in range(2):
                with pytest.raises(OSError, match="too large"):
                    log.append(event("x" * length))
        assert path.read_bytes() == before
        told.append(event(str(written)))
        log.append(told[-1])
    assert log.entries == told
    log.close()
    assert read_again(tmp_path) == told


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_an_entry_that_could_not_be_flushed_is_cut_off_again(tmp_path, monkeypatch, number):
    log = Journal(tmp_path)
    log.append(event("first"))
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "fsync", failing(number, os.fsync))
        with pytest.raises(OSError, match=os.strerror(number)):
            log.append(event("refused"))
    assert read_entries(log.path)[0] == [event("first")]
    log.append(event("second"))
    log.close()
    assert read_again(tmp_path) == [event("first"), event("second")]


def test_nothing_is_taken_before_what_failed_is_cut_off(tmp_path, monkeypatch):
    """A disk that can be written, but neither flushed nor cut."""
    log = Journal(tmp_path)
    log.append(event("first"))
    whole = log.path.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(journal, "cut_off", failing(errno.EIO))
        with largest_file(whole + 10), pytest.raises(OSError, match="too large"):
            log.append(event("refused"))
        assert log.path.stat().st_size == whole + 10
        with pytest.raises(OSError, match="Input/output"):
            log.append(event("refused too"))
    log.append(event("second"))
    log.close()
    assert read_again(tmp_path) == [event("first"), event("second")]


def test_a_shorter_file_whose_name_could_not_be_flushed_gets_the_next_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_FROM", 5)
    log = Journal(tmp_path)
    for number in range(4):
        log.append(event(str(number)))
    with monkeypatch.context() as patch:
        patch.setattr(journal, "fsync", failing(errno.EIO))
        log.append(event("4"))
        with pytest.raises(OSError, match="Input/output"):
            log.append(event("refused"))
    log.append(event("5"))
    log.close()
    assert compact(read_again(tmp_path))[1]["items"] == [*"012345"]


@pytest.mark.parametrize("kind", ["add", "move", "show", "remove", "forget", "events", "retire", "run"])
def test_a_change_that_was_refused_is_seen_neither_now_nor_later(model, tmp_path, kind):
    changes = {
        "add": lambda live: live.update_items({f"many {number}": {"like": ["i01"]} for number in range(20)}),
        "move": lambda live: live.update_items({"new 0": {"like": ["i20"], "title": "Moved"}}),
        "show": lambda live: live.update_items({"i02": {"title": "Back"}}),
        "remove": lambda live: live.remove_items(["i01", "new 0"]),
        "forget": lambda live: live.forget_items(["i01", "new 0"]),
        "events": lambda live: live.record_events([("user 0", ["i05"], 7)], "request"),
        "retire": lambda live: live.retire_events(50),
        "run": lambda live: live.record_run("other"),
    }
    log = Journal(tmp_path)
    live = LiveModel(copy.deepcopy(model), journal=log, slot_cooldown=60.0)
    live.update_items({"new 0": {"like": ["i03"]}})
    live.remove_items(["i02"])
    live.record_events([("user 0", ["i04"], 6)])
    before, freed = copy.deepcopy(state(live)), list(live._freed)
    with largest_file(log.path.stat().st_size + 20), pytest.raises(OSError, match="too large"):
        changes[kind](live)
    assert (state(live), live._freed) == (before, freed)
    log.close()
    log = Journal(tmp_path)
    again = LiveModel(copy.deepcopy(model), journal=log, slot_cooldown=60.0)
    assert state(again) == before
    for each in (live, again):
        each._journal = None
        changes[kind](each)
    log.close()
    assert [*state(live)[::2], live.version] == [*state(again)[::2], again.version]


# Damage


def test_a_line_cut_short_by_a_crash_is_dropped_and_a_damaged_one_is_refused(tmp_path, caplog):
    first, last = encode_line(event("first")), encode_line(event("last"), event("of two"))
    path = tmp_path / CHANGES
    for cut in range(1, len(last)):
        path.write_bytes(first + last[:cut])
        assert read_entries(path) == ([event("first")], len(first))
    assert "cut short" in caplog.records[-1].message
    for place in range(len(first + last)):
        content = bytearray(first + last)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"changes.log is damaged at byte [\d,]+: restore a copy"):
            read_entries(path)
