"""Files: atomic writes, locks between processes, leftovers of killed processes, and checks before the work begins."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from beamtree.errors import explain_full_disk
from beamtree.files import atomic, staging
from beamtree.files.atomic import check_writable, fsync, write_atomically, write_json
from beamtree.files.staging import NEW, OLD, folder_lock, move_into_place, remove_leftovers, staging_folder

HOLDER = """
import sys, time
from pathlib import Path
from beamtree.files import staging
with getattr(staging, sys.argv[1])(Path(sys.argv[2])) as draft:
    if draft is not None:
        (draft / "half").write_text("half")
    print("holding", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder():
    """Another process that holds an output until it is killed."""
    started = []

    def start(how, path):
        process = subprocess.Popen([sys.executable, "-c", HOLDER, how, str(path)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "holding\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.extended
@pytest.mark.parametrize("how", ["staging_folder", "folder_lock"])
def test_two_processes_do_not_write_one_output(tmp_path, holder, how):
    out = tmp_path / "out"
    process = holder(how, out)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="out is being written by another process"), getattr(staging, how)(out):
        pass
    remove_leftovers(out)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before, "what a living process owns is left alone"
    kill(process)
    with getattr(staging, how)(out):
        pass
    assert os.listdir(tmp_path) == [], "nothing is left behind"


def test_one_process_may_hold_what_it_holds(tmp_path):
    with folder_lock(tmp_path / "run"), folder_lock(tmp_path / "run"):
        (tmp_path / "run" / "a").write_text("a")
    assert os.listdir(tmp_path / "run") == ["a"]


@pytest.mark.parametrize("exchange", [True, False], ids=["one move", "two renames"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_output_takes_the_place_of_another(tmp_path, monkeypatch, kind, exchange):
    if not exchange:
        monkeypatch.setattr(staging, "exchange", lambda one, other: False)
    out = tmp_path / "out"
    for text in ("old", "new"):
        with staging_folder(out) as draft:
            if kind == "folder":
                (draft / "whole").mkdir()
            ((draft / "whole" / "a") if kind == "folder" else draft / "whole").write_text(text)
            move_into_place(draft / "whole", out)
        assert ((out / "a") if kind == "folder" else out).read_text() == text
        assert os.listdir(tmp_path) == ["out"]


def test_a_kill_between_two_renames_is_mended_by_whoever_comes_next(tmp_path):
    for come in (remove_leftovers, lambda out: write_json(out / "b.json", 1)):
        old = tmp_path / f"out{OLD}"
        old.mkdir()
        (old / "a").write_text("precious")
        (tmp_path / f"out{NEW}").mkdir()
        remove_leftovers(tmp_path / "out")
        come(tmp_path / "out")
        assert os.listdir(tmp_path) == ["out"]
        assert (tmp_path / "out" / "a").read_text() == "precious"
        for path in (tmp_path / "out").iterdir():
            path.unlink()
        (tmp_path / "out").rmdir()


def test_what_is_left_anywhere_below_goes_but_not_what_this_process_writes(tmp_path):
    for place in ("a", "a/b", "a/b/c"):
        (tmp_path / place / f"x{NEW}").mkdir(parents=True)
    with staging_folder(tmp_path / "a" / "mine") as draft:
        (draft / "half").write_text("half")
        with folder_lock(tmp_path):
            pass
        assert (draft / "half").exists()
    assert not list(tmp_path.rglob(f"*{NEW}"))


def test_an_old_output_goes_where_the_new_one_is_in_place(tmp_path):
    for name in ("out", f"out{OLD}"):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_at_the_name_of_a_draft_is_not_followed(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "a").write_text("precious")
    (tmp_path / f"out{NEW}").symlink_to(theirs)
    write_json(tmp_path / "out", 5)
    assert (theirs / "a").read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["out", "theirs"]


def test_an_error_leaves_no_draft_and_the_old_output(tmp_path):
    write_json(tmp_path / "a.json", "old")

    def half(draft):
        draft.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomically(tmp_path / "a.json", half)
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.extended
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_files_have_the_rights_of_the_users_umask(tmp_path, mask):
    code = f"""
import os
os.umask({mask})
import beamtree as bt
tree = bt.random_tree(8)
bt.save_model(bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 2)), {str(tmp_path / "model")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    for path in Path(tmp_path / "model").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, path.name


def test_numbers_that_are_not_finite_are_not_written(tmp_path):
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"a.json is not written: a number in it is not finite"):
            write_json(tmp_path / "a.json", {"recall": value})
    assert os.listdir(tmp_path) == []


def test_outputs_are_written_where_folders_can_be_neither_opened_nor_locked(tmp_path, monkeypatch):
    """As on Windows."""

    def refuse_folders(path, *how):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied")
        return os.open(path, *how)

    before = set(staging._locked)  # temporary data of other tests
    windows = SimpleNamespace(**{**vars(os), "open": refuse_folders})
    del windows.O_DIRECTORY
    monkeypatch.setattr(staging, "os", windows)
    monkeypatch.setattr(atomic, "os", windows)
    monkeypatch.setattr(staging, "CAN_LOCK", False)
    with folder_lock(tmp_path / "folder"), folder_lock(tmp_path / "folder"):
        write_json(tmp_path / "folder" / "a.json", {"a": 1})
        fsync(tmp_path / "folder" / "a.json")
        fsync(tmp_path / "folder")
    with staging_folder(tmp_path / "out") as draft:
        with pytest.raises(ValueError, match="is being written"), staging_folder(tmp_path / "out"):
            pass
        (draft / "whole").mkdir()
        move_into_place(draft / "whole", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "out"]
    assert set(staging._locked) == before


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
        ("a.json/b.json", "a.json/b.json cannot be written: .*a.json is not a folder"),
        ("a.json/b/c.json", "a.json/b is not a folder"),
        ("x" * 255, "cannot be written: File name too long"),
        ("/proc/no/b.json", "/proc/no/b.json cannot be written: No such file"),
    ],
)
def test_what_cannot_be_written_is_told_in_one_line(tmp_path, name, message):
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(ValueError, match=message) as error:
        check_writable(tmp_path / name)
    assert "\n" not in str(error.value)


LEFT = """
import os, signal, time
from pathlib import Path
from beamtree.files.staging import temporary_folder
folder, _ = temporary_folder("beamtree-test-")
(folder / "half").write_text("half")
print(folder, flush=True)
time.sleep(60)
"""


@pytest.mark.extended
def test_a_temporary_folder_of_a_killed_process_is_removed_and_of_a_living_one_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(staging.tempfile, "tempdir", None)
    started = [subprocess.Popen([sys.executable, "-c", LEFT], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    killed, living = (Path(process.stdout.readline().strip()) for process in started)
    try:
        kill(started[0])
        mine, remove_mine = staging.temporary_folder("beamtree-test-")
        assert sorted(tmp_path.iterdir()) == sorted([living, mine]), killed
        other, remove_other = staging.temporary_folder("beamtree-test-")
        assert (living / "half").exists()
        assert mine.is_dir(), "of this process, too"
        remove_mine()
        remove_other()
        assert sorted(tmp_path.iterdir()) == [living]
        assert not other.exists()
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdout.close()
        monkeypatch.setattr(staging.tempfile, "tempdir", None)


def test_a_link_in_place_of_a_temporary_folder_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(staging.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "a").write_text("precious")
    (tmp_path / "beamtree-test-1").symlink_to(tmp_path / "theirs")
    (tmp_path / "beamtree-test-2").mkdir()  # left by a killed process
    _, remove = staging.temporary_folder("beamtree-test-")
    remove()
    assert sorted(os.listdir(tmp_path)) == ["beamtree-test-1", "theirs"]
    assert (tmp_path / "theirs" / "a").read_text() == "precious"


@pytest.mark.parametrize(
    "error", [OSError("640 requested and 112 written"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_a_full_disk_names_the_folder_also_where_numpy_counts(tmp_path, error):
    message = f"{tmp_path} cannot be written: No space left"
    with pytest.raises(OSError, match=message) as caught, explain_full_disk(tmp_path):
        raise error
    assert caught.value.errno == errno.ENOSPC
