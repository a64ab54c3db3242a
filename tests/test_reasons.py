"""Why an item, in words that a shop shows: in Python, in the command, over HTTP and on the page."""

import itertools
import json

import polars as pl
import pytest
import torch
from command import beamtree
from sample_logs import cyclic_log, device_log
from serving import make_service, serving

import beamtree as bt
from beamtree.query import encode_history, model_input
from beamtree.scorers.base import SCORE
from beamtree.serve.engine.served_run import open_run

COLUMNS = ["item", "title", "event", "event_title", "place", "part", "contribution", "total"]
HISTORY = ["i01", "i02", "i02", "i31"]


@pytest.fixture(scope="module")
def titled():
    """Items are most often followed by the next one, and more parts count; they have titles, and one has no events."""
    rows = [(f"i{n:02}", f"The number {n}", f"group {n // 10}") for n in range(60)]
    items = pl.DataFrame([*rows, ("new", "The number new", "group 0")], ["item", "title", "category"], orient="row")
    shop = bt.Recommender(steps=0).fit(cyclic_log(repeats=True), items=items, test_users=10, verbose=False)
    weights = {"memory": 1.5, "repeats": 0.5, "deep": 0.2, "popularity": 0.3}
    shop.model.scorer.set_weights(**{name: weights[name] for name in weights if name in shop.model.scorer.names})
    return shop


@pytest.fixture(scope="module")
def in_context():
    log = device_log()
    return bt.Recommender(steps=0).fit(log, context=["device", "other"], split="leave-one-out", verbose=False)


def same(found, expected):
    """Whether frames are equal, but for rounding."""
    numbers = ["contribution", "total"]
    for name in numbers:
        assert found[name].to_list() == pytest.approx(expected[name].to_list(), rel=1e-4, abs=1e-6)
    return found.drop(numbers).equals(expected.drop(numbers))


def score_of(shop, history, item, context=None):
    """The score of an item before it becomes a probability."""
    model = shop.model
    encoded = encode_history(shop.ids, history)
    if context is not None:
        encoded = bt.query.in_context(model, [encoded], context)[0]
    leaf = model.tree.leaf_of_item(torch.tensor([[shop.ids.find([item])[0]]]))
    with torch.no_grad():
        return float(model.query(model_input(model, [encoded])).logits(model.tree.height, leaf))


def test_the_first_row_is_the_sentence_and_all_rows_add_up_to_the_score(titled):
    found = titled.explain(HISTORY, "i03")
    assert found.columns == COLUMNS
    first = found.row(0, named=True)
    assert (first["item"], first["title"]) == ("i03", "The number 3")
    assert (first["event"], first["event_title"], first["place"]) in (
        ("i02", "The number 2", 2),
        ("i01", "The number 1", 4),
    )
    assert found["contribution"].sum() == pytest.approx(score_of(titled, HISTORY, "i03"), rel=1e-5)
    by_event = (
        found.filter(pl.col("event").is_not_null())
        .group_by("place")
        .agg(pl.col("contribution").sum(), pl.col("total").first(), pl.col("event").first())
    )
    assert by_event["contribution"].to_list() == pytest.approx(by_event["total"].to_list())
    assert by_event["total"].max() == first["total"]
    assert dict(by_event.select("place", "event").iter_rows()).items() <= dict(enumerate(HISTORY[::-1], 1)).items()


def test_parts_add_up_to_what_each_gives(titled, in_context):
    seen = set()
    for shop, history, item in ((titled, HISTORY, "i02"), (in_context, ["i010", "i021", "i010", "i003"], "i010")):
        scorer, tree = shop.model.scorer, shop.model.tree
        x, leaf = (
            model_input(shop.model, [encode_history(shop.ids, history)]),
            tree.leaf_of_item(torch.tensor([shop.ids.find([item])])),
        )
        found = shop.explain(history, item).group_by("part").agg(pl.col("contribution").sum())
        by_part = dict(found.iter_rows())
        for name in scorer.drop_zero_parts().names:
            with torch.no_grad():
                part = scorer.part(name)
                of_part = x if part.context_values else x[:, :69]
                expected = float(part(part.prepare(tree, of_part), tree.height, leaf)) * scorer.weight_of(name)
            assert by_part.get(name, 0.0) == pytest.approx(expected, rel=1e-4, abs=1e-5)
        seen |= by_part.keys()
    assert seen >= {"factors", "memory", "repeats", "deep"}


def test_events_that_raise_the_score_come_first_and_those_that_lower_it_last(titled):
    for item in (f"i{n:02}" for n in range(60)):
        rows = titled.explain(["i05", "i44", "i01", "i02", "i31", "i05"], item).to_dicts()
        groups = [next(group) for _, group in itertools.groupby(rows, key=lambda row: row["place"])]
        places = [row["place"] for row in groups]
        assert len(set(places)) == len(places)
        totals = [0.0 if row["place"] is None else row["total"] for row in groups]
        assert totals == sorted(totals, reverse=True)
        for row in groups:
            own = [other["contribution"] for other in rows if other["place"] == row["place"]]
            assert own == sorted(own, reverse=True)


def test_several_histories_items_and_users(titled):
    several = titled.explain({"ann": HISTORY, "bob": ["i11"]}, ["i03", "i12"])
    assert several.columns == ["user", *COLUMNS]
    assert several.select("user", "item").unique(maintain_order=True).rows() == [
        ("ann", "i03"), ("ann", "i12"), ("bob", "i03"), ("bob", "i12"),
    ]  # fmt: skip
    for user, history in {"ann": HISTORY, "bob": ["i11"]}.items():
        for item in ("i03", "i12"):
            part = several.filter((pl.col("user") == user) & (pl.col("item") == item)).drop("user")
            assert same(part, titled.explain(history, item))
    user = titled.users[3]
    events = cyclic_log(repeats=True).filter(pl.col("user") == user).sort("time")["item"].to_list()
    assert same(titled.explain(users=user, items="i12").drop("user"), titled.explain(events, "i12"))


def test_what_no_event_gives_has_no_event(in_context):
    context = {"device": "desktop", "other": "x"}
    found = in_context.explain(["i001", "i010"], "i011", context=context)
    assert found.columns == [*COLUMNS[:6], "column", *COLUMNS[6:]]
    by_column = dict(found.filter(pl.col("part") == "context").select("column", "contribution").iter_rows())
    assert set(by_column) <= {"device", "other"}
    assert by_column["device"] > 0
    assert found.filter(pl.col("column").is_not_null())["event"].null_count() == len(by_column)
    expected = score_of(in_context, ["i001", "i010"], "i011", context)
    assert found["contribution"].sum() == pytest.approx(expected, rel=1e-5)
    assert in_context.explain(["i001"], "i011").filter(pl.col("part") == "context").is_empty()


def test_without_a_known_item_it_is_the_share_of_all_events(titled, in_context):
    found = titled.explain([], "i03")
    assert found.select("event", "place", "part").rows() == [(None, None, "popularity")]
    assert found["contribution"].to_list() == pytest.approx(titled.score([], ["i03"])["score"].to_list(), rel=1e-6)
    with pytest.warns(UserWarning, match="1 of 2 histories have no known item, such as 'zz'"):
        several = titled.explain([["zz"], ["i01"]], "i03")
    assert several.filter(pl.col("history") == 0)["part"].to_list() == ["popularity"]
    context = {"device": "desktop"}
    there = in_context.explain([], "i011", context=context)
    assert there["part"].to_list() == ["popularity", "context"]
    expected = in_context.score([], ["i011"], context=context)["score"][0]
    assert there["contribution"].sum() == pytest.approx(expected, rel=1e-5)


def test_items_that_are_hidden_forgotten_unknown_or_new(titled, tmp_path):
    titled.save(tmp_path / "run")
    shop = bt.Recommender.load(tmp_path / "run")
    before = shop.explain(HISTORY, "i03")
    shop.remove_items(["i03"])
    with pytest.warns(
        UserWarning, match="1 of 2 items are hidden, such as 'i03': these reasons are for the score they"
    ):
        hidden = shop.explain(HISTORY, ["i03", "i04"])
    assert same(hidden.filter(pl.col("item") == "i03"), before)
    shop.forget_items(["i04"])
    with pytest.raises(ValueError, match="item 'i04' was forgotten, so it has no score: add it again"):
        shop.explain(HISTORY, "i04")
    with pytest.raises(ValueError, match="there is no item 'zz'"):
        shop.explain(HISTORY, ["i05", "zz"])
    with pytest.raises(ValueError, match="nothing to explain: give the ids of items"):
        shop.explain(HISTORY)
    shop.update_items({"live": {"like": ["i05"], "title": "A live one"}})
    live = shop.explain([*HISTORY, "i04", "live"], ["live", "i06", "new"])  # a forgotten item may be in a history
    assert set(live["title"]) == {"A live one", "The number 6", "The number new"}
    for item in ("live", "i06", "new"):
        rows = live.filter(pl.col("item") == item)
        expected = score_of(shop, [*HISTORY, "i04", "live"], item)
        assert rows["contribution"].sum() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_events_beyond_the_newest_1000_have_no_rows_and_unknown_ones_no_places(titled):
    long = ["i01"] * 10 + ["i02"] * 1000
    found = titled.explain(long, "i03")
    assert found["place"].max() <= 1000
    assert set(found["event"].drop_nulls()) == {"i02"}
    assert same(titled.explain(["i01", "zz", "i02"], "i03"), titled.explain(["i01", "i02"], "i03"))


def test_a_network_alone_is_one_part():
    shop = bt.Recommender(recipe="deep", steps=3, beam_size=10).fit(cyclic_log(), verbose=False)
    found = shop.explain(HISTORY, "i03")
    assert set(found["part"]) == {SCORE}
    assert found["contribution"].sum() == pytest.approx(score_of(shop, HISTORY, "i03"), rel=1e-4, abs=1e-5)
    chained = bt.Recommender(recipe="deep", method="plt", steps=3, beam_size=10).fit(cyclic_log(), verbose=False)
    found = chained.explain(HISTORY, "i03")
    expected = chained.score(HISTORY, ["i03"])["score"].log()[0]
    assert found["contribution"].sum() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_pandas_frame_keeps_whole_numbers_and_missing_texts():
    pytest.importorskip("pandas")
    shop = bt.Recommender(steps=0, frame="pandas").fit(cyclic_log(), verbose=False)
    found, empty = shop.explain(["i01", "i02"], "i03"), shop.explain([], "i03")
    assert found["place"].dtype.kind == "i"
    assert found["event_title"].isna().all()
    assert empty["event"].isna().all()
    assert empty["place"].isna().all()
    assert list(found.columns) == list(empty.columns) == COLUMNS


# In the command


def test_the_command_prints_the_sentence_and_a_table_and_writes_the_rows(shop, shop_folder, tmp_path):
    run, history = str(shop_folder / "run"), ["i01", "i02", "i05"]
    arguments = ["explain", run, "--history", ",".join([*history, "zz"]), "--item", "i03", "--item", "i04"]
    done = beamtree(*arguments, "--json", "why.json", folder=tmp_path)
    found = shop.explain(history, ["i03", "i04"])
    first = found.row(0, named=True)
    assert f"Because of {first['event']}." in done.stdout
    score = shop.score(history, ["i03"])["score"][0]
    assert f"i03, score {score:.4g}" in done.stdout
    for part in found["part"].unique():
        assert part in done.stdout
    assert "1 event ignored: of items that the model does not know (zz)" in done.stderr
    assert json.loads((tmp_path / "why.json").read_text()) == found.to_dicts()
    for_user = beamtree("explain", run, "--users", "u003 u004", "--item", "i31", folder=tmp_path).stdout
    assert "for u003" in for_user
    assert "for u004" in for_user
    assert "other events" not in done.stdout
    long = beamtree(
        "explain", run, "--history", ",".join(f"i{n:02}" for n in range(30)), "--item", "i31", folder=tmp_path
    )
    assert "other events" in long.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--item", "i03"], "give --history"),
        (["--history", "i01", "--users", "u003", "--item", "i03"], "give --history"),
        (["--history", "i01"], "--item"),
        (["--history", "i01", "--item", "zz"], "there is no item 'zz'"),
        (["--users", "nobody", "--item", "i03"], "nobody"),
        (["--history", "i01", "--item", "i03", "--context", "country=DE"], "the model was fitted without"),
    ],
)
def test_what_the_command_cannot_explain_is_one_line(shop_folder, tmp_path, arguments, message):
    done = beamtree("explain", str(shop_folder / "run"), *arguments, folder=tmp_path, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


# Over HTTP


def test_the_service_explains_as_the_library_does(titled, tmp_path):
    titled.save(tmp_path / "shop")
    with serving(make_service(tmp_path / "shop", lambda run: open_run(run, name="shop"))) as client:

        def ask(**body):
            reply = client.post("/v1/explain", json={"history": HISTORY, "m": 4, **body})
            return reply.raise_for_status().json()["explanation"]

        told = ask(items=["i03", "i40", "zz", "i03"])
        assert [path["item"]["item"] for path in told["items"]] == ["i03", "i40", "i03"]
        for path in told["items"]:
            found = titled.explain(HISTORY, path["item"]["item"]).drop("item", "title")
            assert same(pl.DataFrame(path["reasons"], schema=found.schema), found)
            by_part = dict(found.group_by("part").agg(pl.col("contribution").sum()).iter_rows())
            assert path["parts"] == pytest.approx(by_part, rel=1e-4, abs=1e-6)
        assert not told["popular"]
        popular = ask(history=[], items=["i03"])
        assert popular["popular"]
        assert popular["items"][0]["parts"] == {"popularity": pytest.approx(titled.score([], ["i03"])["score"][0])}
        assert "reasons" not in ask(items=["i03"], reasons=False)["items"][0]
        without = ask(items=["i03"], without="deep")["items"][0]
        assert set(without["parts"]) == set(told["items"][0]["parts"]) - {"deep"}
        assert ask()["items"] == []
