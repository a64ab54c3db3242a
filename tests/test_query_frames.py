"""Similar items, scores of given items, vectors, and recommendations for many histories as frames."""

import json
import sys

import numpy as np
import polars as pl
import pytest
import torch
from command import beamtree
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.data import Ids
from beamtree.query import RecommendRequest, Searcher, histories_of_users


@pytest.fixture(scope="module")
def weighted_shop():
    """A shop whose users have dislikes."""
    log = cyclic_log().with_columns(rating=(pl.int_range(pl.len()) * 7 % 5).cast(pl.Float64))
    return bt.Recommender(steps=0, beam_size=60).fit(log, weight="rating", verbose=False)


def test_similar_items_are_what_follows_the_item_alone(shop):
    for item in ("i05", "i31"):
        expected = shop.recommend([item], m=6, exclude_seen=True)
        assert shop.similar(item, 6).equals(expected)
        assert item not in expected["item"].to_list()
    both = shop.similar(["i05", "i31"], m=6)
    assert both.columns == ["similar_to", "rank", "item", "score"]
    for item in ("i05", "i31"):
        assert both.filter(pl.col("similar_to") == item).drop("similar_to").equals(shop.similar(item, 6))
    assert shop.similar(["i05"], m=2).columns[0] == "similar_to"
    assert shop.similar("i05", 3, allowed=["i09", "i05", "i40"])["item"].sort().to_list() == ["i09", "i40"]
    with pytest.raises(ValueError, match="there is no item 'zz'"):
        shop.similar(["zz"])


def test_the_command_finds_the_same_similar_items(shop, shop_folder, tmp_path):
    (tmp_path / "some").write_text("i09\ni40\ni05\n")
    words = ["similar", str(shop_folder / "run"), "i05", "i31", "--m", "4", "--json", "found.json"]
    done = beamtree(*words, folder=tmp_path)
    assert "similar to i31" in done.stdout
    records = json.loads((tmp_path / "found.json").read_text())
    assert records == [pytest.approx(row) for row in shop.similar(["i05", "i31"], m=4).to_dicts()]
    beamtree(*words, "--allowed", "some", folder=tmp_path)
    assert {row["item"] for row in json.loads((tmp_path / "found.json").read_text())} == {"i05", "i09", "i40"}
    done = beamtree("similar", words[1], "zz", folder=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (2, "beamtree: there is no item 'zz'\n")


def test_scores_are_those_of_recommend_for_any_items(shop):
    history = ["i10", "i11", "i12"]
    every = shop.recommend(history, m=60, beam_size=60)
    order = sorted(shop.ids.names)
    scored = shop.score(history, order)
    assert scored.columns == ["item", "score"]
    assert scored["item"].to_list() == order
    assert dict(zip(*scored.to_dict(as_series=False).values(), strict=True)) == pytest.approx(
        dict(zip(every["item"], every["score"], strict=True)), rel=1e-4
    )


@pytest.mark.parametrize("chained", [False, True])
def test_scores_are_those_of_recommend_also_for_a_chained_model(chained):
    tree = bt.random_tree(30, seed=1)
    model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes, scale=1.0), chained=chained, first_level=2)
    model.ids = Ids([f"i{number}" for number in range(30)])
    shop = bt.Recommender()
    shop._model = model
    every = shop.recommend(["i3", "i7"], m=30, beam_size=30)
    scored = shop.score(["i3", "i7"], every["item"])
    assert scored["score"].to_list() == pytest.approx(every["score"].to_list(), rel=1e-4)


def test_several_histories_have_scores_of_one_list_or_of_their_own(shop):
    histories = {"ann": ["i10", "i11"], "bob": ["i30"]}
    shared = shop.score(histories, ["i12", "zz", "i31"])
    assert shared.columns == ["user", "item", "score"]
    assert shared["user"].to_list() == ["ann"] * 3 + ["bob"] * 3
    assert shared["score"].is_null().to_list() == [False, True, False] * 2
    for user, history in histories.items():
        alone = shop.score(history, ["i12", "zz", "i31"])["score"].drop_nulls().to_list()
        assert shared.filter(pl.col("user") == user)["score"].drop_nulls().to_list() == pytest.approx(alone, rel=1e-5)
    own = shop.score(histories, [["i12"], ["i31", "i12"]])
    assert own["item"].to_list() == ["i12", "i31", "i12"]
    expected = [shared["score"][0], shared["score"][5], shared["score"][3]]
    assert own["score"].to_list() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="2 lists of items for 1 histories"):
        shop.score(["i10"], [["i12"], ["i13"]])
    by_user = shop.score(users=["u003"], items=["i12"])
    assert by_user["user"].to_list() == ["u003"]


def test_a_history_without_a_known_item_scores_popularity_as_recommend_does(shop):
    every = shop.recommend([], m=60)
    scored = shop.score([], every["item"])
    assert scored["score"].to_list() == pytest.approx(every["score"].to_list())


def test_nothing_to_answer_is_an_empty_frame(shop):
    assert shop.similar([], m=3).columns == ["similar_to", "rank", "item", "score"]
    assert shop.similar([], m=3).is_empty()
    assert shop.score(["i10"], []).is_empty()
    assert shop.score([["i10"], ["i11"]], [[], ["i12"]])["history"].to_list() == [1]
    assert shop.user_vectors(users=[]).is_empty()


def test_removed_and_unknown_items_have_no_score_and_no_vector(shop):
    shop.remove_items(["i12"])
    assert shop.score(["i10"], ["i12", "zz", "i13"])["score"].is_null().to_list() == [True, True, False]
    assert "i12" not in shop.item_vectors()["item"].to_list()
    assert len(shop.item_vectors()) == 59


def test_the_inner_product_of_vectors_is_the_score_of_the_factors(shop):
    histories = [["i10", "i11"], ["i30"], []]
    items, users = shop.item_vectors(), shop.user_vectors(histories)
    assert users.columns == ["history", "vector"]
    assert items["item"].to_list() == shop.ids.names
    products = users["vector"].to_numpy() @ items["vector"].to_numpy().T
    part, tree = shop.model.scorer.part("factors"), shop.model.tree
    x = torch.full((3, 69), bt.PAD)
    x[0, :2], x[1, 0] = torch.tensor(shop.ids.find(["i11", "i10"])), shop.ids.find(["i30"])[0]
    leaves = tree.leaf_of_item(torch.arange(60)).unsqueeze(0)
    expected = part(part.prepare(tree, x), tree.height, leaves)
    np.testing.assert_allclose(products, expected.numpy(), rtol=1e-3, atol=1e-4)
    alone = shop.user_vectors(histories[0])
    assert alone.columns == ["vector"]
    np.testing.assert_allclose(alone["vector"].to_numpy()[0], users["vector"].to_numpy()[0], rtol=1e-4, atol=1e-6)
    assert shop.user_vectors(users=["u001", "u002"])["user"].to_list() == ["u001", "u002"]


def test_a_model_without_user_vectors_says_so():
    tree = bt.random_tree(6)
    shop = bt.Recommender()
    shop._model = bt.TreeModel(tree, bt.DeepScorer(tree.num_nodes))
    shop._model.ids = Ids([f"i{number}" for number in range(6)])
    assert len(shop.item_vectors()) == 6
    with pytest.raises(ValueError, match="a DeepScorer has no vectors of users"):
        shop.user_vectors(["i3"])


def test_frames_of_pandas_are_answered_with_frames_of_pandas(shop):
    pandas = pytest.importorskip("pandas")
    shop._frame = "pandas"
    for frame in (shop.similar("i05"), shop.score(["i10"], ["i12", "zz"]), shop.item_vectors()):
        assert isinstance(frame, pandas.DataFrame)
    assert shop.score(["i10"], ["i12", "zz"])["score"].isna().tolist() == [False, True]
    assert shop.item_vectors()["vector"][0].ndim == 1


def test_many_users_get_what_each_gets_alone(weighted_shop):
    """More than one batch, some with dislikes; the reference is the search behind the service."""
    shop, users = weighted_shop, [f"u{number:03}" for number in range(120)] * 3
    every = shop.recommend(users=users, m=7, exclude_seen=True)
    searcher = Searcher(shop.model, shop.ids, user_histories=lambda users: histories_of_users(shop.data, users))
    results = searcher.recommend(RecommendRequest(users=users, m=7, exclude_seen=True)).results
    assert any(history.dislikes for history in histories_of_users(shop.data, users))
    assert every["user"].to_list() == [user for user, row in zip(users, results, strict=True) for _ in row.items]
    assert every["item"].to_list() == [item for row in results for item in row.items]
    assert every["rank"].to_list() == [rank + 1 for row in results for rank in range(len(row.items))]
    assert every["score"].to_list() == pytest.approx([score for row in results for score in row.scores], rel=1e-5)
    assert shop.recommend(users=[], m=7).is_empty()


def test_histories_of_many_users_are_those_of_each(weighted_shop):
    data = weighted_shop.data
    names = data.users.names[::-1]
    for name, history in zip(names, histories_of_users(data, names), strict=True):
        events = [int(item) for part in (data.train, data.val, data.test) for item in own_events(data, part, name)]
        assert history.items == events
    with pytest.raises(ValueError, match="user 'nobody' is not in the log"):
        histories_of_users(data, [names[0], "nobody"])


def own_events(data, part, name):
    first = {id(data.train): 0, id(data.val): len(data.train), id(data.test): len(data.train) + len(data.val)}[id(part)]
    row = data.users.names.index(name) - first
    return part.events.items[part.events.offsets[row] : part.events.offsets[row + 1]] if 0 <= row < len(part) else []


def test_progress_is_shown_on_a_terminal_only_if_it_takes_long(shop, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    users = [f"u{number:03}" for number in range(100)] * 4
    shop.recommend(users=users, m=3)
    assert "Recommending" not in capsys.readouterr().err
    monkeypatch.setattr("beamtree.recommender.PROGRESS_SECONDS", 0.0)
    shop.recommend(users=users, m=3)
    shown = capsys.readouterr().err
    assert "Recommending: " in shown
    assert shown.endswith("\r\x1b[K")  # the line is removed at the end
