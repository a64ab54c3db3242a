"""What the README and the docs say is so: their code runs, and what they name exists."""

import contextlib
import importlib.util
import io
import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from command import beamtree

import beamtree as bt
from beamtree.cli.front import app

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
ONLINE = "https://github.com/beamtree/beamtree/blob/main/"  # where a package index finds what the README links
WIDEST = 100


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.M | re.S)


def commands_of(path):
    """Every line of a page's shell blocks, as words."""
    lines = [line for block in blocks(path, "sh") for line in block.splitlines()]
    return list(filter(None, (shlex.split(line, comments=True) for line in lines)))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that the pages share, and the commands that were run in it: none is run twice."""
    return tmp_path_factory.mktemp("pages"), set()


def run_page(page, place):
    """Run the commands and the Python of a page in its order; gives what Python printed, and the names it left."""
    folder, done = place
    names, printed = {}, io.StringIO()
    for language, code in re.findall(r"^```(sh|python)\n(.*?)^```", page.read_text(), flags=re.M | re.S):
        if language == "python":
            with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
                exec(compile(code, str(page), "exec"), names)
            continue
        for line in code.splitlines():
            words = tuple(shlex.split(line, comments=True))
            if words and words[0] not in ("make", "pip") and words not in done:
                assert words[0] == "beamtree"
                beamtree(*words[1:], folder=folder)
                done.add(words)
    return printed.getvalue(), names


def test_the_readme_runs(place):
    printed, _ = run_page(ROOT / "README.md", place)
    recall, lost = (
        float(re.search(pattern, printed)[1]) for pattern in (r"recall@20 ([\d.]+)%", r"regret@20 ([\d.]+)")
    )
    assert recall > 30
    assert lost < 0.12
    assert len(place[1]) >= 3


def test_the_page_on_recommending_runs(place):
    _, names = run_page(ROOT / "docs" / "recommend.md", place)
    assert (place[0] / "answers.parquet").exists()
    assert len(names["shop"].recommend(["i0000012"], m=5, allowed=names["in_stock"])) == 5


def test_the_page_on_extending_runs(place):
    _, names = run_page(ROOT / "docs" / "extend.md", place)
    assert isinstance(names["shop"].model.scorer, names["MeanScorer"])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_on_every_page_is_python(page):
    for code in blocks(page, "python"):
        compile(code, str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_options_on_every_page_exist(page):
    front = typer.main.get_command(app)
    for words in commands_of(page):
        if words[0] != "beamtree":
            continue
        command = front
        for word in words[1:]:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
        known = {option for each in command.params for option in each.opts} | {"--help", "--version"}
        assert command is not front or words[1:] == ["--help"], words
        assert {word for word in words if word.startswith("--")} <= known, words


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_make_targets_and_links_exist(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M)
    for block in blocks(page, "sh"):
        for target in re.findall(r"^make ([a-z-]+)", block, flags=re.M):
            assert target in targets
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#]+)", text) + re.findall(r"^\[[^\]]+\]: (\S+)", text, flags=re.M):
        if page.name == "README.md" and link.startswith(ONLINE):
            assert (ROOT / link.removeprefix(ONLINE).split("#")[0]).exists(), link
        else:
            assert "://" not in link, link
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda p: p.name)
def test_lines_are_wrapped(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    free = ("|", "    ", "[")  # rows of tables, code, and definitions of links
    for line in text.splitlines():
        assert len(line) <= WIDEST or line.startswith(free), line


def test_every_page_is_linked_from_the_index_and_from_the_menu():
    names = {page.name for page in DOCS}
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    menu = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert sorted(linked) == sorted(names - {"index.md"})
    assert sorted(menu) == sorted(names)


def test_every_name_of_the_door_is_on_the_page_of_the_api():
    headings = re.findall(r"heading: (\S+)", (ROOT / "docs" / "api.md").read_text())
    assert len(headings) == len(set(headings))
    assert sorted(name for name in headings if name.startswith("bt.")) == sorted(f"bt.{name}" for name in bt.__all__)
    for name in headings:
        if not name.startswith("bt."):
            resolve(name.removeprefix("beamtree."))


def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs")
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bt.Recommender" in (tmp_path / "site" / "api" / "index.html").read_text()


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


@pytest.fixture(scope="module")
def fill():
    spec = importlib.util.spec_from_file_location("fill", ROOT / "docs" / "fill.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_result_that_is_kept_is_on_a_page(fill, monkeypatch):
    read, whole = set(), Path.read_text

    def spy(path, *args, **options):
        read.add(path)
        return whole(path, *args, **options)

    shown = {part for page in PAGES for part in re.findall(r"<!-- (\w+) -->", whole(page))} - {"end"}
    assert shown == set(fill.PARTS)
    monkeypatch.setattr(Path, "read_text", spy)
    for part in shown:
        fill.PARTS[part]()
    assert set((ROOT / "results").glob("*.json")) <= read


def test_exact_numbers_in_the_findings_stand_in_a_table_above_them():
    """Numbers with two digits after the point come from tables; others were rounded, or measured apart."""
    text = (ROOT / "docs" / "comparison.md").read_text()
    tables = "\n".join(re.findall(r"^\|.*", text, flags=re.M))
    shown = set(re.findall(r"(?<![\d.,])\d+\.\d\d(?!\d)", tables))
    others = {"0.01", "0.18", "0.05", "2.58", "2.47"}  # of validation users, of a test, of Item-CF over other splits
    findings = re.sub(r"^\|.*", "", text, flags=re.M)
    assert set(re.findall(r"(?<![\d.,])\d+\.\d\d(?![\d.])", findings)) - others <= shown


def test_no_cell_of_the_tables_is_missing_from_the_results():
    sizes = {"table1": 25, "tableA1": 210, "table2": 24, "tableA2": 144}
    for table, size in sizes.items():
        content = json.loads((ROOT / "results" / f"{table}.json").read_text())
        assert len(content["cells"]) == size
        assert content["settings"]
        assert content["commit"]
