"""Users of whom nothing is known: popular items and a warning, or an error; never the end of a batch."""

import json
import pickle

import numpy as np
import polars as pl
import pytest
from command import beamtree
from serving import make_service, serving

import beamtree as bt

KNOWN = ["u003", "u007"]
MIXED = ["u003", "nobody", "u007", "nobody else"]
COUNTS = "2 of 4 users are unknown, such as 'nobody': {}; unknown=\"error\" refuses them"


def of(frame, user):
    return frame.filter(pl.col("user") == user).drop("user")


@pytest.mark.parametrize(
    "how", [{}, {"exclude_seen": True}, {"exclude": ["i00", "i10"]}, {"rules": {"diversity": 0.1}}]
)
def test_unknown_users_get_popular_items_and_the_others_what_they_get_alone(shop, how):
    with pytest.warns(UserWarning, match=COUNTS.format("popular items are recommended for them")) as warned:
        found = shop.recommend(users=MIXED, m=4, **how)
    assert warned[0].filename == __file__
    assert len(warned) == 1
    alone = shop.recommend(users=KNOWN, m=4, **how)
    assert found.columns == alone.columns
    assert found.columns[-1] == "popular"
    assert found.schema["popular"] == pl.Boolean
    assert found["popular"].to_list() == [user not in KNOWN for user in MIXED for _ in range(4)]
    for user in KNOWN:
        assert of(found, user).drop("score").equals(of(alone, user).drop("score"))
        assert of(found, user)["score"].to_list() == pytest.approx(of(alone, user)["score"].to_list())
    popular = shop.recommend([], m=4, **how)
    for user in ("nobody", "nobody else"):
        assert of(found, user).drop("popular").equals(popular)


def test_unknown_users_may_be_anywhere_among_many(shop):
    """Also in a batch of their own."""
    users = [f"u{n:03}" if n % 3 else f"new{n}" for n in range(120)] + [f"late{n}" for n in range(400)]
    with pytest.warns(UserWarning, match="440 of 520 users are unknown, such as 'new0'"):
        found = shop.recommend(users=users, m=2)
    assert found["user"].to_list() == [user for user in users for _ in range(2)]
    assert found["popular"].to_list() == [not user.startswith("u") for user in users for _ in range(2)]


def test_scores_and_vectors_of_unknown_users(shop):
    items = ["i12", "zz", "i31"]
    with pytest.warns(UserWarning, match=COUNTS.format("their scores are those of popular items")):
        scored = shop.score(users=MIXED, items=items)
    assert scored.columns == ["user", "item", "score", "popular"]
    assert scored["popular"].to_list() == [user not in KNOWN for user in MIXED for _ in items]
    assert of(scored, "nobody").drop("popular").equals(shop.score([], items))
    assert of(scored, "u003")["score"].to_list() == pytest.approx(
        of(shop.score(users=KNOWN, items=items), "u003")["score"].to_list()
    )
    with pytest.warns(UserWarning, match=COUNTS.format("they get the vector of an empty history")):
        vectors = shop.user_vectors(users=MIXED)
    assert vectors["user"].to_list() == MIXED
    matrix = vectors["vector"].to_numpy()
    assert not matrix[[1, 3]].any()
    np.testing.assert_allclose(matrix[[0, 2]], shop.user_vectors(users=KNOWN)["vector"].to_numpy(), atol=1e-6)


def test_they_are_an_error_where_that_is_asked_for(shop):
    calls = [
        lambda users, unknown: shop.recommend(users=users, m=2, unknown=unknown),
        lambda users, unknown: shop.score(users=users, items=["i12"], unknown=unknown),
        lambda users, unknown: shop.user_vectors(users=users, unknown=unknown),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="user 'nobody' is not in the log"):
            call(MIXED, "error")
        assert call(KNOWN, "error")["user"].unique(maintain_order=True).to_list() == KNOWN
        with pytest.raises(ValueError, match="unknown='zero': choose popular or error"):
            call(KNOWN, "zero")


def test_without_a_log_everybody_would_be_unknown_so_that_is_an_error(shop, tmp_path):
    bt.save_model(shop.model, tmp_path / "model")
    alone = bt.Recommender.load(tmp_path / "model")
    alone.update_items(["i99"])
    for unknown in ("popular", "error"):
        with pytest.raises(ValueError, match="the log of this recommender is missing: load it with data=FOLDER"):
            alone.recommend(users=["u003"], unknown=unknown)


def test_users_of_later_events_are_known_also_to_a_copy(shop):
    shop.update(pl.DataFrame({"user": ["nobody"], "item": ["i12"], "time": [99]}))
    for copy in (shop, pickle.loads(pickle.dumps(shop))):
        assert copy.recommend(users=["nobody"], m=2, unknown="error")["popular"].to_list() == [False, False]


# Items


def test_unknown_items_of_a_list_have_no_similar_ones(shop, shop_folder, tmp_path):
    with pytest.warns(UserWarning, match="2 of 4 items are unknown, such as 'zz': they are left out"):
        found = shop.similar(["i05", "zz", "i31", "yy"], m=3)
    assert found.equals(shop.similar(["i05", "i31"], m=3))
    for items in ("zz", ["zz"], ["zz", "yy"]):
        with pytest.raises(ValueError, match="there is no item 'zz'"):
            shop.similar(items)
    words = ["similar", str(shop_folder / "run"), "i05", "zz", "i31", "--m", "3", "--json", "found"]
    assert "note: unknown items are left out: zz\n" in beamtree(*words, folder=tmp_path).stderr
    rows = json.loads((tmp_path / "found").read_text())
    assert [row["item"] for row in rows] == found["item"].to_list()


# The command, files and HTTP


def test_the_command_answers_unknown_users_with_a_note_or_refuses_them(shop, shop_folder, tmp_path):
    words = ["retrieve", str(shop_folder / "run"), "--users", json.dumps(MIXED), "--m", "3", "--json", "found"]
    note = "note: 2 unknown users: popular items are recommended (nobody, nobody else)\n"
    assert beamtree(*words, folder=tmp_path).stderr == note
    with pytest.warns():
        expected = shop.recommend(users=MIXED, m=3)
    assert json.loads((tmp_path / "found").read_text()) == [pytest.approx(row) for row in expected.to_dicts()]
    done = beamtree(*words, "--unknown", "error", folder=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("beamtree: user 'nobody' is not in the log")
    assert beamtree(*words[:3], "u003", *words[4:], "--unknown", "error", folder=tmp_path).stderr == ""
    done = beamtree(*words, "--unknown", "zero", folder=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (2, "beamtree: --unknown 'zero': choose popular or error\n")


def test_a_file_with_unknown_users_and_histories_is_answered_as_a_whole(shop_folder, tmp_path):
    rows = [("u003", ["i12", "i13"]), ("nobody", ["zz"]), ("nobody else", []), ("u007", None)]
    pl.DataFrame(rows, schema={"user": pl.String, "history": pl.List(pl.String)}, orient="row").write_parquet(
        tmp_path / "input.parquet"
    )
    words = ["retrieve", str(shop_folder / "run"), "--input", "input.parquet", "--output", "out.parquet", "--m", "3"]
    done = beamtree(*words, folder=tmp_path)
    assert "3 users without a known item: popular items are recommended" in done.stderr
    found = pl.read_parquet(tmp_path / "out.parquet")
    assert found["user"].to_list() == [user for user, _ in rows for _ in range(3)]


def test_over_http_each_result_says_so(shop, shop_folder):
    with serving(make_service(shop_folder / "run")) as client:
        results = client.post("/v1/recommend", json={"users": MIXED, "m": 3}).json()["results"]
    assert [result["popular"] for result in results] == [user not in KNOWN for user in MIXED]
    assert ["this user is unknown" in result["notes"] for result in results] == [user not in KNOWN for user in MIXED]
    assert results[1]["items"] == shop.recommend([], m=3)["item"].to_list()
