"""From histories to results: every format in and out, the items of `beamtree.retrieve`, and never half a file."""

import json

import polars as pl
import pytest
from command import beamtree, largest_file
from sample_answers import HISTORIES, ITEMS, expected, make_popular_run, read_answers, same, write_log, write_rows

import beamtree as bt
from beamtree.batch import files
from beamtree.batch.job import BatchSummary
from beamtree.data import Ids
from beamtree.ingest import readers
from beamtree.query import RecommendRequest, Searcher, parse_ids


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_popular_run(tmp_path_factory.mktemp("runs") / "run", ITEMS)


def retrieve(run, folder, source, output="out.parquet", *words, check=True):
    return beamtree(*("retrieve", str(run), "--input", source, "--output", output, *words), folder=folder, check=check)


# Histories in files


@pytest.mark.parametrize(
    ("name", "separator"),
    [
        ("in.parquet", None),
        ("in.jsonl", None),
        ("in.parquet", " "),
        ("in.jsonl", ", "),
        ("in.csv", ","),
        ("in.csv", " | "),
        ("in.tsv", ","),
    ],
)
def test_a_row_per_user_comes_in_every_format(tmp_path, run, name, separator):
    write_rows(tmp_path / name, HISTORIES, separator)
    done = retrieve(run, tmp_path, name)
    same(read_answers(tmp_path / "out.parquet"), expected(run, HISTORIES))
    assert "6 of 6 users" in done.stderr
    assert "6 users, " in done.stderr  # and how many per second
    assert "per second" in done.stderr


@pytest.mark.parametrize("times", [True, False])
@pytest.mark.parametrize("name", ["in.parquet", "in.jsonl", "in.csv"])
def test_a_row_per_event_comes_in_every_format(tmp_path, run, name, times):
    write_log(tmp_path / name, HISTORIES, times=times)
    retrieve(run, tmp_path, name)
    found = read_answers(tmp_path / "out.parquet")
    some = {user: history for user, history in HISTORIES.items() if history}
    same(dict(sorted(found.items())), expected(run, dict(sorted(some.items()))))


@pytest.mark.parametrize("output", ["out.parquet", "out.csv", "out.jsonl", "out.ndjson", "new/folder/out.CSV"])
def test_answers_go_out_in_every_format(tmp_path, run, output):
    write_rows(tmp_path / "in.jsonl", HISTORIES)
    retrieve(run, tmp_path, "in.jsonl", output, "--m", "4", "--beam-size", "20")
    path = (tmp_path / output).rename(tmp_path / output.lower().replace("/", "-"))
    same(read_answers(path), expected(run, HISTORIES, m=4, beam_size=20))


def test_a_folder_of_files_is_one_input(tmp_path, run):
    users = list(HISTORIES)
    (tmp_path / "in").mkdir()
    for name, some in (("a.csv", users[:2]), ("b.csv", users[2:])):
        write_rows(tmp_path / "in" / name, {user: HISTORIES[user] for user in some}, ",")
    retrieve(run, tmp_path, "in")
    same(read_answers(tmp_path / "out.parquet"), expected(run, HISTORIES))


def test_ids_stay_text_and_are_trimmed(tmp_path, run):
    (tmp_path / "log.csv").write_text("user_id,asin\n 1.0 , 007\n1.0,\t012 \n 08,c\n")
    retrieve(run, tmp_path, "log.csv")
    same(read_answers(tmp_path / "out.parquet"), expected(run, {"1.0": ["007", "012"], "08": ["c"]}))


def test_ids_with_spaces_fit_in_a_list(tmp_path, run):
    (tmp_path / "in.jsonl").write_text('{"user": "a", "history": [" Ä b ", null, ""]}\n', encoding="utf-8")
    assert "note" not in retrieve(run, tmp_path, "in.jsonl").stderr
    same(read_answers(tmp_path / "out.parquet"), expected(run, {"a": ["Ä b"]}))


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """The same run over items whose ids are numbers."""
    return make_popular_run(tmp_path_factory.mktemp("runs") / "numbered", [str(number) for number in range(len(ITEMS))])


def test_json_lines_may_change_their_types_late(tmp_path, monkeypatch, numbered):
    monkeypatch.setattr(readers, "SCHEMA_LINES", 30)
    lines = [{"user": user, "history": [user % 60]} for user in range(100)]
    late = [{"user": "a", "history": ["7", 12.0, 13]}, {"user": 5.0, "history": []}, {"user": 1, "history": None}]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, *late]))
    (tmp_path / "log.jsonl").write_text(
        "".join(f'{{"user": {user}, "item": {user % 60}}}\n' for user in range(100))
        + '{"user": "a", "item": "7"}\n{"user": "a", "item": 12.0}\n{"user": "a", "item": 13}\n'
    )
    one = beamtree("retrieve", str(numbered), "--history", "7,12,13", "--json", "a.json", folder=tmp_path)
    assert "note" not in one.stderr
    theirs = [(cell["item"], cell["score"]) for cell in json.loads((tmp_path / "a.json").read_text())]
    for name in ("in.jsonl", "log.jsonl"):
        assert "ignored" not in retrieve(numbered, tmp_path, name, "out.jsonl").stderr
        same({"a": read_answers(tmp_path / "out.jsonl")["a"]}, {"a": theirs})


def test_lists_after_text_are_lists(tmp_path, run):
    histories = {"a": "007 012", "b": ["007", "012"], "c": "[bold]", "d": ["c", None, " Ä b"], "e": []}
    lines = [json.dumps({"user": user, "history": history}) for user, history in histories.items()]
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert "ignored" not in retrieve(run, tmp_path, "in.jsonl").stderr
    known = {"a": ["007", "012"], "b": ["007", "012"], "c": ["[bold]"], "d": ["c", "Ä b"], "e": []}
    same(read_answers(tmp_path / "out.parquet"), expected(run, known))


def test_numbers_in_lists_are_ids_as_people_write_them(tmp_path, numbered):
    histories = [[7, 12], [7.0, None, 12.0]]
    (tmp_path / "in").mkdir()
    for place, history in enumerate(histories):  # one file of whole numbers, one of floats
        frame = pl.DataFrame({"user": [f"u{place}" if place else 0], "history": [history]})
        frame.write_parquet(tmp_path / "in" / f"{place}.parquet")
    assert "ignored" not in retrieve(numbered, tmp_path, "in").stderr
    found = read_answers(tmp_path / "out.parquet")
    same({"": found["0"]}, {"": found["u1"]})


@pytest.mark.parametrize("write", [write_rows, write_log])
def test_parts_and_batches_do_not_change_answers(tmp_path, run, monkeypatch, write):
    histories = {f"u{user}": [ITEMS[(user * 5 + place) % 57] for place in range(1 + user % 9)] for user in range(40)}
    write(tmp_path / "in.parquet", histories)
    retrieve(run, tmp_path, "in.parquet", "once.jsonl")
    for name, size in (("MAX_USERS", 7), ("MAX_EVENTS", 30), ("BATCH", 3), ("MAX_RESULT_ITEMS", 60)):
        monkeypatch.setattr(files, name, size)
    assert len(list(files.open_histories(tmp_path / "in.parquet").chunks())) > 3
    retrieve(run, tmp_path, "in.parquet", "parts.jsonl")
    once, parts = (read_answers(tmp_path / name) for name in ("once.jsonl", "parts.jsonl"))
    if write is write_rows:
        assert list(once) == list(parts)
    same(dict(sorted(parts.items())), dict(sorted(once.items())))
    same(dict(sorted(once.items())), dict(sorted(expected(run, histories).items())))


def test_events_at_the_same_time_keep_the_order_of_the_log(tmp_path, run):
    (tmp_path / "log.csv").write_text("user,item,timestamp\na,007,5\na,012,5\na,055,2\n")
    retrieve(run, tmp_path, "log.csv")
    same(read_answers(tmp_path / "out.parquet"), expected(run, {"a": ["055", "007", "012"]}))


# One history


def test_one_history_is_answered_by_a_table_and_json(tmp_path, run):
    words = ["retrieve", str(run), "--history", "007, 012|055", "--m", "60", "--json", "cells.json"]
    done = beamtree(*words, folder=tmp_path)
    (theirs,) = expected(run, {"": ["007", "012", "055"]}, m=60).values()
    cells = json.loads((tmp_path / "cells.json").read_text(encoding="utf-8"))
    assert [cell["rank"] for cell in cells] == list(range(1, 61))
    same({"": [(cell["item"], cell["score"]) for cell in cells]}, {"": theirs})
    assert "note" not in done.stderr
    assert all(name in done.stdout for name in ITEMS)
    assert f"{theirs[0][1]:.3g}" in done.stdout


def test_the_newest_item_stands_last(run):
    """69 items count, and which of them is the newest makes a difference."""
    model, ids = bt.load_model(run), Ids(ITEMS)
    old = ["c"] * 5 + ITEMS[:57] + ["c"] * 12
    request = RecommendRequest([old, ["012", *old[-69:]], old[::-1]])
    first, second, turned = Searcher(model, ids).recommend(request).results
    assert (first.items, first.scores) == (second.items, second.scores)
    assert first.scores != turned.scores


def test_text_is_split_at_spaces_commas_and_bars():
    assert parse_ids(" a,b | c\td,, |e\n") == ["a", "b", "c", "d", "e"]
    assert parse_ids(" , ") == []


def test_text_may_be_a_list_as_json():
    assert parse_ids(' ["a, b", " c d|e ", 7, 12.0, null, ""]\n') == ["a, b", "c d|e", "7", "12"]
    assert parse_ids("[]") == []
    for none in ("[a]", "[a b]", '["a"', "[" * 100_000):  # ids as good as any
        assert parse_ids(none) == none.split()


def test_a_list_inside_a_list_of_ids_is_an_error():
    for text in ('[["a", "b"]]', '["a", {"b": 1}]'):
        with pytest.raises(ValueError, match=r"is not an id: give ids as text or numbers$"):
            parse_ids(text)


# What is not known, and what was seen


def test_unknown_items_are_passed_over_with_a_note(tmp_path, run):
    write_rows(tmp_path / "in.jsonl", HISTORIES)
    done = retrieve(run, tmp_path, "in.jsonl")
    assert "3 events ignored: of items that the model does not know (what, nobody)" in done.stderr
    assert "2 users without a known item: popular items are recommended" in done.stderr
    found = read_answers(tmp_path / "out.parquet")
    same({"": found["u4"]}, {"": found["u1"]})
    same({"": found["u5"]}, {"": found["u6"]})
    done = beamtree("retrieve", str(run), "--history", "7,what", folder=tmp_path)
    assert "2 events ignored" in done.stderr
    assert "(7, what)" in done.stderr
    assert "1 user without a known item: popular items are recommended" in done.stderr
    assert "share of events" in done.stdout  # and no probability


def test_a_note_names_the_first_few_items(run):
    summary = BatchSummary()
    request = RecommendRequest([[f"x{number}" for number in range(1234)]])
    summary.add(Searcher(bt.load_model(run), Ids(ITEMS)).recommend(request).results)
    assert next(summary.notes()).startswith("1,234 events ignored")
    assert "(x0, x1, x2, x3, x4, …)" in next(summary.notes())


def test_what_was_seen_is_left_out_however_old(tmp_path, run):
    write_rows(tmp_path / "in.jsonl", HISTORIES)
    done = retrieve(run, tmp_path, "in.jsonl", "out.jsonl", "--exclude-seen", "--m", "60")
    found = read_answers(tmp_path / "out.jsonl")
    assert {item for item, _ in found["u 3"]} == {"[bold]", "Ä b", "c"}
    assert all(not {item for item, _ in found[user]} & set(history) for user, history in HISTORIES.items())
    same(found, expected(run, HISTORIES, m=60, exclude_seen=True))
    assert "without a result" not in done.stderr


def test_a_user_without_an_answer_is_noted(tmp_path, run):
    write_rows(tmp_path / "in.jsonl", {"all": ITEMS, "few": ["c"]})
    for output in ("out.jsonl", "out.csv"):
        done = retrieve(run, tmp_path, "in.jsonl", output, "--exclude-seen")
        assert "1 user without a result" in done.stderr
        assert len(read_answers(tmp_path / output)["few"]) == 10
    assert read_answers(tmp_path / "out.jsonl")["all"] == []
    assert "all" not in read_answers(tmp_path / "out.csv")


def test_rows_that_cannot_be_used_are_counted(tmp_path, run):
    (tmp_path / "log.csv").write_text("user,item,timestamp\na,007,1\n,012,2\nb, ,3\na,012,soon\na,055,4\n")
    assert "3 rows skipped" in retrieve(run, tmp_path, "log.csv").stderr
    same(read_answers(tmp_path / "out.parquet"), expected(run, {"a": ["007", "055"]}))
    (tmp_path / "rows.csv").write_text("user,history\na,007 055\n,012\n")
    assert "1 row skipped" in retrieve(run, tmp_path, "rows.csv").stderr
    same(read_answers(tmp_path / "out.parquet"), expected(run, {"a": ["007", "055"]}))


# Never half a file


@pytest.fixture(params=["out.parquet", "out.csv", "out.jsonl"])
def old_output(tmp_path, request):
    """An output from before that must stand as it was, and alone."""
    write_rows(tmp_path / "in.jsonl", {f"u{user}": ["007"] for user in range(1000)})
    output = tmp_path / request.param
    output.write_text("old")
    yield output
    assert output.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", request.param}


def test_an_interrupt_leaves_the_old_output(tmp_path, run, monkeypatch, old_output):
    def stop(*_, **__):
        assert list(tmp_path.glob("*.new-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(Searcher, "recommend", stop)
    assert retrieve(run, tmp_path, "in.jsonl", old_output.name, check=False).returncode != 0


def test_a_full_disk_leaves_the_old_output(tmp_path, run, old_output):
    with largest_file(1_000):
        done = retrieve(run, tmp_path, "in.jsonl", old_output.name, check=False)
    fails(done, "File too large")
    assert f"{old_output.name} cannot be written" in done.stderr


def test_a_full_disk_at_the_end_leaves_the_old_output(tmp_path, run, monkeypatch, old_output):
    def write(answers, path):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setitem(files.SINKS, old_output.suffix, write)
    fails(retrieve(run, tmp_path, "in.jsonl", old_output.name, check=False), "no space left")


def test_an_input_that_breaks_off_leaves_the_old_output(tmp_path, run, old_output):
    whole = (tmp_path / "in.jsonl").read_text()
    (tmp_path / "in.jsonl").write_text(whole + '{"user": "u9", "hist')
    fails(retrieve(run, tmp_path, "in.jsonl", old_output.name, check=False), "in.jsonl cannot be read")


# Bad input


def fails(done, message):
    lines = [line for line in done.stderr.splitlines() if " of " not in line or "beamtree" in line]  # less progress
    assert done.returncode == 2
    assert len(lines) == 1
    assert lines[0].startswith("beamtree: ")
    assert message in lines[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --history"),
        (["--history", "007", "--input", "in.csv", "--output", "out.csv"], "give --history"),
        (["--history", "007", "--output", "out.csv"], "give --history"),
        (["--input", "in.csv"], "give --history"),
        (["--input", "in.csv", "--output", "out.xlsx"], "out.xlsx: the formats of results are .parquet, .csv, .jsonl"),
        (["--input", "in.csv", "--output", "out.txt"], "end the name in one of these"),
        (["--input", "in.csv", "--output", "folder.csv"], "folder.csv cannot be written: it is a folder"),
        (["--input", "in.csv", "--output", "in.csv"], "in.csv is the input too"),
        (["--input", "in.csv", "--output", "in.csv/out.csv"], "in.csv is not a folder"),
        (["--input", "in.csv", "--output", "/proc/no/out.csv"], "/proc/no"),
        (["--input", "in.csv", "--output", "out.csv", "--json", "a.json"], "--json is for --history"),
        (["--input", "none.csv", "--output", "out.csv"], "none.csv does not exist"),
        (["--input", "in.xlsx", "--output", "out.csv"], "in.xlsx"),
        (["--input", "items.csv", "--output", "out.csv"], "items.csv has the columns item, price: give user and"),
        (["--input", "users.csv", "--output", "out.csv"], "users.csv has the columns user, price: give user and"),
        (["--input", "nobody.csv", "--output", "out.csv"], "nobody.csv has the columns history, price: give user and"),
        (["--input", "no-rows.csv", "--output", "out.csv"], "no user in the input"),
        (["--input", "no-users.csv", "--output", "out.csv"], "no user in the input"),
        (["--input", "empty.csv", "--output", "out.csv"], "empty.csv is empty"),
        (["--input", "no.parquet", "--output", "out.csv"], "no.parquet cannot be read"),
        (["--input", "struct.jsonl", "--output", "out.csv"], "column 'history' holds Struct"),
        (
            ["--history", "007", "--m", "11", "--beam-size", "10"],
            "--m 11 with --beam-size 10: the beam holds fewer items",
        ),
        (["--history", "007", "--m", "0"], "--m"),
        (["--history", "007", "--device", "tpu"], "is not here"),
        (["--history", "007", "--json", "folder.csv"], "folder.csv cannot be written: it is a folder"),
        (
            ["--history", json.dumps(ITEMS), "--exclude-seen", "--m", "1", "--beam-size", "1"],
            "no item is left to retrieve",
        ),
    ],
)
def test_a_users_error_is_one_line_and_writes_nothing(tmp_path, run, words, message):
    texts = {
        "in.csv": "user,history\na,007\n",
        "in.xlsx": "",
        "items.csv": "item,price\n007,2\n",
        "users.csv": "user,price\na,2\n",
        "nobody.csv": "history,price\n007,2\n",
        "no-rows.csv": "user,item\n",
        "no-users.csv": "user,history\n,007\n",
        "empty.csv": "",
        "no.parquet": "PAR1",
        "struct.jsonl": '{"user": "a", "history": {"first": "007"}}\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.csv").mkdir()
    fails(beamtree("retrieve", str(run), *words, folder=tmp_path, check=False), message)
    assert {path.name for path in tmp_path.iterdir()} == {*texts, "folder.csv"}


def test_a_run_that_is_none_and_ids_of_another_are_refused(tmp_path, run):
    fails(beamtree("retrieve", "nowhere", "--history", "007", folder=tmp_path, check=False), "nowhere is not a run")
    (tmp_path / "items.txt").write_text("007\n")
    with pytest.raises(ValueError, match="1 ids for a tree of 60 items"):
        Searcher(bt.load_model(run), Ids(tmp_path / "items.txt"))
