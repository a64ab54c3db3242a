"""Small files: written whole or not at all, and known to be writable before the work begins."""

import errno
import json
import os
from pathlib import Path

import pytest

from beamtree.files.small_files import check_writable, write_json


def test_json_is_written_whole_into_a_new_folder(tmp_path):
    write_json(tmp_path / "new" / "a.json", {"ä": [1, None]})
    assert json.loads((tmp_path / "new" / "a.json").read_text(encoding="utf-8")) == {"ä": [1, None]}
    assert os.listdir(tmp_path / "new") == ["a.json"]


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", "old")
    before = Path.write_text

    def half(path, text, **options):
        before(path, text[:2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "a.json", "new")
    assert os.listdir(tmp_path) == ["a.json"]
    assert json.loads((tmp_path / "a.json").read_text()) == "old"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_writable(tmp_path / "pipe")
    write_json(tmp_path / "pipe", [5])
    assert json.loads(os.read(reader, 100)) == [5]
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_checking_changes_no_file(tmp_path):
    (tmp_path / "a.json").write_text("old")
    check_writable(tmp_path / "a.json")
    check_writable(tmp_path / "b.json")
    assert os.listdir(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "cannot be written: it is a folder"),
        ("a.json/b.json", "a.json/b.json cannot be written: .*a.json is no folder"),
        ("a.json/b/c.json", "a.json/b is no folder"),
        ("x" * 255, "cannot be written: File name too long"),
        ("/proc/no/b.json", "/proc/no/b.json cannot be written: No such file"),
    ],
)
def test_what_cannot_be_written_is_told_in_one_line(tmp_path, name, message):
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(ValueError, match=message) as error:
        check_writable(tmp_path / name)
    assert "\n" not in str(error.value)
