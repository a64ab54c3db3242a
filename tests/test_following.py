"""Readers of a journal: they have what was acknowledged, whatever the writer does, and do not disturb it."""

import contextlib
import copy
import random
import time

import pytest
from journal_changes import change, event, failing, state
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.live import Journal, LiveModel, following, journal
from beamtree.live.following import START, WRITER, FolderChanges, Heartbeat, Position, UrlChanges, decode_lines
from beamtree.live.journal import AFTER, CHANGES, encode_line, open_unbuffered


class Reader:
    """The entries that a reader of a folder has, and how often it had to begin again."""

    def __init__(self, folder):
        self.changes, self.position, self.entries, self.restarts = FolderChanges(folder), START, [], 0

    def read(self):
        """Read to the end."""
        while True:
            lines = self.changes.read(self.position)
            if lines.position is None:
                self.position, self.entries, self.restarts = START, [], self.restarts + 1
                continue
            self.position = lines.position
            self.entries += decode_lines(lines.content)
            if not lines.content:
                return self


@pytest.fixture
def follow(tmp_path):
    """Makes readers of the folder `tmp_path`, and closes them."""
    with contextlib.ExitStack() as stack:

        def make():
            reader = Reader(tmp_path)
            stack.callback(reader.changes.close)
            return reader

        yield make


def told(entries):
    """The items of each user."""
    items = {}
    for entry in entries:
        if entry["kind"] == "events":
            items.setdefault(entry["user"], []).extend(entry["items"])
    return items


def add_event(log, number):
    log.append({"kind": "events", "user": f"user {number % 3}", "items": [str(number)]})


def test_a_reader_gets_each_change_once_and_as_soon_as_it_is_complete(tmp_path, follow):
    log, reader = Journal(tmp_path), follow()
    assert reader.read().entries == []
    for number in range(20):
        add_event(log, number)
        assert reader.read().entries == log.entries
    line = encode_line(event("in pieces"))
    for size in range(1, len(line)):
        with log.path.open("ab") as file:
            file.write(line[size - 1 : size])
        assert reader.read().entries == log.entries
    with log.path.open("ab") as file:
        file.write(line[-1:])
    assert reader.read().entries == [*log.entries, event("in pieces")]
    log.close()
    assert reader.restarts == 0


def test_changes_that_are_longer_than_what_is_read_at_once_come_whole(tmp_path, follow, monkeypatch):
    monkeypatch.setattr(following, "MOST_BYTES", 100)
    log, reader = Journal(tmp_path), follow()
    for length in (1, 20, 99, 100, 101, 350, 5):
        log.append(event("x" * length), event("y"))
    assert reader.read().entries == log.entries
    log.close()


def test_a_reader_at_the_end_of_a_file_goes_on_with_the_one_that_replaces_it(tmp_path, follow, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_FROM", 7)
    log, reader = Journal(tmp_path), follow()
    for number in range(100):
        before = log.path.stat().st_ino
        add_event(log, number)
        if log.path.stat().st_ino == before or number % 2:  # also where it was one change behind
            reader.read()
    log.close()
    assert AFTER in log.entries[0]
    assert reader.read().restarts == 0
    assert told(reader.entries) == {f"user {user}": [str(n) for n in range(user, 100, 3)] for user in range(3)}


def test_a_reader_that_missed_a_file_begins_again(tmp_path, follow, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_FROM", 7)
    log, reader = Journal(tmp_path), follow()
    for number in range(40):
        add_event(log, number)
        if number == 3:
            reader.read()
    assert reader.read().restarts == 1
    assert told(reader.entries) == told(log.entries)
    log.close()


@pytest.mark.parametrize("next_item", ["as long", "longer than it was", None])
def test_a_change_that_was_refused_after_it_was_read_is_taken_back(tmp_path, follow, monkeypatch, next_item):
    """The disk took all of it, but could not flush it: the line is cut off again."""
    log, reader, seen = Journal(tmp_path), follow(), []
    log.append(event("first"))
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "fsync", failing(5, lambda _: reader.restarts or seen.extend(reader.read().entries)))
        with pytest.raises(OSError, match="Input/output"):
            log.append(event("refused"))
    assert seen[:2] == [event("first"), event("refused")]
    if next_item is not None:
        log.append(event(next_item))
    assert reader.read().entries == log.entries
    assert reader.restarts == 1
    log.close()


@pytest.mark.parametrize("seed", range(15))
def test_readers_have_what_was_acknowledged_whatever_the_writer_does(tmp_path, follow, monkeypatch, seed):
    monkeypatch.setattr(journal, "COMPACT_FROM", 9)
    draw, acknowledged = random.Random(seed), {}
    log, readers = Journal(tmp_path), [follow() for _ in range(3)]
    for number in range(150):
        kind = draw.random()
        if kind < 0.1:  # it is killed while it writes
            log.close()
            with open_unbuffered(tmp_path / CHANGES) as file:
                file.write(encode_line(event("never acknowledged"))[: draw.randrange(30)])
            for reader in draw.sample(readers, 1):
                reader.read()
            log = Journal(tmp_path)
        elif kind < 0.2:
            with monkeypatch.context() as patch:
                patch.setattr(journal.os, "fsync", failing(5, lambda _: draw.choice(readers).read()))
                with pytest.raises(OSError, match="Input/output"):
                    log.append(event("refused"))
        else:
            add_event(log, number)
            acknowledged.setdefault(f"user {number % 3}", []).append(str(number))
        if draw.random() < 0.5:
            draw.choice(readers[:2]).read()
    for reader in readers:
        assert told(reader.read().entries) == acknowledged
    log.close()


def test_readers_write_nothing_and_a_writer_can_begin_beside_them(tmp_path, follow):
    log, reader = Journal(tmp_path), follow()
    log.append(event("first"))

    def files():
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    before = files()
    reader.read()
    log.close()
    assert files() == before
    for _ in range(3):
        lines = reader.changes.read(reader.position, wait=0.0)
        log = Journal(tmp_path)
        log.close()
    assert lines == (b"", reader.position, False)


def test_a_damaged_line_is_not_applied(tmp_path, follow):
    good, bad = encode_line(event("good")), bytearray(encode_line(event("bad")))
    bad[20] ^= 1
    (tmp_path / CHANGES).write_bytes(good + bytes(bad))
    lines = follow().changes.read(START)
    with pytest.raises(ValueError, match="damaged"):
        decode_lines(lines.content)


def test_a_folder_that_is_not_there_is_an_error_and_an_empty_one_has_no_changes(tmp_path):
    assert FolderChanges(tmp_path).read(START) == (b"", START, False)
    with pytest.raises(ValueError, match="not a folder: start the writer with it first"):
        FolderChanges(tmp_path / "nothing").read(START)


@pytest.mark.parametrize("text", ["x", "a:1", "a:1:2:z", "a:1:2:3:4", "::::"])
def test_what_is_not_a_position_is_refused(text):
    with pytest.raises(ValueError, match="is not a position"):
        Position.parse(text)


# Whether the writer is there


def test_a_reader_of_a_folder_sees_whether_its_writer_is_there_and_who_it_is(tmp_path, follow, monkeypatch):
    monkeypatch.setattr(following, "BEAT_SECONDS", 0.01)
    Journal(tmp_path).close()
    changes = follow().changes
    assert changes.writer == str(tmp_path)
    heart = Heartbeat(tmp_path, "http://writer:8000")
    assert (changes.read(START).has_writer, changes.writer) == (False, "http://writer:8000")  # it may be an old file
    while not changes.read(START, wait=0.05).has_writer:
        pass
    (tmp_path / WRITER).unlink()
    while not (tmp_path / WRITER).exists():
        time.sleep(0.01)
    heart.close()
    changes.read(START)
    assert not changes.read(START, wait=0.1).has_writer
    heart = Heartbeat(tmp_path, "http://another:8000")
    assert (changes.read(START).has_writer, changes.writer) == (True, "http://another:8000")
    heart.close()


def test_a_heartbeat_goes_on_when_a_full_disk_has_space_again(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "BEAT_SECONDS", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(following, "write_concurrently", failing(28))
        heart = Heartbeat(tmp_path, "http://writer:8000")
        time.sleep(0.05)
        assert not (tmp_path / WRITER).exists()
    while not (tmp_path / WRITER).exists():
        time.sleep(0.01)
    heart.close()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://writer",
        "http://",
        "http://writer:port",
        "http://writer:99999999",
        "http://w/?a=b",
        "http://me:secret@w",
        "://x",
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="is not the address of a writer"):
        UrlChanges(url)


# Applying changes


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return bt.Recommender(steps=0, beam_size=20).fit(cyclic_log(), test_users=10, verbose=False)


@pytest.mark.parametrize("seed", range(8))
def test_changes_applied_one_after_another_lead_to_the_same(fitted, tmp_path, seed):
    """On the model that they were made on, and on another one."""
    draw, log = random.Random(seed), Journal(tmp_path)
    first, digest = copy.deepcopy(fitted.model), "this model"
    live = LiveModel(fitted.model, data=fitted.data, journal=log, digest=digest)
    for _ in range(60):
        change(live, draw)
        if draw.random() < 0.4:  # what the log may have already
            user = f"u{draw.randrange(3):03}"
            live.record_events([(user, [draw.choice(["i00", "i05", "i25"])], draw.choice([None, 3, 20]))])
    log.close()
    for served in (digest, "another model"):
        follower = LiveModel(copy.deepcopy(first), data=fitted.data, digest=served)
        entries = list(log.entries)
        while entries:
            count = draw.randrange(1, 8)
            follower.apply(entries[:count])
            entries = entries[count:]
        at_once = LiveModel(copy.deepcopy(first), data=fitted.data, journal=log, digest=served)
        assert state(follower) == state(at_once)
        if served == digest:
            assert state(follower)[:4] == state(live)[:4]
