"""The path of a query, as docs/how_it_works.md lists it: Python, HTTP and files meet in one function."""

import asyncio
import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
from serving import make_service, save_run

import beamtree as bt
from beamtree.batch.files import open_histories, write_results
from beamtree.batch.job import make_searcher
from beamtree.query import RecommendRequest
from beamtree.serve.http.app import make_app

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([^|]+) \| `([\w.]+)`[^|]* \| `(beamtree/[\w/.]+)` \|$", re.MULTILINE)
BODY = b'{"history": ["i1", "i2"], "m": 3, "beam_size": 20}'


@contextmanager
def traced():
    """The functions of the package that are called meanwhile, in order, each once: (name, file)."""
    calls = {}

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and "/beamtree/" in code.co_filename:
            file = Path(code.co_filename)
            if file.is_relative_to(ROOT):
                calls.setdefault((code.co_qualname, str(file.relative_to(ROOT))))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def listed(caller):
    """The rows of the page for a caller, and those for all."""
    text = (ROOT / "docs" / "how_it_works.md").read_text()
    rows = ROW.findall(text)
    others = {"Python", "HTTP", "files"} - {caller}
    path = [(function, file) for who, function, file in rows if who not in others]
    assert ("Searcher.answer", "beamtree/query/search.py") in path
    assert len(path) > 5
    return path


def check(calls, caller):
    path, order = listed(caller), list(calls)
    assert [step for step in path if step not in calls] == []
    assert path == sorted(path, key=order.index)


@pytest.fixture
def run(tmp_path):
    return save_run(tmp_path / "run")


async def post(app):
    """What a POST with a body is answered with: its status."""
    messages = []

    async def receive():
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message):
        messages.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/recommend", "headers": headers, "query_string": b""}
    await app(scope, receive, send)
    return messages[0]["status"]


def test_a_query_from_python_takes_the_listed_path(run):
    shop = bt.Recommender.load(run)
    with traced() as calls:
        shop.recommend(["i1", "i2"], m=3, beam_size=20)
    check(calls, "Python")


def test_a_query_with_rules_is_selected_instead(run):
    shop = bt.Recommender.load(run)
    with traced() as calls:
        shop.recommend(["i1", "i2"], m=3, beam_size=20, rules={"pins": ["i5"]})
    names = [name for name, _ in calls]
    path = ["Searcher.answer", "Searcher.select", "retrieve_each", "Selection.fill"]
    assert path == sorted(path, key=names.index)
    assert "Searcher.search" not in names


def test_a_query_over_http_takes_the_listed_path(run):
    with traced() as calls:  # from before the threads of the service start
        service = make_service(run)
        app = make_app(service)
        calls.clear()
        assert asyncio.run(post(app)) == 200
    service.close()
    check(calls, "HTTP")


def test_queries_of_a_file_take_the_listed_path(run, tmp_path):
    pl.DataFrame({"user": ["a"], "history": ["i1 i2"]}).write_csv(tmp_path / "in.csv")
    request = RecommendRequest(m=3, beam_size=20)
    searcher = make_searcher(run, bt.load_model(run), request)
    with traced() as calls:
        write_results(searcher, request, open_histories(tmp_path / "in.csv"), tmp_path / "out.parquet")
    check(calls, "files")
