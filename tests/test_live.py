"""Items come and go, and users go on, without training."""

import copy
import random

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_logs import cyclic_log

import beamtree as bt
from beamtree.beam import brute_force
from beamtree.data.ids import Ids
from beamtree.data.times import as_time
from beamtree.live import Journal, LiveModel, NewItem
from beamtree.live.edits import with_items, without_items
from beamtree.live.events import Event, TrainingLog
from beamtree.live.journal import CHANGES, compact, encode_line, read_entries
from beamtree.live.placement import FreeSlots, Placement
from beamtree.scorers import as_sum
from beamtree.tree import PAD, Tree


@pytest.fixture(scope="module")
def deep_shop(shop_folder):
    return bt.Recommender(steps=4, beam_size=60, batch_size=20, recipe="deep").fit(shop_folder / "data")


@pytest.fixture(params=["beamtree", "deep"])
def shop(request, shop_folder, deep_shop):
    return copy.deepcopy(deep_shop) if request.param == "deep" else bt.Recommender.load(shop_folder / "run")


def best(shop, history, m=10, **how):
    return shop.recommend(history, m=m, beam_size=70, **how)["item"].to_list()


def record(live, user, items, time=None, request=None):
    return live.record_events([(user, items, time)], request)


# The tree


@given(slots=st.lists(st.booleans(), min_size=1, max_size=40), arity=st.integers(2, 4))
def test_a_removed_item_has_no_leaf_and_all_others_keep_theirs(slots, arity):
    items = [place if kept else PAD for place, kept in enumerate(slots)]
    tree = Tree(items, arity, num_items=len(slots))
    leaves = tree.leaf_of_item(torch.arange(len(slots))).tolist()
    first = tree.level(tree.height).start
    assert leaves == [first + place if kept else PAD for place, kept in enumerate(slots)]
    assert tree.num_placed == sum(slots)
    assert tree.allow(torch.arange(len(slots))).slots.tolist() == tree.mask.slots.tolist()


@pytest.mark.parametrize("items", [[0, 5], [0, 0, 1]])
def test_a_tree_with_room_for_more_still_refuses_what_is_wrong(items):
    with pytest.raises(ValueError, match=r"outside|more than one leaf"):
        Tree(items, num_items=3)


def test_a_deeper_tree_holds_the_same_items_and_room_for_as_many_more():
    tree = Tree([3, 0, PAD, 1, 2, 4, 5, 6], 2)
    deeper = tree.with_extra_level()
    assert deeper.items().tolist() == [3, PAD, 0, PAD, PAD, PAD, 1, PAD, 2, PAD, 4, PAD, 5, PAD, 6, PAD]
    leaves = deeper.leaf_of_item(torch.arange(7))
    assert torch.equal(deeper.parent(leaves), tree.leaf_of_item(torch.arange(7)))


def best_slot_by_definition(items, arity, near, weights):
    """From the root to the child with the most weight below, of those with room; then the most room; then the last."""
    start, width = 0, len(items)
    while width > 1:
        width //= arity
        options = []
        for child in range(arity):
            span = range(start + child * width, start + (child + 1) * width)
            room = sum(items[place] == PAD for place in span)
            said = sum(weight for place, weight in zip(near, weights, strict=True) if place in span)
            if room:
                options.append((said, room, child))
        start += max(options)[2] * width
    return start


@given(seed=st.integers(0, 2**16), arity=st.integers(2, 3))
def test_a_new_item_goes_beside_what_it_is_like(seed, arity):
    draw = random.Random(seed)
    size = arity**3
    placed = draw.sample(range(size), draw.randrange(1, size))
    items = [PAD] * size
    for number, place in enumerate(placed):
        items[place] = number
    near = draw.sample(placed, draw.randrange(0, len(placed) + 1))
    weights = [draw.randrange(1, 4) for _ in near]
    found = FreeSlots(Tree(items, arity)).best(near, weights)
    assert items[found] == PAD
    assert found == best_slot_by_definition(items, arity, near, weights)


def test_more_ids_are_found_after_the_others():
    ids = Ids(["a", "b"]).extended(["c"]).extended(["d"])
    assert ids.names == ["a", "b", "c", "d"]
    assert [ids[place] for place in range(4)] == ids.names
    assert ids.find(["d", "a", "x", "c"]) == [3, 0, None, 2]
    assert (ids[1:3], ids[-1], ids[-4]) == (["b", "c"], "d", "a")
    assert len(ids) == 4


# Models


def test_a_deeper_model_finds_the_same_with_the_same_scores(shop):
    model = shop.model
    deeper = model.tree.with_extra_level()
    other = bt.TreeModel(deeper, model.scorer.with_extra_level(model.tree, deeper), first_level=model.first_level)
    x = torch.tensor([[3, 4, 5], [20, 21, PAD]])
    (items, scores), (others, again) = (bt.retrieve(each, x, beam_size=60, m=20) for each in (model, other))
    assert torch.allclose(scores, again, atol=1e-5)
    assert torch.equal(items.sort().values, others.sort().values)


def test_the_model_that_was_given_goes_on_as_it_was(shop):
    model = shop.model
    x = torch.tensor([[3, 4, 5]])
    before = bt.retrieve(model, x, beam_size=60, m=20)
    like = Placement(torch.tensor([5]), torch.tensor([1.0]))
    changed = without_items(with_items(model, {f"n{each}": like for each in range(30)}), [3])
    assert changed.tree.num_items == model.tree.num_items + 30
    after = bt.retrieve(model, x, beam_size=60, m=20)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_an_item_that_is_like_another_is_found_where_that_is(shop):
    before = best(shop, ["i03", "i04", "i05"], m=3)
    assert shop.update_items({"new": {"like": [before[0]]}}) == 1
    assert "new" in best(shop, ["i03", "i04", "i05"], m=11)
    found = shop.recommend(["i03", "i04"], m=5, beam_size=70, allowed=["new"])
    assert found["item"].to_list() == ["new"]


def test_changed_rows_are_seen_wherever_their_path_sums_happen_to_lie(shop):
    """What a search keeps is made again after every change, also where new sums get the memory of those before."""
    model, x = shop.model, torch.tensor([[3, 4, 5]])
    tables = shop.model.scorer.tables().values() if as_sum(model.scorer) else [model.scorer]
    leaf = model.tree.leaf_of_item(torch.tensor([7]))
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        for _ in range(2):  # the second reads sums of its own, so that those after it may lie where the first did
            for table in tables:
                table.put_vectors(model.tree, leaf, torch.randn(1, table.table.weight.shape[1], generator=draw))
        scores = bt.retrieve(model, x, beam_size=70, m=60)[1]
        assert torch.equal(scores, bt.retrieve(copy.deepcopy(model), x, beam_size=70, m=60)[1])


def test_an_item_is_placed_by_histories_of_those_who_chose_it(shop):
    shop.update_items({"new": {"histories": [["i22", "i23", "i24"], ["i21", "i22", "i23"], ["i23", "i24", "i25"]]}})
    near = shop.recommend(["i22", "i23", "i24"], m=62, beam_size=70)["item"].to_list().index("new")
    far = shop.recommend(["i42", "i43", "i44"], m=62, beam_size=70)["item"].to_list().index("new")
    assert near < far


def test_a_full_tree_gets_another_level_and_still_finds_all(shop):
    height = shop.model.tree.height
    shop.update_items({f"n{place}": {"like": ["i07"]} for place in range(20)})
    assert shop.model.tree.height == height + 1
    assert len(best(shop, ["i01"], m=70)) == 70
    assert set(best(shop, ["i01"], m=70, allowed=[f"n{place}" for place in range(20)])) == {
        f"n{place}" for place in range(20)
    }


def test_a_removed_item_is_never_found(shop):
    assert shop.remove_items(["i05", "i06", "nobody"]) == 2
    assert shop.remove_items(["i05"]) == 0
    assert not {"i05", "i06"} & set(best(shop, ["i04"], m=58))
    assert not {"i05", "i06"} & set(best(shop, ["i04"], m=5, allowed=["i05", "i06", "i07"]))


def test_a_removed_item_that_is_added_again_is_found_exactly_as_before(shop):
    before = shop.recommend(["i03", "i04"], m=50, beam_size=70)
    slots, names = shop.model.tree.items().tolist(), before["item"].to_list()[:3]
    shop.remove_items(names)
    assert not set(names) & set(best(shop, ["i03", "i04"], m=50))
    assert shop.update_items({name: {"title": "Back"} for name in names}) == 3
    assert not set(names) & set(best(shop, ["i03", "i04"], m=50))
    assert shop.update_items(names[:2]) == 2
    assert shop.update_items({names[2]: {}}) == 1
    assert shop.model.tree.items().tolist() == slots
    assert shop.recommend(["i03", "i04"], m=50, beam_size=70).equals(before)


def test_an_item_that_was_added_removed_and_added_again_is_found_as_before(shop):
    shop.update_items({"new": {"like": ["i05"], "category": "Lamps"}})
    before = shop.recommend(["i03", "i04"], m=50, beam_size=70)
    shop.remove_items(["new"])
    assert shop.update_items(["new"]) == 1
    assert shop.recommend(["i03", "i04"], m=50, beam_size=70).equals(before)


def test_a_forgotten_item_frees_its_slot_and_comes_back_as_a_new_one(shop):
    height = shop.model.tree.height
    assert shop.forget_items(["i05", "i06", "nobody"]) == 2
    assert shop.forget_items(["i05"]) == 0
    assert not {"i05", "i06"} & set(best(shop, ["i04"], m=58))
    free = len(shop.model.tree.items()) - shop.model.tree.num_placed
    shop.update_items([f"n{place}" for place in range(free)])
    assert shop.model.tree.height == height
    assert shop.update_items({"i05": {"like": ["i40"]}}) == 1  # it comes back, on a level more, beside another
    assert shop.model.tree.height == height + 1
    assert "i05" in best(shop, ["i04"], m=10, allowed=["i05"])
    leaves = shop.model.tree.leaf_of_item(torch.tensor(shop.ids.find(["i05", "i40"])))
    assert len(set(shop.model.tree.ancestor(leaves, height).tolist())) == 1


def test_hidden_items_are_saved_and_read(shop, tmp_path):
    before = shop.recommend(["i03", "i04"], m=50, beam_size=70)
    shop.remove_items(["i05"])
    shop.save(tmp_path / "run")
    again = bt.Recommender.load(tmp_path / "run")
    assert "i05" not in best(again, ["i03", "i04"], m=59)
    assert repr(again).startswith("Recommender(59 items")
    again.update_items(["i05"])
    assert again.recommend(["i03", "i04"], m=50, beam_size=70).equals(before)


def test_a_search_that_began_before_an_item_was_hidden_or_shown_sees_one_moment(shop):
    live, x = LiveModel(shop.model), torch.tensor([[3, 4, 5]])
    first = live.snapshot
    before = bt.retrieve(first.model, x, beam_size=70, m=60)
    live.remove_items(["i05"])
    second = live.snapshot
    hidden = bt.retrieve(second.model, x, beam_size=70, m=60)
    live.update_items({"i05": {}})
    live.update_items({"new": {"like": ["i05"]}})
    for model, known in ((first.model, before), (second.model, hidden)):
        again = bt.retrieve(model, x, beam_size=70, m=60)
        assert all(torch.equal(one, other) for one, other in zip(again, known, strict=True))


def test_the_words_for_an_object_count_items_that_can_be_found(shop):
    shop.update_items(["new"])
    assert repr(shop).startswith("Recommender(61 items")
    shop.remove_items(["i01", "i02"])
    assert repr(shop).startswith("Recommender(59 items")


def test_histories_with_removed_items_are_answered(shop):
    shop.remove_items(["i03"])
    assert len(best(shop, ["i03", "i04"], m=10)) == 10
    assert len(best(shop, ["i03"], m=10)) == 10


def test_adding_twice_changes_nothing(shop):
    facts = {"new": {"like": ["i01"], "title": "New"}}
    assert shop.update_items(facts) == 1
    slots = shop.model.tree.items().tolist()
    assert shop.update_items(facts) == 0
    assert shop.model.tree.items().tolist() == slots


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kind": 3}, "no field 'kind', but like, histories, vector, title, category; columns need a table"),
        ("like", "give a dict"),
        ({"vector": [1.0, 2.0]}, "not built from vectors"),
        ({"like": ["nobody"]}, "is like 'nobody', which is not known"),
        ({"like": ["i05", "nobody"]}, "is like 'nobody', which is not known"),
    ],
)
def test_what_means_nothing_is_refused_and_nothing_changes(shop, facts, message):
    with pytest.raises(ValueError, match=message):
        shop.update_items({"good": {"like": ["i05"]}, "new": facts})
    assert len(best(shop, ["i01"], m=5, allowed=["good", "new"])) == 0


def test_a_changed_recommender_is_saved_and_read(shop, tmp_path):
    shop.update_items({"new": {"like": ["i05"]}, "other": {}})
    shop.remove_items(["i06", "other"])
    before = shop.recommend(["i03", "i04"], m=30, beam_size=70)
    shop.save(tmp_path / "run")
    again = bt.Recommender.load(tmp_path / "run")
    assert again.recommend(["i03", "i04"], m=30, beam_size=70).equals(before)
    assert again.update_items({"new": {"like": ["i05"]}, "more": {"like": ["i05"]}}) == 1
    assert "more" in best(again, ["i03", "i04"], m=30)
    assert len(again.evaluate(m=10, beam_size=60).scores)


def test_m_items_come_back_wherever_m_are_allowed_after_any_changes(shop):
    draw, names = random.Random(3), [f"i{place:02}" for place in range(60)]
    there = set(names)
    for step in range(30):
        if draw.random() < 0.5 and len(there) > 5:
            gone = draw.choice(sorted(there))
            shop.remove_items([gone])
            there.remove(gone)
        else:
            name = draw.choice([*names, f"n{step}"])
            shop.update_items({name: {"like": draw.sample(sorted(there), 2)}})
            there.add(name)
        allowed = draw.sample(sorted(there), draw.randrange(1, len(there) + 1))
        found = best(shop, draw.sample(names, 3), m=10, allowed=allowed)
        assert len(found) == len(set(found)) == min(10, len(allowed))
        assert set(found) <= set(allowed)
    x = torch.tensor([[1, 2, 3]])
    widest = len(shop.model.tree.items())
    _, scores = bt.retrieve(shop.model, x, beam_size=widest, m=10)
    assert torch.allclose(scores, brute_force(shop.model, x, m=10)[1], atol=1e-5)


def test_what_is_left_out_stays_as_it_is_and_none_clears_it(shop):
    live = LiveModel(shop.model)
    live.update_items({"new": {"title": "Lamp", "category": "Home", "like": ["i05"]}})
    slots, (number,) = live.model.tree.items().tolist(), live.ids.find(["new"])
    assert live.update_items({"new": {}}).total == 0
    assert live.update_items({"new": {"title": "Desk lamp"}}).total == 1
    assert live.model.tree.items().tolist() == slots
    assert (live.catalogue.titles[number], live.catalogue.categories[number]) == ("Desk lamp", "Home")
    live.update_items({"new": {"title": None}})
    assert (live.catalogue.titles[number], live.catalogue.categories[number]) == (None, "Home")


def test_items_of_one_call_may_be_like_each_other(shop):
    assert shop.update_items({"one": {"like": ["i05"]}, "two": {"like": ["one"]}}) == 2
    assert set(best(shop, ["i04"], m=2, allowed=["one", "two"])) == {"one", "two"}


# What the run knows


def write_catalogue(folder):
    rows = [(f"i{place:02}", f"group {place // 10}", f"Title {place}") for place in range(60)]
    pl.DataFrame(rows, schema=["item", "category", "title"], orient="row").write_parquet(folder / "items.parquet")
    return folder / "items.parquet"


def test_an_item_with_a_category_stands_beside_it_after_fit_and_after_load(tmp_path):
    shop = bt.Recommender(steps=0, tree="category", items=write_catalogue(tmp_path)).fit(cyclic_log(), test_users=10)
    shop.save(tmp_path / "run")
    for each in (shop, bt.Recommender.load(tmp_path / "run")):
        each.update_items({"new": {"category": "group 3"}, "other": {"category": "group 5"}})
        found = best(each, ["i32", "i33", "i34"], m=62)
        assert found.index("new") < found.index("other")


def test_an_item_with_a_vector_stands_beside_those_nearest_after_fit_and_after_load(tmp_path):
    vectors = torch.eye(6)[torch.arange(60) // 10] + 0.01 * torch.rand(60, 6)
    columns = {f"v{each}": vectors[:, each].tolist() for each in range(6)}
    pl.DataFrame({"item": [f"i{place:02}" for place in range(60)], **columns}).write_parquet(tmp_path / "v.parquet")
    shop = bt.Recommender(steps=0, vectors=tmp_path / "v.parquet").fit(cyclic_log(), test_users=10)
    shop.update_items(["before"])
    shop.save(tmp_path / "run")
    for each in (shop, bt.Recommender.load(tmp_path / "run")):
        each.update_items({"new": {"vector": [0, 0, 0, 1, 0, 0]}, "other": {"vector": [0, 0, 0, 0, 0, 1]}})
        found = best(each, ["i32", "i33", "i34"], m=63)
        assert found.index("new") < found.index("other")
        with pytest.raises(ValueError, match="has 2 numbers"):
            each.update_items({"bad": {"vector": [1, 2]}})


# Users


def test_the_same_events_count_once_however_often_they_are_given(shop):
    if as_sum(shop.model.scorer) is None:
        pytest.skip("what follows is made for the recipe beamtree")
    logged = cyclic_log().filter(pl.col("user") == "u001").tail(2)
    since = pl.DataFrame({"user": ["u001"] * 2, "item": ["i40", "i41"], "time": [50, 51]})
    before = shop._live_model().history("u001").items
    for _ in range(2):
        shop.update(pl.concat([logged, since]))
    assert shop._live_model().history("u001").items == before + shop.ids.find(["i40", "i41"])


def test_what_a_user_chose_since_counts_at_once_and_is_saved(shop, tmp_path):
    if as_sum(shop.model.scorer) is None:
        pytest.skip("what follows is made for the recipe beamtree")
    since = pl.DataFrame(
        {"user": ["u001"] * 2 + ["nobody"] * 2, "item": ["i40", "i41", "i42", "fresh"], "time": range(4)}
    )
    shop.update(since)
    assert "fresh" in best(shop, ["i41", "i42"], m=20)
    known = shop._live_model().history("u001")
    assert known.items[-2:] == shop.ids.find(["i40", "i41"])
    one = shop.recommend(users=["u001", "nobody"], m=5)
    assert one["user"].to_list() == ["u001"] * 5 + ["nobody"] * 5
    shop.save(tmp_path / "run")
    assert bt.Recommender.load(tmp_path / "run").recommend(users=["u001", "nobody"], m=5).equals(one)


def test_an_update_learns_what_now_follows(shop_folder):
    """From now on everybody goes from i03 to i50, as nobody did before."""
    shop = bt.Recommender.load(shop_folder / "run")
    before = best(shop, ["i02", "i03"], m=60).index("i50")
    users = [f"v{place}" for place in range(60)]
    rows = [
        (user, item, time) for user in users for time, item in enumerate(["i02", "i03", "i50", "i02", "i03", "i50"])
    ]
    shop.update(pl.DataFrame(rows, schema=["user", "item", "time"], orient="row"))
    after = best(shop, ["i02", "i03"], m=60).index("i50")
    assert after <= 10 < before


def test_an_update_brings_no_part_back_that_had_no_weight(tmp_path):
    """Saved models do not have them."""
    shop = bt.Recommender(steps=0).fit(cyclic_log(), test_users=10, verbose=False)
    shop.save(tmp_path / "run")
    shop = bt.Recommender.load(tmp_path / "run")
    names = shop.model.scorer.names
    assert not {"factors", "repeats", "memory"} <= set(names)
    shop.update(pl.DataFrame({"user": ["u001"], "item": ["i40"], "time": [50]}))
    assert shop.model.scorer.names == names


def test_a_slot_rests_where_searches_run_beside_changes(shop):
    live = LiveModel(shop.model, slot_cooldown=3600.0)
    leaf = int(live.model.tree.leaf_of_item(torch.tensor(live.ids.find(["i05"])))[0])
    live.forget_items(["i05"])
    live.update_items({"new": NewItem(like=("i06",))})
    places = live.model.tree.leaf_of_item(torch.tensor(live.ids.find(["new"])))
    assert int(places[0]) != leaf
    live.update_items({"other": NewItem(like=("i06",))})
    assert len(live.model.tree.items()) == 64


# The journal


def test_changes_are_replayed_to_the_same_answers(shop, tmp_path):
    first, journal = copy.deepcopy(shop.model), Journal(tmp_path)
    live = LiveModel(shop.model, journal=journal)
    live.update_items({"new": NewItem(like=("i05",), title="New")})
    live.update_items({"next": NewItem(like=("new", "i07"))})
    live.remove_items(["i09"])
    live.update_items({"i09": NewItem(like=("i01",))})
    live.forget_items(["i11"])
    live.update_items({"i11": NewItem(like=("i01",))})
    live.remove_items(["i10"])
    record(live, "u001", ["i30", "new", "unknown"])
    record(live, "u001", ["i31"], 77)
    live.record_events([("u001", ["i32"], None), ("u002", ["i33"], None)], "request 1")
    live.record_run("other")
    journal.close()
    journal = Journal(tmp_path)
    again = LiveModel(first, journal=journal)
    journal.close()
    x = torch.tensor([[3, 4, 5]])
    for one, other in zip(*(bt.retrieve(each.model, x, beam_size=70, m=40) for each in (live, again)), strict=True):
        assert torch.equal(one, other)
    assert again.history("u001").items == live.history("u001").items
    assert again.catalogue.titles[again.ids.find(["new"])[0]] == "New"
    assert again.version == live.version
    assert journal.entries[-1] == {"kind": "run", "run": "other"}


def test_a_journal_of_the_old_form_is_replayed_and_unknown_ids_are_left_out(shop, tmp_path, caplog):
    journal = Journal(tmp_path)
    for entry in (
        {"kind": "add", "item": "new", "like": ["i05", "of another run"], "title": "New"},
        {"kind": "add", "item": "odd", "like": ["of another run"], "vector": [1.0]},
        {"kind": "remove", "item": "i06"},
        {"kind": "remove", "item": "i07"},
        {"kind": "add", "item": "i07"},
        {"kind": "events", "user": "u", "items": ["i01", "new"]},
    ):
        journal.append(entry)
    live = LiveModel(shop.model, journal=journal)
    journal.close()
    assert [live.is_visible(name) for name in ("new", "odd", "i06", "i07")] == [True, True, False, True]
    assert [live.ids[number] for number in live.history("u").items] == ["i01", "new"]
    assert "not known" in caplog.text


def test_a_line_of_several_entries_is_read_whole_or_not_at_all(tmp_path):
    journal = Journal(tmp_path)
    journal.append({"kind": "remove", "item": "0"})
    journal.append({"kind": "remove", "item": "1"}, {"kind": "remove", "item": "2"})
    journal.close()
    whole = (tmp_path / CHANGES).read_bytes()
    assert [entry["item"] for entry in read_entries(tmp_path / CHANGES)[0]] == ["0", "1", "2"]
    first = len(encode_line({"kind": "remove", "item": "0"}))
    for cut in range(first, len(whole)):
        (tmp_path / CHANGES).write_bytes(whole[:cut])
        assert read_entries(tmp_path / CHANGES)[0] == [{"kind": "remove", "item": "0"}]


def test_an_item_that_a_later_run_has_learned_stands_where_that_run_puts_it(shop, tmp_path):
    """Added, changed, removed or forgotten on an older run: the run's own knowledge wins, and titles stay."""
    before = shop.recommend(["i03", "i04"], m=50, beam_size=70)
    journal = Journal(tmp_path)
    for entry in (
        {"kind": "add", "item": "i05", "like": ["i40"], "title": "A lamp"},
        {"kind": "add", "item": "i05", "like": ["i50"]},
        {"kind": "forget", "item": "i07", "model": "older"},
        {"kind": "add", "item": "i07", "like": ["i50"]},
    ):
        journal.append(entry)
    live = LiveModel(shop.model, journal=journal, digest="newer")
    shop._live = live
    assert shop.recommend(["i03", "i04"], m=50, beam_size=70).equals(before)
    assert live.catalogue.titles[live.ids.find(["i05"])[0]] == "A lamp"
    live.forget_items(["i07"])
    live.update_items({"i07": {"like": ["i50"]}})
    journal.close()
    changed = best(shop, ["i03", "i04"], m=50)
    assert changed != before["item"].to_list()
    journal = Journal(tmp_path)
    shop._live = None
    shop._live = LiveModel(shop.model, journal=journal, digest="newer")
    journal.close()
    assert best(shop, ["i03", "i04"], m=50) == changed


# Events that a run knows


def test_a_request_counts_once_across_restarts_and_after_the_journal_was_shortened(shop, tmp_path):
    journal = Journal(tmp_path)
    live = LiveModel(shop.model, journal=journal, digest="a")
    assert record(live, "ann", ["i01", "i02"], request="r1") == 2
    assert record(live, "ann", ["i01", "i02"], request="r1") == 0
    assert record(live, "ann", ["i01"], 5) == 1
    assert record(live, "ann", ["i01", "i01"], 5) == 0
    assert record(live, "ann", ["i02", "i02"], 5) == 1
    for entries in (list(journal.entries), compact(journal.entries)):
        journal.entries = entries
        for digest in ("a", "b"):
            again = LiveModel(shop.model, journal=journal, digest=digest)
            assert record(again, "ann", ["i01", "i02"], request="r1") == 0
            assert record(again, "ann", ["i01"], 5) == 0
            assert [each.item for each in again.events["ann"]] == ["i01", "i02", "i01", "i02"]
    journal.close()


def known_to(data, user, *events):
    return TrainingLog(data).contains(user, [Event(*each) for each in events])


def test_a_run_knows_events_with_a_time_that_its_log_holds(shop_folder):
    data = bt.load_data(shop_folder / "data")
    rows = cyclic_log().filter(pl.col("user") == "u001").rows()
    (_, item, time), (_, last, _) = rows[3], rows[-1]
    assert known_to(data, "u001", (item, time), (item, time + 20), ("i59", time)) == [True, False, False]
    assert known_to(data, "nobody", (item, time)) == [False]
    # Without a time, or with one that means nothing to this log: those that are the tail of the user's history.
    tail, received = [row[1] for row in rows[-2:]], 1_700_000_000_000_000
    assert known_to(data, "u001", *((name, None, received) for name in [*tail, "i59"])) == [True, True, False]
    assert known_to(data, "u001", (last, received), ("i59", None)) == [True, False]
    assert known_to(data, "u001", ("i59", None), (last, None)) == [False, False]


def test_a_run_knows_events_without_a_time_that_were_received_before_its_log_ended(tmp_path):
    start = 1_700_000_000
    bt.prepare(cyclic_log().with_columns(pl.col("time") + start), tmp_path / "data")
    data = bt.load_data(tmp_path / "data")
    before, after = (start + 5) * 10**6, (start + 500) * 10**6
    assert known_to(data, "u001", ("i59", None, before), ("i58", None, after)) == [True, False]
    assert known_to(data, "few", ("i59", None, before)) == [False]  # a user whom the log left out


@pytest.mark.parametrize("user", ["u001", "u002"])
def test_a_row_dated_in_the_future_says_nothing_about_what_a_log_has(tmp_path, user):
    start, future = 1_700_000_000, 4_070_908_800  # 2099
    log = cyclic_log().with_columns(pl.col("time") + start)
    row = pl.DataFrame({"user": [user], "item": ["i03"], "time": [future]}, schema=log.schema)
    bt.prepare(pl.concat([log, row]), tmp_path / "data")
    data = bt.load_data(tmp_path / "data")
    before, after = (start + 5) * 10**6, (start + 500) * 10**6
    assert known_to(data, "u001", ("i59", None, before), ("i58", None, after)) == [True, False]


@pytest.mark.parametrize(
    ("text", "micros"),
    [(1_700_000_000, 1_700_000_000_000_000), (1_700_000_000.5, 1_700_000_000_500_000), ("1700000000000", None),
     ("2023-11-14T22:13:20Z", None), ("2023-11-14 22:13:20", None), ("2023-11-14 23:13:20+01:00", None)],
)  # fmt: skip
def test_times_in_any_unit_are_the_same_moment(text, micros):
    assert as_time(text) == (micros or 1_700_000_000_000_000)
    assert as_time(7) == 7
    for bad in ("soon", "", None, float("nan"), True, 1e300):
        with pytest.raises(ValueError, match="is not a time"):
            as_time(bad)


def test_events_of_before_a_time_are_retired_for_good(shop, tmp_path):
    journal = Journal(tmp_path)
    live = LiveModel(shop.model, journal=journal)
    record(live, "ann", ["i01"], 5)
    record(live, "ann", ["i02"], 9)
    record(live, "ben", ["i03"])
    assert live.retire_events(8) == 1
    assert live.retire_events(8) == 0
    assert record(live, "ann", ["i01"], 5) == 0
    for entries in (list(journal.entries), compact(journal.entries)):
        journal.entries = entries
        again = LiveModel(shop.model, journal=journal)
        assert [each.item for each in again.events["ann"]] == ["i02"]
        assert [each.item for each in again.events["ben"]] == ["i03"]
        assert again.version == live.version
    assert "i01" not in str(compact(journal.entries))
    journal.close()


def test_a_line_cut_short_is_dropped_and_a_damaged_one_before_others_is_refused(tmp_path):
    journal = Journal(tmp_path)
    for number in range(3):
        journal.append({"kind": "remove", "item": str(number)})
    journal.close()
    whole = (tmp_path / CHANGES).read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(len(lines[0] + lines[1]), len(whole)):
        (tmp_path / CHANGES).write_bytes(whole[:cut])
        again = Journal(tmp_path)
        assert [entry["item"] for entry in again.entries] == ["0", "1"]
        again.append({"kind": "remove", "item": "x"})
        again.close()
        assert (tmp_path / CHANGES).read_bytes() == lines[0] + lines[1] + encode_line({"kind": "remove", "item": "x"})
    (tmp_path / CHANGES).write_bytes(lines[0] + lines[1].replace(b"1", b"2") + lines[2])
    with pytest.raises(ValueError, match="is damaged at byte"):
        Journal(tmp_path)


def test_one_process_writes_a_journal(tmp_path):
    from multiprocessing import get_context

    journal = Journal(tmp_path)
    with get_context("spawn").Pool(1) as pool, pytest.raises(ValueError, match="another process"):
        pool.apply(Journal, (tmp_path,))
    journal.close()
