"""The engine: what is asked together, how load narrows the beam and is shed, deadlines, and swaps between batches."""

import json
import math
import shutil
import threading
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving import ITEMS, Gate, Heard, Steady, a_model, a_run, an_engine, ask, loaded

import beamtree as bt
from beamtree.answers import answer, read_history
from beamtree.serve.engine.engine import BusyError, LateError, StoppedError
from beamtree.serve.engine.filters import Filter, Masks, allowed_items
from beamtree.serve.engine.model_slot import Keeper, Watch
from beamtree.serve.engine.pressure import STEPS, Pressure, narrowed
from beamtree.serve.engine.search import Ask, View, search
from beamtree.serve.engine.source import Loaded, open_fixed, tuned_for
from beamtree.storage.tuned import write_tuned


@pytest.fixture(scope="module")
def shop():
    return loaded()


@pytest.fixture
def engine(shop):
    made = an_engine(shop)
    yield made
    made.stop()


def alone(shop, history, **asked):
    """The library's answer to one history."""
    model = shop.source.model
    return answer(model, model.ids, [read_history(model.ids, history)], **asked)[0]


def test_a_request_gets_what_the_library_finds(engine, shop):
    reply = ask(engine, ["i3", "nobody", "i5"], ["i9"], m=7).wait()
    for found, history in zip(reply.answers, (["i3", "nobody", "i5"], ["i9"]), strict=True):
        expected = alone(shop, history, beam_size=20, m=7)
        assert found.items == expected.items
        assert found.scores == pytest.approx(expected.scores, rel=1e-5)
    assert reply.answers[0].unknown == ["nobody"]
    assert (reply.version, reply.short, reply.narrowed_from) == ("abc", 0, None)


def test_requests_that_wait_together_are_searched_together_and_each_gets_its_own(engine, shop):
    gate = Gate(engine)
    many = [(["i1", f"i{n}"], 1 + n % 9, n % 2 == 0) for n in range(12)]
    heard = [ask(engine, history, m=m, exclude_seen=seen) for history, m, seen in many]
    gate.open()
    for (history, m, seen), each in zip(many, heard, strict=True):
        reply = each.wait()
        expected = alone(shop, history, beam_size=20, m=m, exclude_seen=seen)
        assert reply.answers[0].items == expected.items
        assert reply.together == 6  # those that leave out seen items, and those that do not


def test_no_more_are_searched_together_than_is_quick(engine):
    gate = Gate(engine)
    engine._cost = engine.pressure.slow / 10  # a tenth of what is slow for each history
    heard = [ask(engine, ["i1"], seconds=1e6) for _ in range(30)]
    gate.open()
    assert heard[0].wait().together == 10
    assert all(each.wait().together <= 30 for each in heard)


def test_what_was_asked_together_may_differ_in_its_filter(engine):
    gate = Gate(engine)
    some = ask(engine, ["i1"], m=3, only=Filter(allowed=("i7", "i8", "unknown")))
    books = ask(engine, ["i1"], m=30, only=Filter(category="Books", exclude=("i1",)))
    none = ask(engine, ["i1"], m=3, only=Filter(allowed=("unknown",)))
    gate.open()
    assert set(some.wait().answers[0].items) == {"i7", "i8"}
    assert set(books.wait().answers[0].items) == {f"i{n}" for n in range(3, ITEMS, 2)}
    assert none.wait().answers[0].items == []
    assert [each.wait().left for each in (some, books, none)] == [2, 29, 0]
    assert [each.wait().short for each in (some, books, none)] == [0, 0, 0]


def test_a_search_that_fails_spoils_no_other(engine):
    gate = Gate(engine)
    good, bad = ask(engine, ["i1"], m=3), ask(engine, [object()], m=3)
    wrong = ask(engine, ["i1"], m=30, beam=20)
    work = Heard()
    engine.ask(Ask(work, math.inf, work=lambda view: 1 / 0))
    gate.open()
    assert len(good.wait().answers[0].items) == len(bad.wait().answers[0].items) == 3
    assert isinstance(wrong.wait(), ValueError)
    assert isinstance(work.wait(), ZeroDivisionError)
    assert len(ask(engine, ["i1"], m=3).wait().answers[0].items) == 3


def test_a_full_queue_takes_no_more_and_loses_nothing(shop):
    engine = an_engine(shop, queue=5)
    gate = Gate(engine)
    heard = [ask(engine, ["i1"], m=3) for _ in range(5)]
    with pytest.raises(BusyError):
        ask(engine, ["i1"], m=3)
    assert engine.waiting == 5
    gate.open()
    assert all(len(each.wait().answers[0].items) == 3 for each in heard)
    assert engine.waiting == 0
    engine.stop()


def test_what_passed_its_deadline_or_was_dropped_is_not_searched(engine):
    gate = Gate(engine)
    late, kept = ask(engine, ["i1"], seconds=0.002), ask(engine, ["i1"])
    heard = Heard()
    dropped = Ask(heard, math.inf, [["i1"]])
    engine.ask(dropped)
    dropped.dropped = True
    time.sleep(0.005)
    gate.open()
    assert isinstance(late.wait(), LateError)
    assert isinstance(heard.wait(), LateError)
    assert kept.wait().together == 1


def test_a_queue_that_would_be_answered_too_late_takes_no_more(engine):
    gate = Gate(engine)
    engine._cost = 1.0  # a history takes a second
    ask(engine, ["i1"], ["i2"])
    with pytest.raises(BusyError, match="too late"):
        ask(engine, ["i1"], seconds=1.0)
    ask(engine, ["i1"], seconds=10.0)
    gate.open()


def test_a_narrowed_beam_is_told_and_never_below_m(shop):
    engine = an_engine(shop, beam_size=40)
    engine.pressure = Steady(1)
    narrow, wide = ask(engine, ["i1"], m=3).wait(), ask(engine, ["i1"], m=30).wait()
    assert (narrow.beam, narrow.narrowed_from) == (20, 40)
    assert (wide.beam, wide.narrowed_from) == (30, 40)
    assert len(wide.answers[0].items) == 30
    assert engine.beam_now == 20
    engine.stop()


def test_the_longest_wait_of_a_batch_is_what_narrows_the_beam(shop):
    engine = an_engine(shop)
    gate, engine.pressure = Gate(engine), Steady(0)
    heard = [ask(engine, ["i1"]), ask(engine, ["i2"])]
    time.sleep(0.06)
    gate.open()
    assert max(each.wait().waited for each in heard) >= engine.pressure.told[0] >= 0.06
    engine.stop()


def test_without_requests_the_beam_is_soon_as_wide_as_before(shop):
    engine = an_engine(shop)
    ask(engine, ["i1"]).wait()
    engine.pressure.step = 1
    time.sleep(0.5)
    assert engine.step == 0
    assert ask(engine, ["i1"]).wait().narrowed_from is None
    engine.stop()


def test_after_a_stop_what_waits_is_answered_and_nothing_more_is_taken(shop):
    engine = an_engine(shop)
    gate = Gate(engine)
    heard = [ask(engine, ["i1"], m=3) for _ in range(3)]
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    gate.open()
    stopping.join(60)
    assert [len(each.wait().answers[0].items) for each in heard] == [3, 3, 3]
    with pytest.raises(StoppedError):
        ask(engine, ["i1"])


@given(
    st.integers(1, 500) | st.lists(st.integers(1, 500), min_size=4, max_size=4).map(tuple),
    st.none() | st.integers(1, 500) | st.lists(st.integers(1, 500), min_size=4, max_size=4).map(tuple),
    st.integers(0, STEPS),
    st.integers(1, 50),
)
def test_a_narrowed_beam_is_never_wider_and_never_below_m(beam, tuned, step, m):
    def widths(found):
        return (found,) * 4 if isinstance(found, int) else found

    asked = tuple(max(m, width) for width in widths(beam)) if isinstance(beam, tuple) else max(m, beam)
    found = narrowed(asked, step, m, tuned)
    assert all(m <= width <= most for width, most in zip(widths(found), widths(asked), strict=True))
    if step:
        further = narrowed(asked, step - 1, m, tuned)
        assert all(a <= b for a, b in zip(widths(found), widths(further), strict=True))
    else:
        assert found == asked


def test_the_beam_is_as_wide_as_before_two_seconds_after_the_load():
    """Batches every 10 ms: two seconds of long waits, then short ones without time to spare."""
    pressure, now = Pressure(0.04), 100.0
    for _ in range(200):
        now += 0.01
        pressure.feel(now, 0.5, 0.0)
    assert pressure.step == STEPS
    end = now + 2.0
    while pressure.step:
        now += 0.01
        pressure.feel(now, 0.01, 0.0)
    assert now < end


def test_waits_that_are_neither_long_nor_short_change_nothing():
    pressure, now = Pressure(0.04), 100.0
    pressure.feel(now, 0.05, 0.0)
    for _ in range(500):
        now += 0.01
        assert pressure.feel(now, 0.03, 0.0) == 1


names = [f"i{n}" for n in range(ITEMS)]
some_names = st.lists(st.sampled_from([*names, "unknown"]), max_size=70).map(tuple)


@given(
    st.none() | some_names, some_names, st.sampled_from([None, "Books", "films/OLD", "nothing"]),
    st.lists(st.sampled_from(names), max_size=5), st.booleans(), st.integers(1, 70),
)  # fmt: skip
def test_m_items_come_back_wherever_m_are_allowed(allowed, exclude, category, history, exclude_seen, m):
    shop = loaded(MODEL)
    view = View(shop, "1", MODEL, shop.source.catalogue, Masks())
    asked = Ask(print, math.inf, [history], m=m, exclude_seen=exclude_seen, only=Filter(allowed, exclude, category))
    (reply,) = search(view, m, [asked])  # the narrowest beam there is
    left = set(names if allowed is None else allowed) & set(names) - set(exclude)
    if category is not None:
        paths = {name: shop.source.catalogue.category(int(name[1:])).lower() + "/" for name in left}
        left = {name for name in left if paths[name].startswith(category.lower() + "/")}
    assert reply.left == len(left)
    if exclude_seen:
        left -= set(history)
    found = reply.answers[0].items
    assert len(found) == len(set(found)) == min(m, len(left))
    assert set(found) <= left
    assert reply.short == 0


MODEL = a_model()


def test_a_wide_beam_under_a_filter_finds_what_brute_force_finds():
    catalogue, generator = loaded(MODEL).source.catalogue, torch.Generator().manual_seed(0)
    for size in (1, 2, 7, 30, ITEMS):
        chosen = tuple(f"i{n}" for n in torch.randperm(ITEMS, generator=generator)[:size].tolist())
        view = View(loaded(MODEL), "1", MODEL, catalogue, Masks())
        (reply,) = search(view, ITEMS, [Ask(print, math.inf, [["i4", "i2"]], m=10, only=Filter(chosen))])
        x = torch.full((1, 69), bt.PAD)
        x[0, :2] = torch.tensor([2, 4])
        best, _ = bt.brute_force(MODEL, x, m=10, allowed=allowed_items(Filter(chosen), catalogue))
        assert reply.answers[0].items == [f"i{n}" for n in best[0].tolist() if n != bt.PAD]


def test_a_repeated_filter_makes_no_second_mask_and_a_new_model_makes_one():
    masks, shop = Masks(), loaded()
    first = masks.of(Filter(("i1",)), shop.source.model, shop.source.catalogue)
    assert masks.of(Filter(("i1",)), shop.source.model, shop.source.catalogue)[0] is first[0]
    other = a_model(seed=1)
    assert masks.of(Filter(("i1",)), other, shop.source.catalogue)[0] is not first[0]


# Swaps


def test_a_new_run_is_swapped_in_without_a_failed_request(tmp_path):
    open_run = open_fixed("shop", "cpu")
    runs = [a_run(tmp_path / str(seed), ITEMS + 10 * seed, seed) for seed in range(3)]
    engine = an_engine(open_run(runs[0]))
    keeper = Keeper(engine, open_run)
    outcomes, ended = [], threading.Event()

    def keep_asking():
        while not ended.is_set():
            outcomes.append(ask(engine, ["i1", "i2"], m=5).wait())

    thread = threading.Thread(target=keep_asking)
    thread.start()
    digests = {engine.loaded.digest}
    for turn in range(6):
        digests.add(keeper.load(runs[turn % 3]).result().digest)
        time.sleep(0.02)
    ended.set()
    thread.join()
    assert all(len(each.answers[0].items) == 5 for each in outcomes)
    assert {each.version for each in outcomes} == digests
    assert len(digests) == 3
    engine.stop()
    keeper.close()


def test_a_run_that_cannot_be_served_changes_nothing(tmp_path):
    open_run = open_fixed("shop", "cpu")
    good, bad = a_run(tmp_path / "good"), a_run(tmp_path / "bad", seed=1)
    weights = json.loads((bad / "settings.json").read_text())["files"]["weights"]["file"]
    (bad / weights).write_bytes(b"nothing")
    engine, told = an_engine(open_run(good)), []
    keeper = Keeper(engine, open_run, told.append)
    for run in (bad, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="stays as it was"):
            keeper.load(run).result()
    assert [each.error is None for each in told] == [False, False]
    assert keeper.last.run == "nowhere"
    assert ask(engine, ["i1"]).wait().version == open_run(good).digest
    engine.stop()
    keeper.close()


def test_another_run_in_the_same_place_is_found_and_a_broken_one_is_not_served(tmp_path):
    place = tmp_path / "current"
    place.symlink_to(a_run(tmp_path / "one"))
    open_run = open_fixed("shop", "cpu")
    engine, told = an_engine(open_run(place)), []
    heard = threading.Condition()

    def hear(reload):
        with heard:
            told.append(reload)
            heard.notify()

    keeper = Keeper(engine, open_run, hear)
    watch = Watch(place, engine, keeper, 0.01)

    def point(folder):
        with heard:
            (tmp_path / "next").symlink_to(folder)
            (tmp_path / "next").replace(place)
            count = len(told)
            assert heard.wait_for(lambda: len(told) > count, 60)
        return told[-1]

    assert point(a_run(tmp_path / "two", seed=2)).error is None
    second = engine.loaded.digest
    broken = a_run(tmp_path / "broken", seed=3)
    for path in broken.glob("*.safetensors"):
        path.unlink()
    assert point(broken).error is not None
    assert engine.loaded.digest == second
    assert point(tmp_path / "one").error is None
    assert engine.loaded.digest != second
    watch.close()
    engine.stop()
    keeper.close()


def test_the_beam_that_was_tuned_for_this_model_is_found_and_no_other(tmp_path):
    run, other = a_run(tmp_path / "run"), a_run(tmp_path / "other", seed=1)
    assert tuned_for(run, MODEL) is None
    write_tuned(run, {"beam_size": [9, 8, 7, 6, 5]})
    assert tuned_for(run, MODEL) == (9, 8, 7, 6, 5)
    assert open_fixed("shop", "cpu")(run).tuned == (9, 8, 7, 6, 5)
    shutil.copy(run / "tune.json", other)
    assert tuned_for(other, MODEL) is None
    (run / "tune.json").write_text("[")
    assert tuned_for(run, MODEL) is None


def test_a_tuned_beam_is_not_used_where_a_level_was_added():
    shop = loaded(tuned=12)
    levels = MODEL.tree.height + 1 - MODEL.first_level
    for tuned, found in ((12, 12), ((9,) * levels, (9,) * levels), ((9,) * (levels - 1), None), (None, None)):
        assert Loaded(shop.source, "shop", "abc", tuned=tuned).narrow == found


def test_a_tuned_beam_is_what_load_narrows_to_first():
    engine = an_engine(loaded(tuned=12), beam_size=40)
    engine.pressure = Steady(1)
    assert ask(engine, ["i1"], m=3).wait().beam == 12
    engine.stop()
