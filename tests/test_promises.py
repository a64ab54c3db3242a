"""What docs/promises.md promises: nothing wrong in silence, and nobody in."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import safetensors.torch
import torch
from command import beamtree, wait_for
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.cli import app, errors
from beamtree.cli.check import _checks
from beamtree.files import checksums, staging
from beamtree.live.saved import read_run_catalogue
from beamtree.storage import runs
from beamtree.storage.runs import RunLog
from beamtree.storage.tensors import NotFiniteError, is_finite
from beamtree.storage.tuned import load_tuned_beam, save_tuned_beam
from beamtree.train.loop import DivergedError
from stress.checksums import update_checksums

WRITTEN = Path(__file__).parent / "written_by_0_1"


@pytest.fixture
def copy(shop_folder, tmp_path):
    return shutil.copytree(shop_folder, tmp_path / "copy")


def refused(folder, *words, code=2):
    """The one line with which a command refuses."""
    done = beamtree(*words, folder=folder, check=False)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert lines[-1].startswith("beamtree: ")
    return lines[-1]


# Wrong in silence


@pytest.mark.parametrize("recipe", ["beamtree", "deep"])
def test_a_training_that_diverges_stops_says_so_and_keeps_the_last_good_checkpoint(copy, recipe):
    words = ("train", "data", "--out", "bad", "--recipe", recipe, "--lr", "1e10", "--steps", "20")
    line = refused(copy, *words, code=1)
    assert "training diverged at step" in line
    assert "learning rate of" in line
    assert "--lr" in line
    assert not (copy / "bad" / "settings.json").exists()
    beamtree("check", "bad", folder=copy)  # what is there is whole and finite


def test_a_loss_that_is_not_finite_ends_a_training_before_its_weights_are_saved(tmp_path):
    data = bt.gaussian(40, 4, -1.0, train=200, test=10, seed=1)
    tree = bt.random_tree(40)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 4))
    saved = []

    def spoil(done, total, loss):
        saved.append(done)
        if done == 6:
            with torch.no_grad():
                model.scorer.table.weight[0] = torch.nan

    checkpoints = bt.train.Checkpoints(tmp_path, every=1, seconds=None)
    with pytest.raises(DivergedError, match=r"diverged at step 7, at .*the last good checkpoint is in"):
        bt.fit(model, data.train, bt.otm_mixed(4, 6), epochs=2, batch_size=20, checkpoints=checkpoints, on_step=spoil)
    assert saved[-1] == 6
    assert bt.train.steps_done(tmp_path) == 6
    assert bool(torch.isfinite(bt.load_model(tmp_path).scorer.table.weight).all())


def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(copy):
    run = copy / "run"
    model = bt.load_model(run)
    part = model.scorer.part("factors")
    good = {name: value.clone() for name, value in model.scorer.state_dict().items()}
    with torch.no_grad():
        part.table.weight[3, 0] = torch.inf
    with pytest.raises(NotFiniteError):
        bt.save_model(model, copy / "new")
    assert not (copy / "new").exists()
    (file,) = run.glob("weights*")
    good[next(iter(name for name in good if name.endswith("table.weight")))][3, 0] = torch.nan
    safetensors.torch.save_file(good, file)
    update_checksums(run)
    assert "NaN or infinity" in refused(copy, "retrieve", "run", "--history", "i01,i02")


def every_file(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != "run.json")


def says_the_same(damaged, whole):
    """Whether a changed digit is one too many for a float, so that JSON holds the same values."""
    try:
        return json.loads(damaged) == json.loads(whole)
    except ValueError:
        return False


@pytest.mark.parametrize("which", ["run", "data"])
def test_one_flipped_bit_anywhere_is_found(copy, which):
    folder = copy / which
    commands = {"run": ("evaluate", "run"), "data": ("train", "data", "--out", "new", "--steps", "0")}
    read = {"log.jsonl", "summary.png"}  # by nobody
    generator = np.random.default_rng(0)
    for name in [each for each in every_file(folder) if each not in read]:
        whole = (folder / name).read_bytes()
        for place in generator.integers(0, len(whole), 3):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(generator.integers(8))
            while says_the_same(damaged, whole):
                damaged[int(generator.integers(len(whole)))] ^= 1
            (folder / name).write_bytes(damaged)
            with pytest.raises(ValueError, match=r".") as caught:
                bt.load_model(folder) if which == "run" else bt.load_data(folder)
            assert "\n" not in str(caught.value), name
        (folder / name).write_bytes(damaged)
        assert refused(copy, *commands[which])
        done = beamtree("check", which, folder=copy, check=False)
        assert done.returncode == 1
        assert "DAMAGED" in done.stdout
        (folder / name).write_bytes(whole)
    beamtree("check", which, folder=copy)


def test_of_large_files_a_sample_is_read_and_check_reads_all(copy, monkeypatch):
    monkeypatch.setattr(checksums, "BLOCK", 16)
    monkeypatch.setattr(checksums, "SAMPLED", 4)
    path = copy / "large"
    path.write_bytes(bytes(range(200)) * 2)
    known = checksums.file_checksum(path)
    assert known["sample"] != known["sha256"]
    for place, sampled in ((0, True), (399, True), (50, False)):
        damaged = bytearray(path.read_bytes())
        damaged[place] ^= 1
        path.write_bytes(damaged)
        for full in (False, True):
            if sampled or full:
                with pytest.raises(ValueError, match="its checksum does not match"):
                    checksums.check_file(copy, "large", known, "again", full=full)
            else:
                checksums.check_file(copy, "large", known, "again", full=full)
        damaged[place] ^= 1
        path.write_bytes(damaged)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["scorer_settings"]["parts"].update(factors=["FactorScorer", {}]), "damaged|cannot be made"),
        (lambda s: s.update(arity="two"), "arity is 'two'"),
        (lambda s: s.pop("first_level"), "first_level is 'None'"),
        (lambda s: s.update(dtype="int8"), "does not name the files of a model"),
        (lambda s: s["files"].pop("tree"), "does not name the files of a model"),
        (lambda s: s.update(files=[]), "files is"),
        (lambda s: s.update(scorer_settings={"parts": 5}), "damaged|do not name its parts"),
        (lambda s: s["scorer_settings"].update(height=10**9), "damaged|do not fit"),
        (lambda s: s["scorer_settings"]["parts"]["factors"][1].update(num_nodes=10**10), "do not fit"),
        (lambda s: s.update(first_level=99), "."),
        (lambda s: s.update(arity=10**12), "slots are no tree of arity"),
        (lambda s: s.update(arity=3), "slots are no tree of arity"),
        (lambda s: s.update(arity=1), "slots are no tree of arity"),
    ],
)
def test_settings_that_fit_no_model_are_one_line(copy, change, message):
    update_checksums(copy / "run", change)
    with pytest.raises(ValueError, match=message) as caught:
        bt.load_model(copy / "run")
    assert "\n" not in str(caught.value)
    assert refused(copy, "retrieve", "run", "--history", "i01")


@pytest.mark.parametrize("part", ["tree", "weights"])
def test_a_file_without_its_tensors_is_one_line(copy, part):
    (file,) = (copy / "run").glob(f"{part}-*")
    safetensors.torch.save_file({"other": torch.zeros(3)}, file)
    update_checksums(copy / "run")
    with pytest.raises(ValueError, match=r"is damaged|do not fit") as caught:
        bt.load_model(copy / "run")
    assert "\n" not in str(caught.value)


def test_settings_changed_by_hand_are_refused(copy):
    settings = json.loads((copy / "run" / "settings.json").read_text())
    settings["chained"] = True
    (copy / "run" / "settings.json").write_text(json.dumps(settings))
    assert "it was changed after it was written" in refused(copy, "retrieve", "run", "--history", "i01")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["users"].update(train=-1, val=111), "a count of users, items or events is missing"),
        (lambda d: d["users"].update(train=d["users"]["train"] + 1), "its arrays are not of"),
        (lambda d: d.update(num_items=3), "an event has an unknown item"),
        (lambda d: d.update(num_items="many"), "a count of users, items or events is missing"),
        (lambda d: d["files"].pop("items.txt"), "does not name the files"),
        (lambda d: d.update(users=None), "a count of users, items or events is missing"),
    ],
)
def test_descriptions_that_fit_no_data_are_one_line(copy, change, message):
    update_checksums(copy / "data", change, "description.json")
    with pytest.raises(ValueError, match=message):
        bt.load_data(copy / "data")


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("offsets.npy", lambda array: array.__setitem__(3, 10**6), "offsets are not ascending"),
        ("events.npy", lambda array: array.__setitem__(3, 10**6), "an event has an unknown item"),
        ("events.npy", lambda array: array.__setitem__(3, -5), "an event has an unknown item"),
    ],
)
def test_numbers_out_of_range_in_prepared_arrays_are_one_line(copy, name, spoil, message):
    array = np.load(copy / "data" / name)
    spoil(array)
    np.save(copy / "data" / name, array)
    update_checksums(copy / "data", name="description.json")
    with pytest.raises(ValueError, match=message):
        bt.load_data(copy / "data")


@pytest.mark.parametrize("header", [b"{'descr': (", b"\0" * 20, b"{'shape': 5, 'descr'", b"99999999999999999999"])
def test_arrays_with_a_damaged_header_are_one_line(copy, header):
    content = bytearray((copy / "data" / "offsets.npy").read_bytes())
    content[10 : 10 + len(header)] = header
    content[10 + len(header) : 128] = b" " * (118 - len(header))
    (copy / "data" / "offsets.npy").write_bytes(content)
    update_checksums(copy / "data", name="description.json")
    with pytest.raises(ValueError, match=r"offsets.npy is damaged"):
        bt.load_data(copy / "data")


def test_an_id_that_stands_twice_is_refused(copy):
    (file,) = (copy / "run").glob("items*")
    names = file.read_text().splitlines()
    names[1] = names[0]
    file.write_text("\n".join(names) + "\n")
    update_checksums(copy / "run")
    assert "is repeated" in refused(copy, "retrieve", "run", "--history", names[0])
    assert beamtree("check", "run", folder=copy, check=False).returncode == 1


@pytest.mark.extended
def test_two_processes_do_not_train_prepare_or_compare_into_one_folder(copy):
    slow = {
        "prepare": ("prepare", "log.csv", "--out", "new"),
        "train": ("train", "data", "--out", "new", "--recipe", "deep", "--steps", "100000"),
        "compare": ("compare", "data", "--out", "new", "--rows", "otm", "--steps", "100000"),
    }
    for name in ("train", "compare"):
        words = [sys.executable, "-m", "beamtree", *slow[name]]
        first = subprocess.Popen(words, cwd=copy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: any((copy / "new").glob("*")))
            assert "new is being written by another process" in refused(copy, *slow[name])
            if name == "train":
                assert "another process" in refused(copy, *slow[name], "--resume")
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
        shutil.rmtree(copy / "new")
    with staging.staging_folder(copy / "new"):
        assert "new is being written by another process" in refused(copy, *slow["prepare"])


@pytest.mark.extended
def test_two_fits_do_not_save_into_one_folder(tmp_path):
    data, tree = bt.gaussian(40, 4, -1.0, train=200, test=10, seed=1), bt.random_tree(40)
    model = bt.TreeModel(tree, bt.LinearScorer(tree.num_nodes, 4))
    code = f"""
import time
from pathlib import Path
from beamtree.files.staging import folder_lock
with folder_lock(Path({str(tmp_path / "run")!r})):
    print("holding", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "holding\n"
        with pytest.raises(ValueError, match="is being written by another process"):
            bt.fit(model, data.train, bt.tdm(4), steps=2, checkpoints=bt.train.Checkpoints(tmp_path / "run"))
        other.kill()
    bt.fit(model, data.train, bt.tdm(4), steps=2, checkpoints=bt.train.Checkpoints(tmp_path / "run"))


def test_what_is_left_in_a_finished_run_goes_with_the_next_command(shop_folder, copy):
    for place in ("run", "run/training", "run/training/best"):
        (copy / place / "files.new-beamtree").mkdir()
    beamtree("train", str(shop_folder / "data"), "--out", "run", "--steps", "0", "--resume", folder=copy, check=False)
    assert not list(copy.rglob("*.new-beamtree"))


def test_a_link_that_leads_to_itself_is_one_line(copy):
    (copy / "asked.csv").symlink_to("asked.csv")
    assert "asked.csv" in refused(copy, "retrieve", "run", "--input", "asked.csv", "--output", "found.csv")


def test_a_run_says_with_how_many_threads_it_was_trained(shop_folder):
    run = json.loads((shop_folder / "run" / "run.json").read_text())
    assert run["threads"] >= 1
    assert run["torch"] == torch.__version__


# Nobody in


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "", ".", "..", "link", "loop", "pipe", "a/b", "\0", 5])
@pytest.mark.parametrize("which", ["run", "data"])
def test_a_folder_names_files_of_its_own_alone(copy, which, name):
    folder = copy / which
    (copy / "secret").write_text("secret")
    (folder / "link").symlink_to(copy / "secret")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")

    def rename(content):
        files = content["files"]
        if which == "run":
            files["items"] = {**files["items"], "file": name}
        else:
            files[str(name)] = files.pop("users.txt")

    update_checksums(folder, rename, "settings.json" if which == "run" else "description.json")
    with pytest.raises(
        ValueError, match=r"not one of its files|link out|not a regular file|does not name|damaged"
    ) as caught:
        bt.load_model(folder) if which == "run" else bt.load_data(folder)
    assert "bytes" not in str(caught.value), "nothing is told of a file that is not ours"


@pytest.mark.parametrize("name", ["run/run.json", "run/settings.json", "data/description.json"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_not_read(copy, name, kind):
    (copy / "run" / "run.json").write_text(json.dumps({"data": str(copy / "data")}))
    (copy / name).unlink()
    if kind == "pipe":
        os.mkfifo(copy / name)
    else:
        (copy / name).symlink_to("/dev/zero")
    assert "not a regular file" in refused(copy, "evaluate", "run", "--beam-size", "20", "--m", "5")


def test_control_characters_of_ids_are_escaped_on_the_screen(tmp_path):
    text = "user,item,time\n" + "".join(
        f"u{user},\x1b[31mi{(user + step) % 9}\a,{step}\n" for user in range(40) for step in range(12)
    )
    (tmp_path / "log.csv").write_text(text)
    beamtree("prepare", "log.csv", "--out", "data", folder=tmp_path)
    beamtree("train", "data", "--out", "run", "--steps", "0", folder=tmp_path)
    shown = beamtree("retrieve", "run", "--users", "u0", "--m", "3", folder=tmp_path).stdout
    assert "\\x1b[31mi" in shown
    assert "\x1b[31mi" not in shown
    assert "\a" not in shown


# Loud, but well


@pytest.mark.parametrize("rate", ["1e38", "1e300", "inf", "nan", "0"])
def test_rates_that_nobody_can_train_with_are_one_line(shop_folder, tmp_path, rate):
    assert "--lr" in refused(shop_folder, "train", "data", "--out", str(tmp_path / "new"), "--lr", rate)


def test_a_device_that_holds_no_numbers_is_one_line(shop_folder, tmp_path):
    assert "device 'meta'" in refused(shop_folder, "train", "data", "--out", str(tmp_path / "new"), "--device", "meta")


@pytest.mark.parametrize(
    "text",
    ['user,item,time\nu1,"' + "a" * 300_000 + '"x,3\nu2,b,3\n', "a" * 200_000 + ",b,c\nu,b,3\n", "a" * 2_000_000],
    ids=["a malformed field", "a long first field", "a long first line"],
)
def test_long_fields_are_one_short_line_and_no_wait(tmp_path, text):
    (tmp_path / "log.csv").write_text(text)
    began = time.monotonic()
    line = refused(tmp_path, "prepare", "log.csv", "--out", "data", "--min-events", "2")
    assert len(line) < 1100
    assert time.monotonic() - began < 10
    assert os.listdir(tmp_path) == ["log.csv"]


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (MemoryError("Unable to allocate 7.28 TiB for an array"), " for 7.28 TiB more"),
        (MemoryError(), ""),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2097152 bytes"),
            " for 2 MiB more",
        ),
    ],
)
def test_too_little_memory_is_one_line_that_says_how_much(monkeypatch, capsys, error, wanted):
    def fail(**_):
        raise error

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(SystemExit) as end:
        app.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"beamtree: out of memory{wanted}: use a smaller --batch-size")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.tensor([[0, 10**6]]), "item 1000000 is not in the tree"),
        (torch.tensor([[0, -5]]), "item -5 is not in the tree"),
        ([["i01"]], "x is a list: give a tensor of item numbers, or ids to a Recommender"),
        ("i01", "x is a str"),
    ],
)
def test_retrieve_says_what_is_wrong_with_its_users(shop_folder, x, message):
    with pytest.raises(ValueError, match=message):
        bt.retrieve(bt.load_model(shop_folder / "run"), x, m=5)


# Kept so


@pytest.mark.parametrize("which", ["beamtree", "deep"])
def test_models_written_by_0_1_are_read_and_answer_the_same(which):
    answers = json.loads((WRITTEN / "answers.json").read_text())
    model = bt.load_model(WRITTEN / which)
    items, scores = bt.retrieve(model, torch.tensor(answers["histories"]), beam_size=20, m=5)
    assert items.tolist() == answers[which]["items"]
    assert torch.allclose(scores, torch.tensor(answers[which]["scores"]), atol=1e-3)


def test_data_prepared_by_0_1_are_read_and_can_be_trained_on(tmp_path):
    data = bt.load_data(WRITTEN / "data")
    assert (data.num_items, len(data.train), len(data.val), len(data.test)) == (60, 80, 20, 20)
    beamtree("train", str(WRITTEN / "data"), "--out", "run", "--steps", "0", folder=tmp_path)


def test_a_run_killed_before_its_first_checkpoint_writes_its_first_log_line_once(tmp_path):
    for _ in range(2):  # the second begins again
        with closing(RunLog(tmp_path / "log.jsonl", 0)) as journal:
            journal.write(0, recall=0.5)
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 0, "recall": 0.5}\n'
    with closing(RunLog(tmp_path / "log.jsonl", 0)) as journal:
        journal.write(0, recall=0.5)
        journal.write(10, loss=1.0)
        journal.write(20, loss=2.0)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 3')  # cut short
    with closing(RunLog(tmp_path / "log.jsonl", 10)) as journal:
        journal.write(20, loss=3.0)
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == [0, 10, 20]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_what_is_finite(dtype):
    good = torch.full((3, 4), torch.finfo(dtype).max, dtype=dtype)  # whose sum is not
    assert is_finite(good)
    assert is_finite(-good)
    assert is_finite(torch.empty(0, dtype=dtype))
    for bad in (torch.nan, torch.inf, -torch.inf):
        value = good.clone()
        value[1, 2] = bad
        assert not is_finite(value)
    assert is_finite(torch.tensor([1, 2]))


def test_an_error_beside_is_a_note_where_a_disk_is_full_and_a_traceback_otherwise(capsys):
    def failing(error):
        thread = threading.Thread(target=lambda: (_ for _ in ()).throw(error), name="TensorBoard")
        thread.start()
        thread.join()
        return capsys.readouterr().err

    before = threading.excepthook
    threading.excepthook = errors.report_thread_error
    try:
        assert failing(OSError(28, "No space left")) == "note: TensorBoard could not write: No space left\n"
        assert "KeyError" in failing(KeyError("x"))
    finally:
        threading.excepthook = before


def test_a_warning_is_one_line_and_says_where_a_library_gave_it():
    ours = errors.format_warning(UserWarning("left\nout"), UserWarning, "lib/beamtree/live/labels.py", 3)
    assert ours == "note: left\\nout\n"
    other = errors.format_warning("slow", UserWarning, "lib/torch/nn.py", 3, "call()")
    assert other == "note: lib/torch/nn.py:3: UserWarning: slow\n"


@pytest.mark.parametrize("flag", ["--steps", "--epochs"])
def test_a_training_without_end_is_refused(copy, flag):
    assert "must be at most" in refused(copy, "train", "data", "--out", "other", flag, "9" * 20)


# A run with everything that a run can have


@pytest.fixture(scope="module")
def live_run(tmp_path_factory):
    """A run with its log, tables, live changes and a tuned beam."""
    folder, log = tmp_path_factory.mktemp("live") / "run", cyclic_log()
    names = sorted(log["item"].unique())
    items = pl.DataFrame({"item": names, "title": [f"Title {name}" for name in names]})
    shop = bt.Recommender(steps=0).fit(log, items=items, verbose=False)
    shop.update_items({"new": {"like": ["i03"], "title": "A kettle"}})
    shop.remove_items(["i44"])
    shop._live_model().record_events([("ann", ["i33", "i34"], 5)])
    shop.save(folder)
    save_tuned_beam(folder, {"beam_size": [30] * (shop.model.tree.height + 1 - shop.model.first_level)})
    return folder


def all_answers(run):
    """What a run says to a history and to users, with titles, and its tuned beam if it has one."""
    shop = bt.Recommender.load(run)
    found = [shop.recommend(["i01", "i02"], m=8), shop.recommend(users=["u003", "ann"], m=3)]
    titles = read_run_catalogue(run, shop.ids).titles
    return [frame.rows() for frame in found], titles, load_tuned_beam(run) if (run / "tune.json").exists() else None


def flipped(path, generator):
    content = bytearray(path.read_bytes())
    content[int(generator.integers(len(content)))] ^= 1 << int(generator.integers(8))
    return bytes(content)


def check_flips(live_run, tmp_path, count, seed):
    run = shutil.copytree(live_run, tmp_path / "run")
    answers, generator = all_answers(run), np.random.default_rng(seed)
    unread = {"log.jsonl"}
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in unread]
    assert {"run.json", "live.json", "tune.json", "items.parquet", "settings.json", "description.json"} <= {
        path.name for path in files
    }
    for path in files:
        whole = path.read_bytes()
        for _ in range(count):
            path.write_bytes(flipped(path, generator))
            with suppress(ValueError):
                assert all_answers(run) == answers, path.name
            failed = [name for name, check in _checks(run) if not passes(check)]
            assert failed, f"check does not find it: {path.name}"
        path.write_bytes(whole)
    assert all_answers(run) == answers


def passes(check):
    try:
        check()
    except (ValueError, OSError):
        return False
    return True


def test_a_flipped_bit_in_a_run_is_refused_or_changes_no_answer(live_run, tmp_path):
    check_flips(live_run, tmp_path, 1, 0)


@pytest.mark.extended
def test_every_flipped_bit_in_a_run_is_refused_or_changes_no_answer(live_run, tmp_path):
    check_flips(live_run, tmp_path, 20, 1)


def test_a_run_without_checksums_of_its_own_is_read(live_run, tmp_path):
    """As 0.1 and 0.2 wrote run.json, live.json and tune.json."""
    run = shutil.copytree(live_run, tmp_path / "run")
    answers = all_answers(run)
    for name in ("run.json", "live.json", "tune.json"):
        content = json.loads((run / name).read_text())
        for key in ("format", "seal", "checksums"):
            content.pop(key, None)
        (run / name).write_text(json.dumps(content))
    assert all_answers(run) == answers
    bt.Recommender.load(run).save(run)
    assert all_answers(run)[:2] == answers[:2]
    assert json.loads((run / "run.json").read_text())["checksums"].keys() == {"items.parquet"}


def test_a_kill_while_a_table_is_saved_leaves_a_known_one(live_run, tmp_path, monkeypatch):
    run = shutil.copytree(live_run, tmp_path / "run")
    shop, answers = bt.Recommender.load(run), all_answers(run)
    shop.update_items({"i01": {"title": "Later"}})

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "move_into_place", stop)
        with pytest.raises(KeyboardInterrupt):
            runs.save_tables(run, shop._with_changed_items()[0])
    assert all_answers(run) == answers
    shop.save(run)
    assert "Later" in all_answers(run)[1]


@pytest.mark.parametrize("name", ["/etc/passwd", "../../secret", "link", "pipe"])
def test_a_table_of_a_run_is_a_regular_file(live_run, tmp_path, name):
    run = shutil.copytree(live_run, tmp_path / "run")
    (tmp_path / "secret").write_text("item,title\ni01,secret\n")
    (run / "items.parquet").unlink()
    if name == "pipe":
        os.mkfifo(run / "items.parquet")
    else:
        (run / "items.parquet").symlink_to(tmp_path / "secret" if name == "link" else name)
    with pytest.raises(ValueError, match=r"is a link out of its folder|is not a regular file"):
        bt.Recommender.load(run)


@pytest.mark.extended
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_all_files_of_a_run_have_the_permissions_of_the_umask(live_run, tmp_path, mask):
    """Also what was written under another umask before."""
    for path in (run := shutil.copytree(live_run, tmp_path / "run")).rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = os.umask(mask)
    try:
        bt.Recommender.load(run).save(tmp_path / "again")
        shop = bt.Recommender.load(tmp_path / "again")
        shop.remove_items(["i45"])
        shop.save(tmp_path / "third")
        shop.fit(cyclic_log(), verbose=False).save(tmp_path / "fitted")
    finally:
        os.umask(before)
    for name in ("again", "third", "fitted"):
        for path in (tmp_path / name).rglob("*"):
            assert path.stat().st_mode & 0o777 & mask == 0, path
