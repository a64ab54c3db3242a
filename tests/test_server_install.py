"""docs/install.md, "A server that only answers": environments of exactly the packages that it names."""

import json
import re
import subprocess
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import polars as pl
import pytest
from packaging.requirements import Requirement
from ranks import free_port

import beamtree as bt

PAGE = Path(__file__).parent.parent / "docs" / "install.md"
SECTION = PAGE.read_text(encoding="utf-8").split("## A server that only answers")[1].split("\n## ")[0]
ANSWERING, SERVING = (
    command.split() for command in re.findall(r"^pip install ((?!--no-deps).+)$", SECTION, flags=re.MULTILINE)
)


def closure(names):
    """The installed distributions of some names, and of all that they require here."""
    found, left = {}, list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # for another platform
            continue
        for text in found[name].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return found


def environment(folder, names):
    """A Python that can import these distributions, what they require, and this package, but nothing else."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python3*/site-packages")
    for found in closure(names).values():
        for name in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            source, target = Path(found.locate_file(name)), site / name
            if not target.exists():
                target.symlink_to(source)
    (site / "beamtree").symlink_to(Path(bt.__file__).parent)
    return folder / "bin" / "python"


def run(python, code, *arguments):
    """What a program prints, and the last line that it writes to standard error."""
    done = subprocess.run([python, "-I", "-c", code, *arguments], capture_output=True, text=True, check=False)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def shop_folder(tmp_path_factory):
    """A saved run with a table of its items."""
    folder = tmp_path_factory.mktemp("shop") / "run"
    users, items = [f"u{n // 6}" for n in range(360)], [f"i{(n // 6 + n % 6) % 40:02}" for n in range(360)]
    log = pl.DataFrame({"user": users, "item": items, "time": range(360)})
    table = pl.DataFrame({"item": [f"i{n:02}" for n in range(40)], "price": range(40)})
    bt.Recommender(steps=0).fit(log, items=table, test_users=10, val_users=10, verbose=False).save(folder)
    return folder


ANSWER = """
import sys
assert all(name not in sys.modules for name in ("polars", "fastapi"))
import beamtree as bt
shop = bt.Recommender.load(sys.argv[1])
for answer in (
    shop.recommend(["i03", "i04"], m=5), shop.recommend([["i03"], ["i09"]], m=5, exclude=["i05"], exclude_seen=True),
    shop.similar("i03", m=5), shop.score(["i03"], ["i04", "i20"]), shop.explain(["i03", "i04"], "i05"),
):
    assert len(answer["item"]) in (2, 5, 10) or answer["part"], answer
    print(answer["item"])
for ask in (
    lambda: shop.recommend(["i03"], m=5, where="price < 20"),
    lambda: shop.recommend(["i03"], m=5, rules={"at_most": {"price": 1}}),
    lambda: shop.update_items({"i03": {"price": 5}}),
    lambda: bt.Recommender().fit("log.csv"),
):
    try:
        ask()
    except ValueError as error:
        print(error)
    else:
        print("no error")
"""


@pytest.mark.extended
def test_a_saved_model_answers_with_the_packages_that_the_page_names(tmp_path, shop_folder):
    python = environment(tmp_path / "env", ANSWERING)
    found, trouble = run(python, ANSWER, shop_folder)
    lines = found.splitlines()
    shop = bt.Recommender.load(shop_folder)
    assert "Traceback" not in trouble, trouble
    assert lines[0] == str(shop.recommend(["i03", "i04"], m=5)["item"].to_list())
    assert lines[3] == str(["i04", "i20"])
    assert len(lines) == 9
    assert all("polars" in line and "pip install polars" in line for line in lines[5:]), lines[5:]


@pytest.mark.extended
def test_a_missing_numba_is_one_line(tmp_path, shop_folder):
    python = environment(tmp_path / "env", [name for name in ANSWERING if name != "numba"])
    _, trouble = run(python, ANSWER, shop_folder)
    assert trouble.splitlines()[-1].endswith("needs numba, which is not installed: pip install numba")


@pytest.mark.extended
def test_a_service_answers_with_the_packages_that_the_page_names(tmp_path, shop_folder):
    python, port = environment(tmp_path / "env", [*ANSWERING, *SERVING]), free_port()
    code = """
import subprocess, sys, time, json
from urllib.request import Request, urlopen
port, run = sys.argv[1:]
service = subprocess.Popen([sys.executable, "-I", "-m", "beamtree", "serve", run, "--port", port])
def post(body):
    headers = {"content-type": "application/json"}
    return json.load(urlopen(Request(f"http://127.0.0.1:{port}/v1/recommend", json.dumps(body).encode(), headers)))
for _ in range(600):
    try:
        urlopen(f"http://127.0.0.1:{port}/readyz")
        break
    except OSError:
        time.sleep(0.1)
for more in ({}, {"where": "price < 20"}, {"rules": {"at_most": {"price": 1}, "pins": {"1": "i30"}}}):
    print(json.dumps(post({"history": ["i03"], "m": 5, **more})))
assert b"swagger" in urlopen(f"http://127.0.0.1:{port}/docs").read()
service.terminate()
service.wait()
"""
    found, trouble = run(python, code, str(port), str(shop_folder))
    assert "Traceback" not in trouble, trouble
    plain, where, rules = (json.loads(line)["results"][0]["items"] for line in found.splitlines())
    assert len(plain) == len(where) == len(rules) == 5
    assert all(int(item[1:]) < 20 for item in where)
    assert rules[0] == "i30"
