"""The command as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import beamtree, wait_for

from beamtree.research.paper.cells import expected, results_name


@pytest.mark.extended
def test_the_module_is_the_command(tmp_path):
    words = [sys.executable, "-m", "beamtree", "--version"]
    assert "beamtree 0." in subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout


def test_help_reads_like_a_short_manual(tmp_path):
    text = beamtree("--help", folder=tmp_path).stdout
    assert "Retrieve the right few items" in text
    assert "paper" in text
    tables = beamtree("paper", "--help", folder=tmp_path).stdout
    assert all(name in tables for name in ("table1", "tableA1", "table2", "tableA2"))


@pytest.mark.extended
@pytest.mark.parametrize("table", ["table1", "tableA1"])
def test_toy_tables_print_save_and_draw(tmp_path, table):
    done = beamtree("paper", table, "--runs", "2", "--seed", "3", "--json", "cells.json", folder=tmp_path)
    assert "N=inf-exact" in done.stdout
    assert "of 2 runs" in done.stderr  # progress as plain lines where there is no terminal
    cells = json.loads((tmp_path / "cells.json").read_text())
    names = {"table", "estimator", "k", "m", "N", "value", "std", "runs", "paper"}
    assert all(names <= set(cell) and cell["table"] == table and cell["runs"] == 2 for cell in cells)
    with_paper = [cell for cell in cells if cell["paper"] is not None]
    assert len(with_paper) == {"table1": 20, "tableA1": 180}[table]
    assert {cell["N"] for cell in cells} == {100, 1000, 10000, "inf", "inf-exact"}
    saved = json.loads((tmp_path / "results" / f"{table}.runs=2.seed=3.json").read_text())
    assert saved["cells"] == cells
    assert saved["settings"] == {"runs": 2, "seed": 3}
    assert "commit" in saved
    assert (tmp_path / "results" / f"{table}.runs=2.seed=3.png").stat().st_size > 10_000
    again = beamtree("paper", table, "--runs", "2", "--seed", "3", folder=tmp_path)
    assert again.stdout == done.stdout  # same seed, same numbers


def test_optest_loses_nothing_at_infinity(tmp_path):
    beamtree("paper", "tableA1", "--runs", "1", "--json", "cells.json", folder=tmp_path)
    cells = json.loads((tmp_path / "cells.json").read_text())
    optimal = [cell for cell in cells if cell["estimator"] == "OptEst" and cell["N"] == "inf"]
    assert len(optimal) == 15
    assert all(cell["value"] == 0 for cell in optimal)


@pytest.mark.extended
def test_synthetic_tables_print_save_and_draw(tmp_path):
    words = ["--runs", "2", "--epochs", "1", "--rows", "tdm,otm-mixed", "--json", "cells.json"]
    done = beamtree("paper", "table2", *words, folder=tmp_path)
    assert "otm-mixed" in done.stdout
    assert "80 of 80 steps" in done.stderr
    cells = json.loads((tmp_path / "cells.json").read_text())
    assert len(cells) == 8
    names = {"table", "row", "bias", "m", "value", "std", "runs", "paper"}
    assert all(names <= set(cell) and cell["runs"] == 2 and cell["std"] > 0 for cell in cells)
    assert [cell["paper"] for cell in cells if cell["row"] == "tdm"] == [0.0033, 0.0205, 0.0453, 0.1363]
    assert all(cell["paper"] is None for cell in cells if cell["row"] == "otm-mixed")
    (picture,) = (tmp_path / "results").glob("table2.*.png")
    assert picture.stat().st_size > 10_000
    words = ["--runs", "1", "--epochs", "1", "--rows", "tdm", "--bias", "0,-5"]
    beamtree("paper", "tableA2", *words, folder=tmp_path)
    assert list((tmp_path / "results").glob("tableA2.*.json"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table2", "--rows", "otm,foo"], "row 'foo' is unknown: choose from"),
        (["table2", "--rows", ","], "no row was given"),
        (["table2", "--bias", "many"], "give numbers separated by commas"),
        (["table2", "--runs", "0"], "--runs"),
        (["table1", "--runs", "few"], "--runs"),
        (["tableA2", "--epochs", "-1"], "--epochs"),
        (["table2", "--device", "tpu"], "is not here"),
        (["table7"], "No such command"),
        (["table2", "--bias", "nan"], "give numbers"),
        (["table2", "--json", "."], "cannot be written"),
        (["table2", "--json", "/proc/no/place.json"], "/proc/no"),
    ],
)
def test_a_users_error_is_one_line_and_exit_code_2(tmp_path, words, message):
    done = beamtree("paper", *words, folder=tmp_path, check=False)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if " of " not in line]  # less progress
    assert len(lines) == 1
    assert lines[0].startswith("beamtree: ")
    assert message in done.stderr


@pytest.mark.extended
def test_results_are_kept_even_if_nobody_reads_the_table(tmp_path):
    command = f"{sys.executable} -m beamtree paper table1 --runs 1 | true"
    subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True)
    assert (tmp_path / "results" / "table1.runs=1.json").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_a_killed_command(tmp_path):
    words = ["paper", "table2", "--runs", "1", "--rows", "tdm,otm"]
    process = subprocess.Popen([sys.executable, "-m", "beamtree", *words], cwd=tmp_path, stderr=subprocess.DEVNULL)
    workers = wait_for(lambda: [pid for pid in children_of(process.pid) if cpu_seconds(pid) > 2], 60)
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 15)


def stat(pid):
    """The fields of a process from its state on: parent second, user time twelfth."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def children_of(parent):
    """The processes that a process started, and no others."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if (fields := stat(pid)) and int(fields[1]) == parent]


def cpu_seconds(pid):
    fields = stat(pid)
    return int(fields[11]) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def test_long_settings_make_a_name_that_fits():
    names = {results_name("table2", {"bias": ",".join(["-5.25"] * n)}) for n in (50, 60)}
    assert len(names) == 2
    assert all(len(name) < 200 for name in names)


def test_a_bare_command_is_help_and_no_empty_error(tmp_path):
    done = beamtree(folder=tmp_path, check=False)
    assert "Usage" in done.stdout
    assert done.stderr == ""


def test_the_papers_numbers_are_all_there():
    tables = expected()
    assert len(tables["table1"]["rows"]) == 5
    assert len(tables["tableA1"]["rows"]) == 15
    assert [row["bias"] for row in tables["synthetic"]["rows"]] == [0, -1, -2, -3, -4, -5]
    for row in tables["synthetic"]["rows"]:
        assert all(len(numbers) == 4 for name, numbers in row.items() if name != "bias")
