"""What the README and the docs say is so: their code runs, and what they name exists."""

import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from command import beamtree

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.M | re.S)


def test_the_readmes_commands_run_and_then_its_python(tmp_path):
    run_commands(tmp_path)
    code = "\n".join(blocks(ROOT / "README.md", "python"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    recall, lost = (
        float(re.search(pattern, done.stdout)[1]) for pattern in (r"recall@20 ([\d.]+)%", r"regret@20 ([\d.]+)")
    )
    assert recall > 30
    assert lost < 0.12


def run_commands(folder):
    lines = [line for page in (ROOT / "README.md",) for block in blocks(page, "sh") for line in block.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    ran = 0
    for command in filter(None, commands):
        if command[0] == "make":
            continue  # the next test
        assert command[0] == "beamtree"
        beamtree(*command[1:], folder=folder)
        ran += 1
    assert ran >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_make_targets_and_links_exist(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    for block in blocks(page, "sh"):
        for target in re.findall(r"^make ([a-z-]+)", block, flags=re.M):
            assert target in targets
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert "://" not in link
        assert (page.parent / link).exists(), link


def resolve(name):
    """The thing a dotted name of the package stands for."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = import_module(".".join(["beamtree", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            fields = getattr(thing, "__dataclass_fields__", {})
            thing = fields[part] if part in fields else getattr(thing, part)
        return thing
    raise AttributeError(name)


def test_the_tour_names_things_that_exist():
    text = (ROOT / "docs" / "tour.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    names = set(re.findall(r"`([A-Za-z_.0-9]+)`", text))
    dotted = {name for name in names if "." in name and not name.startswith("test_")}
    assert len(dotted) > 40
    for name in dotted:
        resolve(name)
    for name in names:
        if name.startswith("test_"):
            assert f"def {name}(" in tests


def test_every_equation_of_the_paper_is_in_the_tour():
    text = (ROOT / "docs" / "tour.md").read_text()
    for number in ("1", "2", "3", "4", "8", "9", "10", "13", "15", "16"):
        assert re.search(rf"Eq\. {number}\b", text), number
    assert "Eqs. 5-7" in text
    assert all(f"Proposition {number}" in text for number in (1, 2, 3))


def test_the_numbers_shown_are_those_of_the_results():
    done = subprocess.run([sys.executable, ROOT / "docs" / "fill.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_cell_of_the_tables_is_missing_from_the_results():
    sizes = {"table1": 25, "tableA1": 210, "table2": 24, "tableA2": 144}
    for table, size in sizes.items():
        content = json.loads((ROOT / "results" / f"{table}.json").read_text())
        assert len(content["cells"]) == size
        assert content["settings"]
        assert content["commit"]
