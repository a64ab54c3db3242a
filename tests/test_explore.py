"""The page as a document: what is recorded is what was searched, and nothing in it can do harm."""

import base64
import gzip
import hashlib
import html
import json
import re

import pytest
import torch
from command import beamtree
from page_data import NUM_USERS, SIZES, make_catalogue, make_model, recorded, sample_users, user_names
from sample_logs import write_prepared

import beamtree as bt
from beamtree.data import Ids
from beamtree.data.catalogue import Catalogue
from beamtree.diagnose.explain import explain
from beamtree.diagnose.explore import (
    MAP_NODES,
    MAX_FOUND,
    MAX_NODES,
    MAX_TRUTH,
    catalogue_map,
    describe_model,
    labels_page,
    page,
    record,
    variants,
)
from beamtree.diagnose.inspect import inspect
from beamtree.tree import PAD


def data_of(text):
    """What a page holds, as its script reads it."""
    packed = re.search(r'id="data">(.*?)</script>', text, flags=re.S)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


# The document


def test_a_page_holds_its_data_and_is_the_same_for_the_same_data():
    _, _, data = recorded()
    text = page(data)
    assert text == page(data)
    found = data_of(text)
    assert found["users"] == data["users"]
    for told, model in zip(found["models"], data["models"], strict=True):
        assert told["searches"] == model["searches"]


def test_no_title_id_or_name_stands_in_the_document():
    _, _, data = recorded()
    text = page(data)
    assert not any(piece in text for piece in ("window.hit", "onerror=", "no. 1", "user 0", "run </title>"))
    assert text.count("</script>") == 2
    assert html.escape("run </title>") in text
    titles = data_of(text)["items"]["title"]
    assert any("</script>" in (title or "") for title in titles)


def test_a_name_that_looks_like_a_place_in_the_document_stays_a_name():
    _, _, data = recorded()
    text = page({**data, "name": "{{style}} {{script}}"})
    assert "<title>{{style}} {{script}} ·" in text
    assert text.count("<style>") == 1


@pytest.mark.parametrize(
    ("make", "asks"),
    [(lambda: page(recorded()[2]), "'none'"), (lambda: page(live=True), "'self'"), (labels_page, "'self'")],
    ids=["recorded", "live", "labels"],
)
def test_the_policy_allows_the_one_script_and_nobody_to_be_asked_but_the_server(make, asks):
    text = make()
    policy = html.unescape(re.search(r'Content-Security-Policy" content="(.*?)"', text)[1])
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    script = re.search(r"<script>(.*)</script>\n</body>", text, flags=re.S)[1]
    style = re.search(r"<style>(.*?)</style>", text, flags=re.S)[1]
    for kind, part in (("script-src", script), ("style-src", style)):
        checksum = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert rules[kind] == f"'sha256-{checksum}'"
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == asks
    others = set(re.findall(r"https?://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}
    assert not others
    assert not re.search(r"<(script|img|iframe|link)[^>]* (src|href)=\"(?!data:,)", text)


def test_a_live_page_holds_nothing_of_a_model():
    assert data_of(page(live=True)) == {"format": 1, "live": True, "name": "live"}
    with pytest.raises(ValueError, match="one of the two"):
        page()
    with pytest.raises(ValueError, match="one of the two"):
        page({"name": "x"}, live=True)


# What is recorded


def test_recorded_searches_are_those_of_the_models():
    _, models, data = recorded()
    people = sample_users()
    rows = torch.linspace(0, NUM_USERS - 1, 5).long()
    x, y = people.batch(rows)
    names = data["items"]["id"]
    assert [user["id"] for user in data["users"]] == [user_names()[row] for row in rows.tolist()]
    assert data["beam_sizes"] == list(SIZES)
    for pack, model in zip(data["models"], models.values(), strict=True):
        for place, (user, searches) in enumerate(zip(data["users"], pack["searches"], strict=True)):
            truth = [item for item in dict.fromkeys(y[place].tolist()) if item != PAD][:MAX_TRUTH]
            assert [names[item] for item in user["truth"]] == [f"i{item}" for item in truth]
            for size, search in zip(SIZES, searches, strict=True):
                items, log_p = bt.retrieve(model, x[place : place + 1], beam_size=size, m=min(MAX_FOUND, size))
                assert [p for _, p in search["found"]] == pytest.approx(log_p.exp()[0].tolist(), rel=1e-5)
                if "without" not in pack["name"]:  # without a part many items are equals, which come in any order
                    assert [names[item] for item, _ in search["found"]] == [f"i{item}" for item in items[0].tolist()]
                check_search(
                    search, explain(model, x[place : place + 1], beam_size=size, m=min(MAX_FOUND, size), items=truth)
                )


def check_search(search, expected):
    assert search["scored"] == expected.scored
    for level, told in zip(expected.levels, search["levels"], strict=True):
        assert told[:3] == [level.level, len(level.nodes), level.kept]
        nodes, ranks = told[7], told[8]
        assert len(nodes) == min(MAX_NODES, len(level.nodes))
        assert [int(level.nodes[rank - 1]) for rank in ranks] == nodes
        assert len(told[12]) == len(told[13]) == 64
    for path, told in zip(expected.items, search["paths"], strict=True):
        assert told[2:4] == [path.rank, path.would_rank]
        if path.pruned is not None:
            assert told[6][0] == path.pruned.step.level
            assert told[6][4] == path.pruned.decided


def test_a_page_grows_with_what_is_recorded_and_not_with_the_catalogue():
    model = make_model(num_items=20_000)
    people = sample_users(num_items=20_000)
    data = record({"large": model}, people, user_names(), Catalogue.of_ids(model.ids), count=2, beam_sizes=(10, 20))
    assert len(data["items"]["id"]) < 3_000
    assert len(data["models"][0]["map"]["names"]) <= MAP_NODES
    assert len(page(data)) < 400_000


def test_a_model_is_recorded_without_each_part_and_the_variants_share_its_weights():
    model = make_model()
    found = variants("run", model)
    assert list(found) == ["run", "run without memory", "run without repeats", "run without deep"]
    assert found["run without memory"].scorer.part("deep") is model.scorer.part("deep")
    assert list(variants("run", bt.TreeModel(model.tree, model.scorer.part("repeats")))) == ["run"]
    told = describe_model("run", model)
    assert told["parts"] == ["memory", "repeats", "deep"]
    assert (told["items"], told["height"], told["first_level"]) == (180, model.tree.height, 2)


def test_what_inspect_found_is_recorded_as_it_is():
    model = make_model()
    lost = inspect(model, sample_users(), beam_size=20, m=(5, 20))
    data = record(
        {"run": model}, sample_users(), user_names(), make_catalogue(model), count=1, inspections={"run": lost}
    )
    told = data["models"][0]["losses"]
    assert told["advice"] == lost.advice
    assert [each["lost"] for each in told["levels"]] == [each.lost for each in lost.levels]
    assert [cut["beam"] for cut in told["cuts"]] == [cut.beam.recall for cut in lost.cuts]


def test_a_small_catalogue_has_one_beam_that_holds_it_and_nobody_is_nothing_to_record():
    tree = bt.random_tree(6, seed=0)
    model = bt.TreeModel(tree, make_model().scorer.part("repeats"), ids=Ids([f"i{n}" for n in range(6)]))
    data = record({"run": model}, sample_users(num_items=6), user_names(), Catalogue.of_ids(model.ids), count=1)
    assert data["beam_sizes"] == [6]
    assert data["models"][0]["map"]["levels"] == 4
    assert page(data)
    with pytest.raises(ValueError, match="nothing to record"):
        record({}, sample_users(), user_names(), Catalogue.of_ids(model.ids))


# The map


def test_the_map_counts_what_lies_below_each_node():
    model = make_model()
    told = catalogue_map(model, make_catalogue(model))
    items = model.tree.items().tolist()
    for node in range(len(told["items"])):
        start = model.tree.level(model.tree.height).start
        below = [items[leaf - start] for leaf in model.tree.leaves(node) if items[leaf - start] != PAD]
        assert told["items"][node] == len(below)
        assert told["events"][node] == int(model.popularity[below].sum())
    assert told["levels"] == model.tree.height + 1


def test_a_subtree_is_named_by_the_longest_path_that_holds_most_of_it_or_by_its_popular_items():
    tree = bt.Tree(range(8))
    ids = Ids([f"i{n}" for n in range(8)])
    model = bt.TreeModel(tree, make_model().scorer.part("repeats"), ids=ids)
    model.popularity = torch.tensor([1, 9, 1, 1, 1, 1, 5, 1])
    paths = ["A / x", "A>x", "A|y", "B", "C", "D", None, "E"]
    names = catalogue_map(model, Catalogue(ids, [f"T{n}" for n in range(7)] + [None], paths))["names"]
    assert names[0] == "T1 · T6"  # nothing holds more than half: the most popular item of each half
    assert names[1] == "A"  # three of four, of which two are A / x: no more than half
    assert names[3] == "A / x"
    assert names[4] == "T2 · T3"
    assert names[14] == "E"
    assert names[13] == "T6"


# The command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared data and two runs on them."""
    place = tmp_path_factory.mktemp("explore")
    people, model = sample_users(), make_model()
    users = [f"u{number}" for number in range(NUM_USERS)]
    write_prepared(place / "data", people.events, model.ids.names, users, train=10, val=0, test=20)
    others = make_model(num_items=40, seed=4)
    for name, each in (("run", model), ("tdm", make_model(seed=3)), ("others", others)):
        bt.save_model(each, place / name)
        (place / name / "run.json").write_text(json.dumps({"data": str(place / "data"), "items": None}))
    (place / "items.csv").write_text("item,title\n" + "".join(f'i{n},"</script> {n}"\n' for n in range(50)))
    return place


def test_the_command_writes_one_file(folder):
    words = ("run", "--out", "out/page.html", "--items", "items.csv", "--users", "2", "--against", "tdm")
    done = beamtree("explore", *words, folder=folder)
    assert "Saved out/page.html" in done.stdout
    assert "searches recorded" in done.stderr
    data = data_of((folder / "out" / "page.html").read_text(encoding="utf-8"))
    assert [model["name"] for model in data["models"]][:3] == ["run", "tdm", "run without memory"]
    assert [user["id"] for user in data["users"]] == ["u10", "u29"]
    assert data["models"][0]["losses"]["users"] == 20
    known = dict(zip(data["items"]["id"], data["items"]["title"], strict=True))
    assert known.get("i7", "</script> 7") == "</script> 7"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data"], "data is not a run"),
        (["run", "--out", "data"], "cannot be written: it is a folder"),
        (["run", "--items", "nowhere.csv"], "nowhere.csv"),
        (["run", "--against", "others"], "has other items than the run"),
        (["run", "--users", "0"], "--users"),
    ],
)
def test_a_users_error_is_one_line(folder, words, message):
    done = beamtree("explore", *words, folder=folder, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
