"""Whether a search is a scan or a beam: what is decided without timing, what is timed, and how long that is kept."""

import json
import logging

import pytest
import torch
from command import beamtree
from random_parts import random_scorers, random_tree
from serving import SteadyLoad, make_engine, make_model, make_service, save_run, serving, submit

import beamtree as bt
from beamtree import TreeModel, beam
from beamtree.beam import retrieve, walk
from beamtree.cli.options import parse_search
from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.live import LiveModel
from beamtree.live.edits import with_items
from beamtree.live.placement import like_items
from beamtree.query import Filter, RecommendRequest, Rules, Searcher
from beamtree.scorers import DeepScorer, SumScorer
from beamtree.search import choice
from beamtree.search.choice import BEAM, SCAN, SearchTimes, nodes_scored
from beamtree.serve.engine.served_run import LoadedRun
from beamtree.serve.http.access import Limits

ITEMS = 9_000


def closed_form(items=ITEMS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tree = random_tree(2, items, 50, generator)
    parts = random_scorers(tree, generator)
    scorer = SumScorer({name: parts[name] for name in ("factors", "memory", "repeats")}, tree.height)
    model = TreeModel(tree, scorer, first_level=8).eval()
    model.ids = Ids([f"i{number}" for number in range(items)])
    model.popularity = torch.arange(items, 0, -1)
    return model


@pytest.fixture
def used(monkeypatch):
    """The searches that are made, in order; none is timed unless a test lets it be."""
    made = []

    def scan(*arguments):
        made.append(SCAN)
        return plain_scan(*arguments)

    def run_beam(*arguments):
        made.append(BEAM)
        return plain_beam(*arguments)

    def refuse(*arguments):
        raise AssertionError("no search needs to be timed here")

    plain_scan, plain_beam = beam.scan, beam.search_cpu.search
    monkeypatch.setattr(beam, "scan", scan)
    monkeypatch.setattr(beam.search_cpu, "search", run_beam)
    monkeypatch.setattr(choice, "measure", refuse)
    return made


def times_of(chosen, users=1):
    beam_ms, scan_ms = (2.0, 1.0) if chosen == SCAN else (1.0, 2.0)
    return SearchTimes("cpu", users, ITEMS, 400, beam_ms, scan_ms)


def test_a_beam_size_asks_for_a_beam(used):
    model = closed_form()
    retrieve(model, torch.tensor([[3]]), beam_size=50)
    retrieve(model, torch.tensor([[3]]), search="beam")
    assert used == [BEAM, BEAM]
    assert not model.search_times


def test_a_beam_that_keeps_everything_is_left_as_it_is(used):
    retrieve(closed_form(300), torch.tensor([[3]]))
    retrieve(closed_form(), torch.tensor([[3]]), allowed=torch.arange(400))
    retrieve(closed_form(), torch.tensor([[3]]), m=800, allowed=torch.arange(800))
    assert used == [BEAM] * 3


def test_a_filter_that_leaves_fewer_items_than_a_beam_scores_nodes_is_scanned(used):
    model = closed_form()
    few = nodes_scored(model, (400,) * 7)
    retrieve(model, torch.tensor([[3]]), allowed=torch.arange(few))
    assert used == [SCAN]
    with pytest.raises(AssertionError, match="timed"):
        retrieve(model, torch.tensor([[3]]), allowed=torch.arange(few + 1))


@pytest.mark.parametrize("k", [1, 40, 400, 3_000])
def test_the_nodes_that_a_beam_scores_are_counted(k):
    model = closed_form(1_000)
    model.tree = bt.Tree(range(1024))
    model.first_level = 3
    query = model.query(torch.tensor([[3]]))
    scored = sum(step.candidates.shape[1] for step in walk(query, k, skip_full_levels=True))
    assert nodes_scored(model, (k,) * 8) == scored


@pytest.mark.parametrize("chosen", [BEAM, SCAN])
def test_the_faster_one_is_taken_and_said_once(used, monkeypatch, caplog, chosen):
    model, timed = closed_form(), []
    monkeypatch.setitem(choice.BATCHES, "cpu", (1, 8))

    def measure(model, x, sizes, run):
        timed.append(len(x))
        return times_of(chosen, len(x))

    monkeypatch.setattr(choice, "measure", measure)
    with caplog.at_level(logging.INFO, logger="beamtree"):
        for users in (1, 3, 9, 1, 20):
            retrieve(model, torch.full((users, 2), 5))
    assert used == [chosen] * 5
    assert timed == [1, 9]  # for about as many users
    assert [record.message.partition(" for ")[0] for record in caplog.records] == [f"search: {chosen}:"] * 2
    assert "a scan of 9,000 items takes" in caplog.text
    assert "a beam of 400" in caplog.text


def test_both_are_timed_in_a_fraction_of_a_second():
    model = closed_form()
    retrieve(model, torch.full((9, 2), 5))
    (times,) = model.search_times.values()
    assert times[:4] == ("cpu", 1, ITEMS, 400)
    assert 0 < times.beam_ms < 1e3
    assert 0 < times.scan_ms < 1e3
    assert times.chosen == (SCAN if times.scan_ms <= times.beam_ms else BEAM)


def test_times_stay_when_items_come(used, monkeypatch):
    model = closed_form()
    monkeypatch.setattr(choice, "measure", lambda *arguments: times_of(SCAN))
    retrieve(model, torch.tensor([[3]]))
    monkeypatch.setattr(choice, "measure", None)
    changed = with_items(model, {"new": like_items(torch.tensor([1, 2]))})
    retrieve(changed, torch.tensor([[3]]))
    assert used == [SCAN, SCAN]


def test_times_are_those_of_the_parts_that_were_timed(used, monkeypatch):
    """Another kind of part, such as a network, may have no fast scan."""
    model = closed_form()
    monkeypatch.setattr(choice, "measure", lambda *arguments: times_of(SCAN))
    retrieve(model, torch.tensor([[3]]))
    deep = DeepScorer(model.tree.num_nodes)
    retrieve(model.with_scorer(model.scorer.with_part("deep", deep, 1.0)), torch.tensor([[3]]))
    assert used == [SCAN, BEAM]
    retrieve(model.with_scorer(model.scorer.with_parts({})), torch.tensor([[3]]))
    assert used == [SCAN, BEAM, SCAN]
    assert len(model.search_times) == 1


def test_a_network_is_searched_with_a_beam(used):
    deep = make_model(2_000)
    retrieve(deep, torch.tensor([[3]]))
    assert used == [BEAM]


# Requests


def searcher(model):
    return Searcher(model, model.ids, catalogue=Catalogue(model.ids))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exclude_seen": True},
        {"filter": Filter(exclude=tuple(f"i{n}" for n in range(0, ITEMS, 3)))},
        {"rules": Rules(boosts=[{"items": [f"i{n}" for n in range(50)], "factor": 3.0}], pins=["i7"])},
        {"rules": Rules(diversity=0.4), "exclude_seen": True},
    ],
    ids=["plain", "exclude_seen", "filter", "boosts and pins", "diversity"],
)
def test_a_request_for_a_scan_is_answered_like_one_for_a_beam_that_keeps_everything(options):
    model = closed_form()
    histories = [["i5", "i900", "i4"], [], ["i3", "nobody"]]
    answers = [
        searcher(model).recommend(RecommendRequest(histories, m=12, **{**options, **how})).results
        for how in ({"search": "scan"}, {"beam_size": 1 << 14})
    ]
    for scanned, kept in zip(*answers, strict=True):
        assert scanned.scores == pytest.approx(kept.scores, rel=1e-4)
        assert len(set(scanned.items) ^ set(kept.items)) <= 2  # of those that score alike
        assert scanned.rules is None or len(scanned.rules) == 12


def test_removed_items_are_not_shown():
    model = closed_form()
    live = LiveModel(model, catalogue=Catalogue(model.ids))
    first = searcher(model).recommend(RecommendRequest([["i5", "i900"]], m=4, search="scan")).results[0].items
    live.remove_items(first[:2])
    model = live.model
    found = searcher(model).recommend(RecommendRequest([["i5", "i900"]], m=4, search="scan")).results[0].items
    assert found[:2] == first[2:]
    assert not {*found} & {*first[:2]}


# Commands and the service


def test_commands_refuse_a_scan_with_a_beam(tmp_path):
    assert parse_search("auto", "50", tmp_path) == ("auto", 50)
    assert parse_search("scan", None, tmp_path) == ("scan", None)
    for search, beam_size, words in (("scan", "50", "leave out --beam-size"), ("best", None, "choose from auto, beam")):
        with pytest.raises(ValueError, match=words):
            parse_search(search, beam_size, tmp_path)


def test_a_command_scans(tmp_path):
    run = save_run(tmp_path / "run")
    words = ["retrieve", str(run), "--history", "i1,i2", "--m", "4"]
    scanned, kept = (
        beamtree(*words, *more, "--json", "out.json", folder=tmp_path) and (tmp_path / "out.json").read_text()
        for more in (("--search", "scan"), ("--beam-size", "60"))
    )
    assert [row["item"] for row in json.loads(scanned)] == [row["item"] for row in json.loads(kept)]


def test_a_request_over_http_may_ask_for_a_scan(tmp_path):
    service = make_service(save_run(tmp_path / "run"))
    with serving(service) as client:
        body = {"history": ["i1", "i2"], "m": 4}
        scanned, kept = (
            client.post("/v1/recommend", json=body | how).json() for how in ({"search": "scan"}, {"beam_size": 60})
        )
        assert scanned["results"][0]["items"] == kept["results"][0]["items"]
        for how in ({"search": "scan", "beam_size": 60}, {"search": "best"}):
            assert client.post("/v1/recommend", json=body | how).status_code == 422
        facts = client.get("/v1/model").json()
        assert (facts["search"], facts["search_times"]) == ("beam", [])  # with a beam size


def test_a_scan_one_by_one_of_more_items_than_the_largest_beam_is_refused(tmp_path):
    """The network of this run is no product: a client could ask it to score millions of items."""
    service = make_service(save_run(tmp_path / "run"), limits=Limits(beam_size=59))
    with serving(service) as client:
        body = {"history": ["i1", "i2"], "m": 4}
        told = client.post("/v1/recommend", json=body | {"search": "scan"})
        error = "a scan scores the 60 items of this model one by one, over the limit of 59"
        assert (told.status_code, told.json()) == (422, {"error": error, "hint": "leave out search"})
        assert client.post("/v1/recommend", json=body).status_code == 200


def serve_closed_form(**options):
    model = closed_form()
    model.search_times[choice._key(model, 1)] = times_of(SCAN)
    run = LoadedRun(LiveModel(model, catalogue=Catalogue(model.ids)), "shop", "abc")
    return make_engine(run, **options)


def test_a_service_scans_where_that_is_faster_and_never_narrows_a_scan(used):
    engine = serve_closed_form(beam_size=None)
    try:
        engine.load_control = SteadyLoad(2)
        response = submit(engine, ["i3"]).result(60)
        assert (used, response.narrowed_from) == ([SCAN], None)
        response = submit(engine, ["i3"], beam_size=200).result(60)
        assert (used, response.narrowed_from, response.beam_size) == ([SCAN, BEAM], 200, 50)
        assert submit(engine, ["i3"], search="scan").result(60).narrowed_from is None
        assert submit(engine, ["i3"], search="beam").result(60).narrowed_from == 400
        assert used == [SCAN, BEAM, SCAN, BEAM]
    finally:
        engine.stop()


def test_a_service_with_a_beam_size_searches_with_it(used):
    engine = serve_closed_form(beam_size=60)
    try:
        assert submit(engine, ["i3"]).result(60).beam_size == 60
        assert used == [BEAM]
    finally:
        engine.stop()
